package scheduler_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/drover-run/drover/internal/seed"
	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/schedtest"
)

// describeOwners returns, as text, everything about each job and project that the change log
// covers.
func describeOwners(s *scheduler.State) map[scheduler.ChangedOwner]string {
	out := map[scheduler.ChangedOwner]string{}
	of := map[scheduler.JobID]scheduler.ChangedOwner{}
	for j := range s.Jobs() {
		w := scheduler.ChangedOwner{Job: j.Spec.ID, Project: j.Spec.Project}
		of[j.Spec.ID] = w
		text := fmt.Sprintf("%+v %v %d %d", j.Spec, j.Phase, j.Live, j.Ready)
		for _, g := range j.Stages {
			text += fmt.Sprintf(" | %d: %d %d %d %d %d %v %v", g.Index, g.Pending, g.Running, g.Suspended, g.Done, g.Failed, g.Open, g.Spec.Estimate)
			for a := range s.Attempts().In(g) {
				text += fmt.Sprintf(" %s on %d disk %d of %d %d occupies %v %v %v %v, %v to %v, %v %v %v %v %d run %d placed %d ran %v suspended %d %d estimate %v",
					a.ID, a.Node, a.Disk, a.From, a.FromDisk, a.Occupied, a.FromOccupied, a.Demand, a.DiskSpace,
					a.Level, a.Target, a.Phase, a.Speculative, a.Parked, a.RefusedLevels, a.Seq, a.Run, a.Placed, a.Ran, a.SuspendedAt, a.Suspends, a.Estimate)
			}
		}
		out[w] = text
	}
	for _, p := range s.Projects() {
		out[scheduler.ChangedOwner{Project: p.Spec.ID}] = fmt.Sprintf("%+v", p.Spec)
	}
	for _, r := range s.Reservations().All() {
		if w, ok := of[r.Job]; ok {
			out[w] += fmt.Sprintf(" reserved %+v", *r)
		}
	}
	for _, n := range s.PolicyStates().All() {
		w, ok := of[n.Job]
		if !ok {
			w = scheduler.ChangedOwner{Project: n.Project}
		}
		if _, there := out[w]; there {
			out[w] += fmt.Sprintf(" state %+v", n)
		}
	}
	return out
}

// After random events and tries, rolled back ones included, every job and project that differs
// is listed.
func TestTheChangeLogListsEveryChange(t *testing.T) {
	seed := seed.New(t)
	listed, owners := 0, 0
	for round := range 40 {
		c := schedtest.NewChaos(t, seed+uint64(round))
		for i := range scheduler.ProjectID(3) {
			must(t, c.State.Events().PutProject(scheduler.ProjectSpec{ID: i + 1, Priority: scheduler.PriorityLow, Submitted: c.Now, Jobs: 2}))
		}
		at, was := c.State.ChangeLog().Position(), describeOwners(c.State)
		for range 60 {
			randomChange(c)
			now := describeOwners(c.State)
			var listedOwners []scheduler.ChangedOwner
			if !c.State.ChangeLog().Since(at, func(w scheduler.ChangedOwner) { listedOwners = append(listedOwners, w) }) {
				t.Fatal("the log wrapped in a small world")
			}
			for w, text := range was {
				if now[w] != text && !slices.Contains(listedOwners, w) {
					t.Fatalf("%+v changed and is not listed:\n%s\n%s", w, text, now[w])
				}
			}
			for w := range now {
				if _, had := was[w]; !had && !slices.Contains(listedOwners, w) {
					t.Fatalf("%+v is new and not listed", w)
				}
			}
			listed, owners = listed+len(listedOwners), owners+len(now)
			at, was = c.State.ChangeLog().Position(), now
		}
	}
	if listed == 0 || listed > owners {
		t.Errorf("%d were listed of %d", listed, owners)
	}
}

// randomChange applies one random event, or tries a few actions and keeps or rolls them back.
func randomChange(c *schedtest.Chaos) {
	c.Advance(time.Second)
	if c.R.IntN(3) > 0 {
		c.Step()
		return
	}
	mark := c.State.Journal().Mark()
	for _, a := range c.Actions(4) {
		_ = c.State.Apply(&a, c.Now) // some are stale
	}
	for j := range c.State.Jobs() {
		id := scheduler.PolicyStateKey{Kind: scheduler.PolicyStateKind(1 + c.R.IntN(8)), Job: j.Spec.ID}
		_ = c.State.PolicyStates().Apply([]scheduler.PolicyState{{PolicyStateKey: id, At: c.Now}}) // some kinds need a stage
		r := scheduler.Reservation{ID: scheduler.ReservationID(1 + c.R.IntN(5)), Kind: scheduler.ReserveProject, Job: j.Spec.ID, Task: 0,
			Start: c.Now, End: c.Now.Add(time.Minute)}
		_ = c.State.Apply(&scheduler.Action{Kind: scheduler.ActReserve, Reservation: r}, c.Now)
		if c.R.IntN(2) == 0 {
			break
		}
	}
	id := scheduler.PolicyStateKey{Kind: scheduler.GuaranteeState, Project: scheduler.ProjectID(1 + c.R.IntN(3))}
	_ = c.State.PolicyStates().Apply([]scheduler.PolicyState{{PolicyStateKey: id, At: c.Now}})
	if c.R.IntN(2) == 0 {
		c.State.Journal().Rollback(mark)
	} else {
		c.State.Journal().Keep(mark)
	}
}

// Since returns false to a reader that is too far behind, lists a job once that changed
// several times, and a position covers all later changes.
func TestTheChangeLogForgetsOldChanges(t *testing.T) {
	w := schedtest.New(t).AddNodes(1, schedtest.R(8, 8, 100)).AddTenants("a")
	first, second := w.Submit("a", 2, schedtest.R(1, 1, 1)), w.Submit("a", 2, schedtest.R(1, 1, 1))
	changeBoth := func() {
		for _, id := range []scheduler.JobID{first, second} {
			must(t, w.State.Events().UpdateJob(w.State.Job(id).Spec))
		}
	}
	log := w.State.ChangeLog()
	start := log.Position()
	for range 5000 {
		changeBoth()
	}
	if n := countListed(t, log, start); n != 2 {
		t.Errorf("two jobs that changed five thousand times are listed %d times", n)
	}
	for range 5000 {
		changeBoth()
		log.Position() // another reader has seen these
	}
	if log.Since(start, func(scheduler.ChangedOwner) {}) {
		t.Error("the log still has ten thousand changes")
	}
	at := log.Position()
	must(t, w.State.Events().UpdateJob(w.State.Job(second).Spec))
	if n := countListed(t, log, at); n != 1 {
		t.Errorf("one change after the position is listed %d times", n)
	}
}

// countListed returns how many changes the log lists after a position.
func countListed(t *testing.T, l *scheduler.ChangeLog, at uint64) int {
	t.Helper()
	n := 0
	if !l.Since(at, func(scheduler.ChangedOwner) { n++ }) {
		t.Error("the log has wrapped")
	}
	return n
}
