package threedsf

import (
	"math/rand/v2"
	"testing"

	"github.com/drover-run/drover/internal/seed"
	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/schedtest"
)

// leftBy swaps tasks out in the order of the list, each as a whole where it fits, and returns what stays.
func leftBy(memory []int64, room int64) (stays int64) {
	for _, m := range memory {
		if m <= room {
			room -= m
		} else {
			stays += m
		}
	}
	return stays
}

// In whatever order tasks are swapped out, no more stays than swapDemand says; with tasks of one size it says exactly that; and
// it says no more when a task has ended, and the same when one is in swap.
func TestMemoryThatStays(t *testing.T) {
	r := rand.New(rand.NewPCG(seed.New(t), 1))
	swap := scheduler.Levels(scheduler.LevelRunning, scheduler.LevelFrozen, scheduler.LevelSwapped)
	said := func(memory []int64, free int64, swapped int) int64 {
		var d swapDemand
		for i, m := range memory {
			if i < swapped {
				d.add(swap, 0, m)
			} else {
				d.add(swap, m, 0)
			}
		}
		return d.beyond(free)
	}
	for range 20_000 {
		unit, memory := 1+r.Int64N(4), make([]int64, 1+r.IntN(8))
		one, equal := 1+r.Int64N(6), r.IntN(3) == 0
		for i := range memory {
			if memory[i] = unit * one; !equal {
				memory[i] = unit * (1 + r.Int64N(6))
			}
		}
		room := r.Int64N(40)
		bound, most := said(memory, room, 0), int64(0)
		for range 20 {
			r.Shuffle(len(memory), func(i, k int) { memory[i], memory[k] = memory[k], memory[i] })
			most = max(most, leftBy(memory, room))
		}
		if most > bound || (equal && most != bound) {
			t.Fatalf("of %v beside %d bytes of swap up to %d stay, not %d", memory, room, most, bound)
		}
		if after := said(memory[1:], room, 0); after > bound {
			t.Fatalf("of %v beside %d bytes of swap up to %d stay, and %d without the first", memory, room, bound, after)
		}
		if memory[0] <= room {
			if after := said(memory, room-memory[0], 1); after != bound {
				t.Fatalf("of %v beside %d bytes of swap up to %d stay, and %d when the first is swapped out", memory, room, bound, after)
			}
		}
	}
}

// Memory that guarantees cannot count on is divided between the preemptible attempts, first placed
// first. A checkpointable attempt leaves, and one that refuses all levels stays.
func TestStayingMemory(t *testing.T) {
	for name, x := range map[string]struct {
		swap       int64 // GiB
		checkpoint bool
		refused    scheduler.LevelSet // of the first
		want       [3]int64           // GiB, of tasks of 2 GiB
	}{
		"room for all":                         {6, false, 0, [3]int64{}},
		"room for two":                         {4, false, 0, [3]int64{2, 0, 0}},
		"room for one and a half":              {3, false, 0, [3]int64{2, 2, 0}},
		"no room":                              {0, false, 0, [3]int64{2, 2, 2}},
		"checkpoints":                          {0, true, 0, [3]int64{}},
		"the first has to be moved":            {0, true, scheduler.Levels(scheduler.LevelCheckpointed), [3]int64{2, 0, 0}},
		"the first cannot leave":               {6, false, scheduler.Levels(scheduler.LevelSwapped), [3]int64{2, 0, 0}},
		"the first cannot leave, room for one": {2, false, scheduler.Levels(scheduler.LevelSwapped), [3]int64{2, 2, 0}},
	} {
		t.Run(name, func(t *testing.T) {
			w := schedtest.New(t).AddNodes(1, schedtest.R(4, 8, 4)).AddTenants("a")
			spec := schedtest.NodeSpec(0, "/r1", schedtest.R(4, 8, 4))
			if spec.Swap = x.swap * schedtest.GiB; !x.checkpoint {
				spec.Levels = scheduler.Levels(scheduler.LevelRunning, scheduler.LevelFrozen, scheduler.LevelSwapped)
			}
			if err := w.State.Events().UpdateNode(spec); err != nil {
				t.Fatal(err)
			}
			id := w.Submit("a", 3, schedtest.R(1, 2, 0))
			var got [3]int64
			var attempts [3]*scheduler.Attempt
			for i := range attempts {
				attempts[i] = w.Place(scheduler.TaskID{Job: id, Index: int32(i)}, 0)
			}
			w.Start()
			for l := scheduler.LevelFrozen; l <= scheduler.LevelCheckpointed; l++ {
				if x.refused.Has(l) {
					attempts[0].RefusedLevels |= scheduler.Levels(l)
				}
			}
			for i, a := range attempts {
				got[i] = stayingMemory(w.State, a) / schedtest.GiB
			}
			if got != x.want {
				t.Errorf("%v GiB stay, want %v", got, x.want)
			}
		})
	}
}
