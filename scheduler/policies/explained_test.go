package policies

import (
	"fmt"
	"testing"

	"github.com/drover-run/drover/internal/seed"
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

// comparedPolicy is a policy that fails a test unless it decides the same where no reasons are wanted.
type comparedPolicy struct {
	scheduler.Policy
	without scheduler.Policy // its decisions have no reasons
	t       *testing.T
	wakes   int // decisions that request another one
}

func newComparedPolicy(t *testing.T, name string, params map[string]string) *comparedPolicy {
	p := &comparedPolicy{Policy: mustNew(t, name, params), without: mustNew(t, name, params), t: t}
	p.without.(scheduler.Reasoner).SetReasonsWanted(false)
	return p
}

func (p *comparedPolicy) Decide(s *scheduler.State, now scheduler.Time, limit int) scheduler.Decision {
	d, without := p.Policy.Decide(s, now, limit), p.without.Decide(s, now, limit)
	plain := d
	if plain.Waiting = nil; d.WaitingMore || len(without.Waiting) > 0 || plain.String() != without.String() || plain.Wake != without.Wake {
		p.t.Fatalf("%s decides\n%swake %d, and without reasons\n%swake %d", p.Name(), plain.String(), plain.Wake, without.String(), without.Wake)
	}
	if d.Wake > 0 {
		p.wakes++
	}
	return d
}

// Whether reasons are wanted changes nothing else in a decision: in random worlds, and for 3dsf where guarantees share caps.
func TestReasonsChangeNothingElse(t *testing.T) {
	first := seed.New(t)
	for _, info := range table {
		for world := range uint64(5) {
			c, p := schedtest.NewChaos(t, first+world), newComparedPolicy(t, info.Name, nil)
			for range 20 {
				c.Step()
				c.Cycle(p)
			}
		}
	}
	wakes := 0
	for world := range uint64(5) {
		w, proved := cappedGuarantees(t, first+world)
		p := newComparedPolicy(t, "3dsf", cappedParams(first+world))
		proved.Policy = p
		for range 200 {
			if w.r.IntN(10) == 0 {
				w.join()
			}
			w.advanceSecond(true)
		}
		wakes += p.wakes
	}
	if wakes < 100 {
		t.Errorf("%d decisions request another one: too few for a meaningful test", wakes)
	}
}
