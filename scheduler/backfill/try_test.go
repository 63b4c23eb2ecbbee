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

// profileText returns all steps of profiles.
func profileText(profiles ...*Profile) string {
	var out strings.Builder
	for _, p := range profiles {
		for b := range p.Bins() {
			p.Each(b, -1<<60, func(at scheduler.Time, free []int64) bool {
				fmt.Fprintln(&out, b, at, free)
				return true
			})
		}
	}
	return out.String()
}

// drawReserved draws an owner's reservations for the tasks of a project, and reserves them in its
// profiles: at the request's need and bound, or at others that no longer hold.
func drawReserved(t *rapid.T, prof, accounts, caps *Profile, pr *Project) map[Key]Existing {
	out := map[Key]Existing{}
	for i := range pr.Requests {
		r := &pr.Requests[i]
		for _, task := range r.Tasks {
			x := Existing{}
			if rapid.IntRange(0, 3).Draw(t, "reserved") > 0 {
				x.Spot = Spot{Bin: rapid.Int32Range(0, prof.Bins()-1).Draw(t, "bin"), At: scheduler.Time(rapid.IntRange(0, 60).Draw(t, "start"))}
				x.Need, x.End, x.Kept = r.Need, x.Spot.At.Add(r.Bound), true
				x.Lost = rapid.IntRange(0, 4).Draw(t, "lost") == 0
				if rapid.IntRange(0, 4).Draw(t, "outdated") == 0 {
					x.Need, x.End = Need{Base: []int64{1, 1}, IO: 1}, x.End+5
				}
				prof.Reserve(x.Spot.Bin, x.Spot.Disk, x.Spot.At, x.End, &x.Need)
				total := &Need{Base: append(slices.Clone(x.Need.Base), x.Need.IO)}
				accounts.Reserve(pr.Account-1, -1, x.Spot.At, x.End, total)
				for _, b := range r.Caps {
					caps.Reserve(b, -1, x.Spot.At, x.End, total)
				}
			}
			out[Key{r.Job, r.Stage, task}] = x
		}
	}
	return out
}

// After any planning on another owner's profiles, Close restores them and reports for each task
// whether it moved. The memory of one try does not show in the next.
func TestTriesAreTakenBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg := drawConfig(t)
		p := NewPlanner(cfg, nil)
		prof, accounts, caps := &Profile{}, &Profile{}, &Profile{}
		for range rapid.IntRange(1, 4).Draw(t, "bins") {
			prof.AddBin([]int64{8, 8}, timeline.Disk{IO: 8, Space: 8})
		}
		accounts.AddBin([]int64{12, 12, 12})
		caps.AddBin([]int64{10, 12, 8})
		caps.AddBin([]int64{6, 12, 12})
		projects := map[scheduler.ProjectID]map[Key]Existing{}
		var list []Project
		for id := range rapid.IntRange(1, 6).Draw(t, "projects") {
			pr := drawProject(t, id+1, 0, 2)
			pr.Account = 1
			for i := range pr.Requests {
				pr.Requests[i].Tasks = []int32{0, 1, 2}
				pr.Requests[i].Caps = [][]int32{nil, {0}, {1, 0}}[rapid.IntRange(0, 2).Draw(t, "caps")]
			}
			list = append(list, pr)
			projects[pr.ID] = drawReserved(t, prof, accounts, caps, &pr)
		}
		before := profileText(prof, accounts, caps)
		for range 2 {
			p.Reset(prof, accounts, caps)
			for _, pr := range list {
				p.Restore(pr, Guarantee{Departure: 100, Latest: 200}, rapid.Bool().Draw(t, "guaranteed"), func(k Key, _ *Need) Existing { return projects[pr.ID][k] })
			}
			now := scheduler.Time(rapid.IntRange(0, 40).Draw(t, "now"))
			for range rapid.IntRange(0, 5).Draw(t, "steps") {
				switch rapid.IntRange(0, 4).Draw(t, "step") {
				case 0:
					p.Replan(now, CauseLate)
				case 1:
					p.Repair(now, CauseNodeLost)
				case 2:
					compressAll(p, now)
				case 3:
					p.CompleteWhatFits(now, list[0].ID)
					_, _ = p.CompletePlan(now, list[len(list)-1].ID) // it may not fit
				default:
					k := Key{list[0].Requests[0].Job, 0, 1}
					p.End(k, now)
				}
			}
			p.Close()
			if got := profileText(prof, accounts, caps); got != before {
				t.Fatalf("before\n%s\nafter\n%s", before, got)
			}
			p.Scan(func(x *PlannedTask) {
				home := projects[x.Project][x.Key]
				stays := home.Kept && x.Spot == home.Spot && x.End == home.End
				if x.Kept != home.Kept || (!x.Moved && !stays) || (x.Kept && x.KeptAt != home.Spot) {
					t.Fatalf("%+v, was reserved %+v", x, home)
				}
			})
		}
	})
}
