package policies

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/policytest"
	"github.com/drover-run/drover/scheduler/schedtest"
)

// plansNodes are the policies whose plan says where each task starts: a task that failed
// changes places with others of its stage while its job has no reservations, but is not
// planned elsewhere.
var plansNodes = map[string]bool{"conservative": true, "two_tier": true}

// retryWorld has nodes of four cores; node reports where the attempts at a task are, -1 for
// none.
type retryWorld struct {
	*schedtest.World
	policy scheduler.Policy
	maker  func() scheduler.Policy
}

func newRetryWorld(t *testing.T, name string, nodes int) *retryWorld {
	maker := func() scheduler.Policy { return mustNew(t, name, nil) }
	return &retryWorld{schedtest.New(t).AddNodes(nodes, schedtest.R(4, 8, 100)).AddTenants("a"), maker(), maker}
}

func (w *retryWorld) cycle() {
	w.Helper()
	d := w.Cycle(w.policy)
	if err := policytest.ProveAll(w.State, &d, w.Now, 10_000); err != nil {
		w.Fatalf("%v\n%s", err, d.String())
	}
	w.Start()
}

func (w *retryWorld) at(job scheduler.JobID, task int32) *scheduler.Attempt {
	for a := range w.State.Attempts().Of(w.State.Job(job).Stages[0], task) {
		return a
	}
	return nil
}

func (w *retryWorld) node(job scheduler.JobID, task int32) scheduler.NodeID {
	if a := w.at(job, task); a != nil {
		return a.Node
	}
	return scheduler.NoNode
}

// rebuild replaces the State by one that is rebuilt from its facts, as after a restart.
func (w *retryWorld) rebuild() { w.State, w.policy = w.State.Clone(), w.maker() }

func TestRetriesPreferAnotherNode(t *testing.T) {
	for _, info := range table {
		if plansNodes[info.Name] {
			continue
		}
		for _, outcome := range []scheduler.Outcome{scheduler.OutcomeFailedUser, scheduler.OutcomeFailedInfra} {
			t.Run(info.Name+"/"+outcome.String(), func(t *testing.T) {
				w := newRetryWorld(t, info.Name, 3)
				job := w.Submit("a", 1, schedtest.R(2, 1, 1))
				w.cycle()
				first := w.node(job, 0)
				w.End(w.at(job, 0), outcome)
				w.rebuild()
				w.cycle()
				second := w.node(job, 0)
				if second == first || second == scheduler.NoNode {
					t.Fatalf("the second attempt is on node %d, the first one failed on node %d", second, first)
				}
				w.End(w.at(job, 0), outcome)
				w.cycle()
				if third := w.node(job, 0); third == first || third == second || third == scheduler.NoNode {
					t.Errorf("the third attempt is on node %d, the others failed on nodes %d and %d", third, first, second)
				}
			})
		}
	}
}

func TestRetriesTakeTheSameNodeIfNoOtherIsFree(t *testing.T) {
	for _, info := range table {
		t.Run(info.Name, func(t *testing.T) {
			w := newRetryWorld(t, info.Name, 2)
			job := w.Submit("a", 1, schedtest.R(2, 1, 1))
			w.cycle()
			first := w.node(job, 0)
			full := w.Submit("a", 1, schedtest.R(4, 1, 1))
			w.cycle()
			if w.node(full, 0) != 1-first {
				t.Fatalf("the other node is not full")
			}
			w.End(w.at(job, 0), scheduler.OutcomeFailedUser)
			w.cycle()
			if got := w.node(job, 0); got != first {
				t.Errorf("the second attempt is on node %d, want node %d again", got, first)
			}
		})
	}
}

// A waiting task of the stage takes the only free place, and the task that failed there takes the
// next place elsewhere; without another task it takes its own place.
func TestRetriesChangePlacesWithTasksOfTheirStage(t *testing.T) {
	for _, info := range table {
		t.Run(info.Name, func(t *testing.T) {
			w := newRetryWorld(t, info.Name, 2)
			job := w.Submit("a", 4, schedtest.R(4, 1, 1))
			w.cycle()
			first := w.node(job, 0)
			if first == scheduler.NoNode || w.node(job, 1) != 1-first {
				t.Fatalf("tasks 0 and 1 are on nodes %d and %d", first, w.node(job, 1))
			}
			w.End(w.at(job, 0), scheduler.OutcomeFailedUser)
			w.cycle()
			if got := w.node(job, 0); got != scheduler.NoNode || w.node(job, 2) != first {
				t.Fatalf("task 0 is on node %d, task 2 on node %d; want none and node %d", got, w.node(job, 2), first)
			}
			if plansNodes[info.Name] { // the others have reservations by now
				return
			}
			// Both places become free: the decision has both tasks.
			w.End(w.at(job, 1), scheduler.OutcomeSucceeded).End(w.at(job, 2), scheduler.OutcomeSucceeded)
			w.cycle()
			if got := w.node(job, 0); got != 1-first || w.node(job, 3) != first {
				t.Fatalf("task 0 is on node %d, task 3 on node %d; want nodes %d and %d", got, w.node(job, 3), 1-first, first)
			}
			w.End(w.at(job, 3), scheduler.OutcomeFailedUser)
			w.cycle()
			if got := w.node(job, 3); got != first {
				t.Errorf("the last task of the stage is on node %d, want node %d again", got, first)
			}
		})
	}
}

// On a single node, or one that alone is large enough, tasks keep their order.
func TestRetriesKeepTheirOrderWithoutAnotherNode(t *testing.T) {
	for _, info := range table {
		if plansNodes[info.Name] { // the others were planned before it failed
			continue
		}
		t.Run(info.Name, func(t *testing.T) {
			w := newRetryWorld(t, info.Name, 1)
			w.AddRack("/r1", 1, schedtest.R(1, 8, 100))
			job := w.Submit("a", 3, schedtest.R(4, 1, 1))
			w.cycle()
			w.End(w.at(job, 0), scheduler.OutcomeFailedUser)
			w.cycle()
			if got := w.node(job, 0); got != 0 {
				t.Errorf("task 0 is on node %d, want node 0", got)
			}
		})
	}
}

// A map task whose input is on the node where it failed goes to another node with its
// input, else to any other.
func TestRetriesLeaveTheNodeOfTheirInput(t *testing.T) {
	for _, info := range table {
		if plansNodes[info.Name] {
			continue
		}
		t.Run(info.Name, func(t *testing.T) {
			w := newRetryWorld(t, info.Name, 4)
			job := w.Submit("a", 1, schedtest.R(1, 1, 1), func(_ *scheduler.JobSpec, g *scheduler.StageSpec) {
				g.Kind, g.Inputs = scheduler.KindMap, schedtest.Inputs(128*schedtest.MiB, []scheduler.NodeID{1, 2})
			})
			seen := map[scheduler.NodeID]bool{}
			for n := range 3 {
				w.cycle()
				node := w.node(job, 0)
				if node == scheduler.NoNode || seen[node] {
					t.Fatalf("attempt %d is on node %d, earlier ones failed on %v", n+1, node, seen)
				}
				seen[node] = true
				w.End(w.at(job, 0), scheduler.OutcomeFailedInfra)
			}
			if info.Name == threeDSFInfo.Name && (!seen[1] || !seen[2]) {
				t.Errorf("attempts were on %v, want both nodes with the input among them", seen)
			}
		})
	}
}

// decided is a policy that keeps the actions of its last decision.
type decided struct {
	scheduler.Policy
	actions []scheduler.Action
}

func (p *decided) Decide(s *scheduler.State, now scheduler.Time, limit int) scheduler.Decision {
	d := p.Policy.Decide(s, now, limit)
	p.actions = slices.Clone(d.Actions)
	return d
}

// Under every policy, in random worlds in which tasks fail, Cycle changes at most which tasks
// of a stage start where: each node gets what the policy decided, and what unblockStalledReduces adds, and Check accepts it.
func TestExchangesKeepWhatNodesGet(t *testing.T) {
	type place struct {
		stage scheduler.StageID
		node  scheduler.NodeID
		disk  int16
	}
	exchanged := 0
	for _, info := range table {
		t.Run(info.Name, rapid.MakeCheck(func(t *rapid.T) {
			c := schedtest.NewChaos(t, rapid.Uint64().Draw(t, "seed"))
			p, err := New(info.Name, nil)
			if err != nil {
				t.Fatal(err)
			}
			for range 12 {
				for range 1 + c.R.IntN(4) {
					c.Step()
				}
				for _, a := range c.Attempts() {
					if a.Phase == scheduler.AttemptRunning && c.R.IntN(3) == 0 {
						c.End(a, scheduler.OutcomeFailedInfra)
					}
				}
				own := &decided{Policy: p}
				d, err := scheduler.Cycle(c.State, own, c.Now, 10_000, scheduler.AcceptAll)
				if err != nil {
					t.Fatal(err)
				}
				left := map[place]int{}
				tasks := map[scheduler.TaskID]scheduler.NodeID{}
				for i := range own.actions {
					if a := &own.actions[i]; a.Kind == scheduler.ActPlace {
						left[place{a.Task.StageID(), a.Node, a.Disk}]++
						tasks[a.Task] = a.Node
					}
				}
				for i := range d.Actions {
					a := &d.Actions[i]
					if i >= len(own.actions) { // what follows is for reduces whose inputs are lost: maps, or reduces that give way
						switch g := c.State.Stage(a.Task.StageID()); {
						case a.Kind == scheduler.ActPlace && g.Spec.Kind != scheduler.KindMap, a.Kind != scheduler.ActPlace && g.Spec.Kind != scheduler.KindReduce:
							t.Fatalf("the policy did not decide %+v", a)
						}
						continue
					}
					if a.Kind == scheduler.ActPlace {
						left[place{a.Task.StageID(), a.Node, a.Disk}]--
						if n, ok := tasks[a.Task]; !ok || n != a.Node {
							exchanged++
						}
					}
				}
				for k, n := range left {
					if n != 0 {
						t.Fatalf("%+v: %d placements fewer than decided", k, n)
					}
				}
			}
		}))
	}
	if exchanged == 0 {
		t.Error("no task was exchanged: the test shows nothing")
	}
}
