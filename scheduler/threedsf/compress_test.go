package threedsf_test

import (
	"testing"
	"time"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/policytest"
	"github.com/drover-run/drover/scheduler/schedtest"
)

// A guaranteed job that ends before it has begun leaves its place to the next, whatever its number: the schedule is
// compressed after the interval of compressions. Each job needs the whole cluster for 30 s; its plan takes 2 s more.
func TestPlaceOfAnEndedJobIsGivenToTheNext(t *testing.T) {
	for _, ended := range []scheduler.JobID{1, 2, 3, 1 << 40} {
		w := schedtest.New(t).AddNodes(1, schedtest.R(2, 2, 10)).AddTenants("a")
		began := w.Now
		p, maker := guaranteeing(), func() scheduler.Policy { return guaranteeing() }
		for _, id := range []scheduler.JobID{7, ended, 8} {
			w.Submit("a", 1, schedtest.R(2, 2, 10), func(j *scheduler.JobSpec, g *scheduler.StageSpec) {
				j.ID, j.Bound, j.Deadline, g.Estimate = id, 30*time.Second, w.Now.Add(time.Hour), 20*time.Second
			})
			policytest.Round(t, w.State, p, maker, w.Now, 1000)
			w.Advance(time.Second)
		}
		startOf := func(id scheduler.JobID) time.Duration {
			for _, r := range w.State.Job(id).Reservations() {
				return r.Start.Sub(began)
			}
			return 0
		}
		if first, second := startOf(ended), startOf(8); first != 30*time.Second || second != 62*time.Second {
			t.Fatalf("job %d is planned for %v and the next for %v, want 30s and 1m2s", ended, first, second)
		}
		if err := w.State.Events().EndJob(ended); err != nil {
			t.Fatal(err)
		}
		policytest.Round(t, w.State, p, maker, w.Advance(20*time.Second).Now, 1000)
		if got := startOf(8); got != 30*time.Second {
			t.Errorf("once job %d has ended, the next is planned for %v, want 30s", ended, got)
		}
	}
}
