package scheduler_test

import (
	"testing"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/schedtest"
)

// The limit on a job's policy states holds within one batch, for PolicyStates.Apply and Check
// alike; replacing and deleting are always possible.
func TestPolicyStatesOfAJobAreLimitedWithinABatch(t *testing.T) {
	states := func(from, to int32) (out []scheduler.PolicyState) {
		for i := from; i < to; i++ {
			out = append(out, scheduler.PolicyState{PolicyStateKey: scheduler.PolicyStateKey{Kind: scheduler.SuspendCountState, Job: 1, Task: i}})
		}
		return out
	}
	tombstone := scheduler.PolicyState{PolicyStateKey: scheduler.PolicyStateKey{Kind: scheduler.TombstoneState, Job: 1, Task: 0}, Value: int64(scheduler.SuspendCountState)}
	const most = scheduler.MaxPolicyStatesPerJob
	for name, c := range map[string]struct {
		before, batch []scheduler.PolicyState
		refused       bool
	}{
		"the maximum":                {batch: states(0, most)},
		"one more in one batch":      {batch: states(0, most+1), refused: true},
		"one more in a second batch": {before: states(0, most), batch: states(most, most+1), refused: true},
		"one replaced at the limit":  {before: states(0, most), batch: states(0, 1)},
		"one deleted, one new":       {before: states(0, most), batch: append([]scheduler.PolicyState{tombstone}, states(most, most+1)...)},
		"one new, then one deleted":  {before: states(0, most), batch: append(states(most, most+1), tombstone), refused: true},
		"the same state twice":       {before: states(0, most-1), batch: append(states(most, most+1), states(most, most+1)...)},
	} {
		t.Run(name, func(t *testing.T) {
			w := schedtest.New(t).AddTenants("a")
			w.Submit("a", 1, schedtest.R(1, 1, 1))
			must(t, w.State.PolicyStates().Apply(c.before))
			before := schedtest.Bytes(w.State)
			v := scheduler.Check(w.State, &scheduler.Decision{PolicyStates: c.batch}, w.Now)
			err := w.State.PolicyStates().Apply(c.batch)
			if (err != nil) != c.refused || (len(v) > 0) != c.refused {
				t.Errorf("Apply says %v, Check %v, refused should be %v", err, v, c.refused)
			}
			if err != nil && string(before) != string(schedtest.Bytes(w.State)) {
				t.Error("a refused batch changed the State")
			}
		})
	}
}
