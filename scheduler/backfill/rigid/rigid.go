// Package rigid plays traces of rigid jobs (a fixed need for a fixed time, one
// pool of totals) under first come first served, EASY and conservative
// backfilling. It is the smallest event loop that does: tests hold it against
// published start times, and simulations of workload archives call it. Events
// of one instant come in the order submission, termination, start; FCFS and
// EASY look for jobs to start after each of them.
package rigid

import (
	"container/heap"
	"fmt"
	"time"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/backfill"
)

// Job is a rigid job. Jobs are given in order of submission.
type Job struct {
	Submit scheduler.Time
	Run    time.Duration // how long it really runs, at most Bound
	Bound  time.Duration // what was asked for
	Need   []int64
}

// Rule is the order in which waiting jobs start.
type Rule uint8

// The rules.
const (
	FCFS         Rule = iota + 1 // nothing overtakes the head of line
	EASY                         // what does not delay the head of line overtakes
	Conservative                 // what delays nobody overtakes (two-tier strict backfilling with one job a project)
)

// String gives the rule's name.
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

// Run gives each job's start. O(jobs x waiting).
func Run(rule Rule, capacity []int64, jobs []Job) ([]scheduler.Time, error) {
	for i := range jobs {
		j := &jobs[i]
		switch {
		case len(j.Need) != len(capacity):
			return nil, fmt.Errorf("job %d: %d resources, the pool has %d", i, len(j.Need), len(capacity))
		case j.Bound <= 0 || j.Run < 0 || j.Run > j.Bound:
			return nil, fmt.Errorf("job %d: runs %v of %v", i, j.Run, j.Bound)
		case i > 0 && j.Submit < jobs[i-1].Submit:
			return nil, fmt.Errorf("job %d: submitted before job %d", i, i-1)
		}
		for r, v := range j.Need {
			if v < 0 || v > capacity[r] {
				return nil, fmt.Errorf("job %d: needs %d of resource %d, there are %d", i, v, r, capacity[r])
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
		m.rule = &plan{machine: m, planner: p}
	default:
		return nil, fmt.Errorf("rule is %v", rule)
	}
	return m.starts, m.run()
}

// discipline is what a rule does at the three kinds of events. starts gives the
// next instant at which it wants to be asked again, or Never.
type discipline interface {
	submitted(i int, now scheduler.Time) error
	ended(i int, now scheduler.Time)
	starts(now scheduler.Time) scheduler.Time
}

type machine struct {
	jobs   []Job
	starts []scheduler.Time
	pool   backfill.Profile
	rule   discipline
	ends   endings
}

type ending struct {
	at  scheduler.Time
	job int
}

type endings []ending

func (e endings) Len() int { return len(e) }
func (e endings) Less(i, j int) bool {
	return e[i].at < e[j].at || (e[i].at == e[j].at && e[i].job < e[j].job)
}
func (e endings) Swap(i, j int) { e[i], e[j] = e[j], e[i] }

// Push adds an ending (heap.Interface).
func (e *endings) Push(x any) { *e = append(*e, x.(ending)) }

// Pop takes the last one (heap.Interface).
func (e *endings) Pop() any {
	x := (*e)[len(*e)-1]
	*e = (*e)[:len(*e)-1]
	return x
}

func (m *machine) run() error {
	next, wake := 0, scheduler.Never
	for next < len(m.jobs) || len(m.ends) > 0 || wake != scheduler.Never {
		now := wake
		if next < len(m.jobs) {
			now = min(now, m.jobs[next].Submit)
		}
		if len(m.ends) > 0 {
			now = min(now, m.ends[0].at)
		}
		m.pool.Forget(now)
		for ; next < len(m.jobs) && m.jobs[next].Submit <= now; next++ {
			if err := m.rule.submitted(next, now); err != nil {
				return fmt.Errorf("job %d: %w", next, err)
			}
		}
		for len(m.ends) > 0 && m.ends[0].at <= now {
			m.rule.ended(heap.Pop(&m.ends).(ending).job, now)
		}
		wake = m.rule.starts(now)
	}
	return nil
}

func (m *machine) start(i int, now scheduler.Time) {
	m.starts[i] = now
	heap.Push(&m.ends, ending{now.Add(m.jobs[i].Run), i})
}

// queue is FCFS and EASY.
type queue struct {
	*machine
	backfill bool
	waiting  []int
}

func (q *queue) submitted(i int, now scheduler.Time) error {
	q.waiting = append(q.waiting, i)
	q.look(now)
	return nil
}

func (q *queue) ended(i int, now scheduler.Time) {
	j := &q.jobs[i]
	q.pool.Give(0, -1, now, max(now, q.jobs[i].end(q.machine.starts[i])), &backfill.Need{Base: j.Need})
	q.look(now)
}

func (j *Job) end(start scheduler.Time) scheduler.Time { return start.Add(j.Bound) }

func (q *queue) starts(scheduler.Time) scheduler.Time { return scheduler.Never }

// look takes jobs from the head while they fit; then, with EASY, the head is
// given its earliest start and whoever fits beside that starts now.
func (q *queue) look(now scheduler.Time) {
	for len(q.waiting) > 0 && q.tryStart(q.waiting[0], now) {
		q.waiting = q.waiting[1:]
	}
	if !q.backfill || len(q.waiting) < 2 {
		return
	}
	head := &q.jobs[q.waiting[0]]
	need := &backfill.Need{Base: head.Need}
	s, _ := q.pool.EarliestOn(0, now, head.Bound, scheduler.Never, need)
	q.pool.Take(0, -1, s.At, head.end(s.At), need)
	kept := q.waiting[:1]
	for _, i := range q.waiting[1:] {
		if !q.tryStart(i, now) {
			kept = append(kept, i)
		}
	}
	q.waiting = kept
	q.pool.Give(0, -1, s.At, head.end(s.At), need)
}

func (q *queue) tryStart(i int, now scheduler.Time) bool {
	j := &q.jobs[i]
	need := &backfill.Need{Base: j.Need}
	if !q.pool.Fits(0, -1, now, j.end(now), need) {
		return false
	}
	q.pool.Take(0, -1, now, j.end(now), need)
	q.start(i, now)
	return true
}

// plan is conservative backfilling by the two-tier planner.
type plan struct {
	*machine
	planner *backfill.Planner
}

func (p *plan) submitted(i int, now scheduler.Time) error {
	j := &p.jobs[i]
	_, err := p.planner.Submit(now, backfill.Project{ID: scheduler.ProjectID(i + 1), Submitted: j.Submit, Requests: []backfill.Request{
		{Job: scheduler.JobID(i + 1), Tasks: []int32{0}, Need: backfill.Need{Base: j.Need}, Bound: j.Bound}}})
	return err
}

func (p *plan) ended(i int, now scheduler.Time) {
	if p.planner.End(backfill.Key{Job: scheduler.JobID(i + 1)}, now) {
		p.planner.Walk(now)
	}
}

func (p *plan) starts(now scheduler.Time) scheduler.Time {
	next := scheduler.Never
	var due []backfill.Key
	p.planner.Each(func(x backfill.Planned) bool {
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
	p.planner.Changed()
	return next
}
