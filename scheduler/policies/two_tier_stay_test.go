package policies

import (
	"testing"
	"time"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/policytest"
	"github.com/drover-run/drover/scheduler/schedtest"
)

// A non-preemptible task without a bound stays until its node leaves, not for ever: it starts where
// its estimate is left until then, else after the window, and guarantees of others after the window
// stay. A task of unknown run time starts at any time.
func TestTaskWithoutBoundStaysUntilItsNodeLeaves(t *testing.T) {
	for name, c := range map[string]struct {
		estimate time.Duration
		to       scheduler.Time // of the window that begins in ten minutes
		start    scheduler.Time // from now
	}{
		"the estimate is left":      {5 * time.Minute, scheduler.Time(time.Hour), 0},
		"it is not":                 {20 * time.Minute, scheduler.Time(time.Hour), scheduler.Time(time.Hour)},
		"it is not, for ever":       {20 * time.Minute, scheduler.Never, scheduler.Never},
		"nothing is known":          {0, scheduler.Time(time.Hour), 0},
		"nothing is known for ever": {0, scheduler.Never, 0},
	} {
		for _, policy := range []string{"two_tier", "conservative"} {
			t.Run(policy+", "+name, func(t *testing.T) {
				w := schedtest.New(t).AddNodes(1, schedtest.R(4, 16, 100)).AddTenants("a")
				from, to := w.Now.Add(10*time.Minute), c.to
				if to < scheduler.Never {
					to += w.Now
				}
				if err := w.State.Events().SetWindows(0, []scheduler.Window{{From: from, To: to}}); err != nil {
					t.Fatal(err)
				}
				newPolicy := func() scheduler.Policy { return mustNew(t, policy, nil) }
				p := newPolicy()
				// Guaranteed, and longer than what is left until the window.
				bounded := w.Submit("a", 1, schedtest.R(4, 1, 0), func(j *scheduler.JobSpec, _ *scheduler.StageSpec) { j.Bound = 30 * time.Minute })
				policytest.Round(t, w.State, p, newPolicy, w.Now, 100)
				planned := w.State.Reservations().All()
				if c.to < scheduler.Never && (len(planned) != 1 || planned[0].Start != to) {
					t.Fatalf("the job with a bound is planned as %v", planned)
				}
				stays := w.Submit("a", 1, schedtest.R(2, 1, 0), func(j *scheduler.JobSpec, g *scheduler.StageSpec) {
					j.Deadline, j.AcceptedByQuote, g.Estimate = w.Now.Add(time.Hour), true, c.estimate
				})
				d := policytest.Round(t, w.State, p, newPolicy, w.Now, 100)
				w.Start()
				if live := w.State.Job(stays).Live == 1; live != (c.start == 0) {
					t.Fatalf("it runs: %v\n%s", live, d.String())
				}
				for i := range d.Waiting {
					want := scheduler.Never
					if c.start < scheduler.Never { // behind the job with the bound
						want = to.Add(30 * time.Minute)
					}
					if x := &d.Waiting[i]; x.Stage.Job == stays && want < scheduler.Never && x.Until != want {
						t.Errorf("%s; want %d", x.String(), want)
					}
				}
				policytest.Round(t, w.State, p, newPolicy, w.Now.Add(time.Second), 100)
				if r := w.State.Job(bounded).Reservations(); c.to < scheduler.Never && (len(r) != 1 || r[0].Start != to) {
					t.Errorf("the job with a bound is planned as %v", r)
				}
			})
		}
	}
}

// The assumed use of a task without a bound during a window of its node does not depend on whether it was first
// computed before the window or in it: a warm policy requests its next decision for the same time as a new one.
func TestWindowThatEndsNoClaimRequestsNoDecision(t *testing.T) {
	for name, c := range map[string]struct {
		defaultBound string
		suspended    bool
	}{
		"suspended by a user":                      {"1h", true},
		"past the default bound before the window": {"1s", false},
	} {
		for _, policy := range []string{"two_tier", "conservative"} {
			t.Run(policy+", "+name, func(t *testing.T) {
				w := schedtest.New(t).AddNodes(1, schedtest.R(4, 16, 100)).AddTenants("a")
				newPolicy := func() scheduler.Policy {
					return mustNew(t, policy, map[string]string{"default_bound": c.defaultBound, "grace": "1m"})
				}
				p := newPolicy()
				w.Submit("a", 1, schedtest.R(1, 1, 0))
				policytest.Round(t, w.State, p, newPolicy, w.Now, 100)
				w.Start().Advance(2 * time.Second)
				a := w.Attempts()[0]
				if c.suspended {
					suspend(w, a, scheduler.LevelFrozen)
					park(w, a, true)
				}
				window := scheduler.Window{From: w.Now.Add(2 * time.Second), To: w.Now.Add(30 * time.Second)}
				if err := w.State.Events().SetWindows(a.Node, []scheduler.Window{window}); err != nil {
					t.Fatal(err)
				}
				policytest.Round(t, w.State, p, newPolicy, w.Now, 100)
				w.Advance(4*time.Second).Submit("a", 1, schedtest.R(8, 1, 0)) // fits nowhere: a decision in the window
				if d := policytest.DecideWarmAndCold(t, w.State, p, newPolicy, w.Now, 100); d.Wake == window.To {
					t.Errorf("the next decision is requested for the end of the window: %s", d.String())
				}
			})
		}
	}
}
