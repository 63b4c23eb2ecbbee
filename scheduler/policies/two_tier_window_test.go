package policies

import (
	"slices"
	"testing"
	"time"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/policytest"
	"github.com/drover-run/drover/scheduler/schedtest"
)

// windowed returns a policy whose window holds the given number of tasks, 0 for the usual one.
func windowed(t *testing.T, name string, tasks int) func() scheduler.Policy {
	return func() scheduler.Policy {
		p := mustNew(t, name, nil).(*reservingPolicy)
		p.plan.window = tasks
		return p
	}
}

// decideAndProve lets a policy decide, compares the decision with a new policy's, proves its
// reasons, and applies it.
func decideAndProve(t *testing.T, w *schedtest.World, p scheduler.Policy, newPolicy func() scheduler.Policy) scheduler.Decision {
	t.Helper()
	d := policytest.DecideWarmAndCold(t, w.State, p, newPolicy, w.Now, 100_000)
	if v := scheduler.Check(w.State, &d, w.Now); len(v) > 0 {
		t.Fatal(v)
	}
	for i := range d.Actions {
		if err := w.State.Apply(&d.Actions[i], w.Now); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.State.PolicyStates().Apply(d.PolicyStates); err != nil {
		t.Fatal(err)
	}
	w.Start()
	return d
}

// On a full cluster, equal tasks of many owners get the same starts on the same nodes whether all
// owners are read at once or few in each cycle, and none of these cycles reads more than the window.
func TestWindowPlansWhatAllAtOnceDoes(t *testing.T) {
	const nodes, jobs, tasks, size = 8, 60, 3, 24
	for _, name := range []string{"two_tier", "conservative"} {
		t.Run(name, func(t *testing.T) {
			plan := func(window int) (starts []scheduler.Time, cycles int) {
				newPolicy := windowed(t, name, window)
				p := newPolicy().(*reservingPolicy)
				w := schedtest.New(t).AddNodes(nodes, schedtest.R(4, 16, 100)).AddTenants("a")
				bounded := func(j *scheduler.JobSpec, _ *scheduler.StageSpec) { j.Bound = time.Hour }
				w.Submit("a", nodes, schedtest.R(4, 1, 0), bounded)
				decideAndProve(t, w, p, newPolicy)
				for range jobs {
					w.Submit("a", tasks, schedtest.R(1, 1, 0), bounded)
				}
				for planned := 0; planned < jobs*tasks; cycles++ {
					w.Advance(1)
					decideAndProve(t, w, p, newPolicy)
					if n := p.plan.planner.NumUnplaced() + len(w.State.Reservations().All()) - planned; window > 0 && n > window+2*tasks {
						t.Fatalf("a cycle read %d tasks, the window holds %d", n, window)
					}
					was := planned
					if planned = len(w.State.Reservations().All()); planned == was {
						t.Fatalf("cycle %d planned nothing after %d tasks", cycles, planned)
					}
				}
				for _, r := range w.State.Reservations().All() {
					starts = append(starts, r.Start)
				}
				for j := range w.State.Jobs() {
					if !j.HasState(scheduler.GuaranteeState) {
						t.Errorf("window of %d: job %d has no guarantee", window, j.Spec.ID)
					}
				}
				slices.Sort(starts)
				return starts, cycles
			}
			all, once := plan(0)
			parts, cycles := plan(size)
			if once != 1 || cycles < jobs*tasks/size {
				t.Errorf("planned in %d cycles at once, in %d in parts", once, cycles)
			}
			if !slices.Equal(all, parts) {
				t.Errorf("in parts the starts are\n%v, at once\n%v", parts, all)
			}
		})
	}
}

// Work behind very many jobs that fit nowhere is still planned, in its turn; the reasons meanwhile
// can be proved, and a new policy decides the same.
func TestWindowLeavesNothingOutForEver(t *testing.T) {
	const misfits, size = 300, 20
	for _, name := range []string{"two_tier", "conservative"} {
		t.Run(name, func(t *testing.T) {
			newPolicy := windowed(t, name, size)
			p := newPolicy().(*reservingPolicy)
			w := schedtest.New(t).AddNodes(2, schedtest.R(1, 1, 100)).AddTenants("a")
			for i := range misfits {
				w.Submit("a", 1, schedtest.R(2+float64(i), 1, 0))
			}
			fits := w.Submit("a", 1, schedtest.R(1, 1, 0))
			turns := 0
			for ; len(w.Attempts()) == 0; turns++ {
				if turns > 2*misfits/(size/2) {
					t.Fatalf("not started after %d turns", turns)
				}
				d := decideAndProve(t, w, p, newPolicy)
				if err := policytest.ProveAll(w.State, &d, w.Now, 100_000); err != nil {
					t.Fatal(err)
				}
				if n := p.plan.planner.Len(); n > size {
					t.Fatalf("%d tasks were read, the window holds %d", n, size)
				}
				if len(d.Actions) == 0 && (d.Wake <= w.Now || d.Wake > w.Now+windowTurn) {
					t.Fatalf("the next turn is at %v, now is %v", d.Wake, w.Now)
				}
				w.Advance(time.Duration(windowTurn))
			}
			if a := w.Attempts(); len(a) != 1 || a[0].ID.Job != fits {
				t.Errorf("started %v", a)
			}
			// When the others end, the rest is read at once again, and its reasons are its own.
			for j := range w.State.Jobs() {
				if j.Spec.ID > 10 && j.Spec.ID != fits {
					if err := w.State.Events().EndJob(j.Spec.ID); err != nil {
						t.Fatal(err)
					}
				}
			}
			d := decideAndProve(t, w, p, newPolicy)
			for i := range d.Waiting {
				if d.Waiting[i].Reason == scheduler.ReasonNotExamined {
					t.Fatal(d.Waiting[i].String())
				}
			}
		})
	}
}
