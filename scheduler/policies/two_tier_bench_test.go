package policies

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/drover-run/drover/internal/seed"
	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/policytest"
	"github.com/drover-run/drover/scheduler/schedtest"
)

// crowdedWorld is a full cluster with waiting projects, each with a guarantee.
type crowdedWorld struct {
	*schedtest.World
	r           *rand.Rand
	jobs        int // of a project
	lastProject scheduler.ProjectID
}

func (c *crowdedWorld) demand() scheduler.Resources {
	return schedtest.R(float64(1+c.r.IntN(16)), float64(1+c.r.IntN(48)), float64(c.r.IntN(300)))
}

func (c *crowdedWorld) submitProject() scheduler.ProjectID {
	c.lastProject++
	id := c.lastProject
	if err := c.State.Events().PutProject(scheduler.ProjectSpec{ID: id, Name: "p", Priority: scheduler.PriorityLow, Submitted: c.Now, Jobs: int32(c.jobs)}); err != nil {
		c.Fatalf("project %d: %v", id, err)
	}
	for range c.jobs {
		c.Submit("a", 1, c.demand(), func(j *scheduler.JobSpec, _ *scheduler.StageSpec) {
			j.Project, j.Bound = id, time.Duration(60+c.r.IntN(3600))*time.Second
		})
	}
	return id
}

// runToQuiescence runs cycles until a decision is empty and returns the number of
// actions.
func (c *crowdedWorld) runToQuiescence(p scheduler.Policy) int {
	actions := 0
	for range 1000 {
		d, err := scheduler.Cycle(c.State, p, c.Now, 100_000, scheduler.AcceptAll)
		if err != nil {
			c.Fatalf("%v", err)
		}
		actions += len(d.Actions)
		c.Start()
		if d.Empty() {
			break
		}
	}
	return actions
}

func newCrowded(t schedtest.TB, p scheduler.Policy, nodes, waiting, jobs int) *crowdedWorld {
	c := &crowdedWorld{schedtest.New(t).AddNodes(nodes, schedtest.R(32, 128, 1000)).AddTenants("a"), rand.New(rand.NewPCG(4, 4)), jobs, 0}
	for c.countWaiting() < waiting {
		n := waiting - c.countWaiting()
		for range min(n, 2000) {
			c.submitProject()
		}
		c.runToQuiescence(p)
	}
	return c
}

// countWaiting returns the number of projects without a started task.
func (c *crowdedWorld) countWaiting() int {
	n := 0
	for _, p := range c.State.Projects() {
		started := false
		for _, j := range p.Jobs {
			started = started || c.State.Job(j).Live > 0
		}
		if !started {
			n++
		}
	}
	return n
}

// endOne ends the attempt that was placed first on a node, well before its bound.
func (c *crowdedWorld) endOne(node scheduler.NodeID) {
	for a := range c.State.Attempts().On(node) {
		id := a.ID.Job
		c.End(a, scheduler.OutcomeSucceeded)
		if err := c.State.Events().EndJob(id); err != nil {
			c.Fatalf("%v", err)
		}
		return
	}
}

// BenchmarkCrowdedPlan measures a whole cycle (Decide, Check and Apply) on 1,000
// nodes with 10,000 waiting projects, after a task ended early and after a project
// arrived (until it has its guarantee).
func BenchmarkCrowdedPlan(b *testing.B) {
	for _, jobs := range []int{1, 5} {
		for _, variant := range []string{"2tsb", "2tfb-sf"} {
			b.Run(fmt.Sprintf("%d jobs %s", jobs, variant), func(b *testing.B) {
				benchPlanned10000(b, mustNew(b, "two_tier", map[string]string{"variant": variant}), jobs)
			})
		}
	}
	b.Run("conservative", func(b *testing.B) { benchPlanned10000(b, mustNew(b, "conservative", nil), 1) })
}

func benchPlanned10000(b *testing.B, p scheduler.Policy, jobs int) {
	c := newCrowded(b, p, 1000, 10_000, jobs)
	b.Run("early end", func(b *testing.B) {
		moved := 0
		for i := range b.N {
			c.Advance(time.Second)
			c.endOne(scheduler.NodeID(i % 1000))
			moved += c.runToQuiescence(p)
		}
		b.ReportMetric(float64(moved)/float64(b.N), "actions/op")
	})
	b.Run("arrival", func(b *testing.B) {
		for range b.N {
			c.Advance(time.Millisecond)
			id := c.submitProject()
			if _, err := scheduler.Cycle(c.State, p, c.Now, 100_000, scheduler.AcceptAll); err != nil {
				b.Fatal(err)
			}
			if j := c.State.Job(c.State.Project(id).Jobs[0]); !j.HasState(scheduler.GuaranteeState) && !c.State.Project(id).HasState(scheduler.GuaranteeState) {
				b.Fatal("no guarantee")
			}
		}
	})
}

// Through arrivals, early ends and passing time, a policy decides the same as a new one,
// with 150 waiting projects.
func TestWarmPolicyDecidesAsNewOne(t *testing.T) {
	for _, variant := range []string{"2tsb", "2tfb-sf"} {
		t.Run(variant, func(t *testing.T) {
			newPolicy := func() scheduler.Policy {
				return mustNew(t, "two_tier", map[string]string{"variant": variant, "max_tries": "10"})
			}
			p := newPolicy()
			c := newCrowded(t, p, 20, 150, 1)
			for i := range 9 {
				c.Advance(time.Duration(1+c.r.IntN(40)) * time.Second)
				switch i % 3 {
				case 0:
					c.submitProject()
				case 1:
					c.endOne(scheduler.NodeID(c.r.IntN(20)))
				default:
					c.endOne(scheduler.NodeID(c.r.IntN(20)))
					c.submitProject()
				}
				policytest.Round(t, c.State, p, newPolicy, c.Now, 100_000)
				c.Start()
			}
		})
	}
}

// The same holds for jobs of many tasks, some of which start in each cycle: the rest
// of such a job stays planned where it is.
func TestWarmPolicyDecidesAsNewOneOnLargeJobs(t *testing.T) {
	for _, name := range []string{"conservative", "two_tier"} {
		for _, bound := range []time.Duration{0, 40 * time.Second} {
			t.Run(fmt.Sprint(name, bound), func(t *testing.T) {
				seed := seed.New(t)
				r := rand.New(rand.NewPCG(seed, 1))
				newPolicy := func() scheduler.Policy { return mustNew(t, name, map[string]string{"default_bound": "30s"}) }
				p := newPolicy()
				w := schedtest.New(t).AddNodes(6, schedtest.R(4, 16, 100)).AddTenants("a")
				submit := func(tasks int32) {
					w.Submit("a", tasks, schedtest.R(1, 1, float64(r.IntN(40))), func(j *scheduler.JobSpec, _ *scheduler.StageSpec) { j.Bound = bound })
				}
				for i := range 60 {
					if i%12 == 0 {
						submit(5 + r.Int32N(40))
					}
					policytest.Round(t, w.State, p, newPolicy, w.Now, 100_000)
					w.Start()
					// Some end early, the rest at their bound.
					w.Advance(time.Duration(1+r.IntN(5)) * 2 * time.Second)
					for _, a := range w.Attempts() {
						if r.IntN(5) == 0 || w.Now >= a.Placed.Add(cmp.Or(bound, 30*time.Second)) {
							w.End(a, scheduler.OutcomeSucceeded)
						}
					}
				}
			})
		}
	}
}

// A cycle reads from the State only what changed since the last cycle, and what that tried to move:
// few of 200 owners after an arrival or an early end.
func TestArrivalReadsWhatChanged(t *testing.T) {
	for _, name := range []string{"two_tier", "conservative"} {
		t.Run(name, func(t *testing.T) {
			p := mustNew(t, name, nil).(*reservingPolicy)
			c := newCrowded(t, p, 20, 150, 1)
			decide := func(what string) {
				t.Helper()
				d, err := scheduler.Cycle(c.State, p, c.Now, 100_000, scheduler.AcceptAll)
				if err != nil {
					t.Fatal(err)
				}
				read, all := len(p.plan.restored.changed), len(p.plan.restored.ordered)
				if read == 0 || read > all/4+2*len(d.Actions) {
					t.Errorf("after %s, a cycle with %d actions read %d of %d owners", what, len(d.Actions), read, all)
				}
			}
			for range 5 {
				c.Advance(time.Millisecond)
				c.submitProject()
				decide("an arrival")
			}
			c.Advance(time.Millisecond)
			c.endOne(0)
			decide("an early end")
		})
	}
}
