package policies

import (
	"math"
	"testing"
	"time"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/backfill"
)

// rigidJob needs a fixed amount of one pool for a fixed time.
type rigidJob struct {
	submit  scheduler.Time
	runTime time.Duration // at most bound
	bound   time.Duration
	need    []int64
}

// rigidRule is how waiting jobs start. Events at the same time come in the order submission, end, start.
// startDue returns the next time at which it must be called again, or Never.
type rigidRule interface {
	submitted(i int, now scheduler.Time)
	ended(i int, now scheduler.Time)
	startDue(now scheduler.Time) scheduler.Time
}

// rigidMachine simulates a trace of rigid jobs, in order of submission, on a pool of totals.
type rigidMachine struct {
	t      *testing.T
	jobs   []rigidJob
	starts []scheduler.Time
	ends   map[int]scheduler.Time // of the jobs that run
	pool   backfill.Profile
}

// startsUnder returns the start of each job under EASY or conservative backfilling.
func startsUnder(t *testing.T, easy bool, capacity int64, jobs []rigidJob) []scheduler.Time {
	t.Helper()
	m := &rigidMachine{t: t, jobs: jobs, starts: make([]scheduler.Time, len(jobs)), ends: map[int]scheduler.Time{}}
	m.pool.AddBin([]int64{capacity})
	if easy {
		m.simulate(&rigidEASY{rigidMachine: m})
		return m.starts
	}
	p := backfill.NewPlanner(backfill.Config{Variant: backfill.Strict}, &m.pool)
	m.simulate(&rigidConservative{m, p})
	return m.starts
}

func (m *rigidMachine) simulate(rule rigidRule) {
	next, wake := 0, scheduler.Never
	for next < len(m.jobs) || len(m.ends) > 0 || wake != scheduler.Never {
		now := wake
		if next < len(m.jobs) {
			now = min(now, m.jobs[next].submit)
		}
		for _, end := range m.ends {
			now = min(now, end)
		}
		m.pool.Forget(now)
		for ; next < len(m.jobs) && m.jobs[next].submit <= now; next++ {
			rule.submitted(next, now)
		}
		for i := range next {
			if end, runs := m.ends[i]; runs && end <= now {
				delete(m.ends, i)
				rule.ended(i, now)
			}
		}
		wake = rule.startDue(now)
	}
}

func (m *rigidMachine) start(i int, now scheduler.Time) {
	m.starts[i], m.ends[i] = now, now.Add(m.jobs[i].runTime)
}

// rigidEASY lets a job overtake if it does not delay the head of the queue.
type rigidEASY struct {
	*rigidMachine
	waiting []int
}

func (q *rigidEASY) submitted(i int, now scheduler.Time) {
	q.waiting = append(q.waiting, i)
	q.startWaiting(now)
}

func (q *rigidEASY) ended(i int, now scheduler.Time) {
	j := &q.jobs[i]
	q.pool.Release(0, -1, now, max(now, q.starts[i].Add(j.bound)), &backfill.Need{Base: j.need})
	q.startWaiting(now)
}

func (q *rigidEASY) startDue(scheduler.Time) scheduler.Time { return scheduler.Never }

// startWaiting starts jobs from the head of the queue while they fit, then those that fit beside a reservation for the
// head at its earliest start.
func (q *rigidEASY) startWaiting(now scheduler.Time) {
	for len(q.waiting) > 0 && q.tryStart(q.waiting[0], now) {
		q.waiting = q.waiting[1:]
	}
	if len(q.waiting) < 2 {
		return
	}
	head := &q.jobs[q.waiting[0]]
	need := &backfill.Need{Base: head.need}
	s, _ := q.pool.EarliestOn(0, now, head.bound, scheduler.Never, need)
	q.pool.Reserve(0, -1, s.At, s.At.Add(head.bound), need)
	waiting := q.waiting[:1]
	for _, i := range q.waiting[1:] {
		if !q.tryStart(i, now) {
			waiting = append(waiting, i)
		}
	}
	q.waiting = waiting
	q.pool.Release(0, -1, s.At, s.At.Add(head.bound), need)
}

func (q *rigidEASY) tryStart(i int, now scheduler.Time) bool {
	j := &q.jobs[i]
	need := &backfill.Need{Base: j.need}
	if !q.pool.Fits(0, -1, now, now.Add(j.bound), need) {
		return false
	}
	q.pool.Reserve(0, -1, now, now.Add(j.bound), need)
	q.start(i, now)
	return true
}

// rigidConservative lets a job overtake if it delays no other: the planner's strict variant with one job a project.
type rigidConservative struct {
	*rigidMachine
	planner *backfill.Planner
}

func (p *rigidConservative) submitted(i int, now scheduler.Time) {
	j := &p.jobs[i]
	in := backfill.Project{ID: scheduler.ProjectID(i + 1), Submitted: j.submit, Requests: []backfill.Request{
		{Job: scheduler.JobID(i + 1), Tasks: []int32{0}, Need: backfill.Need{Base: j.need}, Bound: j.bound}}}
	p.planner.Restore(in, backfill.Guarantee{}, false, func(backfill.Key, *backfill.Need) backfill.Existing { return backfill.Existing{} })
	if _, err := p.planner.CompletePlan(now, in.ID); err != nil {
		p.t.Fatal(err)
	}
}

func (p *rigidConservative) ended(i int, now scheduler.Time) {
	if p.planner.End(backfill.Key{Job: scheduler.JobID(i + 1)}, now) {
		p.planner.Compress(now, backfill.Position{Submitted: math.MinInt64}, math.MaxInt)
	}
}

func (p *rigidConservative) startDue(now scheduler.Time) scheduler.Time {
	next := scheduler.Never
	var due []backfill.Key
	p.planner.Scan(func(x *backfill.PlannedTask) {
		switch {
		case x.Started:
		case x.Spot.At <= now:
			due = append(due, x.Key)
		default:
			next = min(next, x.Spot.At)
		}
	})
	for _, k := range due {
		p.planner.Start(k, now)
		p.start(int(k.Job-1), now)
	}
	return next
}
