package engine

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/drover-run/drover/internal/seed"
	"github.com/drover-run/drover/scheduler"
)

// Events come in the order of time, kind and scheduling, whatever they refer to. The reference is a
// sorted list; pops and schedules are mixed.
func TestEventQueueOrder(t *testing.T) {
	type planned struct {
		at    scheduler.Time
		kind  eventKind
		order int
		ref   int32
	}
	first := seed.New(t)
	for i := range uint64(200) {
		seed := first + i
		r := rand.New(rand.NewPCG(seed, 1))
		var q eventQueue
		var want []planned
		now := scheduler.Time(0)
		span := int64(20) << r.IntN(40)
		for n := range 1 + r.IntN(400) {
			p := planned{now.Add(time.Duration(r.Int64N(span))), evSubmit + eventKind(r.IntN(int(evHeartbeat))), n, int32(r.IntN(maxRef + 1))}
			switch r.IntN(20) {
			case 0:
				p.at = now
			case 1:
				p.at = now.Add(time.Duration(1000 * span))
			case 2:
				p.at = scheduler.Never - 1
			}
			key := q.schedule(p.at, p.kind, p.ref)
			want = append(want, p)
			if r.IntN(3) > 0 && n < 300 {
				continue
			}
			slices.SortFunc(want, func(a, b planned) int {
				return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.kind, b.kind), cmp.Compare(a.order, b.order))
			})
			if q.nextTime() != want[0].at {
				t.Fatalf("seed %d: next at %v, want %v", seed, q.nextTime(), want[0].at)
			}
			e := q.pop()
			if e.at != want[0].at || e.kind() != want[0].kind || e.ref() != want[0].ref || (want[0].order == n) != (e.key == key) {
				t.Fatalf("seed %d: popped %v %d of %d, want %+v", seed, e.at, e.kind(), e.ref(), want[0])
			}
			now, want = e.at, want[1:]
		}
		for range want {
			q.nextTime()
			q.pop()
		}
		if q.nextTime() != scheduler.Never {
			t.Fatalf("seed %d: the queue is not empty", seed)
		}
	}
}

// BenchmarkQueue ends one of 32,000 tasks and schedules the end of the next.
func BenchmarkQueue(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 1))
	var q eventQueue
	for range 32_000 {
		q.schedule(scheduler.Time(r.Int64N(20e9)), evPhase, 1)
	}
	var later [4096]scheduler.Time
	for i := range later {
		later[i] = scheduler.Time(r.Int64N(20e9))
	}
	for i := 0; b.Loop(); i++ {
		q.nextTime()
		e := q.pop()
		q.schedule(e.at+later[i%len(later)], evPhase, 1)
	}
}
