package backfill

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/timeline"
)

// planText describes the plan and the reports of a planner.
func planText(p *Planner, violations []Violation) string {
	var out strings.Builder
	p.Scan(func(x *PlannedTask) {
		at, latest, _ := p.Departure(x.Project)
		fmt.Fprintf(&out, "%+v of %d %+v\n", *x, at, latest)
	})
	fmt.Fprintln(&out, violations, p.NumUnplaced(), p.NumKept(), p.Len())
	return out.String()
}

// A planner that keeps projects from round to round plans the same as one that restores all of
// them: some tries become reservations, others are dropped, projects come and go, and time passes.
func TestNextRoundPlansAsAfterReset(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg := drawConfig(t)
		prof := &Profile{}
		for range rapid.IntRange(1, 4).Draw(t, "bins") {
			prof.AddBin([]int64{8, 8}, timeline.Disk{IO: 8, Space: 8})
		}
		kept := NewPlanner(cfg, nil)
		kept.Reset(prof, nil, nil)
		fresh := NewPlanner(cfg, nil)
		kept.classes.finderThreshold, fresh.classes.finderThreshold = 2, 2
		w := &roundsWorld{T: t, prof: prof, reserved: map[Key]Existing{}}
		for range rapid.IntRange(1, 6).Draw(t, "rounds") {
			w.now += scheduler.Time(rapid.IntRange(0, 12).Draw(t, "passes"))
			w.change()
			w.restoreChanged(kept)
			seed := rapid.SliceOfN(rapid.IntRange(0, 4), 0, 5).Draw(t, "steps")
			got := w.plan(kept, seed)
			fresh.Reset(prof, nil, nil)
			fresh.NextRound(w.searched, nil)
			for i := range w.list {
				w.restore(fresh, &w.list[i])
			}
			if want := w.plan(fresh, seed); got != want {
				t.Fatalf("a planner that keeps projects plans\n%s\nwant\n%s", got, want)
			}
			w.accept(kept)
		}
	})
}

// roundsWorld is the owner of a profile in which a planner tries.
type roundsWorld struct {
	*rapid.T
	prof     *Profile
	now      scheduler.Time
	searched bool
	list     []Project
	reserved map[Key]Existing
	changed  []scheduler.ProjectID
	lastID   int
}

// change submits and drops projects.
func (w *roundsWorld) change() {
	w.searched = rapid.Bool().Draw(w.T, "searched")
	for range rapid.IntRange(0, 2).Draw(w.T, "new") {
		w.lastID++
		pr := drawProject(w.T, w.lastID, w.now, 2)
		for i := range pr.Requests {
			r := &pr.Requests[i]
			r.Tasks, r.SoftBound = []int32{0, 1}, rapid.Bool().Draw(w.T, "soft")
		}
		w.list = append(w.list, pr)
		w.changed = append(w.changed, pr.ID)
	}
	if len(w.list) == 0 || rapid.IntRange(0, 2).Draw(w.T, "drop") > 0 {
		return
	}
	i := rapid.IntRange(0, len(w.list)-1).Draw(w.T, "dropped")
	for _, r := range w.list[i].Requests {
		for _, task := range r.Tasks {
			k := Key{r.Job, r.Stage, task}
			w.give(k)
			delete(w.reserved, k)
		}
	}
	w.changed = append(w.changed, w.list[i].ID)
	w.list = slices.Delete(w.list, i, i+1)
}

// give returns the reservation of a task.
func (w *roundsWorld) give(k Key) {
	if x := w.reserved[k]; x.Kept {
		w.prof.Change(x.Spot.Bin, x.Spot.Disk, x.Spot.At, x.End, &x.Need, 1)
	}
}

// restoreChanged brings the planner that keeps projects up to date.
func (w *roundsWorld) restoreChanged(p *Planner) {
	p.NextRound(w.searched, func(id scheduler.ProjectID) { w.changed = append(w.changed, id) })
	slices.Sort(w.changed)
	w.changed = slices.Compact(w.changed)
	for _, id := range w.changed {
		p.Forget(id)
	}
	for i := range w.list {
		if slices.Contains(w.changed, w.list[i].ID) {
			w.restore(p, &w.list[i])
		}
	}
	w.changed = w.changed[:0]
}

func (w *roundsWorld) restore(p *Planner, pr *Project) {
	guarantee := Guarantee{Departure: pr.Submitted + 40, Latest: pr.Submitted + 60}
	p.Restore(*pr, guarantee, pr.ID%3 > 0, func(k Key, _ *Need) Existing { return w.reserved[k] })
}

// plan plans one round and describes the result.
func (w *roundsWorld) plan(p *Planner, steps []int) string {
	p.MarkFreed(0)
	found := p.Repair(w.now, CauseNodeLost)
	for _, step := range steps {
		switch step {
		case 0:
			found = append(found, p.Replan(w.now, CauseLate)...)
		case 1:
			compressAll(p, w.now)
		case 2:
			if len(w.list) > 0 {
				p.CompleteWhatFits(w.now, w.list[0].ID)
			}
		default:
			for i := range w.list {
				_, _ = p.CompletePlan(w.now, w.list[i].ID) // it may not fit
			}
		}
	}
	found = append(found, p.Replan(w.now, CauseFailed)...)
	p.Close()
	return planText(p, found)
}

// accept reserves some planned tasks at their planned places.
func (w *roundsWorld) accept(p *Planner) {
	all := rapid.Bool().Draw(w.T, "accept all")
	p.Scan(func(x *PlannedTask) {
		if !x.Moved || (!all && rapid.Bool().Draw(w.T, "refused")) {
			return
		}
		w.give(x.Key)
		to := Existing{}
		if x.Spot.Bin >= 0 {
			to.Spot, to.End, to.Kept, to.Searched = x.Spot, x.End, true, true
			to.Need = w.need(x.Key)
			w.prof.Change(x.Spot.Bin, x.Spot.Disk, x.Spot.At, x.End, &to.Need, -1)
		}
		w.reserved[x.Key] = to
		w.changed = append(w.changed, x.Project)
	})
}

func (w *roundsWorld) need(k Key) Need {
	for i := range w.list {
		for _, r := range w.list[i].Requests {
			if r.Job == k.Job && r.Stage == k.Stage {
				return r.Need
			}
		}
	}
	w.Fatalf("%v is not planned", k)
	return Need{}
}
