package engine

import (
	"math/bits"
	"slices"

	"github.com/drover-run/drover/scheduler"
)

// eventKind says what happens; events of one instant happen in this order.
type eventKind uint8

const (
	evSubmit    eventKind = iota + 1 // ref: index of the job
	evFail                           // ref: node
	evRepair                         // ref: node
	evPhase                          // ref: attempt, whose phase ends
	evSuspended                      // ref: attempt, at its level now
	evResumed                        // ref: attempt, runs (again, or elsewhere)
	evKilled                         // ref: attempt, is gone
	evFlow                           // ref: flow, has moved its bytes
	evHeartbeat                      // nodes report progress
)

// event is one thing to come: when, and the key, which is from the highest bits
// on its kind, the order of planning, and what it is about. Keys differ, so that
// events are ordered by (time, kind, order of planning). Who an event is about
// remembers its key: one whose key is no longer remembered is void, it is dropped
// unseen and not counted.
type event struct {
	at  scheduler.Time
	key uint64
}

// The parts of a key, in bits: what an event is about, and the order of planning.
const (
	refBits   = 26
	countBits = 34
	// maxRef bounds jobs, nodes, flows and attempts that live at once.
	maxRef = 1<<refBits - 1
	// maxPlanned bounds the events planned in a run.
	maxPlanned = 1<<countBits - 1<<30
)

func (e *event) kind() eventKind { return eventKind(e.key >> (refBits + countBits)) }
func (e *event) ref() int32      { return int32(e.key & maxRef) }

func (e *event) before(o *event) bool { return less(e, o) == 1 }

// less is 1 where a comes before b, else 0, without a branch: which of two events is
// first cannot be guessed, and every wrong guess costs more than both comparisons.
// No instant of a run is below 0.
func less(a, b *event) uint64 {
	_, borrow := bits.Sub64(a.key, b.key, 0)
	_, borrow = bits.Sub64(uint64(a.at), uint64(b.at), borrow)
	return borrow
}

// queue is a heap of the events to come soon, and before it buckets of a width of
// time each, unordered, for those that come later: an event is written down once
// and is sorted among a few when its bucket is opened, not among all that live.
// What is later than the last bucket waits beyond, and is spread over the buckets
// anew when all of them were opened.
//
// The heap has four children a node: shallower than a binary one, and four events
// fill a cache line. The first is at position top, so that brothers begin at a
// multiple of four, as a line does.
type queue struct {
	of      []event
	count   uint64
	from    scheduler.Time // where the first bucket begins
	shift   uint           // a bucket is 1<<shift ns wide
	opened  int            // buckets that were opened: what falls in them goes to the heap
	buckets [numBuckets][]event
	unread  bool // a bucket was opened since fresh was asked
	beyond  []event
}

const (
	top        = 3
	numBuckets = 512
)

func above(i int) int { return i/4 + 2 }
func below(i int) int { return 4 * (i - 2) }

// plan puts an event in and gives its key. O(log n of its bucket).
func (q *queue) plan(at scheduler.Time, k eventKind, ref int32) uint64 {
	q.count++
	e := event{at, uint64(k)<<(refBits+countBits) | q.count<<refBits | uint64(ref)}
	q.put(e)
	return e.key
}

// put puts an event where it belongs.
func (q *queue) put(e event) {
	switch i := uint64(e.at-q.from) >> q.shift; {
	case e.at < q.from || i < uint64(q.opened):
		q.push(e)
	case i < numBuckets:
		q.buckets[i] = append(q.buckets[i], e)
	default:
		q.beyond = append(q.beyond, e)
	}
}

func (q *queue) push(e event) {
	if len(q.of) == 0 {
		q.of = make([]event, top, 1024)
	}
	q.of = append(q.of, e)
	q.rise(len(q.of)-1, e)
}

// open fills the empty heap from the next bucket that has something, and tells
// whether there is any.
func (q *queue) open() bool {
	for {
		for q.opened < numBuckets {
			i := q.opened
			q.opened++
			if events := q.buckets[i]; len(events) > 0 {
				for _, e := range events {
					q.push(e)
				}
				q.buckets[i] = events[:0]
				q.unread = true
				return true
			}
		}
		if len(q.beyond) == 0 {
			return false
		}
		q.spread()
	}
}

// spread lays the buckets out anew, so that about half of the events beyond fall
// into the first half of them, and puts those that fall into any there.
func (q *queue) spread() {
	const sample = 64
	at := make([]scheduler.Time, 0, 2*sample)
	for i := 0; i < len(q.beyond); i += 1 + len(q.beyond)/(2*sample) {
		at = append(at, q.beyond[i].at)
	}
	slices.Sort(at)
	q.from = q.beyond[0].at
	for i := range q.beyond {
		q.from = min(q.from, q.beyond[i].at)
	}
	q.shift = uint(bits.Len64(uint64(at[len(at)/2]-q.from) / (numBuckets / 2)))
	q.opened = 0
	all := q.beyond
	q.beyond = all[:0]
	for _, e := range all { // none is written before it was read
		q.put(e)
	}
}

// rise lets e go up from a free position to its place.
func (q *queue) rise(i int, e event) {
	for i > top {
		up := above(i)
		if !e.before(&q.of[up]) {
			break
		}
		q.of[i] = q.of[up]
		i = up
	}
	q.of[i] = e
}

// next is when the next event comes, or scheduler.Never.
func (q *queue) next() scheduler.Time {
	if len(q.of) <= top && !q.open() {
		return scheduler.Never
	}
	return q.of[top].at
}

// fresh gives the events that come soon, in no order, once for each bucket that was
// opened, and otherwise none.
func (q *queue) fresh() []event {
	if !q.unread {
		return nil
	}
	q.unread = false
	return q.of[top:]
}

// take removes the first event; next said that there is one. O(log n of its bucket).
func (q *queue) take() event {
	first := q.of[top]
	last := len(q.of) - 1
	e := q.of[last]
	q.of = q.of[:last]
	if last > top {
		q.rise(q.sink(), e)
	}
	return first
}

// sink moves the first of all brothers up, from the top to a leaf, and gives the
// position that is then free. What is to be put there was a leaf: it hardly ever
// rises again, so on the way down it is not compared.
func (q *queue) sink() int {
	of := q.of
	i := top
	for {
		first := below(i)
		if first+4 > len(of) {
			return q.sinkLast(i, first)
		}
		b := (*[4]event)(of[first:])
		x, y := less(&b[1], &b[0]), 2+less(&b[3], &b[2])
		x ^= (x ^ y) & -less(&b[y&3], &b[x&3])
		of[i] = b[x&3]
		i = first + int(x)
	}
}

// sinkLast is the step of sink to fewer than four brothers, which are leaves.
func (q *queue) sinkLast(i, first int) int {
	if first >= len(q.of) {
		return i
	}
	least := first
	for c := first + 1; c < len(q.of); c++ {
		if q.of[c].before(&q.of[least]) {
			least = c
		}
	}
	q.of[i] = q.of[least]
	return least
}
