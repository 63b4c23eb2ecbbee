package policies

import (
	"cmp"
	"math"
	"slices"

	"github.com/drover-run/drover/internal/heaps"
	"github.com/drover-run/drover/scheduler"
)

// jobKey is the sort key of a job in an ordered policy: the first number, then the second, then
// submission and id. Smaller goes first.
type jobKey [2]float64

// ordered is a policy that serves the first job in an order that may change as tasks
// are placed. Tasks that do not fit are passed over.
type ordered struct {
	name string
	// key is called for each job with ready work, and again for a job after each of its placements.
	key func(j *scheduler.Job, now scheduler.Time) jobKey
	// nextOrder returns a time until which the order of the ready jobs stays if nothing happens,
	// Never if time alone does not change it; nil for a policy whose order never changes. It is
	// called when nodes are reserved for tasks: the order decides for which.
	nextOrder func(s *scheduler.State, now scheduler.Time) scheduler.Time
	// deadlinesFirst reports that jobs with a deadline come before others.
	deadlinesFirst bool

	placer
	heap []jobEntry
}

type jobEntry struct {
	key   jobKey
	job   *scheduler.Job
	seq   int32 // position in order of (submission, id)
	stage int32 // see placeNextStage
}

func (o *ordered) Name() string { return o.name }

// DeadlineService reports whether jobs with a deadline come before others.
func (o *ordered) DeadlineService() scheduler.DeadlineService {
	return scheduler.DeadlineService{First: o.deadlinesFirst}
}

// Decide costs O(1) if nothing changed, else O(ready jobs + placements x log of ready jobs).
func (o *ordered) Decide(s *scheduler.State, now scheduler.Time, limit int) scheduler.Decision {
	p := &o.placer
	if p.begin(s, now, limit) {
		return p.idleDecision(now)
	}
	for !p.isDone() && p.nextPass() {
		o.heap = slices.Grow(o.heap[:0], min(s.JobCount(), s.Queue().Ready())) // at once: to grow it step by step would copy it several times
		for j, at := s.Queue().Next(0); j != nil; j, at = s.Queue().Next(at) {
			o.heap = append(o.heap, jobEntry{key: o.key(j, now), seq: at, job: j})
		}
		byKey.Init(o.heap)
		for len(o.heap) > 0 && !p.isDone() {
			top := &o.heap[0]
			if p.placeNextStage(top.job, &top.stage) != nil {
				top.key = o.key(top.job, now)
				byKey.Fix(o.heap, 0)
			} else {
				byKey.Pop(&o.heap)
			}
		}
	}
	if o.nextOrder != nil && p.withholdsCapacity() {
		p.wakeAt(o.nextOrder(s, now))
	}
	p.placeBeyond()
	return p.finish(p.reason)
}

// placeNextStage places one task of a job and returns its stage, the first that can be placed, or
// nil. No stage before the cursor can be placed any more in this pass.
func (p *placer) placeNextStage(j *scheduler.Job, cursor *int32) *scheduler.Stage {
	for ; int(*cursor) < len(j.Stages); *cursor++ {
		if g := j.Stages[*cursor]; g.Ready() && p.placeOne(g) {
			return g
		}
	}
	return nil
}

func (a jobEntry) compare(b jobEntry) int {
	for i := range a.key {
		if a.key[i] != b.key[i] {
			return cmp.Compare(a.key[i], b.key[i])
		}
	}
	return cmp.Compare(a.seq, b.seq)
}

var byKey = heaps.Order[jobEntry]{Less: func(a, b jobEntry) bool { return a.compare(b) < 0 }}

// nextCrossing returns the first time at which one ready job's key passes another's, or falls to 0. of returns
// the first number of a job's key at a time, if nothing happens until then, and its growth per second. The
// result does not depend on now, as long as nothing happens. O(ready jobs x log + their stages).
func (o *ordered) nextCrossing(s *scheduler.State, now scheduler.Time, of func(*scheduler.Job, scheduler.Time) (value, rate float64)) scheduler.Time {
	type line struct{ value, rate float64 }
	var jobs []jobEntry
	since := scheduler.Time(0)
	for j, at := s.Queue().Next(0); j != nil; j, at = s.Queue().Next(at) {
		jobs = append(jobs, jobEntry{key: o.key(j, now), job: j, seq: at})
		for _, g := range j.Begun() {
			since = max(since, g.CountedUntil())
		}
	}
	slices.SortFunc(jobs, jobEntry.compare)
	first := scheduler.Never
	until := func(amount, rate float64) {
		if rate > 0 && amount < rate*math.MaxInt32 {
			first = min(first, max(now+1, since+scheduler.Time(amount/rate*1e9)))
		}
	}
	last := line{}
	for i := range jobs {
		x := line{}
		if x.value, x.rate = of(jobs[i].job, now); x.rate != 0 {
			x.value, x.rate = of(jobs[i].job, since)
		}
		until(x.value, -x.rate)
		if i > 0 { // of all pairs, neighbours meet first
			until(x.value-last.value, last.rate-x.rate)
		}
		last = x
	}
	return first
}
