package policies

import (
	"cmp"

	"github.com/drover-run/drover/scheduler"
)

// jobKey is the sort key of a job in an ordered policy: the first number, then the
// second, then submission and id. Smaller goes first.
type jobKey [2]float64

// ordered is a policy that serves the first job in an order that may change as tasks
// are placed. Tasks that do not fit are passed over.
type ordered struct {
	name string
	// key is called for each job with ready work, and again for a job after each of
	// its placements.
	key func(s *scheduler.State, j *scheduler.Job, now scheduler.Time) jobKey
	// deadlinesFirst reports that jobs with a deadline come before others.
	deadlinesFirst bool

	placer placer
	heap   []jobEntry
}

type jobEntry struct {
	key   jobKey
	seq   int32 // position in order of (submission, id)
	job   *scheduler.Job
	stage int32 // no stage before it can be placed any more
}

func (o *ordered) Name() string { return o.name }

// ServesDeadlines reports whether jobs with a deadline come before others.
func (o *ordered) ServesDeadlines() bool { return o.deadlinesFirst }

// Decide costs O(1) if nothing changed, else O(ready jobs + placements x log of
// ready jobs).
func (o *ordered) Decide(s *scheduler.State, now scheduler.Time, limit int) scheduler.Decision {
	p := &o.placer
	if p.begin(s, now, limit) {
		return p.idleDecision(now)
	}
	for !p.isDone() && p.nextPass() {
		o.heap = o.heap[:0]
		for j, at := s.Queue().Next(0); j != nil; j, at = s.Queue().Next(at) {
			o.heap = append(o.heap, jobEntry{key: o.key(s, j, now), seq: at, job: j})
		}
		for i := len(o.heap)/2 - 1; i >= 0; i-- {
			siftDown(o.heap, i, lessEntry)
		}
		for len(o.heap) > 0 && !p.isDone() {
			top := &o.heap[0]
			if p.placeNext(top) {
				top.key = o.key(s, top.job, now)
			} else {
				last := len(o.heap) - 1
				o.heap[0] = o.heap[last]
				o.heap = o.heap[:last]
			}
			siftDown(o.heap, 0, lessEntry)
		}
	}
	p.placeBeyond()
	return p.finish()
}

// SetReasonsWanted sets whether decisions list why stages wait.
func (o *ordered) SetReasonsWanted(wanted bool) { o.placer.setReasons(wanted) }

// placeNext places one task of the job, of its first placeable stage. It returns false if it has none.
func (p *placer) placeNext(e *jobEntry) bool { return p.placeNextStage(e) != nil }

// placeNextStage is placeNext, returning the stage or nil.
func (p *placer) placeNextStage(e *jobEntry) *scheduler.Stage {
	for ; int(e.stage) < len(e.job.Stages); e.stage++ {
		if g := e.job.Stages[e.stage]; g.Ready() && p.placeOne(g) {
			return g
		}
	}
	return nil
}

func lessEntry(a, b *jobEntry) bool {
	return cmp.Or(cmp.Compare(a.key[0], b.key[0]), cmp.Compare(a.key[1], b.key[1]), cmp.Compare(a.seq, b.seq)) < 0
}

// siftDown moves element i of a binary heap down to its place.
func siftDown[T any](h []T, i int, less func(a, b *T) bool) {
	for {
		least, l := i, 2*i+1
		if l < len(h) && less(&h[l], &h[least]) {
			least = l
		}
		if r := l + 1; r < len(h) && less(&h[r], &h[least]) {
			least = r
		}
		if least == i {
			return
		}
		h[i], h[least] = h[least], h[i]
		i = least
	}
}
