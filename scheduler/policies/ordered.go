package policies

import (
	"cmp"

	"github.com/drover-run/drover/scheduler"
)

// key is what an ordered policy compares jobs by: the first number, then the
// second, then submission and id. Smaller goes first.
type key [2]float64

// ordered is a policy that gives each place to the first job in an order that
// may change as tasks are placed; what does not fit is passed over.
type ordered struct {
	name string
	// key is asked for each job with ready work, and again for a job after
	// each placement in it.
	key    func(s *scheduler.State, j *scheduler.Job, now scheduler.Time) key
	placer placer
	heap   []entry
}

type entry struct {
	key   key
	seq   int32 // position by (submission, id)
	job   *scheduler.Job
	stage int32 // stages before it cannot be placed any more
}

func (o *ordered) Name() string { return o.name }

// Decide costs O(1) when nothing changed, else O(ready jobs + placements x log
// of ready jobs).
func (o *ordered) Decide(s *scheduler.State, now scheduler.Time, max int) scheduler.Decision {
	p := &o.placer
	if p.begin(s, now, max) {
		return p.idle(now)
	}
	for !p.full() && p.pass() {
		o.heap = o.heap[:0]
		for j, at := s.NextReady(0); j != nil; j, at = s.NextReady(at) {
			o.heap = append(o.heap, entry{key: o.key(s, j, now), seq: at, job: j})
		}
		for i := len(o.heap)/2 - 1; i >= 0; i-- {
			down(o.heap, i, lessEntry)
		}
		for len(o.heap) > 0 && !p.full() {
			top := &o.heap[0]
			if p.placeNext(top) {
				top.key = o.key(s, top.job, now)
			} else {
				last := len(o.heap) - 1
				o.heap[0] = o.heap[last]
				o.heap = o.heap[:last]
			}
			down(o.heap, 0, lessEntry)
		}
	}
	return p.end()
}

// Reasons says whether Decision.Waiting is wanted.
func (o *ordered) Reasons(wanted bool) { o.placer.reasons(wanted) }

// placeNext places one task of the job, of the first stage that can be; false
// when none can, each then has its reason.
func (p *placer) placeNext(e *entry) bool { return p.placeNextStage(e) != nil }

// placeNextStage is placeNext that gives the stage, nil for none.
func (p *placer) placeNextStage(e *entry) *scheduler.Stage {
	for ; int(e.stage) < len(e.job.Stages); e.stage++ {
		if g := e.job.Stages[e.stage]; g.Ready() && p.placeOne(g) {
			return g
		}
	}
	return nil
}

func lessEntry(a, b *entry) bool {
	return cmp.Or(cmp.Compare(a.key[0], b.key[0]), cmp.Compare(a.key[1], b.key[1]), cmp.Compare(a.seq, b.seq)) < 0
}

// down lets element i of a binary heap sink to its place.
func down[T any](h []T, i int, less func(a, b *T) bool) {
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
