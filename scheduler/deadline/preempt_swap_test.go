package deadline_test

import (
	"testing"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/deadline"
	"github.com/drover-run/drover/scheduler/schedtest"
)

// Tasks being swapped out already count against the free swap: a second victim must not use it.
func TestVictimsDoNotShareSwap(t *testing.T) {
	for name, x := range map[string]struct {
		swap int64 // GiB
		want bool
	}{"room for one": {3, false}, "room for both": {4, true}} {
		t.Run(name, func(t *testing.T) {
			w := schedtest.New(t).AddNodes(1, schedtest.R(4, 4, 4)).AddTenants("a")
			spec := schedtest.NodeSpec(0, "/r1", schedtest.R(4, 4, 4))
			spec.Swap, spec.Levels = x.swap*schedtest.GiB, scheduler.Levels(scheduler.LevelRunning, scheduler.LevelFrozen, scheduler.LevelSwapped)
			if err := w.State.Events().UpdateNode(spec); err != nil {
				t.Fatal(err)
			}
			id := w.Submit("a", 2, schedtest.R(1, 2, 0))
			first := w.Place(scheduler.TaskID{Job: id}, 0)
			w.Place(scheduler.TaskID{Job: id, Index: 1}, 0)
			w.Start()
			act := scheduler.Action{Kind: scheduler.ActSuspend, Task: first.ID.TaskID, Attempt: first.ID.Attempt, Run: first.Run, Level: scheduler.LevelSwapped}
			if err := w.State.Apply(&act, w.Now); err != nil {
				t.Fatal(err)
			}
			g := w.State.Job(w.Submit("a", 1, schedtest.R(1, 4, 0))).Stages[0]
			p := deadline.Preemptor{Mode: deadline.Suspend, IsProtected: func(*scheduler.Job) bool { return false },
				MayStart: func(*scheduler.Node, *scheduler.Stage) bool { return true },
				Reserved: func(*scheduler.Node) (scheduler.Resources, int64) { return scheduler.Resources{}, 0 }}
			if plan, ok := p.FindVictimsOn(w.State, g, 0, w.Now); ok != x.want {
				t.Errorf("a plan %v: %+v", ok, plan.Victims)
			}
		})
	}
}
