package coordinator

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/coordinator/coordtest"
	"github.com/drover-run/drover/coordinator/facts"
	"github.com/drover-run/drover/jobspec"
	"github.com/drover-run/drover/scheduler"
)

// TestJobLeavesTheNodeOnWhichItsTasksAloneFail runs a job of many tasks on two
// nodes, one of which fails all of them: the job succeeds on the other one, says
// which node it avoids, and so does an event.
func TestJobLeavesTheNodeOnWhichItsTasksAloneFail(t *testing.T) {
	t.Parallel()
	b := newTestCluster(t, nil)
	b.addNode(coordtest.Info("n1"), coordtest.Fail(droverv1.Cause_CAUSE_EXIT, "no such driver"))
	b.addNode(coordtest.Info("n2"), coordtest.Succeed)
	b.waitForNodes()
	b.submit(groupJob("j", 200))
	b.waitForEnd("j", succeeded)
	j := b.job("j")
	if !slices.Equal(j.AvoidedNodes, []string{"n1"}) || !strings.Contains(b.eventLog(), "job.avoids_node") {
		t.Errorf("it avoids %v; events\n%s", j.AvoidedNodes, b.eventLog())
	}
	if failed := j.Stages[0].FailedAttempts; failed > 60 {
		t.Errorf("%d attempts failed: it did not leave the node", failed)
	}
}

// TestRebuiltProjectionKnowsAvoidedNodes follows a job until it avoids a node, and
// rebuilds the State as a new leader does.
func TestRebuiltProjectionKnowsAvoidedNodes(t *testing.T) {
	w := newRandomCluster(t, 1)
	for _, name := range []string{"n0", "n1"} {
		w.apply(&droverv1.Entry{Body: &droverv1.Entry_Node{Node: &droverv1.NodeFact{Info: coordtest.Info(name)}}})
	}
	job := groupJob("g", 8)
	jobspec.SetDefaults(job)
	text, err := jobspec.Encode(job)
	if err != nil {
		t.Fatal(err)
	}
	w.apply(&droverv1.Entry{Body: &droverv1.Entry_JobAccepted{JobAccepted: &droverv1.JobAcceptedFact{Spec: string(text)}}})
	for task := range int32(6) {
		k, node := facts.Key{Job: 1, Task: task, Attempt: 1}, 1+task%2
		w.apply(&droverv1.Entry{Body: &droverv1.Entry_Decision{Decision: &droverv1.DecisionFact{Base: w.f.Index(),
			Actions: []*droverv1.ActionFact{{Kind: int32(facts.ActPlace), Key: k.Proto(1), Node: node, Locality: "none"}}}}})
		seen := &droverv1.SeenAttempt{Key: k.Proto(1), Phase: droverv1.Phase_PHASE_SUCCEEDED}
		if node == 1 {
			seen.Phase, seen.Cause = droverv1.Phase_PHASE_FAILED, droverv1.Cause_CAUSE_EXIT
		}
		w.apply(&droverv1.Entry{Body: &droverv1.Entry_Attempts{Attempts: &droverv1.AttemptsFact{Node: node, Epoch: w.f.Node(node).Epoch, Seen: []*droverv1.SeenAttempt{seen}}}})
	}
	if err := w.p.follow(w.f, w.f.TakeJournal()); err != nil {
		t.Fatal(err)
	}
	rebuilt := newProjection(noHosts)
	if err := rebuilt.rebuild(w.f); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(stateDump(rebuilt.state, w.f.Time()), stateDump(w.p.state, w.f.Time())); d != "" {
		t.Errorf("(- rebuilt, + followed)\n%s", d)
	}
	g := rebuilt.state.Job(1).Stages[0]
	if !slices.Equal(g.Job.Avoided(), []scheduler.NodeID{0}) || !slices.Equal(g.FailedOn(0), []scheduler.NodeID{0}) {
		t.Errorf("it avoids %v, and task 0 failed on %v", g.Job.Avoided(), g.FailedOn(0))
	}
}
