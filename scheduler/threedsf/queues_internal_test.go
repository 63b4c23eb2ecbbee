package threedsf

import (
	"testing"
	"time"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/lasmq"
	"github.com/drover-run/drover/scheduler/schedtest"
)

// The queues of a tenant's priorities do not mix, a job is in the queue of its service, and the next cycle's
// state is recorded: a demotion once, and the deficits of backlogged queues while two or more jobs wait.
func TestQueuesAreRecorded(t *testing.T) {
	cfg := fullConfig()
	cfg.Aging, cfg.Deadlines, cfg.Guarantees.Enabled, cfg.ReserveNodes = 0, false, false, false
	cfg.LASMQ = &lasmq.Config{Queues: 4, First: 10, Step: 10, Decay: 0.5, Order: lasmq.OrderRemaining, Horizon: 10 * time.Second, Unit: schedtest.R(1, 2, 1000)}
	w := schedtest.New(t).AddNodes(1, schedtest.R(2, 16, 0)).AddTenants("a", "b")
	high := func(j *scheduler.JobSpec, _ *scheduler.StageSpec) { j.Priority = scheduler.PriorityHigh }
	old, oldHigh := w.Submit("a", 4, schedtest.R(1, 1, 0)), w.Submit("a", 4, schedtest.R(1, 1, 0), high)
	w.Place(scheduler.TaskID{Job: old}, 0)
	w.Place(scheduler.TaskID{Job: oldHigh}, 0)
	w.Start()
	p := New(cfg)
	states := func() (queues, deficits, forgotten int) {
		d := w.Cycle(p)
		for i := range d.PolicyStates {
			switch n := &d.PolicyStates[i]; {
			case n.Kind == scheduler.QueueState:
				queues++
			case n.Kind == scheduler.DeficitState:
				deficits++
			case n.Kind == scheduler.TombstoneState && n.Value == int64(scheduler.DeficitState):
				forgotten++
			}
		}
		return queues, deficits, forgotten
	}
	for i, x := range []struct {
		what                        string
		change                      func()
		queues, deficits, forgotten int
	}{
		{"one job of each priority waits: the order is trivial", func() {}, 0, 0, 0},
		{"another tenant's job does not count", func() { w.Submit("b", 1, schedtest.R(1, 1, 0)) }, 0, 0, 0},
		{"two of low priority wait, both in the first queue", func() { w.Submit("a", 1, schedtest.R(1, 1, 0)) }, 0, 1, 0},
		{"the old one used 10 container-seconds, just not too many", func() { w.Now = scheduler.Time(11 * time.Second) }, 0, 0, 0},
		{"it used more, and is demoted", func() { w.Advance(time.Nanosecond) }, 1, 2, 0},
		{"that is recorded once", func() {}, 0, 0, 0},
		{"two of high priority wait, one of them demoted", func() { w.Submit("a", 1, schedtest.R(1, 1, 0), high) }, 1, 2, 0},
		{"one of low priority is gone: its queues are forgotten", func() {
			if err := w.State.Events().EndJob(4); err != nil {
				t.Fatal(err)
			}
		}, 0, 0, 2},
	} {
		x.change()
		if queues, deficits, forgotten := states(); queues != x.queues || deficits != x.deficits || forgotten != x.forgotten {
			t.Errorf("step %d, %s: %d demotions, %d deficits and %d forgotten ones are recorded, want %d, %d, %d", i+1, x.what, queues, deficits, forgotten, x.queues, x.deficits, x.forgotten)
		}
	}
	if a, b := w.State.Job(old).Queue(), w.State.Job(oldHigh).Queue(); a != 2 || b != 2 { // counted from 1
		t.Errorf("the old jobs are in queues %d and %d, want 2", a, b)
	}
	keys := map[scheduler.PolicyStateKey]bool{}
	for class := classHigh; class <= classLow; class++ {
		for queue := range 4 {
			keys[deficitKey(queueGroup(0, class), queue)], keys[deficitKey(queueGroup(1, class), queue)] = true, true
		}
	}
	if len(keys) != 16 {
		t.Errorf("the deficits of 16 queues have %d keys", len(keys))
	}
}
