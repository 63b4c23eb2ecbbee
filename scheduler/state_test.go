package scheduler_test

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/schedtest"
)

// applied applies random actions; refusals must be of a known class and change
// nothing.
func applied(t schedtest.TB, c *schedtest.Chaos, actions []scheduler.Action) (done int) {
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

func TestWhateverHappensTheSumsHold(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := schedtest.NewChaos(t, rapid.Uint64().Draw(t, "seed"))
		for i := range rapid.IntRange(1, 60).Draw(t, "steps") {
			c.Step()
			applied(t, c, c.Actions(c.R.IntN(6)))
			if err := schedtest.Invariants(c.State); err != nil {
				t.Fatalf("after step %d: %v", i, err)
			}
		}
	})
}

func TestRollbackLeavesEveryByte(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := schedtest.NewChaos(t, rapid.Uint64().Draw(t, "seed"))
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			c.Step()
			before, stamp := c.State.Bytes(), c.State.Stamp()
			m := c.State.Mark()
			applied(t, c, c.Actions(c.R.IntN(5)))
			inside := c.State.Bytes()
			inner := c.State.Mark()
			applied(t, c, c.Actions(c.R.IntN(5)))
			for j := range c.State.Jobs() {
				note := []scheduler.Note{{NoteKey: scheduler.NoteKey{Kind: scheduler.NoteQueue, Job: j.Spec.ID}, Value: int64(c.R.IntN(4))}}
				if err := c.State.ApplyNotes(note); err != nil {
					t.Fatal(err)
				}
			}
			c.State.Rollback(inner)
			if got := c.State.Bytes(); !bytes.Equal(got, inside) {
				t.Fatalf("inner rollback: %s\n%s", got, inside)
			}
			c.State.Rollback(m)
			if got := c.State.Bytes(); !bytes.Equal(got, before) || c.State.Stamp() != stamp {
				t.Fatalf("rollback:\n%s\n%s", got, before)
			}
			if err := schedtest.Invariants(c.State); err != nil {
				t.Fatal(err)
			}
			applied(t, c, c.Actions(3))
		}
	})
}

func TestSavedAndLoadedIsEqual(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := schedtest.NewChaos(t, rapid.Uint64().Draw(t, "seed"))
		for range rapid.IntRange(1, 50).Draw(t, "steps") {
			c.Step()
			applied(t, c, c.Actions(4))
		}
		back, err := scheduler.Load(bytes.NewReader(c.State.Bytes()))
		if err != nil {
			t.Fatal(err)
		}
		if d := scheduler.Diff(c.State, back); d != "" || !scheduler.Equal(c.State, back) {
			t.Fatalf("loaded differs:\n%s", d)
		}
		if err := schedtest.Invariants(back); err != nil {
			t.Fatal(err)
		}
		for _, n := range c.State.Nodes() {
			var a, b []string
			for x := range c.State.AttemptsOn(n.Spec.ID) {
				a = append(a, x.ID.String())
			}
			for x := range back.AttemptsOn(n.Spec.ID) {
				b = append(b, x.ID.String())
			}
			if fmt.Sprint(a) != fmt.Sprint(b) {
				t.Fatalf("node %d lists %v, loaded %v", n.Spec.ID, a, b)
			}
			if r := back.Node(n.Spec.ID).Releasing; r != n.Releasing {
				t.Fatalf("node %d releases %v, loaded %v", n.Spec.ID, n.Releasing, r)
			}
		}
	})
}

// The judge of the fit index looks at every node.
func TestFitIndexFindsWhatLookingAtEveryNodeFinds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := schedtest.NewChaos(t, rapid.Uint64().Draw(t, "seed"))
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			c.Step()
			applied(t, c, c.Actions(4))
			m := c.State.Mark()
			applied(t, c, c.Actions(2))
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
					if got := c.State.NextNode(g, from); got != want {
						t.Fatalf("stage %s from %d: node %d, want %d", g.ID(), from, got, want)
					}
					if got := c.State.NextNodeFor(g.Spec.Demand, g.Spec.Disk, from); got != want {
						t.Fatalf("stage %s from %d: node %d by demand, want %d", g.ID(), from, got, want)
					}
				}
			}
			c.State.Rollback(m)
		}
	})
}

func FuzzLoad(f *testing.F) {
	for seed := range uint64(6) {
		c := schedtest.NewChaos(f, seed)
		for range 12 {
			c.Step()
			for _, a := range c.Actions(4) {
				_ = c.State.Apply(&a, c.Now)
			}
		}
		f.Add(c.State.Bytes())
	}
	f.Add([]byte(`{"version":1}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		s, err := scheduler.Load(bytes.NewReader(raw))
		if err != nil {
			return
		}
		back, err := scheduler.Load(bytes.NewReader(s.Bytes()))
		if err != nil {
			t.Fatalf("what was loaded and saved does not load: %v", err)
		}
		if d := scheduler.Diff(s, back); d != "" {
			t.Fatal(d)
		}
		for j := range s.Jobs() {
			for _, g := range j.Stages {
				s.BestNode(g)
				s.UnderCaps(g)
				s.Lacking(g)
			}
		}
	})
}

// A copy says the same and is another: what happens to one leaves the other.
func TestCloneIsIndependent(t *testing.T) {
	for seed := range uint64(20) {
		c := schedtest.NewChaos(t, seed)
		for range 60 {
			c.Step()
			for _, a := range c.Actions(3) {
				_ = c.State.Apply(&a, c.Now)
			}
		}
		before := c.State.Bytes()
		other := c.State.Clone()
		if !bytes.Equal(before, other.Bytes()) {
			t.Fatalf("seed %d: the copy differs:\n%s", seed, scheduler.Diff(c.State, other))
		}
		if err := schedtest.Invariants(other); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		for range 60 {
			c.Step()
		}
		if !bytes.Equal(before, other.Bytes()) {
			t.Fatalf("seed %d: the copy changed with the original", seed)
		}
	}
}

// What a job or project is noted as is known without a look at the notes, also
// in a try and after it.
func TestMarksFollowNotes(t *testing.T) {
	w := schedtest.New(t).AddNodes(1, schedtest.R(4, 8, 100)).AddTenants("a")
	id := w.Submit("a", 1, schedtest.R(1, 1, 1), func(j *scheduler.JobSpec, _ *scheduler.StageSpec) { j.Deadline = j.Submitted.Add(1e9) })
	j := w.State.Job(id)
	note := func(kind scheduler.NoteKind, slot int32) scheduler.Note {
		return scheduler.Note{NoteKey: scheduler.NoteKey{Kind: kind, Job: id, Slot: slot}}
	}
	put := func(n ...scheduler.Note) {
		t.Helper()
		if err := w.State.ApplyNotes(n); err != nil {
			t.Fatal(err)
		}
	}
	want := func(what string, accepted, broken bool) {
		t.Helper()
		if w.State.Accepted(j) != accepted || j.Noted(scheduler.NoteAccepted) != accepted || j.Noted(scheduler.NoteBroken) != broken {
			t.Errorf("%s: accepted %v, broken %v", what, w.State.Accepted(j), j.Noted(scheduler.NoteBroken))
		}
	}
	want("at first", false, false)
	m := w.State.Mark()
	put(note(scheduler.NoteAccepted, 0), note(scheduler.NoteBroken, 3))
	want("in a try", true, true)
	w.State.Rollback(m)
	want("after the try", false, false)
	put(note(scheduler.NoteAccepted, 0), note(scheduler.NoteBroken, 1), note(scheduler.NoteBroken, 2))
	forget := note(scheduler.NoteForget, 2)
	forget.Value = int64(scheduler.NoteBroken)
	put(forget)
	want("one cause left", true, true)
	other := w.State.Clone()
	if j := other.Job(id); !other.Accepted(j) || !j.Noted(scheduler.NoteBroken) {
		t.Error("a copy does not know")
	}
	put(scheduler.Note{NoteKey: scheduler.NoteKey{Kind: scheduler.NoteQueue, Job: id, Task: 1}})
	if j.Noted(scheduler.NoteQueue) {
		t.Error("a note on a task counts for the job")
	}
}
