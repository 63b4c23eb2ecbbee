package scheduler_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/schedtest"
)

// picture is what a plan may look at of each job and project, in words.
func picture(s *scheduler.State) map[scheduler.Worked]string {
	out := map[scheduler.Worked]string{}
	of := map[scheduler.JobID]scheduler.Worked{}
	for j := range s.Jobs() {
		w := scheduler.Worked{Job: j.Spec.ID, Project: j.Spec.Project}
		of[j.Spec.ID] = w
		text := fmt.Sprintf("%+v %v %d %d", j.Spec, j.Phase, j.Live, j.Ready)
		for _, g := range j.Stages {
			text += fmt.Sprintf(" | %d: %d %d %d %d %d %v %v", g.Index, g.Pending, g.Running, g.Suspended, g.Done, g.Failed, g.Open, g.Spec.Estimate)
			for a := range s.AttemptsIn(g) {
				text += fmt.Sprintf(" %s on %d disk %d of %d %d holds %v %v %v %v %v, %v to %v, %v %v %v %v %d run %d placed %d ran %v suspended %d %d estimate %v",
					a.ID, a.Node, a.Disk, a.From, a.FromDisk, a.Held, a.FromHeld, a.Demand, a.DiskSpace, a.Footprint,
					a.Level, a.Target, a.Phase, a.Speculative, a.Parked, a.Barred, a.Seq, a.Run, a.Placed, a.Ran, a.SuspendedAt, a.Suspends, a.Estimate)
			}
		}
		out[w] = text
	}
	for _, p := range s.Projects() {
		out[scheduler.Worked{Project: p.Spec.ID}] = fmt.Sprintf("%+v", p.Spec)
	}
	for _, r := range s.Reservations() {
		if w, ok := of[r.Job]; ok {
			out[w] += fmt.Sprintf(" reserved %+v", *r)
		}
	}
	for _, n := range s.Notes() {
		w, ok := of[n.Job]
		if !ok {
			w = scheduler.Worked{Project: n.Project}
		}
		if _, there := out[w]; there {
			out[w] += fmt.Sprintf(" noted %+v", n)
		}
	}
	return out
}

// Whatever happens, each job and project that is otherwise than before is listed,
// tries that were undone included.
func TestTheLogOfWorkListsWhateverChanged(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	listed, looked := 0, 0
	for round := range 40 {
		c := schedtest.NewChaos(t, seed+uint64(round))
		for i := range scheduler.ProjectID(3) {
			must(t, c.State.PutProject(scheduler.ProjectSpec{ID: i + 1, Priority: scheduler.PriorityLow, Submitted: c.Now, Jobs: 2}))
		}
		at, was := c.State.Work(), picture(c.State)
		for range 60 {
			happen(c)
			now := picture(c.State)
			var told []scheduler.Worked
			if !c.State.WorkSince(at, func(w scheduler.Worked) { told = append(told, w) }) {
				t.Fatal("a small world is too much for the log")
			}
			for w, text := range was {
				if now[w] != text && !slices.Contains(told, w) {
					t.Fatalf("%+v changed and is not listed:\n%s\n%s", w, text, now[w])
				}
			}
			for w := range now {
				if _, had := was[w]; !had && !slices.Contains(told, w) {
					t.Fatalf("%+v is new and not listed", w)
				}
			}
			listed, looked = listed+len(told), looked+len(now)
			at, was = c.State.Work(), now
		}
	}
	if listed == 0 || listed > looked {
		t.Errorf("%d were listed of %d", listed, looked)
	}
}

// happen lets something happen, or a few actions be tried and undone or kept.
func happen(c *schedtest.Chaos) {
	c.Pass(time.Second)
	if c.R.IntN(3) > 0 {
		c.Step()
		return
	}
	mark := c.State.Mark()
	for _, a := range c.Actions(4) {
		_ = c.State.Apply(&a, c.Now) // some are stale
	}
	for j := range c.State.Jobs() {
		id := scheduler.NoteKey{Kind: scheduler.NoteKind(1 + c.R.IntN(8)), Job: j.Spec.ID}
		_ = c.State.ApplyNotes([]scheduler.Note{{NoteKey: id, At: c.Now}}) // some kinds are on stages
		r := scheduler.Reservation{ID: scheduler.ReservationID(1 + c.R.IntN(5)), Kind: scheduler.ReserveProject, Job: j.Spec.ID, Task: 0,
			Start: c.Now, End: c.Now.Add(time.Minute)}
		_ = c.State.Apply(&scheduler.Action{Kind: scheduler.ActReserve, Reservation: r}, c.Now)
		if c.R.IntN(2) == 0 {
			break
		}
	}
	id := scheduler.NoteKey{Kind: scheduler.NotePromise, Project: scheduler.ProjectID(1 + c.R.IntN(3))}
	_ = c.State.ApplyNotes([]scheduler.Note{{NoteKey: id, At: c.Now}})
	if c.R.IntN(2) == 0 {
		c.State.Rollback(mark)
	} else {
		c.State.Keep(mark)
	}
}

// Who is too far behind is told so, and a position is good for what comes after.
func TestTheLogOfWorkForgetsWhatIsLongAgo(t *testing.T) {
	w := schedtest.New(t).AddNodes(1, schedtest.R(8, 8, 100)).AddTenants("a")
	start := w.State.Work()
	id := w.Submit("a", 2, schedtest.R(1, 1, 1))
	at := w.State.Work()
	j := w.State.Job(id)
	for range 3 {
		must(t, w.State.UpdateJob(j.Spec))
	}
	n := 0
	if !w.State.WorkSince(at, func(x scheduler.Worked) { n++ }) || n != 1 {
		t.Errorf("one job that changed three times is listed %d times", n)
	}
	other := w.Submit("a", 2, schedtest.R(1, 1, 1))
	for range 5000 {
		must(t, w.State.UpdateJob(j.Spec))
		must(t, w.State.UpdateJob(w.State.Job(other).Spec))
	}
	if w.State.WorkSince(start, func(scheduler.Worked) {}) {
		t.Error("ten thousand changes are all remembered")
	}
	at = w.State.Work()
	must(t, w.State.UpdateJob(w.State.Job(other).Spec))
	n = 0
	if !w.State.WorkSince(at, func(x scheduler.Worked) { n++ }) || n != 1 {
		t.Errorf("one change after what was asked for is listed %d times", n)
	}
}
