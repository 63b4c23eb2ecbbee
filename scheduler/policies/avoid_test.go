package policies

import (
	"testing"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/schedtest"
)

// A job's tasks wait rather than start on a node that it avoids, which others may use, until
// no other node is large enough or it avoids the node no longer.
func TestJobsAvoidNodes(t *testing.T) {
	for _, info := range table {
		if plansNodes[info.Name] {
			continue
		}
		t.Run(info.Name, func(t *testing.T) {
			w := newRetryWorld(t, info.Name, 2)
			w.AddRack("/r1", 1, schedtest.R(1, 8, 100))
			must := func(err error) {
				t.Helper()
				if err != nil {
					t.Fatal(err)
				}
			}
			job := w.Submit("a", 4, schedtest.R(2, 1, 1))
			must(w.State.Events().SetAvoided(job, []scheduler.NodeID{1}))
			w.cycle()
			w.rebuild()
			w.cycle()
			for task := range int32(4) {
				want := scheduler.NoNode // node 0 has room for two tasks, node 2 is too small
				if task < 2 {
					want = 0
				}
				if got := w.node(job, task); got != want {
					t.Errorf("task %d is on node %d, want node %d", task, got, want)
				}
			}
			other := w.Submit("a", 1, schedtest.R(2, 1, 1))
			w.cycle()
			if got := w.node(other, 0); got != 1 {
				t.Errorf("another job's task is on node %d, want node 1", got)
			}
			must(w.State.Events().SetDrain(0, true))
			w.cycle()
			if got := w.node(job, 2); got != 1 {
				t.Errorf("without another node that is large enough, task 2 is on node %d, want node 1", got)
			}
			must(w.State.Events().SetDrain(0, false))
			w.End(w.at(job, 2), scheduler.OutcomeFailedInfra)
			w.cycle()
			if got := w.node(job, 2); got != scheduler.NoNode {
				t.Errorf("with node 0 back, task 2 is on node %d", got)
			}
			must(w.State.Events().SetAvoided(job, nil))
			w.cycle()
			if w.node(job, 2) != 1 && w.node(job, 3) != 1 {
				t.Error("no task is on node 1, which the job does not avoid any more")
			}
		})
	}
}
