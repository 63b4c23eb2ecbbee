package bench

import (
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/schedtest"
)

// Tenants a and b of equal weight on one node of 100 cores; CPU is dominant.
func TestShareErrorOfHandMadeDecisions(t *testing.T) {
	one := schedtest.R(1, 0, 0)
	for name, c := range map[string]struct {
		prepare func(*schedtest.World)
		place   []scheduler.JobID // one task each, in order
		waiting []scheduler.Waiting
		want    float64
	}{
		"alternately": {
			prepare: func(w *schedtest.World) { w.Submit("a", 50, one); w.Submit("b", 50, one) },
			place:   []scheduler.JobID{1, 2, 1}, want: 1,
		},
		"one tenant is served five times, the other waits": {
			prepare: func(w *schedtest.World) { w.Submit("a", 50, one); w.Submit("b", 50, one) },
			place:   []scheduler.JobID{1, 1, 1, 1, 1}, want: 5,
		},
		"in tasks of the waiting tenant": {
			prepare: func(w *schedtest.World) { w.Submit("a", 50, one); w.Submit("b", 50, schedtest.R(5, 0, 0)) },
			place:   []scheduler.JobID{1, 1, 1, 1, 1}, want: 1,
		},
		"no tenant waits": {
			prepare: func(w *schedtest.World) { w.Submit("a", 50, one); w.Submit("b", 1, one) },
			place:   []scheduler.JobID{2, 1, 1, 1, 1}, want: 0,
		},
		"the waiting task does not fit": {
			prepare: func(w *schedtest.World) { w.Submit("a", 50, one); w.Submit("b", 1, schedtest.R(99, 0, 0)) },
			place:   []scheduler.JobID{1, 1, 1, 1, 1}, want: 0,
		},
		"a job waits behind one that does not fit": {
			prepare: func(w *schedtest.World) {
				w.Submit("a", 50, one)
				w.Submit("b", 1, schedtest.R(99, 0, 0))
				w.Submit("b", 1, one)
			},
			place: []scheduler.JobID{1, 1, 1}, want: 3.0 / 99,
		},
		"at its cap": {
			prepare: func(w *schedtest.World) {
				w.Submit("a", 50, one)
				w.Submit("b", 50, one)
				spec := w.Tenant("b").Spec
				spec.Caps.Total[scheduler.CPU] = 999
				if err := w.State.Events().PutTenant(spec); err != nil {
					w.Fatalf("%v", err)
				}
			},
			place: []scheduler.JobID{1, 1, 1}, want: 0,
		},
		"delayed for its data": {
			prepare: func(w *schedtest.World) { w.Submit("a", 50, one); w.Submit("b", 50, one) },
			place:   []scheduler.JobID{1, 1, 1},
			waiting: []scheduler.Waiting{{Stage: scheduler.StageID{Job: 2}, Reason: scheduler.ReasonData}}, want: 0,
		},
		"an accepted deadline is ordered by its guarantee": {
			prepare: func(w *schedtest.World) {
				w.Submit("a", 50, one, func(j *scheduler.JobSpec, _ *scheduler.StageSpec) {
					j.Deadline, j.AcceptedByQuote = w.Now.Add(1e12), true
				})
				w.Submit("b", 50, one)
			},
			place: []scheduler.JobID{1, 1, 1}, want: 0,
		},
		"a deadline task placed after the last regular one": {
			prepare: func(w *schedtest.World) {
				w.Submit("a", 50, one)
				w.Submit("b", 50, one)
				w.Submit("a", 50, one, func(j *scheduler.JobSpec, _ *scheduler.StageSpec) {
					j.Deadline, j.AcceptedByQuote = w.Now.Add(1e12), true
				})
			},
			place: []scheduler.JobID{1, 3, 3}, want: 1,
		},
		"inner tenants are compared by their descendants": {
			prepare: func(w *schedtest.World) {
				w.AddTenants("a/x", "a/y")
				w.Submit("x", 50, one)
				w.Submit("y", 50, one)
				w.Submit("b", 50, one)
			},
			place: []scheduler.JobID{1, 2, 1, 2}, want: 4,
		},
		"weights": {
			prepare: func(w *schedtest.World) {
				spec := w.Tenant("a").Spec
				spec.Weight = 4
				if err := w.State.Events().PutTenant(spec); err != nil {
					w.Fatalf("%v", err)
				}
				w.Submit("a", 50, one)
				w.Submit("b", 50, one)
			},
			place: []scheduler.JobID{1, 1, 1, 1}, want: 1,
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := schedtest.New(t).AddNodes(1, schedtest.R(100, 100, 100)).AddTenants("a", "b")
			c.prepare(w)
			var d scheduler.Decision
			for _, id := range c.place {
				g := w.State.Job(id).Stages[0]
				a := w.State.Attempts().PlaceAction(g, g.NextPending(0), 0, 0)
				if err := w.State.Apply(&a, w.Now); err != nil {
					t.Fatal(err)
				}
				d.Actions = append(d.Actions, a)
			}
			d.Waiting = c.waiting
			var judge shareEvaluator
			if got := judge.largestError(w.State, &d); math.Abs(got-c.want) > 1e-9 {
				t.Errorf("error %v tasks, want %v", got, c.want)
			}
		})
	}
}

// Progressive filling never errs by more than one task under churn; nor does 3dsf, with and without
// locality and queues.
func TestShareErrorUnderChurn(t *testing.T) {
	for name, c := range map[string]struct {
		params map[string]string
		slow   bool
		limit  float64
	}{
		"progressive filling":   {slow: true, limit: 1},
		"3dsf without locality": {params: map[string]string{"reserve": "false", "locality": "false"}, limit: 1},
		"3dsf in order":         {params: map[string]string{"reserve": "false", "regular_order": "fcfs"}, limit: 1},
		"3dsf with queues":      {params: map[string]string{"reserve": "false"}, limit: 1},
	} {
		t.Run(name, func(t *testing.T) {
			w, err := newWorld(Config{Nodes: 60, WaitingTasks: 2000, Tenants: 60, projects: 20, maxActions: 100, Features: FeaturesAll}.defaults())
			if err != nil {
				t.Fatal(err)
			}
			p := scheduler.Policy(&slowFilling{})
			if !c.slow {
				if p, err = newPolicy(Config{Policy: "3dsf", Params: c.params}); err != nil {
					t.Fatal(err)
				}
			}
			if err := w.fillToLoad(p); err != nil {
				t.Fatal(err)
			}
			var judge shareEvaluator
			worst, full := 0.0, 0
			for range 40 {
				w.now = w.now.Add(w.cycleInterval())
				if err := w.endAttempts(w.pickEnds(w.maxActions, nil)); err != nil {
					t.Fatal(err)
				}
				if err := w.submit(w.WaitingTasks); err != nil {
					t.Fatal(err)
				}
				judge.beforeDecision(w.s)
				d, err := scheduler.Cycle(w.s, p, w.now, w.maxActions, scheduler.AcceptAll)
				if err != nil {
					t.Fatal(err)
				}
				w.recordPlacements(&d)
				if len(d.Actions) == w.maxActions {
					full++
				}
				worst = max(worst, judge.largestError(w.s, &d))
				if err := w.reportActions(&d); err != nil {
					t.Fatal(err)
				}
			}
			t.Logf("worst error %.3f tasks, %d of 40 cycles full, seed %d", worst, full, w.Seed)
			if worst > c.limit+1e-9 || full < 10 {
				t.Errorf("error %v tasks in %d full cycles, at most %v wanted", worst, full, c.limit)
			}
		})
	}
}

// slowFilling is the obvious progressive filling: for each place it examines every tenant and every
// stage.
type slowFilling struct {
	s      *scheduler.State
	placed []scheduler.Action
}

func (p *slowFilling) Name() string { return "slow progressive filling" }

func (p *slowFilling) Decide(s *scheduler.State, now scheduler.Time, maxActions int) scheduler.Decision {
	p.s, p.placed = s, p.placed[:0]
	mark := s.Journal().Mark()
	defer s.Journal().Rollback(mark)
	for _, accepted := range []bool{true, false} { // accepted deadlines by submission, then shares
		for len(p.placed) < maxActions {
			var g *scheduler.Stage
			if accepted {
				g = p.firstPlaceable(scheduler.NoTenant, true)
			} else {
				g, _ = p.nextStage(scheduler.NoTenant)
			}
			if g == nil {
				break
			}
			node, disk := s.Cluster().BestNode(g, nil)
			a := s.Attempts().PlaceAction(g, g.NextPending(0), node, disk)
			if err := s.Apply(&a, now); err != nil {
				panic(err)
			}
			p.placed = append(p.placed, a)
		}
	}
	return scheduler.Decision{Base: s.Index(), At: now, Actions: p.placed}
}

// firstPlaceable returns the first stage in the order of a tenant (or of all) that can be placed.
func (p *slowFilling) firstPlaceable(t scheduler.TenantID, accepted bool) *scheduler.Stage {
	for _, pr := range []scheduler.Priority{scheduler.PriorityHigh, scheduler.PriorityLow} {
		for j := range p.s.Jobs() {
			if j.Spec.AcceptedByQuote != accepted || j.Spec.Priority != pr || (t != scheduler.NoTenant && j.Spec.Tenant != t) {
				continue
			}
			for _, g := range j.Stages {
				if p.s.TenantTree().Allows(g) && g.Startable() > 0 && p.s.Cluster().NextNode(g, 0) != scheduler.NoNode {
					return g
				}
			}
		}
	}
	return nil
}

// nextStage returns the stage that is next below a tenant, and its share.
func (p *slowFilling) nextStage(above scheduler.TenantID) (*scheduler.Stage, float64) {
	var children []*scheduler.Tenant
	for _, t := range p.s.Tenants() {
		if t.Spec.Parent == above {
			children = append(children, t)
		}
	}
	slices.SortFunc(children, func(a, b *scheduler.Tenant) int { return strings.Compare(a.Spec.Name, b.Spec.Name) })
	var best *scheduler.Stage
	least := math.Inf(1)
	for _, t := range children {
		g := p.firstPlaceable(t.Spec.ID, false)
		if g == nil {
			g, _ = p.nextStage(t.Spec.ID)
		}
		if g == nil {
			continue
		}
		if share := t.Used.Add(g.Spec.Demand).DominantShare(p.s.Cluster().Total()) / t.Spec.Weight; share < least {
			best, least = g, share
		}
	}
	return best, least
}
