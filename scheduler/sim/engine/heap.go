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

// event is one thing to come. An event whose version is no longer that of
// what it is about is void: it is dropped unseen and not counted.
type event struct {
	at  scheduler.Time
	seq uint64 // kind in the upper 8 bits, then the order of planning
	ref int32
	ver uint32
}

func (e *event) kind() eventKind { return eventKind(e.seq >> 56) }

func (e *event) before(o *event) bool { return e.at < o.at || (e.at == o.at && e.seq < o.seq) }

// queue is a heap with four children a node: shallower than a binary one and
// kinder to the cache.
type queue struct {
	of    []event
	count uint64
}

// plan puts an event in. O(log n).
func (q *queue) plan(at scheduler.Time, k eventKind, ref int32, ver uint32) {
	q.count++
	q.of = append(q.of, event{at, uint64(k)<<56 | q.count, ref, ver})
	i := len(q.of) - 1
	e := q.of[i]
	for i > 0 {
		up := (i - 1) / 4
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
	if len(q.of) == 0 {
		return scheduler.Never
	}
	return q.of[0].at
}

// take removes the first event. O(log n).
func (q *queue) take() event {
	first := q.of[0]
	last := len(q.of) - 1
	e := q.of[last]
	q.of = q.of[:last]
	if last > 0 {
		q.sink(e)
	}
	return first
}

// sink lets e go down from the top to its place.
func (q *queue) sink(e event) {
	i := 0
	for {
		first := 4*i + 1
		if first >= len(q.of) {
			break
		}
		least := first
		for c := first + 1; c < min(first+4, len(q.of)); c++ {
			if q.of[c].before(&q.of[least]) {
				least = c
			}
		}
		if !q.of[least].before(&e) {
			break
		}
		q.of[i] = q.of[least]
		i = least
	}
	q.of[i] = e
}
