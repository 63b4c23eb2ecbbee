// Package rigid simulates traces of rigid jobs (a fixed need for a fixed time, one pool
// of totals) under first come first served, EASY and conservative backfilling. It is a
// minimal event loop: tests compare it with published start times, and simulations of
// workload archives use it. Events at the same time are processed in the order
// submission, termination, start; FCFS and EASY look for jobs to start after each of
// them.
package rigid

import (
	"container/heap"
	"fmt"
	"time"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/backfill"
)

// Job is a rigid job.
type Job struct {
	Submit  scheduler.Time
	RunTime time.Duration // actual run time, at most Bound
	Bound   time.Duration // requested run time
	Need    []int64
}

// Rule is the order in which waiting jobs start.
type Rule uint8

// The rules.
const (
	FCFS         Rule = iota + 1 // no job overtakes the head of the queue
	EASY                         // a job overtakes if it does not delay the head of the queue
	Conservative                 // a job overtakes if it delays no other job (two-tier strict backfilling with one job per project)
)

// String returns the rule's name.
func (r Rule) String() string {
	switch r {
	case FCFS:
		return "fcfs"
	case EASY:
		return "easy"
	case Conservative:
		return "conservative"
	default:
		return fmt.Sprintf("rule(%d)", uint8(r))
	}
}

// Simulate returns the start time of each job. Jobs must be in order of submission.
// O(jobs x waiting).
func Simulate(rule Rule, capacity []int64, jobs []Job) ([]scheduler.Time, error) {
	for i := range jobs {
		j := &jobs[i]
		switch {
		case len(j.Need) != len(capacity):
			return nil, fmt.Errorf("job %d: %d resources, the pool has %d", i, len(j.Need), len(capacity))
		case j.Bound <= 0 || j.RunTime < 0 || j.RunTime > j.Bound:
			return nil, fmt.Errorf("job %d: run time %v, bound %v: want 0 <= run time <= bound, bound > 0", i, j.RunTime, j.Bound)
		case i > 0 && j.Submit < jobs[i-1].Submit:
			return nil, fmt.Errorf("job %d: submitted before job %d", i, i-1)
		}
		for r, v := range j.Need {
			if v < 0 || v > capacity[r] {
				return nil, fmt.Errorf("job %d: needs %d of resource %d, the pool has %d", i, v, r, capacity[r])
			}
		}
	}
	m := &machine{jobs: jobs, starts: make([]scheduler.Time, len(jobs))}
	m.pool.AddBin(capacity)
	switch rule {
	case FCFS, EASY:
		m.rule = &queue{machine: m, backfill: rule == EASY}
	case Conservative:
		p, err := backfill.NewPlanner(backfill.Config{Variant: backfill.Strict}, &m.pool)
		if err != nil {
			return nil, err
		}
		m.rule = &conservative{machine: m, planner: p}
	default:
		return nil, fmt.Errorf("rule is %v: want fcfs, easy or conservative", rule)
	}
	return m.starts, m.simulate()
}

// ruleEvents is the behaviour of a rule at the three kinds of events. startDue returns
// the next time at which it must be called again, or Never.
type ruleEvents interface {
	submitted(i int, now scheduler.Time) error
	ended(i int, now scheduler.Time)
	startDue(now scheduler.Time) scheduler.Time
}

type machine struct {
	jobs     []Job
	starts   []scheduler.Time
	pool     backfill.Profile
	rule     ruleEvents
	endQueue endHeap
}

type ending struct {
	at  scheduler.Time
	job int
}

type endHeap []ending

func (e endHeap) Len() int { return len(e) }
func (e endHeap) Less(i, j int) bool {
	return e[i].at < e[j].at || (e[i].at == e[j].at && e[i].job < e[j].job)
}
func (e endHeap) Swap(i, j int) { e[i], e[j] = e[j], e[i] }

// Push appends an ending (heap.Interface).
func (e *endHeap) Push(x any) { *e = append(*e, x.(ending)) }

// Pop removes the last ending (heap.Interface).
func (e *endHeap) Pop() any {
	x := (*e)[len(*e)-1]
	*e = (*e)[:len(*e)-1]
	return x
}

func (m *machine) simulate() error {
	next, wake := 0, scheduler.Never
	for next < len(m.jobs) || len(m.endQueue) > 0 || wake != scheduler.Never {
		now := wake
		if next < len(m.jobs) {
			now = min(now, m.jobs[next].Submit)
		}
		if len(m.endQueue) > 0 {
			now = min(now, m.endQueue[0].at)
		}
		m.pool.Forget(now)
		for ; next < len(m.jobs) && m.jobs[next].Submit <= now; next++ {
			if err := m.rule.submitted(next, now); err != nil {
				return fmt.Errorf("job %d: %w", next, err)
			}
		}
		for len(m.endQueue) > 0 && m.endQueue[0].at <= now {
			m.rule.ended(heap.Pop(&m.endQueue).(ending).job, now)
		}
		wake = m.rule.startDue(now)
	}
	return nil
}

func (m *machine) start(i int, now scheduler.Time) {
	m.starts[i] = now
	heap.Push(&m.endQueue, ending{now.Add(m.jobs[i].RunTime), i})
}

// queue implements FCFS and EASY.
type queue struct {
	*machine
	backfill bool
	waiting  []int
}

func (q *queue) submitted(i int, now scheduler.Time) error {
	q.waiting = append(q.waiting, i)
	q.startWaiting(now)
	return nil
}

func (q *queue) ended(i int, now scheduler.Time) {
	j := &q.jobs[i]
	q.pool.Release(0, -1, now, max(now, q.jobs[i].boundedEnd(q.machine.starts[i])), &backfill.Need{Base: j.Need})
	q.startWaiting(now)
}

func (j *Job) boundedEnd(start scheduler.Time) scheduler.Time { return start.Add(j.Bound) }

func (q *queue) startDue(scheduler.Time) scheduler.Time { return scheduler.Never }

// startWaiting starts jobs from the head of the queue while they fit. With EASY it then
// reserves the earliest start of the head, and starts every job that fits beside that
// reservation.
func (q *queue) startWaiting(now scheduler.Time) {
	for len(q.waiting) > 0 && q.tryStart(q.waiting[0], now) {
		q.waiting = q.waiting[1:]
	}
	if !q.backfill || len(q.waiting) < 2 {
		return
	}
	head := &q.jobs[q.waiting[0]]
	need := &backfill.Need{Base: head.Need}
	s, _ := q.pool.EarliestOn(0, now, head.Bound, scheduler.Never, need)
	q.pool.Reserve(0, -1, s.At, head.boundedEnd(s.At), need)
	waiting := q.waiting[:1]
	for _, i := range q.waiting[1:] {
		if !q.tryStart(i, now) {
			waiting = append(waiting, i)
		}
	}
	q.waiting = waiting
	q.pool.Release(0, -1, s.At, head.boundedEnd(s.At), need)
}

func (q *queue) tryStart(i int, now scheduler.Time) bool {
	j := &q.jobs[i]
	need := &backfill.Need{Base: j.Need}
	if !q.pool.Fits(0, -1, now, j.boundedEnd(now), need) {
		return false
	}
	q.pool.Reserve(0, -1, now, j.boundedEnd(now), need)
	q.start(i, now)
	return true
}

// conservative implements conservative backfilling with the two-tier planner.
type conservative struct {
	*machine
	planner *backfill.Planner
}

func (p *conservative) submitted(i int, now scheduler.Time) error {
	j := &p.jobs[i]
	_, err := p.planner.Submit(now, backfill.Project{ID: scheduler.ProjectID(i + 1), Submitted: j.Submit, Requests: []backfill.Request{
		{Job: scheduler.JobID(i + 1), Tasks: []int32{0}, Need: backfill.Need{Base: j.Need}, Bound: j.Bound}}})
	return err
}

func (p *conservative) ended(i int, now scheduler.Time) {
	if p.planner.End(backfill.Key{Job: scheduler.JobID(i + 1)}, now) {
		p.planner.Compress(now)
	}
}

func (p *conservative) startDue(now scheduler.Time) scheduler.Time {
	next := scheduler.Never
	var due []backfill.Key
	p.planner.Each(func(x backfill.PlannedTask) bool {
		switch {
		case x.Started:
		case x.Spot.At <= now:
			due = append(due, x.Key)
		default:
			next = min(next, x.Spot.At)
		}
		return true
	})
	for _, k := range due {
		p.planner.Start(k, now)
		p.start(int(k.Job-1), now)
	}
	return next
}
