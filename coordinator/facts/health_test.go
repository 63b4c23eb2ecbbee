package facts

import (
	"fmt"
	"strings"
	"testing"
	"time"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/jobspec"
)

// ward is one node with a job of many tasks, whose clock a test moves.
type ward struct {
	t    *testing.T
	f    *Facts
	at   time.Duration
	n    uint64
	task int32
}

func newWard(t *testing.T) *ward {
	w := &ward{t: t, f: New(), at: time.Hour}
	w.apply(&droverv1.Entry{Body: &droverv1.Entry_Node{Node: &droverv1.NodeFact{Info: &droverv1.NodeInfo{Name: "n1",
		Allocatable: &droverv1.Resources{Cpu: 64000, Memory: 64 << 30, Io: 1 << 30}, Disks: []*droverv1.Disk{{Name: "d", Io: 1 << 30, Space: 1 << 40}}}}}})
	j := &jobspec.Job{Name: "j", Tenant: DefaultTenant, Stages: []jobspec.Stage{{Name: "g", Kind: jobspec.KindGroup, Tasks: 60, Command: []string{"x"},
		Resources: jobspec.Resources{CPU: 100, Memory: 1 << 20}}}}
	jobspec.SetDefaults(j)
	b, err := jobspec.Encode(j)
	if err != nil {
		t.Fatal(err)
	}
	if r := w.apply(&droverv1.Entry{Body: &droverv1.Entry_JobAccepted{JobAccepted: &droverv1.JobAcceptedFact{Spec: string(b)}}}); r.Err != nil {
		t.Fatal(r.Err)
	}
	return w
}

func (w *ward) apply(e *droverv1.Entry) Result {
	w.n++
	e.Version, e.At, e.Actor = EntryVersion, int64(w.at), "test"
	return w.f.Apply(w.n, e)
}

// place starts a task and gives its key, or why not.
func (w *ward) place() (Key, string) {
	k := Key{1, 0, w.task, 1}
	r := w.apply(&droverv1.Entry{Body: &droverv1.Entry_Decision{Decision: &droverv1.DecisionFact{Base: w.f.Index(),
		Actions: []*droverv1.ActionFact{{Kind: int32(ActPlace), Key: k.Proto(1), Node: 1}}}}})
	if len(r.Dropped) > 0 {
		return k, r.Dropped[0].Reason
	}
	w.task++
	return k, ""
}

func (w *ward) end(k Key, phase droverv1.Phase, cause droverv1.Cause) {
	w.apply(&droverv1.Entry{Body: &droverv1.Entry_Attempts{Attempts: &droverv1.AttemptsFact{Node: 1, Epoch: w.f.Node(1).Epoch,
		Seen: []*droverv1.SeenAttempt{{Key: k.Proto(1), Phase: phase, Cause: cause, Message: "no shim"}}}}})
}

// step does what a word says: "place", "infra", "pass" and "exit" place a task
// and end it so; "late" ends one that "place" began, by the infrastructure's
// fault; "+N" moves the clock by N minutes; "try" is the leader's proposal.
func (w *ward) step(word string, open *[]Key) string {
	switch {
	case strings.HasPrefix(word, "+"):
		var m int
		if _, err := fmt.Sscanf(word, "+%d", &m); err != nil {
			w.t.Fatal(err)
		}
		w.at += time.Duration(m) * time.Minute
	case word == "try", word == "problem", word == "drain", word == "undrain":
		d := &droverv1.NodeDrainFact{Node: 1, Draining: word == "problem" || word == "drain", ByItself: word == "try" || word == "problem", Why: word}
		if r := w.apply(&droverv1.Entry{Body: &droverv1.Entry_NodeDrain{NodeDrain: d}}); len(r.Dropped) > 0 {
			return r.Dropped[0].Reason
		}
	case word == "lost":
		w.apply(&droverv1.Entry{Body: &droverv1.Entry_NodeLost{NodeLost: &droverv1.NodeLostFact{Node: 1, Epoch: w.f.Node(1).Epoch, Why: "silent"}}})
	case word == "back":
		w.apply(&droverv1.Entry{Body: &droverv1.Entry_Node{Node: &droverv1.NodeFact{Info: w.f.Node(1).Info}}})
	case word == "late":
		w.end((*open)[0], droverv1.Phase_PHASE_FAILED, droverv1.Cause_CAUSE_INFRA)
		*open = (*open)[1:]
	default:
		k, why := w.place()
		switch {
		case why != "":
			return why
		case word == "place":
			*open = append(*open, k)
		case word == "infra":
			w.end(k, droverv1.Phase_PHASE_FAILED, droverv1.Cause_CAUSE_INFRA)
		case word == "exit":
			w.end(k, droverv1.Phase_PHASE_FAILED, droverv1.Cause_CAUSE_EXIT)
		case word == "pass":
			w.end(k, droverv1.Phase_PHASE_SUCCEEDED, 0)
		default:
			w.t.Fatalf("unknown step %q", word)
		}
	}
	return ""
}

func (w *ward) state() string {
	n := w.f.Node(1)
	switch {
	case !n.Up:
		return "down"
	case n.Back > 0:
		return fmt.Sprintf("held off for %s", span(time.Duration(n.Back)-w.at))
	case n.Draining:
		return "drained"
	case n.Trial:
		return "trial"
	default:
		return "works"
	}
}

func TestANodeThatFailsIsHeldOffAndTriedAgain(t *testing.T) {
	const thrice = "infra infra infra "
	tests := map[string]struct {
		steps, state string
		refused      string // why the last step did not hold
	}{
		"two failures are bad luck":                                {"infra infra", "works", ""},
		"three in ten minutes hold it off":                         {thrice, "held off for 1 min", ""},
		"three in more than that do not":                           {"infra +6 infra +6 infra", "works", ""},
		"while it is held off nothing is placed there":             {thrice + "place", "held off for 1 min", "the node takes no new work"},
		"it is not tried before its time":                          {thrice + "try", "held off for 1 min", "the node is not to be tried now"},
		"then it is on trial":                                      {thrice + "+1 try", "trial", ""},
		"on trial it takes one task at a time":                     {thrice + "+1 try place place", "trial", "the node is on trial and takes one task at a time"},
		"one that passes ends the trial":                           {thrice + "+1 try pass", "works", ""},
		"so does a command that ran and failed":                    {thrice + "+1 try exit", "works", ""},
		"one failure on trial holds it off for longer":             {thrice + "+1 try infra", "held off for 2 min", ""},
		"each time in a row twice as long":                         {thrice + "+1 try infra +2 try infra", "held off for 4 min", ""},
		"but never longer than half an hour":                       {thrice + strings.Repeat("+30 try infra ", 9), "held off for 30 min", ""},
		"soon after a trial that passed it is still in a row":      {thrice + "+1 try pass " + thrice, "held off for 2 min", ""},
		"ten good minutes are a new start":                         {thrice + "+1 try pass +11 " + thrice, "held off for 1 min", ""},
		"a task placed before the trial does not end it":           {"place " + thrice + "+1 try late", "trial", ""},
		"a problem holds it off likewise":                          {"problem", "held off for 1 min", ""},
		"a second problem changes nothing":                         {"problem +1 problem", "held off for 0s", "the node takes no new work already"},
		"an operator's drain is not ended by the coordinator":      {"drain +60 try", "drained", "the node is not to be tried now"},
		"an operator may drain what is held off, for good":         {thrice + "drain +60 try", "drained", "the node is not to be tried now"},
		"an operator may end it at once":                           {thrice + "undrain", "works", ""},
		"after which its failures are counted from nothing":        {thrice + "undrain infra infra", "works", ""},
		"an operator may end a trial":                              {thrice + "+1 try undrain", "works", ""},
		"a machine that was started again is tried":                {thrice + "lost back", "trial", ""},
		"one that an operator drained is not":                      {"drain lost back", "drained", ""},
		"a problem of a node that an operator drained is no news":  {"drain problem", "drained", "the node takes no new work already"},
		"what was placed before the try and fails late is no news": {"place place place " + thrice + "+1 try late late late", "trial", ""},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWard(t)
			refused := ""
			var open []Key
			for _, word := range strings.Fields(tc.steps) {
				refused = w.step(word, &open)
				if err := count(w.f); err != nil {
					t.Fatalf("after %q: %v", word, err)
				}
			}
			if got := w.state(); got != tc.state || refused != tc.refused {
				t.Errorf("after %q it is %q, the last step refused: %q; want %q, %q", tc.steps, got, refused, tc.state, tc.refused)
			}
		})
	}
}

func TestEachChangeOfANodesHealthIsAnEvent(t *testing.T) {
	w := newWard(t)
	var open []Key
	for _, word := range strings.Fields("infra infra infra +1 try infra +2 try pass") {
		w.step(word, &open)
	}
	var got []string
	for _, e := range w.f.EventsSince(0, MaxEvents) {
		if strings.HasPrefix(e.Kind, "node.") && e.Kind != "node.registered" {
			got = append(got, e.Kind+" "+e.Node+": "+e.Text)
		}
	}
	want := []string{
		"node.hold n1: no new work for 1 min: 3 failures of the infrastructure in 10 min, the last: no shim",
		"node.trial n1: one task at a time until one passes",
		"node.hold n1: no new work for 2 min: it failed again when it was tried: no shim",
		"node.trial n1: one task at a time until one passes",
		"node.works n1: a task ran on it: it takes work as before",
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}
