package policies

import (
	"slices"
	"testing"
	"time"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/policytest"
	"github.com/drover-run/drover/scheduler/schedtest"
)

func TestReservingPoliciesConform(t *testing.T) {
	for _, info := range table {
		if !slices.ContainsFunc(info.Params, func(p Param) bool { return p.Name == reserveParam.Name }) {
			continue
		}
		t.Run(info.Name, func(t *testing.T) {
			policytest.Run(t, func() scheduler.Policy {
				p, err := New(info.Name, map[string]string{"reserve": "true"})
				if err != nil {
					t.Fatal(err)
				}
				return p
			})
		})
	}
}

// Two nodes with two places each are full of small tasks, one of which ends
// every second while more wait. A task that needs both places of a node is
// first in line: it is passed over for ever, or a node is kept for it.
func TestALargeTaskIsNotPassedOverForEver(t *testing.T) {
	for _, name := range []string{"fifo", "3dsf", "drf", "pdsonqueue"} {
		for reserve, starts := range map[string]bool{"false": false, "true": true} {
			w := schedtest.New(t).AddNodes(2, schedtest.R(2, 8, 10)).AddTenants("a", "b")
			p := mustNew(t, name, map[string]string{"reserve": reserve})
			w.Submit("a", 4, schedtest.R(1, 1, 0))
			w.Cycle(p)
			large := w.Submit("a", 1, schedtest.R(2, 1, 0))
			w.Submit("b", 100, schedtest.R(1, 1, 0))
			for range 20 {
				w.Start().Pass(time.Second)
				w.End(oldest(w), scheduler.OutcomeSucceeded)
				w.Cycle(p)
			}
			g := w.State.Job(large).Stages[0]
			if got := g.Running > 0 || g.Done > 0; got != starts {
				t.Errorf("%s, reserve %s: the large task starts: %v", name, reserve, got)
			}
		}
	}
}

// No node is kept for who has a place in the plan: smaller promised work that
// ends before it starts on what an early end left, and the large task at its
// instant.
func TestNoNodeIsKeptForPlannedWork(t *testing.T) {
	w := schedtest.New(t).AddNodes(1, schedtest.R(4, 8, 10)).AddTenants("a")
	p := mustNew(t, "3dsf", map[string]string{"reserve": "true", "sf": "0"})
	submit := func(id scheduler.ProjectID, cores float64, bound time.Duration) *scheduler.Stage {
		if err := w.State.PutProject(scheduler.ProjectSpec{ID: id, Name: "p", Tenant: w.Tenant("a").Spec.ID, Priority: scheduler.PriorityLow, Submitted: w.Now, Jobs: 1}); err != nil {
			t.Fatal(err)
		}
		j := w.Submit("a", 1, schedtest.R(cores, 1, 0), func(j *scheduler.JobSpec, _ *scheduler.StageSpec) { j.Project, j.Bound = id, bound })
		w.Cycle(p)
		return w.State.Job(j).Stages[0]
	}
	submit(1, 3, time.Minute)
	submit(2, 1, time.Minute)
	large, small := submit(3, 4, time.Minute), submit(4, 1, 30*time.Second)
	if large.Running+small.Running > 0 {
		t.Fatal("there was room")
	}
	w.Start().Pass(5 * time.Second)
	w.End(w.Attempts()[1], scheduler.OutcomeSucceeded)
	if w.Cycle(p); small.Running != 1 || large.Running != 0 {
		t.Errorf("%d of the small and %d of the large one run, want 1 and 0", small.Running, large.Running)
	}
	w.Start().Pass(58 * time.Second)
	for _, a := range w.Attempts() {
		w.End(a, scheduler.OutcomeSucceeded)
	}
	if w.Cycle(p); large.Running != 1 {
		t.Error("the large one does not start when its time has come")
	}
}

// oldest is the small task that started first.
func oldest(w *schedtest.World) *scheduler.Attempt {
	var first *scheduler.Attempt
	for _, a := range w.Attempts() {
		if first == nil || a.ID.Compare(first.ID) < 0 {
			first = a
		}
	}
	return first
}
