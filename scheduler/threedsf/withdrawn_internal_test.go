package threedsf

import (
	"errors"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/deadline"
	"github.com/drover-run/drover/scheduler/policytest"
	"github.com/drover-run/drover/scheduler/schedtest"
)

// A decision leaves nothing behind except what is applied of it: whether it is withdrawn, applied in part or applied, the
// State is otherwise unchanged, and the policy decides as a new one. Every module is on in some world and off in another.
func TestWithdrawnDecisionsLeaveNothing(t *testing.T) {
	kinds := map[scheduler.ActionKind]int{}
	rapid.Check(t, func(t *rapid.T) {
		w := &projectWorld{Chaos: schedtest.NewChaos(t, rapid.Uint64().Draw(t, "seed"))}
		cfg := fullConfig()
		off := func(name string) bool { return rapid.IntRange(0, 3).Draw(t, name) == 0 }
		cfg.Locality, cfg.ReserveNodes, cfg.Guarantees.Enabled, cfg.Migrate = !off("locality"), !off("reserve"), !off("guarantees"), !off("migrate")
		cfg.Preempt = rapid.SampledFrom([]deadline.Mode{deadline.Suspend, deadline.Cheapest, deadline.Kill, deadline.None}).Draw(t, "preempt")
		if off("queues") {
			cfg.LASMQ = nil
		}
		newPolicy := func() scheduler.Policy { return New(cfg) }
		p := New(cfg)
		for range rapid.IntRange(1, 40).Draw(t, "cycles") {
			for range 1 + w.R.IntN(4) {
				w.step()
			}
			for range w.R.IntN(3) {
				policytest.DecideWarmAndCold(t, w.State, p, newPolicy, w.Now, []int{1, 3, 1000}[w.R.IntN(3)])
			}
			d := policytest.DecideWarmAndCold(t, w.State, p, newPolicy, w.Now, 1000)
			for i := range d.Actions {
				kinds[d.Actions[i].Kind]++
			}
			commit := scheduler.AcceptAll
			switch w.R.IntN(4) {
			case 0:
				commit = func(scheduler.Decision) (scheduler.Decision, error) { return scheduler.Decision{}, errWithdrawn }
			case 1: // what the end of a process leaves of it
				commit = func(d scheduler.Decision) (scheduler.Decision, error) {
					d.Actions, d.PolicyStates = slices.Clone(d.Actions[:w.R.IntN(len(d.Actions)+1)]), nil
					return d, nil
				}
			}
			if _, err := scheduler.Cycle(w.State, p, w.Now, 1000, commit); err != nil && !errors.Is(err, errWithdrawn) {
				t.Fatal(err)
			}
			if err := schedtest.Invariants(w.State); err != nil {
				t.Fatal(err)
			}
		}
	})
	if t.Logf("%v", kinds); !t.Failed() && len(kinds) < 3 {
		t.Errorf("too few kinds of actions for a meaningful test: %v", kinds)
	}
}

var errWithdrawn = errors.New("withdrawn")

// A decision that was empty is given again without a look at the State, until an event or its own wake time.
func TestEmptyDecisionIsGivenAgain(t *testing.T) {
	w := schedtest.New(t).AddNodes(1, schedtest.R(2, 2, 2)).AddTenants("a")
	w.Place(scheduler.TaskID{Job: w.Submit("a", 1, schedtest.R(2, 2, 2))}, 0)
	w.Submit("a", 1, schedtest.R(1, 1, 1))
	cfg := fullConfig()
	p := New(cfg)
	decide := func(limit int) bool {
		p.cycle.actionsLeft = -1 // begin sets it
		d := p.Decide(w.State, w.Now, limit)
		if d.At != w.Now || len(d.Waiting) != 1 {
			t.Errorf("at %d it decided at %d and gives %d reasons", w.Now, d.At, len(d.Waiting))
		}
		return p.cycle.actionsLeft != -1
	}
	wake := p.Decide(w.State, w.Now, 10).Wake
	if wake != w.Now.Add(cfg.Aging-1e9) { // steps of Aging from time 0 on
		t.Errorf("it wakes at %d", wake)
	}
	for _, x := range []struct {
		name   string
		change func()
		looks  bool
	}{
		{"at once", func() {}, false},
		{"later", func() { w.Now = wake - 1 }, false},
		{"when it wakes", func() { w.Now = wake }, true},
		{"at once again", func() {}, false},
		{"when time goes back", func() { w.Now -= 5 }, true},
		{"after an event", func() { w.Start() }, true},
	} {
		if x.change(); decide(10) != x.looks {
			t.Errorf("%s it looks at the State: %v, want %v", x.name, !x.looks, x.looks)
		}
	}
	p.SetReasonsWanted(false)
	if d := p.Decide(w.State, w.Now, 10); len(d.Waiting) != 0 {
		t.Errorf("%d reasons although nobody wants them", len(d.Waiting))
	}
	p.SetReasonsWanted(true)
	if d := p.Decide(w.State, w.Now, 10); len(d.Waiting) != 1 {
		t.Errorf("%d reasons, want 1", len(d.Waiting))
	}
}

// The deadline service of a policy follows from its configuration.
func TestDeadlineServiceFollowsTheConfig(t *testing.T) {
	for _, x := range []struct {
		deadlines, guarantees       bool
		mode                        deadline.Mode
		serves, suspends, guarantee bool
	}{
		{false, false, deadline.Suspend, false, false, false},
		{false, true, deadline.Suspend, false, false, false},
		{true, false, deadline.Suspend, true, true, false},
		{true, true, deadline.Suspend, true, true, true},
		{true, true, deadline.Cheapest, true, true, true},
		{true, true, deadline.Kill, true, false, true},
		{true, true, deadline.None, true, false, true},
	} {
		p := New(Config{Name: "x", Deadlines: x.deadlines, Preempt: x.mode, Guarantees: Guarantees{Enabled: x.guarantees}})
		want := scheduler.DeadlineService{First: x.serves, Preempts: x.suspends, Guarantees: x.guarantee}
		if got := p.DeadlineService(); p.Name() != "x" || got != want {
			t.Errorf("%+v: %+v", x, got)
		}
	}
}
