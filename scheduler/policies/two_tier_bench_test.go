package policies

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/policytest"
	"github.com/drover-run/drover/scheduler/schedtest"
)

// crowded is a full cluster with waiting projects, each with a guarantee.
type crowded struct {
	*schedtest.World
	r    *rand.Rand
	jobs int // of a project
	last scheduler.ProjectID
}

func (c *crowded) demand() scheduler.Resources {
	return schedtest.R(float64(1+c.r.IntN(16)), float64(1+c.r.IntN(48)), float64(c.r.IntN(300)))
}

func (c *crowded) project() scheduler.ProjectID {
	c.last++
	id := c.last
	if err := c.State.PutProject(scheduler.ProjectSpec{ID: id, Name: "p", Priority: scheduler.PriorityLow, Submitted: c.Now, Jobs: int32(c.jobs)}); err != nil {
		c.Fatalf("project %d: %v", id, err)
	}
	for range c.jobs {
		c.Submit("a", 1, c.demand(), func(j *scheduler.JobSpec, _ *scheduler.StageSpec) {
			j.Project, j.Bound = id, time.Duration(60+c.r.IntN(3600))*time.Second
		})
	}
	return id
}

// settle runs cycles until the policy wants nothing more.
func (c *crowded) settle(p scheduler.Policy) int {
	actions := 0
	for range 1000 {
		d, err := scheduler.Cycle(c.State, p, c.Now, 100_000, scheduler.Identity)
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

func crowd(t schedtest.TB, p scheduler.Policy, nodes, waiting, jobs int) *crowded {
	c := &crowded{schedtest.New(t).AddNodes(nodes, schedtest.R(32, 128, 1000)).AddTenants("a"), rand.New(rand.NewPCG(4, 4)), jobs, 0}
	for c.waiting() < waiting {
		n := waiting - c.waiting()
		for range min(n, 2000) {
			c.project()
		}
		c.settle(p)
	}
	return c
}

// waiting counts the projects of which nothing has started.
func (c *crowded) waiting() int {
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
func (c *crowded) endOne(node scheduler.NodeID) {
	for a := range c.State.AttemptsOn(node) {
		id := a.ID.Job
		c.End(a, scheduler.OutcomeSucceeded)
		if err := c.State.EndJob(id, scheduler.JobSucceeded, c.Now); err != nil {
			c.Fatalf("%v", err)
		}
		return
	}
}

// BenchmarkPlanned is bar 4 of the schedulers at the policy: a whole cycle with
// Decide, Check and apply on 1,000 nodes with 10,000 waiting projects, after a
// task ended early, and after a project arrived (until it has its quote).
func BenchmarkPlanned(b *testing.B) {
	for _, jobs := range []int{1, 5} {
		for _, variant := range []string{"2tsb", "2tfb-sf"} {
			b.Run(fmt.Sprintf("%d jobs %s", jobs, variant), func(b *testing.B) { planned10000(b, variant, jobs) })
		}
	}
}

func planned10000(b *testing.B, variant string, jobs int) {
	p := mustNew(b, "two_tier", map[string]string{"variant": variant})
	c := crowd(b, p, 1000, 10_000, jobs)
	b.Run("early end", func(b *testing.B) {
		moved := 0
		for i := range b.N {
			c.Pass(time.Second)
			c.endOne(scheduler.NodeID(i % 1000))
			moved += c.settle(p)
		}
		b.ReportMetric(float64(moved)/float64(b.N), "actions/op")
	})
	b.Run("arrival", func(b *testing.B) {
		for range b.N {
			c.Pass(time.Millisecond)
			id := c.project()
			if _, err := scheduler.Cycle(c.State, p, c.Now, 100_000, scheduler.Identity); err != nil {
				b.Fatal(err)
			}
			if _, ok := c.State.Note(scheduler.NoteKey{Kind: scheduler.NotePromise, Project: id}); !ok {
				b.Fatal("no quote")
			}
		}
	})
}

// The plan that is kept through arrivals, early ends and time that passes decides
// what a plan built anew from the State does, with 150 waiting projects.
func TestTheKeptPlanEqualsOneBuiltAnew(t *testing.T) {
	for _, variant := range []string{"2tsb", "2tfb-sf"} {
		t.Run(variant, func(t *testing.T) {
			make := func() scheduler.Policy {
				return mustNew(t, "two_tier", map[string]string{"variant": variant, "max_tries": "10"})
			}
			p := make()
			c := crowd(t, p, 20, 150, 1)
			warm := 0
			for i := range 9 {
				c.Pass(time.Duration(1+c.r.IntN(40)) * time.Second)
				switch i % 3 {
				case 0:
					c.project()
				case 1:
					c.endOne(scheduler.NodeID(c.r.IntN(20)))
				default:
					c.endOne(scheduler.NodeID(c.r.IntN(20)))
					c.project()
				}
				policytest.Round(t, c.State, p, make, c.Now, 100_000)
				c.Start()
				if p.(*planned).synced {
					warm++
				}
			}
			if warm < 5 {
				t.Errorf("the plan was kept in %d of 9 cycles", warm)
			}
		})
	}
}

// So does one of jobs of many tasks, of which some start in each cycle: what is
// left of such a job stays planned where it is.
func TestTheKeptPlanOfJobsOfManyTasksEqualsOneBuiltAnew(t *testing.T) {
	for _, name := range []string{"conservative", "two_tier"} {
		for _, bound := range []time.Duration{0, 40 * time.Second} {
			t.Run(fmt.Sprint(name, bound), func(t *testing.T) {
				seed := rand.Uint64()
				t.Logf("seed %d", seed)
				r := rand.New(rand.NewPCG(seed, 1))
				make := func() scheduler.Policy { return mustNew(t, name, map[string]string{"default_bound": "30s"}) }
				p := make()
				w := schedtest.New(t).AddNodes(6, schedtest.R(4, 16, 100)).AddTenants("a")
				submit := func(tasks int32) {
					w.Submit("a", tasks, schedtest.R(1, 1, float64(r.IntN(40))), func(j *scheduler.JobSpec, _ *scheduler.StageSpec) { j.Bound = bound })
				}
				warm := 0
				for i := range 60 {
					if i%12 == 0 {
						submit(5 + r.Int32N(40))
					}
					policytest.Round(t, w.State, p, make, w.Now, 100_000)
					if p.(*planned).synced {
						warm++
					}
					w.Start()
					// Some of what runs ends early, the rest at its bound.
					w.Pass(time.Duration(1+r.IntN(5)) * 2 * time.Second)
					for _, a := range w.Attempts() {
						if r.IntN(5) == 0 || w.Now >= a.Placed.Add(cmp.Or(bound, 30*time.Second)) {
							w.End(a, scheduler.OutcomeSucceeded)
						}
					}
				}
				if warm < 20 {
					t.Errorf("the plan was kept in %d of 60 cycles", warm)
				}
			})
		}
	}
}
