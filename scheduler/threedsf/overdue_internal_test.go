package threedsf

import (
	"slices"
	"testing"
	"time"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/deadline"
	"github.com/drover-run/drover/scheduler/drf"
	"github.com/drover-run/drover/scheduler/schedtest"
)

// A job becomes overdue at the first step of Aging at which it had nothing for Aging times the number of ready
// stages: at the same time for a policy that decides each second, and for one that decides for the first time.
func TestWhenAJobIsOverdue(t *testing.T) {
	second := func(n int) scheduler.Time { return scheduler.Time(n) * scheduler.Time(time.Second) }
	for name, x := range map[string]struct {
		others   int // jobs that are ready besides
		submit   int // the second at which it is submitted; Aging is 10 s
		end      int // the second at which its only task so far ended, 0 for none
		deadline bool
		want     int // the second at which it is overdue, 0 for never
	}{
		"one stage is ready":      {0, 20, 0, false, 30},
		"between two steps":       {0, 21, 0, false, 40},
		"three stages are ready":  {2, 20, 0, false, 50},
		"it had a task":           {0, 20, 33, false, 50},
		"its task ended at once":  {0, 20, 20, false, 30},
		"a deadline has its lane": {0, 20, 0, true, 0},
	} {
		t.Run(name, func(t *testing.T) {
			w := schedtest.New(t).AddNodes(1, schedtest.R(2, 8, 0)).AddTenants("a")
			w.Place(scheduler.TaskID{Job: w.Submit("a", 1, schedtest.R(1, 1, 0))}, 0)
			w.Start()
			for w.Now = second(2); w.Now < second(19); w.Advance(time.Second) { // the others wait since then, but need more than there is
				if int(w.Now/second(1)) < 2+x.others {
					w.Submit("a", 1, schedtest.R(2, 1, 0))
				}
			}
			w.Now = second(x.submit)
			id := w.Submit("a", 3, schedtest.R(1, 1, 0), func(j *scheduler.JobSpec, g *scheduler.StageSpec) {
				if x.deadline {
					j.Deadline, j.AcceptedByQuote, g.Estimate = w.Now.Add(time.Hour), true, time.Second
				}
			})
			if x.end > 0 {
				a := w.Place(scheduler.TaskID{Job: id}, 0)
				w.Start()
				w.Now = second(x.end)
				w.End(a, scheduler.OutcomeSucceeded)
			}
			w.Place(scheduler.TaskID{Job: w.Submit("a", 1, schedtest.R(1, 1, 0))}, 0)
			w.Start()
			cfg := Config{Name: "3dsf", Level: drf.Largest, Resources: 3, Aging: 10 * time.Second, Deadlines: true, Order: deadline.EMWTF, Preempt: deadline.None}
			warm, first := New(cfg), 0
			isOverdue := func(p *Policy) bool {
				p.Decide(w.State, w.Now, 100)
				return slices.ContainsFunc(p.overdue.jobs, func(o overdueJob) bool { return o.job.Spec.ID == id })
			}
			for ; w.Now < second(90) && first == 0; w.Advance(time.Second) {
				got := isOverdue(warm)
				if cold := isOverdue(New(cfg)); cold != got {
					t.Errorf("after %v: overdue %v, for a new policy %v", w.Now.Sub(0), got, cold)
				}
				if got {
					first = int(w.Now / second(1))
				}
			}
			if first != x.want {
				t.Errorf("it is overdue at %d s, want %d s", first, x.want)
			}
		})
	}
}

// A job that a decision serves as overdue still is overdue if the decision is withdrawn.
func TestWithdrawnDecisionLeavesJobOverdue(t *testing.T) {
	w := schedtest.New(t).AddNodes(1, schedtest.R(2, 8, 0)).AddTenants("a", "b")
	w.Place(scheduler.TaskID{Job: w.Submit("a", 1, schedtest.R(1, 1, 0))}, 0)
	ends := w.Place(scheduler.TaskID{Job: w.Submit("b", 1, schedtest.R(1, 1, 0))}, 0)
	overdue := w.Start().Submit("a", 1, schedtest.R(1, 1, 0))
	w.Advance(time.Minute)
	w.Submit("b", 1, schedtest.R(1, 1, 0)) // its tenant has the smaller share; a node is reserved for it once the other is placed
	w.End(ends, scheduler.OutcomeSucceeded)
	p := New(Config{Name: "3dsf", Level: drf.Largest, Resources: 3, Aging: 10 * time.Second, ReserveNodes: true})
	for i := range 3 {
		if d := p.Decide(w.State, w.Now, 100); len(d.Actions) != 1 || d.Actions[0].Task.Job != overdue {
			t.Errorf("decision %d, while none is accepted: %s, want a task of job %d", i+1, d.String(), overdue)
		}
	}
}
