package scheduler_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/drover-run/drover/internal/seed"
	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/schedtest"
)

// applyAll applies random actions and returns how many succeeded; refusals must have a class.
func applyAll(t schedtest.TB, c *schedtest.Chaos, actions []scheduler.Action) (done int) {
	for i := range actions {
		err := c.State.Apply(&actions[i], c.Now)
		if err == nil {
			done++
			continue
		}
		var e *scheduler.Error
		if !errors.As(err, &e) || e.Class == nil {
			t.Fatalf("%v: an error without a class: %v", &actions[i], err)
		}
	}
	return done
}

func TestSumsHoldAfterRandomEvents(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := schedtest.NewChaos(t, rapid.Uint64().Draw(t, "seed"))
		for i := range rapid.IntRange(1, 60).Draw(t, "steps") {
			c.Step()
			applyAll(t, c, c.Actions(c.R.IntN(6)))
			if err := schedtest.Invariants(c.State); err != nil {
				t.Fatalf("after step %d: %v", i, err)
			}
		}
	})
}

func TestRollbackRestoresEveryByte(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := schedtest.NewChaos(t, rapid.Uint64().Draw(t, "seed"))
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			c.Step()
			before, stamp := schedtest.Bytes(c.State), c.State.Stamp()
			m := c.State.Journal().Mark()
			applyAll(t, c, c.Actions(c.R.IntN(5)))
			inside := schedtest.Bytes(c.State)
			inner := c.State.Journal().Mark()
			applyAll(t, c, c.Actions(c.R.IntN(5)))
			for j := range c.State.Jobs() {
				states := []scheduler.PolicyState{{PolicyStateKey: scheduler.PolicyStateKey{Kind: scheduler.QueueState, Job: j.Spec.ID}, Value: int64(c.R.IntN(4))}}
				if err := c.State.PolicyStates().Apply(states); err != nil {
					t.Fatal(err)
				}
			}
			c.State.Journal().Rollback(inner)
			if got := schedtest.Bytes(c.State); !bytes.Equal(got, inside) {
				t.Fatalf("inner rollback: %s\n%s", got, inside)
			}
			c.State.Journal().Rollback(m)
			if got := schedtest.Bytes(c.State); !bytes.Equal(got, before) || c.State.Stamp() != stamp {
				t.Fatalf("rollback:\n%s\n%s", got, before)
			}
			if err := schedtest.Invariants(c.State); err != nil {
				t.Fatal(err)
			}
			applyAll(t, c, c.Actions(3))
		}
	})
}

func TestCloneIsEqual(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := schedtest.NewChaos(t, rapid.Uint64().Draw(t, "seed"))
		for range rapid.IntRange(1, 50).Draw(t, "steps") {
			c.Step()
			applyAll(t, c, c.Actions(4))
		}
		back := c.State.Clone()
		if d := schedtest.Diff(c.State, back); d != "" {
			t.Fatalf("the copy differs:\n%s", d)
		}
		if err := schedtest.Invariants(back); err != nil {
			t.Fatal(err)
		}
		for _, n := range c.State.Nodes() {
			var a, b []string
			for x := range c.State.Attempts().On(n.Spec.ID) {
				a = append(a, x.ID.String())
			}
			for x := range back.Attempts().On(n.Spec.ID) {
				b = append(b, x.ID.String())
			}
			if fmt.Sprint(a) != fmt.Sprint(b) {
				t.Fatalf("node %d lists %v, the copy %v", n.Spec.ID, a, b)
			}
			if r := back.Node(n.Spec.ID).Releasing; r != n.Releasing {
				t.Fatalf("node %d releases %v, the copy %v", n.Spec.ID, n.Releasing, r)
			}
		}
	})
}

// The reference for the fit index examines every node.
func TestFitIndexMatchesAScanOfAllNodes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := schedtest.NewChaos(t, rapid.Uint64().Draw(t, "seed"))
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			c.Step()
			applyAll(t, c, c.Actions(4))
			m := c.State.Journal().Mark()
			applyAll(t, c, c.Actions(2))
			for j := range c.State.Jobs() {
				for _, g := range j.Stages {
					from := scheduler.NodeID(c.R.IntN(3))
					want := scheduler.NoNode
					for _, n := range c.State.Nodes() {
						if _, ok := n.Fits(g.Spec.Demand, g.Spec.Disk); ok && n.Spec.ID >= from {
							want = n.Spec.ID
							break
						}
					}
					if got := c.State.Cluster().NextNode(g, from); got != want {
						t.Fatalf("stage %s from %d: node %d, want %d", g.ID(), from, got, want)
					}
					if got := c.State.Cluster().NextNodeFor(g.Spec.Demand, g.Spec.Disk, from); got != want {
						t.Fatalf("stage %s from %d: node %d by demand, want %d", g.ID(), from, got, want)
					}
				}
			}
			c.State.Journal().Rollback(m)
		}
	})
}

// A clone is equal to the original and independent of it.
func TestCloneIsIndependent(t *testing.T) {
	first := seed.New(t)
	for i := range uint64(20) {
		seed := first + i
		c := schedtest.NewChaos(t, seed)
		for range 60 {
			c.Step()
			for _, a := range c.Actions(3) {
				_ = c.State.Apply(&a, c.Now)
			}
		}
		before := schedtest.Bytes(c.State)
		other := c.State.Clone()
		if !bytes.Equal(before, schedtest.Bytes(other)) {
			t.Fatalf("seed %d: the clone differs:\n%s", seed, schedtest.Diff(c.State, other))
		}
		if err := schedtest.Invariants(other); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		for range 60 {
			c.Step()
		}
		if !bytes.Equal(before, schedtest.Bytes(other)) {
			t.Fatalf("seed %d: the clone changed with the original", seed)
		}
	}
}

// HasState follows the policy states of a job, also in a try and after it.
func TestHasStateFollowsPolicyStates(t *testing.T) {
	w := schedtest.New(t).AddNodes(1, schedtest.R(4, 8, 100)).AddTenants("a")
	id := w.Submit("a", 1, schedtest.R(1, 1, 1), func(j *scheduler.JobSpec, _ *scheduler.StageSpec) { j.Deadline = j.Submitted.Add(1e9) })
	j := w.State.Job(id)
	state := func(kind scheduler.PolicyStateKind, slot int32) scheduler.PolicyState {
		return scheduler.PolicyState{PolicyStateKey: scheduler.PolicyStateKey{Kind: kind, Job: id, Slot: slot}}
	}
	put := func(n ...scheduler.PolicyState) {
		t.Helper()
		if err := w.State.PolicyStates().Apply(n); err != nil {
			t.Fatal(err)
		}
	}
	want := func(what string, accepted, violated bool) {
		t.Helper()
		if j.IsAccepted() != accepted || j.HasState(scheduler.AcceptedState) != accepted || j.HasState(scheduler.ViolatedState) != violated {
			t.Errorf("%s: accepted %v, violated %v", what, j.IsAccepted(), j.HasState(scheduler.ViolatedState))
		}
	}
	want("at first", false, false)
	m := w.State.Journal().Mark()
	put(state(scheduler.AcceptedState, 0), state(scheduler.ViolatedState, 3))
	want("in a try", true, true)
	w.State.Journal().Rollback(m)
	want("after the try", false, false)
	put(state(scheduler.AcceptedState, 0), state(scheduler.ViolatedState, 1), state(scheduler.ViolatedState, 2))
	tombstone := state(scheduler.TombstoneState, 2)
	tombstone.Value = int64(scheduler.ViolatedState)
	put(tombstone)
	want("one cause left", true, true)
	other := w.State.Clone()
	if j := other.Job(id); !j.IsAccepted() || !j.HasState(scheduler.ViolatedState) {
		t.Error("a copy lacks the kinds")
	}
	put(scheduler.PolicyState{PolicyStateKey: scheduler.PolicyStateKey{Kind: scheduler.QueueState, Job: id, Task: 1}})
	if j.HasState(scheduler.QueueState) {
		t.Error("a policy state of a task counts for the job")
	}
}

// WaitingSince follows the WaitSinceState of a stage, also in a try and after it.
func TestWaitingSinceFollowsPolicyStates(t *testing.T) {
	w := schedtest.New(t).AddNodes(1, schedtest.R(4, 8, 100)).AddTenants("a")
	id := w.Submit("a", 1, schedtest.R(1, 1, 1))
	g := w.State.Job(id).Stages[0]
	state := func(kind scheduler.PolicyStateKind, stage, task int32, at scheduler.Time) scheduler.PolicyState {
		n := scheduler.PolicyState{PolicyStateKey: scheduler.PolicyStateKey{Kind: kind, Job: id, Stage: stage, Task: task}, At: at}
		if kind == scheduler.TombstoneState {
			n.Value = int64(scheduler.WaitSinceState)
		}
		return n
	}
	put := func(n ...scheduler.PolicyState) {
		t.Helper()
		if err := w.State.PolicyStates().Apply(n); err != nil {
			t.Fatal(err)
		}
	}
	want := func(what string, g *scheduler.Stage, since scheduler.Time, waits bool) {
		t.Helper()
		if at, is := g.WaitingSince(); at != since || is != waits {
			t.Errorf("%s: %v since %d, want %v since %d", what, is, at, waits, since)
		}
	}
	want("at first", g, 0, false)
	put(state(scheduler.WaitSinceState, 0, 1, 5))
	want("a policy state of a task", g, 0, false)
	put(state(scheduler.WaitSinceState, 0, 0, 7))
	want("a policy state of the stage", g, 7, true)
	m := w.State.Journal().Mark()
	put(state(scheduler.WaitSinceState, 0, 0, 8))
	put(state(scheduler.TombstoneState, 0, 0, 0))
	put(state(scheduler.TombstoneState, 0, 0, 0))
	want("deleted in a try", g, 0, false)
	w.State.Journal().Rollback(m)
	want("after the try", g, 7, true)
	want("in a copy", w.State.Clone().Job(id).Stages[0], 7, true)
}

// TasksOn is the same for a stage with fewer replicas than there are nodes as for one with more.
func TestTasksOnOfFewAndManyReplicas(t *testing.T) {
	r := rand.New(rand.NewPCG(seed.New(t), 1))
	for range 100 {
		const nodes = 20
		w := schedtest.New(t).AddNodes(nodes, schedtest.R(1, 1, 1)).AddTenants("a")
		on, want := make([][]scheduler.NodeID, 1+r.IntN(12)), make([][]int32, nodes)
		for i := range on {
			for range r.IntN(4) { // a task may list a node more than once
				n := r.IntN(nodes)
				on[i], want[n] = append(on[i], scheduler.NodeID(n)), append(want[n], int32(i))
			}
		}
		g := w.State.Job(w.SubmitStages("a", []scheduler.StageSpec{{Name: "map", Kind: scheduler.KindMap, Tasks: int32(len(on)),
			Demand: schedtest.R(1, 1, 1), Inputs: schedtest.Inputs(schedtest.MiB, on...)}})).Stages[0]
		for n := range want {
			if got := g.TasksOn(scheduler.NodeID(n)); !slices.Equal(got, want[n]) {
				t.Fatalf("tasks %v on node %d of %v, want %v", got, n, on, want[n])
			}
		}
	}
}

// A policy state that was deleted in a try goes with its job like any other.
func TestPolicyStatesDeletedInATryGoWithTheirJob(t *testing.T) {
	w := schedtest.New(t).AddNodes(1, schedtest.R(4, 8, 100)).AddTenants("a")
	id := w.Submit("a", 1, schedtest.R(1, 1, 1))
	put := func(kind scheduler.PolicyStateKind, value int64) {
		t.Helper()
		if err := w.State.PolicyStates().Apply([]scheduler.PolicyState{{PolicyStateKey: scheduler.PolicyStateKey{Kind: kind, Job: id}, Value: value}}); err != nil {
			t.Fatal(err)
		}
	}
	put(scheduler.QueueState, 2)
	m := w.State.Journal().Mark()
	put(scheduler.TombstoneState, int64(scheduler.QueueState))
	put(scheduler.QueueState, 3)
	put(scheduler.TombstoneState, int64(scheduler.QueueState))
	w.State.Journal().Rollback(m)
	if got := w.State.Job(id).Queue(); got != 2 {
		t.Errorf("queue %d after the try, want 2", got)
	}
	if err := w.State.Events().EndJob(id); err != nil {
		t.Fatal(err)
	}
	if left := w.State.PolicyStates().All(); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}
