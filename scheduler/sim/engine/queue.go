package engine

import (
	"math/bits"
	"slices"

	"github.com/drover-run/drover/scheduler"
)

// eventKind is the kind of an event. Events of one time are handled in the order of their kinds.
type eventKind uint8

const (
	evSubmit    eventKind = iota + 1 // ref: index of the job
	evFail                           // ref: node
	evRepair                         // ref: node
	evPhase                          // ref: attempt whose phase ends
	evSuspended                      // ref: attempt that has reached its level
	evResumed                        // ref: attempt that runs again, here or on another node
	evKilled                         // ref: attempt that has ended
	evFlow                           // ref: flow that has finished
	evHeartbeat                      // all nodes report progress
	evDrain                          // ref: index of the absence
	evLeave                          // ref: index of the absence
	evReturn                         // ref: index of the absence
)

// event is a future event. From the highest bits down, its key holds the kind, a sequence number
// and the reference, so that events are ordered by (time, kind, sequence) and keys are unique. The
// attempt or flow stores the key of its next event. An event whose key is no longer stored is void:
// it is dropped and not counted.
type event struct {
	at  scheduler.Time
	key uint64
}

// The widths of a key's reference and sequence number, in bits.
const (
	refBits      = 26
	sequenceBits = 34
	// maxRef limits the jobs, nodes, flows and live attempts.
	maxRef = 1<<refBits - 1
	// maxScheduled limits the events scheduled in a simulation.
	maxScheduled = 1<<sequenceBits - 1<<30
)

func (e *event) kind() eventKind { return eventKind(e.key >> (refBits + sequenceBits)) }
func (e *event) ref() int32      { return int32(e.key & maxRef) }

func (e *event) before(o *event) bool { return lessBit(e, o) == 1 }

// lessBit returns 1 if a comes before b, else 0, without a branch: the order of two events is
// unpredictable, and a mispredicted branch costs more than both comparisons. Times of a simulation
// are never negative.
func lessBit(a, b *event) uint64 {
	_, borrow := bits.Sub64(a.key, b.key, 0)
	_, borrow = bits.Sub64(uint64(a.at), uint64(b.at), borrow)
	return borrow
}

// eventQueue is a heap of the next events, fed from unsorted buckets of equal time ranges that hold
// later events. An event is written once and sorted among the few events of its bucket when that
// bucket is opened, not among all. Events after the last bucket are in overflow and are distributed
// when all buckets have been opened.
//
// The heap has four children per node: it is shallower than a binary heap, and four events fill a
// cache line. The root is at index heapRoot, so that siblings start at a multiple of four and share
// a line.
type eventQueue struct {
	heap           []event
	scheduled      uint64
	popped         uint64
	bucketsStart   scheduler.Time // start of the first bucket
	bucketShift    uint           // a bucket covers 1<<bucketShift ns
	openedBuckets  int            // events of opened buckets go to the heap
	buckets        [numBuckets][]event
	hasNewlyOpened bool // a bucket was opened since the last newlyOpened
	overflow       []event
}

const (
	heapRoot   = 3
	numBuckets = 512
)

func parentOf(i int) int     { return i/4 + 2 }
func firstChildOf(i int) int { return 4 * (i - 2) }

// schedule adds an event and returns its key. O(log n of its bucket).
func (q *eventQueue) schedule(at scheduler.Time, k eventKind, ref int32) uint64 {
	q.scheduled++
	e := event{at, uint64(k)<<(refBits+sequenceBits) | q.scheduled<<refBits | uint64(ref)}
	q.insert(e)
	return e.key
}

// insert adds an event to the heap, its bucket or the overflow.
func (q *eventQueue) insert(e event) {
	switch i := uint64(e.at-q.bucketsStart) >> q.bucketShift; {
	case e.at < q.bucketsStart || i < uint64(q.openedBuckets):
		q.heapPush(e)
	case i < numBuckets:
		q.buckets[i] = append(q.buckets[i], e)
	default:
		q.overflow = append(q.overflow, e)
	}
}

func (q *eventQueue) heapPush(e event) {
	if len(q.heap) == 0 {
		q.heap = make([]event, heapRoot, 1024)
	}
	q.heap = append(q.heap, e)
	q.siftUp(len(q.heap)-1, e)
}

// openBucket fills the empty heap from the next non-empty bucket and reports whether there was one.
func (q *eventQueue) openBucket() bool {
	for {
		for q.openedBuckets < numBuckets {
			i := q.openedBuckets
			q.openedBuckets++
			if events := q.buckets[i]; len(events) > 0 {
				for _, e := range events {
					q.heapPush(e)
				}
				q.buckets[i] = events[:0]
				q.hasNewlyOpened = true
				return true
			}
		}
		if len(q.overflow) == 0 {
			return false
		}
		q.refillBuckets()
	}
}

// refillBuckets lays out the buckets so that about half of the overflow falls into their first
// half, and distributes the overflow over them.
func (q *eventQueue) refillBuckets() {
	const sample = 64
	at := make([]scheduler.Time, 0, 2*sample)
	for i := 0; i < len(q.overflow); i += 1 + len(q.overflow)/(2*sample) {
		at = append(at, q.overflow[i].at)
	}
	slices.Sort(at)
	q.bucketsStart = q.overflow[0].at
	for i := range q.overflow {
		q.bucketsStart = min(q.bucketsStart, q.overflow[i].at)
	}
	q.bucketShift = uint(bits.Len64(uint64(at[len(at)/2]-q.bucketsStart) / (numBuckets / 2)))
	q.openedBuckets = 0
	all := q.overflow
	q.overflow = all[:0]
	for _, e := range all { // an entry is overwritten only after it was read
		q.insert(e)
	}
}

// siftUp moves e from free position i to its place.
func (q *eventQueue) siftUp(i int, e event) {
	for i > heapRoot {
		up := parentOf(i)
		if !e.before(&q.heap[up]) {
			break
		}
		q.heap[i] = q.heap[up]
		i = up
	}
	q.heap[i] = e
}

// nextTime returns the time of the next event, or scheduler.Never.
func (q *eventQueue) nextTime() scheduler.Time {
	if len(q.heap) <= heapRoot && !q.openBucket() {
		return scheduler.Never
	}
	return q.heap[heapRoot].at
}

// pending returns the number of events that are scheduled and not popped, void ones included.
func (q *eventQueue) pending() int { return int(q.scheduled - q.popped) }

// newlyOpened returns the events of the heap, unordered, once after a bucket was opened, and nil
// otherwise.
func (q *eventQueue) newlyOpened() []event {
	if !q.hasNewlyOpened {
		return nil
	}
	q.hasNewlyOpened = false
	return q.heap[heapRoot:]
}

// pop removes and returns the first event. The caller has checked with nextTime that there is one.
// O(log n of its bucket).
func (q *eventQueue) pop() event {
	q.popped++
	first := q.heap[heapRoot]
	last := len(q.heap) - 1
	e := q.heap[last]
	q.heap = q.heap[:last]
	if last > heapRoot {
		q.siftUp(q.siftDown(), e)
	}
	return first
}

// siftDown moves the first of each group of siblings up, from the root to a leaf, and returns the
// position that becomes free. The event to be put there was a leaf and hardly ever rises again, so
// it is not compared on the way down.
func (q *eventQueue) siftDown() int {
	of := q.heap
	i := heapRoot
	for {
		first := firstChildOf(i)
		if first+4 > len(of) {
			return q.siftDownLast(i, first)
		}
		b := (*[4]event)(of[first:])
		x, y := lessBit(&b[1], &b[0]), 2+lessBit(&b[3], &b[2])
		x ^= (x ^ y) & -lessBit(&b[y&3], &b[x&3])
		of[i] = b[x&3]
		i = first + int(x)
	}
}

// siftDownLast is the step of siftDown for fewer than four siblings, which are leaves.
func (q *eventQueue) siftDownLast(i, first int) int {
	if first >= len(q.heap) {
		return i
	}
	least := first
	for c := first + 1; c < len(q.heap); c++ {
		if q.heap[c].before(&q.heap[least]) {
			least = c
		}
	}
	q.heap[i] = q.heap[least]
	return least
}
