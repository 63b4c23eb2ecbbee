package facts

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/jobspec"
)

// nodeFixture is a node with a job of many tasks, and a clock under the test's
// control.
type nodeFixture struct {
	t     *testing.T
	f     *Facts
	clock time.Duration
	index uint64
	task  int32
}

func newNodeFixture(t *testing.T) *nodeFixture {
	w := &nodeFixture{t: t, f: New(), clock: time.Hour}
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

func (w *nodeFixture) apply(e *droverv1.Entry) Result {
	w.index++
	e.Version, e.At, e.Actor = EntryVersion, int64(w.clock), "test"
	return w.f.Apply(w.index, e)
}

// place starts a task and returns its key, or why it was dropped.
func (w *nodeFixture) place() (Key, string) {
	k := Key{1, 0, w.task, 1}
	r := w.apply(&droverv1.Entry{Body: &droverv1.Entry_Decision{Decision: &droverv1.DecisionFact{Base: w.f.Index(),
		Actions: []*droverv1.ActionFact{{Kind: int32(ActPlace), Key: k.Proto(1), Node: 1}}}}})
	if len(r.Dropped) > 0 {
		return k, r.Dropped[0].Reason
	}
	w.task++
	return k, ""
}

func (w *nodeFixture) endAttempt(k Key, phase droverv1.Phase, cause droverv1.Cause) {
	w.apply(&droverv1.Entry{Body: &droverv1.Entry_Attempts{Attempts: &droverv1.AttemptsFact{Node: 1, Epoch: w.f.Node(1).Epoch,
		Seen: []*droverv1.SeenAttempt{{Key: k.Proto(1), Phase: phase, Cause: cause, Message: "no shim"}}}}})
}

// step executes one word: "place", "infra", "reboot", "pass" and "exit" place a task, and
// the last four end it in that way; "late" ends one started by "place", by the
// infrastructure's fault; "+N" advances the clock by N minutes; "try" is the
// leader's proposal of a probation.
func (w *nodeFixture) step(word string, open *[]Key) string {
	switch {
	case strings.HasPrefix(word, "+"):
		var m int
		if _, err := fmt.Sscanf(word, "+%d", &m); err != nil {
			w.t.Fatal(err)
		}
		w.clock += time.Duration(m) * time.Minute
	case word == "try", word == "problem", word == "drain", word == "undrain":
		d := &droverv1.NodeDrainFact{Node: 1, Draining: word == "problem" || word == "drain", Automatic: word == "try" || word == "problem", Reason: word}
		if r := w.apply(&droverv1.Entry{Body: &droverv1.Entry_NodeDrain{NodeDrain: d}}); len(r.Dropped) > 0 {
			return r.Dropped[0].Reason
		}
	case word == "lost":
		w.apply(&droverv1.Entry{Body: &droverv1.Entry_NodeLost{NodeLost: &droverv1.NodeLostFact{Node: 1, Epoch: w.f.Node(1).Epoch, Reason: "silent"}}})
	case word == "back":
		w.apply(&droverv1.Entry{Body: &droverv1.Entry_Node{Node: &droverv1.NodeFact{Info: w.f.Node(1).Info}}})
	case word == "late":
		w.endAttempt((*open)[0], droverv1.Phase_PHASE_FAILED, droverv1.Cause_CAUSE_INFRA)
		*open = (*open)[1:]
	default:
		k, why := w.place()
		switch {
		case why != "":
			return why
		case word == "place":
			*open = append(*open, k)
		case word == "infra":
			w.endAttempt(k, droverv1.Phase_PHASE_FAILED, droverv1.Cause_CAUSE_INFRA)
		case word == "reboot":
			w.endAttempt(k, droverv1.Phase_PHASE_FAILED, droverv1.Cause_CAUSE_REBOOT)
		case word == "exit":
			w.endAttempt(k, droverv1.Phase_PHASE_FAILED, droverv1.Cause_CAUSE_EXIT)
		case word == "pass":
			w.endAttempt(k, droverv1.Phase_PHASE_SUCCEEDED, 0)
		default:
			w.t.Fatalf("unknown step %q", word)
		}
	}
	return ""
}

func (w *nodeFixture) state() string {
	n := w.f.Node(1)
	switch {
	case !n.Up:
		return "down"
	case n.RetryAt > 0:
		return fmt.Sprintf("quarantined for %s", formatDuration(time.Duration(n.RetryAt)-w.clock))
	case n.Draining:
		return "drained"
	case n.Probation:
		return "probation"
	default:
		return "healthy"
	}
}

func TestFailingNodeIsQuarantinedThenOnProbation(t *testing.T) {
	const thrice = "infra infra infra "
	tests := map[string]struct {
		steps, state string
		refused      string // why the last step was dropped
	}{
		"two failures change nothing":                         {"infra infra", "healthy", ""},
		"three in ten minutes quarantine it":                  {thrice, "quarantined for 1 min", ""},
		"what a reboot ended does not count":                  {"infra infra reboot reboot reboot", "healthy", ""},
		"a reboot does not end a probation":                   {thrice + "+1 try reboot", "probation", ""},
		"three in more time do not":                           {"infra +6 infra +6 infra", "healthy", ""},
		"nothing is placed during the quarantine":             {thrice + "place", "quarantined for 1 min", "the node is draining"},
		"the quarantine does not end early":                   {thrice + "try", "quarantined for 1 min", "the node's quarantine has not ended"},
		"then it is on probation":                             {thrice + "+1 try", "probation", ""},
		"on probation it takes one task at a time":            {thrice + "+1 try place place", "probation", "the node is on probation and takes one task at a time"},
		"a healthy task ends the probation":                   {thrice + "+1 try pass", "healthy", ""},
		"a user failure ends the probation too":               {thrice + "+1 try exit", "healthy", ""},
		"a failure on probation quarantines it for longer":    {thrice + "+1 try infra", "quarantined for 2 min", ""},
		"the quarantine doubles each time in a row":           {thrice + "+1 try infra +2 try infra", "quarantined for 4 min", ""},
		"the quarantine lasts at most half an hour":           {thrice + strings.Repeat("+30 try infra ", 9), "quarantined for 30 min", ""},
		"soon after a probation the streak continues":         {thrice + "+1 try pass " + thrice, "quarantined for 2 min", ""},
		"ten good minutes reset the streak":                   {thrice + "+1 try pass +11 " + thrice, "quarantined for 1 min", ""},
		"a task placed before the probation does not end it":  {"place " + thrice + "+1 try late", "probation", ""},
		"a problem quarantines it too":                        {"problem", "quarantined for 1 min", ""},
		"a second problem changes nothing":                    {"problem +1 problem", "quarantined for 0s", "the node is draining, quarantined or down already"},
		"an operator's drain is not ended by the coordinator": {"drain +60 try", "drained", "the node's quarantine has not ended"},
		"an operator may drain a quarantined node for good":   {thrice + "drain +60 try", "drained", "the node's quarantine has not ended"},
		"an operator may end the quarantine":                  {thrice + "undrain", "healthy", ""},
		"an undrain resets the failure count":                 {thrice + "undrain infra infra", "healthy", ""},
		"an operator may end a probation":                     {thrice + "+1 try undrain", "healthy", ""},
		"a node that returns is on probation":                 {thrice + "lost back", "probation", ""},
		"a drained node that returns stays drained":           {"drain lost back", "drained", ""},
		"a problem of a drained node changes nothing":         {"drain problem", "drained", "the node is draining, quarantined or down already"},
		"late failures of earlier placements do not count":    {"place place place " + thrice + "+1 try late late late", "probation", ""},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			w := newNodeFixture(t)
			refused := ""
			var open []Key
			for _, word := range strings.Fields(tc.steps) {
				refused = w.step(word, &open)
				if err := verifyCounts(w.f); err != nil {
					t.Fatalf("after %q: %v", word, err)
				}
			}
			if got := w.state(); got != tc.state || refused != tc.refused {
				t.Errorf("after %q it is %q, the last step refused: %q; want %q, %q", tc.steps, got, refused, tc.state, tc.refused)
			}
		})
	}
}

func TestReasonsWithoutTheMessageOfAnAttempt(t *testing.T) {
	for text, want := range map[string]string{
		"3 failures of the infrastructure in 10 min, the last: hdfs:///secret/out":                             "3 failures of the infrastructure in 10 min",
		"3 failures of the infrastructure in 10 min, the last: secret: it failed again on probation: x":        "3 failures of the infrastructure in 10 min",
		"it failed again on probation: secret":                                                                 "it failed again on probation",
		"it failed again on probation: secret, 3 failures of the infrastructure in 10 min, the last: y":        "it failed again on probation",
		"no new work for 2 min: it failed again on probation: secret":                                          "no new work for 2 min: it failed again on probation",
		"no new work for 1 min: 12 failures of the infrastructure in 10 min, the last: secret, the last: more": "no new work for 1 min: 12 failures of the infrastructure in 10 min",
		"drained by user/root": "drained by user/root",
		"":                     "",
	} {
		if got := WithoutMessage(text); got != want {
			t.Errorf("%q without its message is %q", text, got)
		}
	}
}

func TestNodeHealthChangesAreEvents(t *testing.T) {
	w := newNodeFixture(t)
	var open []Key
	for _, word := range strings.Fields("infra infra infra +1 try infra +2 try pass") {
		w.step(word, &open)
	}
	var got []string
	for _, e := range w.f.EventLog().Since(0, MaxEvents) {
		if strings.HasPrefix(e.Kind, "node.") && e.Kind != "node.registered" {
			got = append(got, e.Kind+" "+e.Node+": "+e.Text)
		}
	}
	want := []string{
		"node.quarantined n1: no new work for 1 min: 3 failures of the infrastructure in 10 min, the last: no shim",
		"node.probation n1: one task at a time until one proves the node healthy",
		"node.quarantined n1: no new work for 2 min: it failed again on probation: no shim",
		"node.probation n1: one task at a time until one proves the node healthy",
		"node.recovered n1: a task ran on it: it is schedulable again",
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// A node that registers again without the disk of an attempt has lost that attempt:
// it gets a new epoch, and nothing refers to a disk that does not exist.
func TestANodeThatComesBackWithoutADiskLosesItsAttempts(t *testing.T) {
	w := newNodeFixture(t)
	k, dropped := w.place()
	if dropped != "" {
		t.Fatal(dropped)
	}
	n := w.f.Node(1)
	r := w.apply(&droverv1.Entry{Body: &droverv1.Entry_Node{Node: &droverv1.NodeFact{Epoch: n.Epoch, Info: &droverv1.NodeInfo{Name: "n1",
		Allocatable: n.Info.GetAllocatable()}}}})
	if r.Err != nil || r.Epoch != n.Epoch+1 {
		t.Errorf("epoch %d, want %d; %v", r.Epoch, n.Epoch+1, r.Err)
	}
	if a := w.f.Attempt(k); a != nil && a.State != AttemptLost {
		t.Errorf("the attempt is %v", a.State)
	}
}

// A new machine takes the name of a node, with an empty data folder, so that it knows no epoch: it has a new one, and what an
// operator said of the node stays. What ran there is lost and pending again, at once where the node was still up.
func TestANewMachineTakesTheNameOfANode(t *testing.T) {
	for name, lost := range map[string]bool{"after the old one is lost": true, "while the old one is up": false} {
		t.Run(name, func(t *testing.T) {
			w := newNodeFixture(t)
			k, dropped := w.place()
			if dropped != "" {
				t.Fatal(dropped)
			}
			window := int64(w.clock + time.Hour)
			w.apply(&droverv1.Entry{Body: &droverv1.Entry_NodeDrain{NodeDrain: &droverv1.NodeDrainFact{Node: 1, Draining: true, Reason: "repair"}}})
			w.apply(&droverv1.Entry{Body: &droverv1.Entry_Maintenance{Maintenance: &droverv1.MaintenanceFact{Node: 1, From: window, To: window + int64(time.Hour),
				Change: droverv1.MaintenanceChange_MAINTENANCE_CHANGE_ORDERED}}})
			if lost {
				w.apply(&droverv1.Entry{Body: &droverv1.Entry_NodeLost{NodeLost: &droverv1.NodeLostFact{Node: 1, Epoch: w.f.Node(1).Epoch, Reason: "silent"}}})
			}
			epoch := w.f.Node(1).Epoch
			info := &droverv1.NodeInfo{Name: "n1", Address: "n1:2", Allocatable: &droverv1.Resources{Cpu: 1000, Memory: 1 << 30, Io: 1 << 20}, Disks: []*droverv1.Disk{{Name: "e", Io: 1 << 20, Space: 1 << 30}}}
			r := w.apply(&droverv1.Entry{Body: &droverv1.Entry_Node{Node: &droverv1.NodeFact{Info: info}}})
			if r.Err != nil || r.Node != 1 || r.Epoch != epoch+1 {
				t.Errorf("node %d, epoch %d, %v; want node 1, epoch %d", r.Node, r.Epoch, r.Err, epoch+1)
			}
			if n := w.f.Node(1); !n.Up || !n.Draining || len(n.Maintenance) != 1 || !proto.Equal(n.Info, info) {
				t.Errorf("the node is %+v", n)
			}
			j := w.f.Job(k.Job)
			if a, s := w.f.Attempt(k), j.Stages[0].Task(k.Task); a.State != AttemptLost || s.State != TaskPending || j.Stages[0].FailedAttempts != 0 {
				t.Errorf("the attempt is %s, its task %s, %d attempts failed", a.State, s.State, j.Stages[0].FailedAttempts)
			}
		})
	}
}

// A checkpoint moves to a node on probation only while no attempt is there.
func TestACheckpointWaitsForANodeOnProbation(t *testing.T) {
	const running, checkpointed = droverv1.Level_LEVEL_RUNNING, droverv1.Level_LEVEL_CHECKPOINTED
	w := newNodeFixture(t)
	w.f.Node(1).Info.Levels = []droverv1.Level{running, checkpointed}
	info := proto.CloneOf(w.f.Node(1).Info)
	info.Name = "n2"
	w.apply(&droverv1.Entry{Body: &droverv1.Entry_Node{Node: &droverv1.NodeFact{Info: info}}})
	w.f.Node(2).Probation = true
	first, _ := w.place()
	second, _ := w.place()
	w.setLevel(first, checkpointed)
	w.setLevel(second, checkpointed)
	if n := RestoreNode(w.f, first); n == nil || n.ID != 2 {
		t.Fatalf("the first moves to %v", n)
	}
	r := w.apply(&droverv1.Entry{Body: &droverv1.Entry_Decision{Decision: &droverv1.DecisionFact{Actions: []*droverv1.ActionFact{{Kind: int32(ActMigrate), Key: first.Proto(2), Node: 2}}}}})
	if n := RestoreNode(w.f, second); len(r.Dropped) > 0 || n != nil {
		t.Errorf("dropped %v; the second moves to %v", r.Dropped, n)
	}
}

// A node on probation with an attempt is the last to which a checkpoint goes that could not be restored elsewhere: it goes
// there only if its work would be lost otherwise. Under the rules of earlier entries it went where most CPU was free.
func TestAFailedRestoreLeavesANodeOnProbation(t *testing.T) {
	const running, checkpointed = droverv1.Level_LEVEL_RUNNING, droverv1.Level_LEVEL_CHECKPOINTED
	for _, c := range []struct {
		rules   uint32
		healthy bool // a third node, on which less CPU is free
		want    int32
	}{{projectRules, true, 3}, {probationRules, true, 4}, {projectRules, false, 3}, {probationRules, false, 3}} {
		w := newNodeFixture(t)
		w.f.Node(1).Info.Levels = []droverv1.Level{running, checkpointed}
		for _, name := range []string{"n2", "n3", "n4"} {
			info := proto.CloneOf(w.f.Node(1).Info)
			if info.Name = name; name == "n4" {
				info.Allocatable.Cpu /= 2
			}
			if name != "n4" || c.healthy {
				w.apply(&droverv1.Entry{Body: &droverv1.Entry_Node{Node: &droverv1.NodeFact{Info: info}}})
			}
		}
		k, _ := w.place()
		w.setLevel(k, checkpointed)
		for _, act := range []*droverv1.ActionFact{{Kind: int32(ActMigrate), Key: k.Proto(2), Node: 2}, {Kind: int32(ActPlace), Key: Key{1, 0, w.task, 1}.Proto(1), Node: 3}} {
			if why := w.act(act); why != "" {
				t.Fatal(why)
			}
		}
		report := func(rules uint32, refused droverv1.Level) *droverv1.Entry {
			seen := &droverv1.SeenAttempt{Key: k.Proto(2), Phase: droverv1.Phase_PHASE_RUNNING, Level: checkpointed, TargetRefused: refused}
			return &droverv1.Entry{StepRules: rules, Body: &droverv1.Entry_Attempts{Attempts: &droverv1.AttemptsFact{Node: 2, Epoch: w.f.Node(2).Epoch, Seen: []*droverv1.SeenAttempt{seen}}}}
		}
		now := int64(w.clock)
		before := w.f.Clock().ApplyRules(report(0, running), now)
		w.f.Node(3).Probation = true
		if other, r := w.f.Clock().ApplyRules(report(0, 0), now), w.f.Clock().ApplyRules(report(0, running), now); before != 0 || other != 0 || r != probationRules {
			t.Errorf("a failed restore has rules %d before the probation and %d in it, another report %d", before, r, other)
		}
		w.apply(report(c.rules, running))
		if a := w.f.Attempt(k); a.State != AttemptLive || a.Node != c.want {
			t.Errorf("rules %d, a healthy node %v: the attempt is %v on node %d, want it on %d", c.rules, c.healthy, a.State, a.Node, c.want)
		}
	}
}
