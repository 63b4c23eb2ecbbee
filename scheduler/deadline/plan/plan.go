package plan

import (
	"cmp"
	"container/heap"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/deadline"
	"github.com/drover-run/drover/scheduler/locality"
)

// ErrQuote is the class of all errors of this package.
var ErrQuote = errors.New("plan: no quote")

// Bounds on a question.
const (
	MaxSamples = 10_000
	// MaxTasks bounds the tasks that are played forward in a sample.
	MaxTasks = 1 << 20
)

// Residual gives the factor by which a run time differs from its prediction, at
// a part u in (0, 1) of its distribution: its quantile function. Package
// predict measures it.
type Residual func(u float64) float64

// Exact says that every task runs as long as predicted.
func Exact(float64) float64 { return 1 }

// Question is a job that might be submitted.
type Question struct {
	Job    scheduler.JobSpec // Deadline > 0: it would be in the deadline lane
	Stages []scheduler.StageSpec
	// Samples of run times are drawn with this seed; 0 samples count as 100.
	Samples int
	Seed    uint64
	// Residual of run times; nil counts as Exact. Unknown is the run time of a
	// task without a prediction.
	Residual Residual
	Unknown  time.Duration
}

// Quote is when the job would end.
type Quote struct {
	ends []scheduler.Time // of each sample, ascending; Never if it never starts
}

// Samples is their number.
func (q *Quote) Samples() int { return len(q.ends) }

// By is the share of samples in which the job ends by t: the p of (t, p).
func (q *Quote) By(t scheduler.Time) float64 {
	n, _ := slices.BinarySearchFunc(q.ends, t, func(a, b scheduler.Time) int {
		if a <= b {
			return -1
		}
		return 1
	})
	return float64(n) / float64(len(q.ends))
}

// At is the earliest instant by which the job ends in the share p of the
// samples: the t of (t, p). p is bounded to 0..1.
func (q *Quote) At(p float64) scheduler.Time {
	i := int(p*float64(len(q.ends))+0.999999) - 1
	return q.ends[min(max(i, 0), len(q.ends)-1)]
}

// Planner is the workspace of quotes.
type Planner struct {
	nodes   []node
	jobs    []*work
	queue   events
	outlook deadline.Outlook
	tenants []scheduler.Resources // what each holds
	regular [][]*work             // jobs of each tenant outside the deadline lane, in their order
	head    []int32               // of each tenant, the first of them that may have something to place
	seq     int32
}

// node is what is free on one node in a sample.
type node struct {
	free  scheduler.Resources
	takes bool
}

// work is a job in a sample.
type work struct {
	spec   *scheduler.JobSpec
	lane   uint8 // 1 deadline, 2 regular high, 3 regular low
	key    scheduler.Time
	stages []part
	left   int32
}

type part struct {
	spec    *scheduler.StageSpec
	waiting int32
	live    int32
	done    int32
	asked   bool
}

type event struct {
	at     scheduler.Time
	seq    int32
	node   int32
	job    *work
	stage  int32
	demand scheduler.Resources
}

type events []event

func (e events) Len() int { return len(e) }
func (e events) Less(i, j int) bool {
	return cmp.Or(cmp.Compare(e[i].at, e[j].at), cmp.Compare(e[i].seq, e[j].seq)) < 0
}
func (e events) Swap(i, j int) { e[i], e[j] = e[j], e[i] }

// Push is for container/heap.
func (e *events) Push(x any) { *e = append(*e, x.(event)) }

// Pop is for container/heap.
func (e *events) Pop() any {
	old := *e
	x := old[len(old)-1]
	*e = old[:len(old)-1]
	return x
}

// Quote plays the cluster forward with the job in it, once for each sample.
// Errors: ErrQuote for a tenant that is not there, more than MaxSamples, more
// than MaxTasks waiting, or a job without tasks. The State stays as it is.
// O(samples x tasks x (tenants + nodes)).
func (p *Planner) Quote(s *scheduler.State, q Question, now scheduler.Time) (*Quote, error) {
	samples := q.Samples
	if samples == 0 {
		samples = 100
	}
	tasks := 0
	for i := range q.Stages {
		tasks += int(q.Stages[i].Tasks)
	}
	for j := range s.Jobs() {
		for _, g := range j.Stages {
			tasks += int(g.Pending)
		}
	}
	switch {
	case samples < 0 || samples > MaxSamples:
		return nil, fmt.Errorf("%w: %d samples, 1 to %d", ErrQuote, samples, MaxSamples)
	case s.Tenant(q.Job.Tenant) == nil:
		return nil, fmt.Errorf("%w: tenant %d is not there", ErrQuote, q.Job.Tenant)
	case tasks > MaxTasks:
		return nil, fmt.Errorf("%w: %d tasks wait, at most %d can be planned", ErrQuote, tasks, MaxTasks)
	case len(q.Stages) == 0:
		return nil, fmt.Errorf("%w: the job has no stage", ErrQuote)
	}
	if q.Residual == nil {
		q.Residual = Exact
	}
	out := &Quote{ends: make([]scheduler.Time, 0, samples)}
	for i := range samples {
		r := rand.New(rand.NewPCG(q.Seed, uint64(i)))
		out.ends = append(out.ends, p.sample(s, &q, now, r))
	}
	slices.Sort(out.ends)
	return out, nil
}

// sample plays the cluster forward once and gives when the job ends.
func (p *Planner) sample(s *scheduler.State, q *Question, now scheduler.Time, r *rand.Rand) scheduler.Time {
	p.start(s, q, now, r)
	mine := p.jobs[len(p.jobs)-1]
	slices.SortStableFunc(p.jobs, func(a, b *work) int {
		return cmp.Or(cmp.Compare(a.lane, b.lane), cmp.Compare(a.key, b.key), cmp.Compare(a.spec.Submitted, b.spec.Submitted))
	})
	p.regular, p.head = p.regular[:0], p.head[:0]
	for range s.Tenants() {
		p.regular, p.head = append(p.regular, nil), append(p.head, 0)
	}
	for _, w := range p.jobs {
		if w.lane > 1 {
			p.regular[w.spec.Tenant] = append(p.regular[w.spec.Tenant], w)
		}
	}
	at := now
	for {
		p.fill(s, q, at, r)
		if mine.left == 0 {
			return at
		}
		if len(p.queue) == 0 {
			return scheduler.Never
		}
		for at = p.queue[0].at; len(p.queue) > 0 && p.queue[0].at == at; {
			p.end(heap.Pop(&p.queue).(event))
		}
	}
}

// start copies what runs and waits, the new job last.
func (p *Planner) start(s *scheduler.State, q *Question, now scheduler.Time, r *rand.Rand) {
	p.nodes, p.jobs, p.queue, p.seq = p.nodes[:0], p.jobs[:0], p.queue[:0], 0
	for _, n := range s.Nodes() {
		p.nodes = append(p.nodes, node{n.Free, n.Takes()})
	}
	p.tenants = p.tenants[:0]
	for _, t := range s.Tenants() {
		p.tenants = append(p.tenants, t.Own)
	}
	for j := range s.Jobs() {
		if j.Phase != scheduler.JobActive {
			continue
		}
		_, hopeless := s.Note(scheduler.NoteKey{Kind: scheduler.NoteHopeless, Job: j.Spec.ID})
		p.outlook.Of(j)
		w := newWork(&j.Spec, s.Accepted(j) && !hopeless, p.outlook.LatestStart())
		for i, g := range j.Stages {
			w.stages = append(w.stages, part{spec: &g.Spec, waiting: g.Pending + g.Suspended, live: g.Running, done: g.Done + g.Failed})
			w.left += g.Pending + g.Suspended + g.Running
			for a := range s.AttemptsIn(g) {
				if a.Level == scheduler.LevelRunning {
					p.push(p.endOf(s, a, q, now, r), int32(a.Node), w, int32(i), a.Held.Resources)
				} else {
					p.nodes[a.Node].free = p.nodes[a.Node].free.Add(a.Held.Resources)
				}
			}
		}
		p.jobs = append(p.jobs, w)
	}
	run := q.Job.Estimate
	mine := newWork(&q.Job, q.Job.Deadline > 0, q.Job.Deadline.Add(-run))
	for i := range q.Stages {
		mine.stages = append(mine.stages, part{spec: &q.Stages[i], waiting: q.Stages[i].Tasks})
		mine.left += q.Stages[i].Tasks
	}
	p.jobs = append(p.jobs, mine)
}

func newWork(spec *scheduler.JobSpec, lane bool, latest scheduler.Time) *work {
	switch {
	case lane:
		return &work{spec: spec, lane: 1, key: latest}
	case spec.Priority == scheduler.PriorityHigh:
		return &work{spec: spec, lane: 2}
	default:
		return &work{spec: spec, lane: 3}
	}
}

func (p *Planner) push(at scheduler.Time, n int32, w *work, stage int32, d scheduler.Resources) {
	p.seq++
	heap.Push(&p.queue, event{at, p.seq, n, w, stage, d})
}

// endOf draws when a running attempt ends: its predicted whole run time by a
// factor that is consistent with having run so long already.
func (p *Planner) endOf(s *scheduler.State, a *scheduler.Attempt, q *Question, now scheduler.Time, r *rand.Rand) scheduler.Time {
	end, known := locality.EndOf(s, a)
	ran := a.RanFor(now)
	estimate := q.Unknown
	if known {
		estimate = end.Sub(now) + ran
	}
	for range 8 {
		if whole := stretch(estimate, q.Residual(r.Float64())); whole > ran {
			return now.Add(whole - ran)
		}
	}
	return now
}

func stretch(d time.Duration, factor float64) time.Duration {
	f := float64(d) * factor
	if !(f > 0) {
		return 0
	}
	return time.Duration(min(f, float64(1<<62)))
}

// end gives back what a task held.
func (p *Planner) end(e event) {
	p.nodes[e.node].free = p.nodes[e.node].free.Add(e.demand)
	t := e.job.spec.Tenant
	p.tenants[t] = p.tenants[t].Sub(e.demand)
	g := &e.job.stages[e.stage]
	g.live--
	g.done++
	e.job.left--
}

// fill places what fits: deadline jobs in their order, then, as long as
// something fits, the next task of the tenant with the least share.
func (p *Planner) fill(s *scheduler.State, q *Question, at scheduler.Time, r *rand.Rand) {
	for _, w := range p.jobs {
		for i := range w.stages {
			w.stages[i].asked = false
		}
	}
	for _, w := range p.jobs {
		for w.lane == 1 && p.placeOne(w, q, at, r) {
		}
	}
	total := s.Total()
	clear(p.head)
	for {
		best, least := (*work)(nil), 0.0
		for t, jobs := range p.regular {
			for int(p.head[t]) < len(jobs) && jobs[p.head[t]].next() == nil {
				p.head[t]++
			}
			if int(p.head[t]) == len(jobs) {
				continue
			}
			w := jobs[p.head[t]]
			share := p.tenants[t].Add(w.next().spec.Demand).DominantShare(total) / s.Tenants()[t].Spec.Weight
			if best == nil || share < least {
				best, least = w, share
			}
		}
		if best == nil {
			return
		}
		p.placeOne(best, q, at, r)
	}
}

// next gives the first stage of a job that may start a task and was not found
// without room yet.
func (w *work) next() *part {
	for i := range w.stages {
		g := &w.stages[i]
		if g.waiting == 0 || g.asked || (g.spec.MaxParallel > 0 && g.live >= g.spec.MaxParallel) {
			continue
		}
		open := true
		for _, a := range g.spec.After {
			b := &w.stages[a]
			open = open && b.done >= b.spec.Tasks
		}
		if open {
			return g
		}
	}
	return nil
}

// placeOne places a task of the job on the first node with room.
func (p *Planner) placeOne(w *work, q *Question, at scheduler.Time, r *rand.Rand) bool {
	g := w.next()
	if g == nil {
		return false
	}
	for i := range p.nodes {
		n := &p.nodes[i]
		if !n.takes || !g.spec.Demand.Fits(n.free) {
			continue
		}
		n.free = n.free.Sub(g.spec.Demand)
		p.tenants[w.spec.Tenant] = p.tenants[w.spec.Tenant].Add(g.spec.Demand)
		g.waiting--
		g.live++
		run := g.spec.Estimate
		if run <= 0 {
			run = q.Unknown
		}
		stage := int32(0)
		for k := range w.stages {
			if &w.stages[k] == g {
				stage = int32(k)
			}
		}
		p.push(at.Add(stretch(run, q.Residual(r.Float64()))), int32(i), w, stage, g.spec.Demand)
		return true
	}
	g.asked = true
	return true
}
