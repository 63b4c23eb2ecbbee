package engine

import "github.com/drover-run/drover/scheduler"

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

func (e *event) before(o *event) bool { return e.at < o.at || (e.at == o.at && e.key < o.key) }

// queue is a heap with four children a node: shallower than a binary one, and four
// events fill a cache line. The first is at position top, so that brothers begin
// at a multiple of four, as a line does.
type queue struct {
	of    []event
	count uint64
}

const top = 3

func above(i int) int { return i/4 + 2 }
func below(i int) int { return 4 * (i - 2) }

// plan puts an event in and gives its key. O(log n).
func (q *queue) plan(at scheduler.Time, k eventKind, ref int32) uint64 {
	if len(q.of) == 0 {
		q.of = make([]event, top, 1024)
	}
	q.count++
	e := event{at, uint64(k)<<(refBits+countBits) | q.count<<refBits | uint64(ref)}
	q.of = append(q.of, e)
	i := len(q.of) - 1
	for i > top {
		up := above(i)
		if !e.before(&q.of[up]) {
			break
		}
		q.of[i] = q.of[up]
		i = up
	}
	q.of[i] = e
	return e.key
}

// next is when the next event comes, or scheduler.Never.
func (q *queue) next() scheduler.Time {
	if len(q.of) <= top {
		return scheduler.Never
	}
	return q.of[top].at
}

// take removes the first event. O(log n).
func (q *queue) take() event {
	first := q.of[top]
	last := len(q.of) - 1
	e := q.of[last]
	q.of = q.of[:last]
	if last > top {
		q.sink(e)
	}
	return first
}

// sink lets e go down from the top to its place.
func (q *queue) sink(e event) {
	of := q.of
	i := top
	for {
		first := below(i)
		if first >= len(of) {
			break
		}
		brothers := of[first:min(first+4, len(of))]
		least := 0
		for c := 1; c < len(brothers); c++ {
			if brothers[c].before(&brothers[least]) {
				least = c
			}
		}
		if !brothers[least].before(&e) {
			break
		}
		of[i] = brothers[least]
		i = first + least
	}
	of[i] = e
}
