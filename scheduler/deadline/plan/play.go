package plan

import (
	"cmp"
	"container/heap"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/locality"
)

// Planner is the workspace of quotes. It is not safe for concurrent use.
type Planner struct {
	nodes   []node
	jobs    []*work
	queue   queue
	tenants []scheduler.Resources // what each holds
	lane    []*work               // deadline jobs in their order
	regular [][]*work             // jobs of each tenant outside the lane, in their order
	head    []int32               // of each tenant, the first of them that may have something to place
	asleep  []*run                // suspended, in the order of their suspension
	seq     int32
	limit   int

	s   *scheduler.State
	q   *Question
	now scheduler.Time // in the sample
	r   *rand.Rand
}

// node is what is free on one node in a sample.
type node struct {
	free  scheduler.Resources
	takes bool
	keeps scheduler.Resources // 1 for each resource that a suspended task keeps
	yield bool                // it can suspend
}

// work is a job in a sample.
type work struct {
	spec    *scheduler.JobSpec
	lane    uint8 // 1 deadline, 2 regular high, 3 regular low or hopeless
	key     scheduler.Time
	stages  []part
	left    int32
	started scheduler.Time // its first task in the sample, Never before
	ended   scheduler.Time
}

type part struct {
	spec    *scheduler.StageSpec
	waiting int32
	live    int32
	done    int32
	asked   bool           // found without room in this fill
	run     time.Duration  // predicted of one task, the stage's error included
	tail    time.Duration  // predicted of what comes after the stage
	started scheduler.Time // the first that waited, Never before
	judged  scheduler.Time // of the last moment that was asked for
	task    Residual
}

// run is a task that runs, or will run again.
type run struct {
	at     scheduler.Time // of its end
	left   time.Duration  // while it is suspended
	seq    int32
	node   int32
	job    *work // nil: a moment at which something is to be judged again
	stage  int32
	demand scheduler.Resources
	kept   scheduler.Resources // while it is suspended
	gone   bool                // its end does not come: it is suspended
}

type queue []*run

func (e queue) Len() int { return len(e) }
func (e queue) Less(i, j int) bool {
	return cmp.Or(cmp.Compare(e[i].at, e[j].at), cmp.Compare(e[i].seq, e[j].seq)) < 0
}
func (e queue) Swap(i, j int) { e[i], e[j] = e[j], e[i] }

// Push is for container/heap.
func (e *queue) Push(x any) { *e = append(*e, x.(*run)) }

// Pop is for container/heap.
func (e *queue) Pop() any {
	old := *e
	x := old[len(old)-1]
	*e = old[:len(old)-1]
	return x
}

// play plays the cluster forward once and gives the new job, or nil without
// one: then until nothing waits.
func (p *Planner) play(s *scheduler.State, q *Question, now scheduler.Time, r *rand.Rand) *work {
	p.s, p.q, p.now, p.r = s, q, now, r
	mine := p.start()
	for ends := 0; ; ends++ {
		p.fill()
		if mine != nil && mine.left == 0 {
			mine.ended = p.now
			return mine
		}
		if len(p.queue) == 0 || (p.limit > 0 && ends > p.limit) {
			return mine
		}
		for p.now = p.queue[0].at; len(p.queue) > 0 && p.queue[0].at == p.now; {
			p.end(heap.Pop(&p.queue).(*run))
		}
	}
}

// start copies what runs and waits, the new job last.
func (p *Planner) start() *work {
	p.nodes, p.jobs, p.queue, p.asleep, p.seq = p.nodes[:0], p.jobs[:0], p.queue[:0], p.asleep[:0], 0
	for _, n := range p.s.Nodes() {
		l := n.Spec.Levels
		leaves := l.Has(scheduler.LevelSwapped) || l.Has(scheduler.LevelCheckpointed)
		m := node{free: n.Free, takes: n.Takes(), yield: p.q.Preempt && (leaves || l.Has(scheduler.LevelFrozen))}
		if !leaves {
			m.keeps[scheduler.Memory] = 1
		}
		p.nodes = append(p.nodes, m)
	}
	p.tenants = p.tenants[:0]
	for _, t := range p.s.Tenants() {
		p.tenants = append(p.tenants, t.Own)
	}
	for j := range p.s.Jobs() {
		if j.Phase == scheduler.JobActive {
			p.jobs = append(p.jobs, p.running(j))
		}
	}
	var mine *work
	if len(p.q.Stages) > 0 {
		mine = p.newWork(&p.q.Job, p.q.Job.Deadline > 0)
		for i := range p.q.Stages {
			g := &p.q.Stages[i]
			mine.stages = append(mine.stages, p.part(g, mine.spec.ID, i))
			mine.stages[i].waiting = g.Tasks
			mine.left += g.Tasks
		}
		mine.look()
		p.jobs = append(p.jobs, mine)
	}
	p.sort()
	return mine
}

// sort puts the jobs into their lanes and orders.
func (p *Planner) sort() {
	slices.SortStableFunc(p.jobs, func(a, b *work) int {
		return cmp.Or(cmp.Compare(a.lane, b.lane), cmp.Compare(a.key, b.key), cmp.Compare(a.spec.Submitted, b.spec.Submitted))
	})
	p.lane, p.regular, p.head = p.lane[:0], p.regular[:0], p.head[:0]
	for range p.s.Tenants() {
		p.regular, p.head = append(p.regular, nil), append(p.head, 0)
	}
	for _, w := range p.jobs {
		if w.lane == 1 {
			p.lane = append(p.lane, w)
		} else {
			p.regular[w.spec.Tenant] = append(p.regular[w.spec.Tenant], w)
		}
	}
}

// running copies a job of the State.
func (p *Planner) running(j *scheduler.Job) *work {
	_, hopeless := p.s.Note(scheduler.NoteKey{Kind: scheduler.NoteHopeless, Job: j.Spec.ID})
	w := p.newWork(&j.Spec, p.s.Accepted(j) && !hopeless)
	for i, g := range j.Stages {
		w.stages = append(w.stages, p.part(&g.Spec, j.Spec.ID, i))
		w.stages[i].waiting, w.stages[i].live, w.stages[i].done = g.Pending, g.Running, g.Done+g.Failed
		w.left += g.Pending + g.Suspended + g.Running
	}
	for i, g := range j.Stages {
		for a := range p.s.AttemptsIn(g) {
			x := &run{node: int32(a.Node), job: w, stage: int32(i), demand: a.Demand, kept: a.Held.Resources}
			left := p.remaining(a, &w.stages[i])
			if a.Level == scheduler.LevelRunning {
				x.demand = a.Held.Resources
				p.push(x, left)
			} else {
				x.left, x.gone = left, true
				p.asleep = append(p.asleep, x)
			}
		}
	}
	w.look()
	return w
}

// remaining draws how long an attempt still runs: its predicted whole run time
// by a factor that is consistent with having run so long already.
func (p *Planner) remaining(a *scheduler.Attempt, g *part) time.Duration {
	ran := a.RanFor(p.now)
	whole := g.run
	if end, known := locality.EndOf(p.s, a); known && g.spec.Estimate > 0 && a.Level == scheduler.LevelRunning {
		whole = stretch(end.Sub(p.now)+ran, float64(g.run)/float64(g.spec.Estimate))
	}
	for range 8 {
		if d := stretch(whole, g.task(p.r.Float64())); d > ran {
			return d - ran
		}
	}
	return stretch(ran, p.r.Float64()) // it has run longer than any error on record allows
}

func (p *Planner) newWork(spec *scheduler.JobSpec, deadline bool) *work {
	w := &work{spec: spec, lane: 3, started: scheduler.Never, ended: scheduler.Never}
	switch {
	case deadline && !p.q.NoLane:
		w.lane = 1
	case spec.Priority == scheduler.PriorityHigh:
		w.lane = 2
	}
	return w
}

// part is a stage in a sample; the error that its tasks share is drawn here.
func (p *Planner) part(g *scheduler.StageSpec, job scheduler.JobID, i int) part {
	stage, task := p.q.Errors(scheduler.StageID{Job: job, Stage: int32(i)})
	run := g.Estimate
	if run <= 0 {
		run = p.q.Unknown
	}
	return part{spec: g, run: stretch(run, stage(p.r.Float64())), task: task, started: scheduler.Never}
}

func (p *Planner) push(x *run, d time.Duration) {
	p.seq++
	x.seq, x.at, x.gone = p.seq, p.now.Add(d), false
	heap.Push(&p.queue, x)
}

func stretch(d time.Duration, factor float64) time.Duration {
	f := float64(d) * factor
	if !(f > 0) {
		return 0
	}
	return time.Duration(min(f, float64(1<<62)))
}

// end gives back what a task held.
func (p *Planner) end(x *run) {
	if x.job == nil || x.gone {
		return
	}
	p.release(x, x.demand)
	g := &x.job.stages[x.stage]
	g.live--
	g.done++
	x.job.left--
	if g.done >= g.spec.Tasks && x.job.lane == 1 {
		x.job.look()
		p.sort()
	}
}

func (p *Planner) release(x *run, d scheduler.Resources) {
	p.nodes[x.node].free = p.nodes[x.node].free.Add(d)
	t := x.job.spec.Tenant
	p.tenants[t] = p.tenants[t].Sub(d)
}

// fill places what fits: deadline jobs in their order, those that cannot wait
// by taking room back; then the suspended; then, as long as something fits, the
// next task of the tenant with the least share.
func (p *Planner) fill() {
	for _, w := range p.jobs {
		for i := range w.stages {
			w.stages[i].asked = false
		}
	}
	for _, w := range p.lane {
		for p.placeOne(w) {
		}
	}
	if p.q.Preempt {
		p.takeBack()
	}
	p.wake()
	total := p.s.Total()
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
			share := p.tenants[t].Add(w.next().spec.Demand).DominantShare(total) / p.s.Tenants()[t].Spec.Weight
			if best == nil || share < least {
				best, least = w, share
			}
		}
		if best == nil {
			return
		}
		p.placeOne(best)
	}
}

// wake resumes what is suspended, in the order of its suspension, where its
// node has room.
func (p *Planner) wake() {
	kept := p.asleep[:0]
	for _, x := range p.asleep {
		n := &p.nodes[x.node]
		more := x.demand.Sub(x.kept)
		if !n.takes || !more.Fits(n.free) {
			kept = append(kept, x)
			continue
		}
		n.free = n.free.Sub(more)
		p.tenants[x.job.spec.Tenant] = p.tenants[x.job.spec.Tenant].Add(more)
		x.job.stages[x.stage].live++
		again := *x // the old one may still be in the queue
		p.push(&again, x.left)
	}
	p.asleep = kept
}

// next gives the first stage of a job that may start a task and was not found
// without room yet.
func (w *work) next() *part {
	for i := range w.stages {
		g := &w.stages[i]
		if g.waiting == 0 || g.asked || (g.spec.MaxParallel > 0 && g.live >= g.spec.MaxParallel) || !w.open(g) {
			continue
		}
		return g
	}
	return nil
}

// open tells whether what comes before a stage is done.
func (w *work) open(g *part) bool {
	for _, a := range g.spec.After {
		if b := &w.stages[a]; b.done < b.spec.Tasks {
			return false
		}
	}
	return true
}

// placeOne places a task of the job on the first node with room; false where
// the job has nothing to place.
func (p *Planner) placeOne(w *work) bool {
	g := w.next()
	if g == nil {
		return false
	}
	for i := range p.nodes {
		if n := &p.nodes[i]; n.takes && g.spec.Demand.Fits(n.free) {
			p.place(w, g, int32(i))
			return true
		}
	}
	g.asked = true
	return true
}

func (p *Planner) place(w *work, g *part, node int32) {
	p.nodes[node].free = p.nodes[node].free.Sub(g.spec.Demand)
	p.tenants[w.spec.Tenant] = p.tenants[w.spec.Tenant].Add(g.spec.Demand)
	g.waiting--
	g.live++
	g.started, w.started = min(g.started, p.now), min(w.started, p.now)
	p.push(&run{node: node, job: w, stage: w.index(g), demand: g.spec.Demand}, stretch(g.run, g.task(p.r.Float64())))
}

func (w *work) index(g *part) int32 {
	for k := range w.stages {
		if &w.stages[k] == g {
			return int32(k)
		}
	}
	return 0
}
