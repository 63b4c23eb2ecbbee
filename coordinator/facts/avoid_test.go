package facts

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
)

// run places the next task of the first job on a node, where it ends as a word
// says: ok, exit, infra, input, maps (which lost map outputs), spec.
func (w *blameFixture) run(node int32, word string) {
	w.t.Helper()
	k := Key{1, 0, w.next[1], 1}
	w.next[1]++
	w.start(k, node)
	w.end(k, node, word)
}

func (w *blameFixture) start(k Key, node int32) {
	w.t.Helper()
	w.clock += 1e9
	r := w.apply(&droverv1.Entry{Body: &droverv1.Entry_Decision{Decision: &droverv1.DecisionFact{Base: w.f.Index(),
		Actions: []*droverv1.ActionFact{{Kind: int32(ActPlace), Key: k.Proto(1), Node: node}}}}})
	if len(r.Dropped) > 0 {
		w.t.Fatalf("n%d: %s", node, r.Dropped[0].Reason)
	}
}

func (w *blameFixture) end(k Key, node int32, word string) {
	w.t.Helper()
	w.clock += 1e9
	seen := &droverv1.SeenAttempt{Key: k.Proto(1), Phase: droverv1.Phase_PHASE_FAILED, Message: word}
	switch word {
	case "ok":
		seen.Phase = droverv1.Phase_PHASE_SUCCEEDED
	case "exit":
		seen.Cause = droverv1.Cause_CAUSE_EXIT
	case "infra":
		seen.Cause = droverv1.Cause_CAUSE_INFRA
	case "input":
		seen.Cause = droverv1.Cause_CAUSE_INPUT
	case "maps":
		seen.Cause, seen.LostOutputs = droverv1.Cause_CAUSE_INPUT, []*droverv1.MapOutput{{Task: 7}}
	default:
		w.t.Fatalf("unknown word %q", word)
	}
	if r := w.apply(&droverv1.Entry{Body: &droverv1.Entry_Attempts{Attempts: &droverv1.AttemptsFact{Node: node, Epoch: w.f.Node(node).Epoch,
		Seen: []*droverv1.SeenAttempt{seen}}}}); r.Changed != 1 {
		w.t.Fatalf("n%d %s: %+v", node, word, r)
	}
}

// script runs words such as n1:exit, each a task on a node.
func (w *blameFixture) script(words string) {
	w.t.Helper()
	for _, s := range strings.Fields(words) {
		var node int32
		var word string
		if _, err := fmt.Sscanf(s, "n%d:%s", &node, &word); err != nil {
			w.t.Fatal(err)
		}
		w.run(node, word)
	}
}

func TestJobsLeaveNodesOnWhichTheirTasksAloneFail(t *testing.T) {
	for name, tc := range map[string]struct {
		steps string
		want  []int32
	}{
		"three failures there, three successes elsewhere": {"n1:exit n2:ok n1:exit n3:ok n1:input n2:ok", []int32{1}},
		"two failures are not enough":                     {"n1:exit n1:exit n2:ok n3:ok n2:ok n2:ok", nil},
		"nor are two successes":                           {"n1:exit n1:exit n1:exit n2:ok n3:ok", nil},
		"successes before the first failure do not count": {"n2:ok n2:ok n2:ok n1:exit n1:exit n1:exit", nil},
		"a success there shows that it can run tasks":     {"n1:exit n1:exit n1:ok n1:exit n2:ok n3:ok n2:ok", nil},
		"they fail everywhere":                            {"n1:exit n2:exit n3:exit n4:exit n1:exit n2:exit n3:exit n4:exit n1:exit n2:exit n3:exit n4:exit", nil},
		"lost map outputs are another node's fault":       {"n1:maps n1:maps n1:maps n2:ok n2:ok n2:ok", nil},
		"half of the nodes at most":                       {"n1:exit n1:exit n1:exit n2:exit n2:exit n2:exit n3:exit n3:exit n3:exit n4:ok n4:ok n4:ok", []int32{1, 2}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newBlameFixture(t)
			w.script(tc.steps)
			if got := w.f.Job(1).AvoidedNodes(); !slices.Equal(got, tc.want) {
				t.Errorf("it avoids %v, want %v", got, tc.want)
			}
			if got := w.f.Job(2).AvoidedNodes(); got != nil {
				t.Errorf("the other job avoids %v", got)
			}
			var b bytes.Buffer
			if err := w.f.Snapshot().Encode(&b); err != nil {
				t.Fatal(err)
			}
			f, err := Restore(&b)
			if err != nil {
				t.Fatal(err)
			}
			if got := f.Job(1).AvoidedNodes(); !slices.Equal(got, tc.want) {
				t.Errorf("after a snapshot it avoids %v, want %v", got, tc.want)
			}
		})
	}
}

// Several attempts at one task are one piece of evidence.
func TestOneTaskIsNotEnoughToLeaveANode(t *testing.T) {
	w := newBlameFixture(t)
	w.run(1, "infra")
	k := Key{1, 0, 0, 2}
	for range 2 {
		w.start(k, 1)
		w.end(k, 1, "infra")
		k.Attempt++
	}
	w.script("n2:ok n2:ok n2:ok")
	if got := w.f.Job(1).AvoidedNodes(); got != nil {
		t.Errorf("it avoids %v", got)
	}
}

func TestJobsReturnToNodes(t *testing.T) {
	const leave = "n1:exit n1:exit n1:exit n2:ok n3:ok n2:ok"
	for name, end := range map[string]func(w *blameFixture){
		"a task that still ran there succeeds": func(w *blameFixture) {
			w.end(Key{1, 0, 50, 1}, 1, "ok")
		},
		"the node was lost and is back": func(w *blameFixture) {
			w.apply(&droverv1.Entry{Body: &droverv1.Entry_NodeLost{NodeLost: &droverv1.NodeLostFact{Node: 1, Epoch: w.f.Node(1).Epoch, Reason: "silent"}}})
			w.apply(&droverv1.Entry{Body: &droverv1.Entry_Node{Node: &droverv1.NodeFact{Info: w.f.Node(1).Info}}})
		},
		"an operator ends its drain": func(w *blameFixture) {
			w.apply(&droverv1.Entry{Body: &droverv1.Entry_NodeDrain{NodeDrain: &droverv1.NodeDrainFact{Node: 1}}})
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newBlameFixture(t)
			w.start(Key{1, 0, 50, 1}, 1)
			w.script(leave)
			if got := w.f.Job(1).AvoidedNodes(); !slices.Equal(got, []int32{1}) {
				t.Fatalf("it avoids %v", got)
			}
			end(w)
			if got := w.f.Job(1).AvoidedNodes(); got != nil || len(w.f.Node(1).AvoidedBy) > 0 {
				t.Errorf("it avoids %v, the node says %v", got, w.f.Node(1).AvoidedBy)
			}
			var kinds []string
			for _, e := range w.f.EventLog().Since(0, MaxEvents) {
				if strings.Contains(e.Kind, "_node") && e.JobID == 1 && e.Node == "n1" {
					kinds = append(kinds, e.Kind)
				}
			}
			if !slices.Equal(kinds, []string{"job.avoids_node", "job.returns_to_node"}) {
				t.Errorf("events %v", kinds)
			}
		})
	}
}
