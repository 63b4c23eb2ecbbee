package policies

import (
	"slices"
	"testing"
	"time"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/policytest"
	"github.com/drover-run/drover/scheduler/schedtest"
)

// At the instant when a running task should have ended and has not, the task planned
// behind it has reason due with its node, although another node has free capacity
// that is planned for others.
func TestDueTaskHasReasonDue(t *testing.T) {
	for name, params := range map[string]map[string]string{"conservative": {"margin": "0s"}, "two_tier": {"margin": "0s", "variant": "2tsb"}} {
		w := schedtest.New(t).AddNodes(1, schedtest.R(4, 8, 100)).AddTenants("a")
		if err := w.State.Events().AddNode(schedtest.NodeSpec(1, "/r1", schedtest.R(8, 8, 100))); err != nil {
			t.Fatal(err)
		}
		maker := func() scheduler.Policy { return mustNew(t, name, params) }
		p := maker()
		submit := func(cores float64, bound time.Duration) scheduler.JobID {
			return w.Submit("a", 1, schedtest.R(cores, 1, 1), func(j *scheduler.JobSpec, _ *scheduler.StageSpec) { j.Bound = bound })
		}
		first := submit(4, 10*time.Second)
		submit(7, 20*time.Second)
		submit(8, 20*time.Second)         // on the second node after 20 s
		submit(1, 30*time.Second)         // on the first after 10 s: on the second it would be in the way
		late := submit(1, 30*time.Second) // beside it; each has a reservation of its own, as Round verifies
		policytest.Round(t, w.State, p, maker, w.Now, 100)
		w.Start()
		waits := func(what string, want scheduler.Waiting) {
			d := policytest.Round(t, w.State, p, maker, w.Now, 100)
			i := slices.IndexFunc(d.Waiting, func(x scheduler.Waiting) bool { return x.Stage.Job == late })
			if i < 0 {
				t.Fatalf("%s: %s: no reason\n%s", name, what, d.String())
			}
			got := d.Waiting[i]
			got.Reservation = 0 // any one; the conformance suite verifies it
			if want.Stage, want.Tasks = got.Stage, 1; got != want {
				t.Errorf("%s: %s: %s, want %s", name, what, got.String(), want.String())
			}
		}
		due := w.Now.Add(10 * time.Second)
		waits("before", scheduler.Waiting{Reason: scheduler.ReasonLater, Until: due})
		w.Advance(10 * time.Second)
		waits("at the instant", scheduler.Waiting{Reason: scheduler.ReasonDue, Node: w.Attempts()[0].Node})
		for a := range w.State.Attempts().In(w.State.Job(first).Stages[0]) {
			w.End(a, scheduler.OutcomeSucceeded)
		}
		if policytest.Round(t, w.State, p, maker, w.Now, 100); w.State.Job(late).Live != 1 {
			t.Errorf("%s: it does not run although its capacity is free", name)
		}
	}
}
