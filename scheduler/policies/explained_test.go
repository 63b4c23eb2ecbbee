package policies

import (
	"fmt"
	"testing"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/schedtest"
)

// TestVeryManyReasonsComeInParts checks that more waiting stages than one decision explains are explained by
// several, which the policy requests itself and which do nothing else, all of them again after a change,
// and that it then requests no more.
func TestVeryManyReasonsComeInParts(t *testing.T) {
	for _, name := range []string{"3dsf", "fifo", "fair", "las_mq", "edf", "easy", "multifactor", "conservative"} {
		t.Run(name, func(t *testing.T) { explainInParts(t, name) })
	}
}

func explainInParts(t *testing.T, name string) {
	w := schedtest.New(t).AddNodes(2, schedtest.R(1, 1, 100)).AddTenants("a")
	const stages, jobs = 32, 2*scheduler.MaxExplained/32 + 3
	of := make([]scheduler.StageSpec, stages)
	for i := range of {
		of[i] = scheduler.StageSpec{Name: fmt.Sprint("s", i), Kind: scheduler.KindGroup, Tasks: 1, Demand: schedtest.R(1, 1, 10)}
	}
	newest := scheduler.StageID{}
	for range jobs {
		newest.Job = w.SubmitStages("a", of)
	}
	p := newPolicy(t, name)
	plans := name == "conservative" // which takes many decisions, each with some reservations
	placed := 0
	explain := func() (explained int) { // until nothing more is requested
		all := map[scheduler.StageID]bool{}
		for parts := 0; ; parts++ {
			if parts > 9 && !plans || parts > 99 {
				t.Fatal("no end of the parts")
			}
			d := w.Cycle(p)
			for i := range d.Actions {
				if d.Actions[i].Kind == scheduler.ActPlace {
					placed++
				}
			}
			if len(d.Waiting) > scheduler.MaxExplained+2*stages {
				t.Fatalf("%d reasons in one decision", len(d.Waiting))
			}
			if !d.WaitingContinues {
				clear(all)
			}
			part := map[scheduler.StageID]bool{}
			for i := range d.Waiting {
				if r := d.Waiting[i].Reason; r != scheduler.ReasonNoCPU && !plans {
					t.Fatalf("reason %v", &d.Waiting[i])
				}
				all[d.Waiting[i].Stage], part[d.Waiting[i].Stage] = true, true
			}
			if !part[newest] && d.WaitingMore {
				t.Fatal("the newest job has no reason")
			}
			if d.Wake != w.Now+1 && !d.WaitingMore && len(d.Actions) == 0 {
				return len(all)
			}
			w.Advance(1)
		}
	}
	if got := explain(); placed != 2 || got != stages*jobs-2 {
		t.Fatalf("%d tasks placed, %d stages explained of %d", placed, got, stages*jobs-2)
	}
	w.Start()
	w.Cycle(p) // the first part
	w.Advance(1).End(w.Attempts()[0], scheduler.OutcomeSucceeded)
	if got := explain(); placed != 3 || got != stages*jobs-3 {
		t.Fatalf("after a change in a round: %d tasks placed, %d stages explained of %d", placed, got, stages*jobs-3)
	}
	if d := w.Cycle(p); d.WaitingMore || d.Wake == w.Now+1 {
		t.Errorf("does not rest: %+v", d.Wake)
	}
}
