package scheduler_test

import (
	"testing"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/schedtest"
)

// The limit on a job's notes holds within one batch, for ApplyNotes and Check
// alike, and replacing and forgetting are always possible.
func TestNotesOfAJobAreLimitedWithinABatch(t *testing.T) {
	notes := func(from, to int32) (out []scheduler.Note) {
		for i := from; i < to; i++ {
			out = append(out, scheduler.Note{NoteKey: scheduler.NoteKey{Kind: scheduler.NoteSuspends, Job: 1, Task: i}})
		}
		return out
	}
	forget := scheduler.Note{NoteKey: scheduler.NoteKey{Kind: scheduler.NoteForget, Job: 1, Task: 0}, Value: int64(scheduler.NoteSuspends)}
	const most = scheduler.MaxNotesPerJob
	for name, c := range map[string]struct {
		before, batch []scheduler.Note
		refused       bool
	}{
		"as many as are kept":         {batch: notes(0, most)},
		"one more in one batch":       {batch: notes(0, most+1), refused: true},
		"one more in a second batch":  {before: notes(0, most), batch: notes(most, most+1), refused: true},
		"one replaced at the limit":   {before: notes(0, most), batch: notes(0, 1)},
		"one forgotten, one new":      {before: notes(0, most), batch: append([]scheduler.Note{forget}, notes(most, most+1)...)},
		"one new, then one forgotten": {before: notes(0, most), batch: append(notes(most, most+1), forget), refused: true},
		"the same note twice":         {before: notes(0, most-1), batch: append(notes(most, most+1), notes(most, most+1)...)},
	} {
		t.Run(name, func(t *testing.T) {
			w := schedtest.New(t).AddTenants("a")
			w.Submit("a", 1, schedtest.R(1, 1, 1))
			must(t, w.State.ApplyNotes(c.before))
			before := w.State.Bytes()
			v := scheduler.Check(w.State, &scheduler.Decision{Notes: c.batch}, w.Now)
			err := w.State.ApplyNotes(c.batch)
			if (err != nil) != c.refused || (len(v) > 0) != c.refused {
				t.Errorf("ApplyNotes says %v, Check %v, refused should be %v", err, v, c.refused)
			}
			if err != nil && string(before) != string(w.State.Bytes()) {
				t.Error("a refused batch changed the State")
			}
		})
	}
}
