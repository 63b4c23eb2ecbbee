package backfill

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/timeline"
)

// Compression that searches the freed bins beside each item moves all items to the same
// spots as compression that lifts each item out of the profile and searches: on bins
// with and without disks, with few and many equivalence classes, dependent stages, soft
// bounds on non-preemptible bins, and bins over capacity because they shrank or were
// reserved by others.
func TestFreedBinSearchMatchesLiftedSearch(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		disks := make([]timeline.Disk, rapid.IntRange(0, 3).Draw(t, "disks"))
		for i := range disks {
			disks[i] = timeline.Disk{IO: int64(rapid.IntRange(3, 8).Draw(t, "IO")), Space: int64(rapid.IntRange(3, 8).Draw(t, "space"))}
		}
		bins := rapid.IntRange(1, 6).Draw(t, "bins")
		threshold := rapid.SampledFrom([]int{1, 2, 3, finderMinItems}).Draw(t, "finder threshold")
		classes := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) Request {
			r := Request{Need: Need{Base: []int64{int64(rapid.IntRange(0, 4).Draw(t, "CPU")), int64(rapid.IntRange(0, 4).Draw(t, "memory"))}},
				Bound: time.Duration(rapid.IntRange(1, 20).Draw(t, "bound")), SoftBound: rapid.Bool().Draw(t, "soft")}
			if len(disks) > 0 {
				r.Need.IO, r.Need.Space = int64(rapid.IntRange(0, 3).Draw(t, "io")), int64(rapid.IntRange(0, 3).Draw(t, "space"))
			}
			return r
		}), 1, 4).Draw(t, "classes")
		var both [2]*Planner
		for i := range both {
			prof := &Profile{}
			for range bins {
				prof.AddBin([]int64{8, 8}, disks...)
			}
			p := NewPlanner(Config{Variant: Strict}, prof)
			p.classes.finderThreshold = threshold
			both[i] = p
		}
		if rapid.Bool().Draw(t, "keeps") {
			both[0].SetNonPreemptible(0, true)
			both[1].SetNonPreemptible(0, true)
		}
		now, id := scheduler.Time(1), 0
		t.Repeat(map[string]func(*rapid.T){
			"submit": func(t *rapid.T) {
				id++
				pr := Project{ID: scheduler.ProjectID(id), Submitted: now}
				for stage := range rapid.IntRange(1, 2).Draw(t, "stages") {
					r := rapid.SampledFrom(classes).Draw(t, "class")
					r.Job, r.Stage = scheduler.JobID(id), int32(stage)
					for task := range rapid.Int32Range(1, 8).Draw(t, "tasks") {
						r.Tasks = append(r.Tasks, task)
					}
					if stage > 0 && rapid.Bool().Draw(t, "after") {
						r.After = []int32{0}
					}
					pr.Requests = append(pr.Requests, r)
				}
				_, err := both[0].Submit(now, pr)
				if _, err2 := both[1].Submit(now, pr); (err == nil) != (err2 == nil) {
					t.Fatalf("submitted: %v and %v", err, err2)
				}
			},
			"pass": func(t *rapid.T) {
				now += scheduler.Time(rapid.IntRange(1, 6).Draw(t, "time"))
				var due []Key
				both[0].Scan(func(x *PlannedTask) {
					if !x.Started && x.Spot.At <= now {
						due = append(due, x.Key)
					}
				})
				for _, p := range both {
					for _, k := range due {
						p.Start(k, now)
					}
				}
			},
			"end": func(t *rapid.T) {
				var running []Key
				both[0].Scan(func(x *PlannedTask) {
					if x.Started {
						running = append(running, x.Key)
					}
				})
				if len(running) == 0 {
					return
				}
				k := rapid.SampledFrom(running).Draw(t, "ends")
				for _, p := range both {
					p.End(k, now)
				}
			},
			"shrink": func(t *rapid.T) {
				b, cpu := rapid.Int32Range(0, int32(bins)-1).Draw(t, "bin"), int64(rapid.IntRange(4, 8).Draw(t, "CPU"))
				repair := rapid.Bool().Draw(t, "repair")
				for _, p := range both {
					p.space.profile.Resize(b, []int64{cpu, 8})
					p.MarkFreed(b)
					if repair {
						p.Repair(now, CauseNodeLost)
					}
				}
			},
			"compress": func(t *rapid.T) {
				moved := compressAll(both[0], now)
				if lifted := compressLifted(both[1], now); moved != lifted {
					t.Fatalf("moved is %v, with lifted searches %v", moved, lifted)
				}
			},
			"": func(t *rapid.T) {
				both[0].Scan(func(x *PlannedTask) {
					if y, _ := both[1].Find(x.Key); *x != y {
						t.Fatalf("%v, with lifted searches %v", x, y)
					}
				})
			},
		})
	})
}

// compressLifted is Compress by a search of all bins for each item, which is taken out of the
// profile meanwhile.
func compressLifted(p *Planner, now scheduler.Time) (moved bool) {
	p.now = now
	for _, pr := range p.registry.submitOrder {
		for _, g := range pr.groups {
			from := g.openTime(now)
			for _, it := range g.items {
				if it.started || !it.placed || it.spot.At <= from {
					continue
				}
				p.search.liftItem(p, it, 1)
				s, found := p.search.earliestSpot(p, it, from, it.spot.At)
				p.search.liftItem(p, it, -1)
				if found {
					p.setSpot(it, s)
					moved = true
				}
			}
		}
	}
	return moved
}
