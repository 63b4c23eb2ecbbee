package forecast

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/drover-run/drover/internal/heaps"
	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/locality"
)

// Forecaster is the workspace of quotes. It is not safe for concurrent use.
type Forecaster struct {
	nodes     []nodeState
	jobs      []*jobState
	queue     []*taskState          // a heap: see byEnd
	tenants   []scheduler.Resources // by tenant, occupied resources
	subtrees  []scheduler.Resources // by tenant, use of its subtree; empty if no tenant has a cap
	capped    [][]reservedTime      // by tenant, future reservations below its cap, by start; empty if there are none
	lane      []*jobState           // deadline jobs in their order
	regular   [][]*jobState         // by tenant, jobs outside the lane in their order, from the first with a waiting task on
	toPlace   [][]*jobState         // of those, from the first on that may have a task to place, during placeAll
	least     scheduler.Resources   // of each resource, the smallest demand of any stage
	round     int32                 // of placeAll
	suspended []*taskState          // tasks that resume by themselves, in the order of their suspension
	seq       int32

	state  *scheduler.State
	query  *Query
	now    scheduler.Time // time in the sample
	random *rand.Rand
}

// nodeState is the free capacity of a node in a sample.
type nodeState struct {
	*scheduler.Node
	free        scheduler.Resources
	schedulable bool
	canSuspend  bool
	reserved    []reservedTime // future reservations, by start
}

// The lanes of jobs, in the order of service: the first before all, the others within each tenant.
const (
	laneDeadline uint8 = iota + 1
	laneHigh
	laneLow
	laneInfeasible // its deadline cannot be met any more
)

// jobState is a job in a sample.
type jobState struct {
	spec      *scheduler.JobSpec
	tenant    *scheduler.Tenant
	lane      uint8 // in which it is served
	key       scheduler.Time
	stages    []stageState
	tasksLeft int32
	used      scheduler.Resources // its use; kept only if a tenant has a cap
	started   scheduler.Time      // start of its first task in the sample, Never before that
	ended     scheduler.Time      // end of its last task, Never before that
}

type stageState struct {
	index      int32
	spec       *scheduler.StageSpec
	waiting    int32
	live       int32 // tasks that run or are suspended
	done       int32
	noCapacity int32          // last round of placeAll in which a task did not fit
	runTime    time.Duration  // predicted for one task, including the stage's error
	tail       time.Duration  // predicted for the stages after this one
	leastTail  time.Duration  // the same with deadline.LeastRunTime
	started    scheduler.Time // start of the first waiting task, Never before that
	taskError  Residual
	guessed    bool // its run time is unknown, but for a bound
}

// taskState is a task that runs or is suspended.
type taskState struct {
	endsAt    scheduler.Time
	remaining time.Duration // rest of the run time while it is suspended
	seq       int32
	node      int32
	job       *jobState  // nil for an event without a task, after which placeAll runs again
	starts    *taskState // task that begins in its reservation now; nil for none
	stage     int32
	demand    scheduler.Resources
	occupied  scheduler.Resources   // while it is suspended
	order     scheduler.ResumeOrder // if it was suspended when the sample began
	cancelled bool                  // it was suspended, so this end does not happen
}

var byEnd = heaps.Order[*taskState]{Less: func(a, b *taskState) bool {
	return cmp.Or(cmp.Compare(a.endsAt, b.endsAt), cmp.Compare(a.seq, b.seq)) < 0
}}

// stopEvery is the number of ends of tasks between calls of Query.Stop.
const stopEvery = 1024

// simulate runs one sample and returns the new job when it has ended. It stops earlier if no event is left, if the
// next one is at an unknown time, or after Query.maxEnds ends. Without a new job it returns nil. It returns errStopped if Query.Stop returns true.
func (p *Forecaster) simulate(s *scheduler.State, q *Query, now scheduler.Time, r *rand.Rand) (*jobState, error) {
	p.state, p.query, p.now, p.random = s, q, now, r
	mine := p.copyState()
	for ends := 0; ; ends++ {
		if ends%stopEvery == 0 && q.Stop != nil && q.Stop() {
			return nil, errStopped
		}
		p.placeAll()
		if mine != nil && mine.tasksLeft == 0 {
			mine.ended = p.now // also for a job without tasks
			return mine, nil
		}
		if len(p.queue) == 0 || p.queue[0].endsAt == scheduler.Never || (q.maxEnds > 0 && ends > q.maxEnds) {
			return mine, nil
		}
		for p.now = p.queue[0].endsAt; len(p.queue) > 0 && p.queue[0].endsAt == p.now; {
			p.endTask(byEnd.Pop(&p.queue))
		}
	}
}

// copyState copies the nodes, the running and the waiting tasks; it returns the new job, the last one, or nil.
func (p *Forecaster) copyState() *jobState {
	p.nodes, p.jobs, p.queue, p.suspended, p.seq = p.nodes[:0], p.jobs[:0], p.queue[:0], p.suspended[:0], 0
	for _, n := range p.state.Nodes() {
		l := n.Spec.Levels
		m := nodeState{Node: n, free: n.Free.Add(n.Releasing), schedulable: p.state.Cluster().Plannable(n), canSuspend: p.query.Preempt && (l.FreesMemory() || l.Has(scheduler.LevelFrozen))}
		p.nodes = append(p.nodes, m)
		for _, x := range n.Spec.Windows {
			if x.To > p.now && x.To < scheduler.Never {
				p.schedule(&taskState{}, x.To.Sub(p.now)) // the node accepts work again
			}
		}
	}
	p.tenants, p.subtrees = p.tenants[:0], p.subtrees[:0]
	for _, t := range p.state.Tenants() {
		p.tenants = append(p.tenants, t.Own)
		if p.state.TenantTree().HasCaps() {
			p.subtrees = append(p.subtrees, t.Used)
		}
	}
	for j := range p.state.Jobs() {
		if j.Phase == scheduler.JobActive {
			p.jobs = append(p.jobs, p.copyJob(j))
		} else {
			p.dischargeReleasing(j)
		}
	}
	slices.SortFunc(p.suspended, func(a, b *taskState) int { return a.order.Compare(b.order) })
	var mine *jobState
	if len(p.query.Stages) > 0 {
		mine = p.newJob(&p.query.Job, p.query.Job.Deadline > 0)
		for i := range p.query.Stages {
			g := &p.query.Stages[i]
			mine.stages = append(mine.stages, p.newStage(g, mine.spec, i))
			mine.stages[i].waiting = g.Tasks
			mine.tasksLeft += g.Tasks
		}
		mine.updateSlack()
		p.jobs = append(p.jobs, mine)
	}
	p.sortJobs()
	p.copyReservations()
	p.round, p.least = 0, scheduler.Resources{math.MaxInt64, math.MaxInt64, math.MaxInt64}
	for _, w := range p.jobs {
		for i := range w.stages {
			p.least = p.least.Min(w.stages[i].spec.Demand)
		}
	}
	return mine
}

func (p *Forecaster) sortJobs() {
	slices.SortStableFunc(p.jobs, func(a, b *jobState) int {
		return cmp.Or(cmp.Compare(a.lane, b.lane), cmp.Compare(a.key, b.key), cmp.Compare(a.spec.Submitted, b.spec.Submitted))
	})
	p.lane, p.regular = p.lane[:0], p.regular[:0]
	for range p.state.Tenants() {
		p.regular = append(p.regular, nil)
	}
	for _, w := range p.jobs {
		if w.lane == laneDeadline {
			p.lane = append(p.lane, w)
		} else {
			p.regular[w.spec.Tenant] = append(p.regular[w.spec.Tenant], w)
		}
	}
}

// dischargeReleasing subtracts from its tenants what the attempts of a stopping or failed job are releasing.
func (p *Forecaster) dischargeReleasing(j *scheduler.Job) {
	w := jobState{spec: &j.Spec, tenant: p.state.Tenant(j.Spec.Tenant)}
	for _, g := range j.Begun() {
		for a := range p.state.Attempts().In(g) {
			p.charge(&w, scheduler.Resources{}.Sub(a.PendingRelease()))
		}
	}
}

// copyJob copies a job. Capacity that its attempts are releasing counts as free, as for a
// preempting scheduler: the task of an attempt being killed waits again, and an attempt being
// suspended is suspended. An attempt suspended by a user never resumes, and keeps what it occupies.
func (p *Forecaster) copyJob(j *scheduler.Job) *jobState {
	infeasible := j.Spec.Deadline > 0 && j.IsInfeasible()
	w := p.newJob(&j.Spec, j.IsAccepted() && !infeasible)
	if infeasible && !p.query.NoDeadlineLane {
		w.lane = laneInfeasible
	}
	w.used = j.Used
	for i, g := range j.Stages {
		w.stages = append(w.stages, p.newStage(&g.Spec, &j.Spec, i))
		w.stages[i].waiting, w.stages[i].live, w.stages[i].done = g.Pending, g.Running+g.Suspended, g.Done+g.Failed
		w.tasksLeft += g.Pending + g.Suspended + g.Running
	}
	for i, g := range j.Stages {
		for a := range p.state.Attempts().In(g) {
			p.copyAttempt(w, &w.stages[i], g, a)
		}
	}
	w.updateSlack()
	return w
}

func (p *Forecaster) copyAttempt(w *jobState, of *stageState, g *scheduler.Stage, a *scheduler.Attempt) {
	release := a.PendingRelease()
	p.charge(w, scheduler.Resources{}.Sub(release))
	running := a.Level == scheduler.LevelRunning && a.Phase != scheduler.AttemptKilling && a.Phase != scheduler.AttemptSuspending
	if a.Phase == scheduler.AttemptKilling {
		of.live--
		if waitsAgain(p.state, g, a) {
			of.waiting++
		} else {
			w.tasksLeft--
		}
		return
	}
	if !running && p.staysSuspended(a) {
		return
	}
	x := &taskState{node: int32(a.Node), job: w, stage: of.index, demand: a.Demand, occupied: a.Occupied.Resources.Sub(release)}
	left := p.remaining(a, of)
	if running {
		x.demand = a.Occupied.Resources
		p.schedule(x, left)
	} else {
		x.remaining, x.cancelled, x.order = left, true, a.ResumeOrder()
		if !a.Level.Suspended() { // it is being suspended: after all suspended ones
			x.order.SuspendedAt = p.now
		}
		p.suspended = append(p.suspended, x)
	}
}

// waitsAgain reports whether the task of an attempt being killed waits again after that: it is not
// done, and has no other attempt. If two attempts are being killed, only the first counts.
func waitsAgain(s *scheduler.State, g *scheduler.Stage, a *scheduler.Attempt) bool {
	waits := !a.Speculative && !g.IsDone(a.ID.Index)
	for other := range s.Attempts().Of(g, a.ID.Index) {
		waits = waits && other.Phase == scheduler.AttemptKilling
	}
	return waits
}

// staysSuspended reports whether an attempt stays parked beyond a window of its node: by a user, or by
// a drain with an unknown end. An attempt parked on a node that is away in a window resumes after it.
func (p *Forecaster) staysSuspended(a *scheduler.Attempt) bool {
	n := &p.nodes[a.Node]
	return a.Parked && !(n.schedulable && n.AwayWithin(p.now, p.now.Add(1)))
}

// remaining draws the remaining run time of an attempt: its predicted total run time times a factor
// that is consistent with its run time so far.
func (p *Forecaster) remaining(a *scheduler.Attempt, g *stageState) time.Duration {
	if g.runTime == unknownRunTime {
		return unknownRunTime
	}
	ran := a.RanFor(p.now)
	whole := g.runTime
	if end, known := locality.PredictedEnd(p.state, a); known && g.spec.Estimate > 0 && !g.guessed && a.Level == scheduler.LevelRunning {
		whole = scaleDuration(end.Sub(p.now)+ran, float64(g.runTime)/float64(g.spec.Estimate))
	}
	for range 8 {
		if d := scaleDuration(whole, g.taskError(p.random.Float64())); d > ran {
			return d - ran
		}
	}
	// It has run longer than any recorded error allows.
	if p.query.exact {
		return ran
	}
	return scaleDuration(ran, p.random.Float64())
}

func (p *Forecaster) newJob(spec *scheduler.JobSpec, deadline bool) *jobState {
	w := &jobState{spec: spec, tenant: p.state.Tenant(spec.Tenant), lane: laneLow, started: scheduler.Never, ended: scheduler.Never}
	switch {
	case deadline && !p.query.NoDeadlineLane:
		w.lane = laneDeadline
	case spec.Priority == scheduler.PriorityHigh:
		w.lane = laneHigh
	}
	return w
}

// unknownRunTime is the run time of a task that ends at an unknown time: after all others.
const unknownRunTime = time.Duration(math.MaxInt64)

// newStage returns a stage of a sample; it draws the error that the stage's tasks share.
func (p *Forecaster) newStage(g *scheduler.StageSpec, job *scheduler.JobSpec, i int) stageState {
	id := scheduler.StageID{Job: job.ID, Stage: int32(i)}
	stage, task := p.query.Errors(id)
	out := stageState{index: int32(i), spec: g, taskError: task, started: scheduler.Never}
	if p.query.knownOnly && p.query.Guessed(id) {
		out.guessed, out.runTime = true, cmp.Or(job.Bound, unknownRunTime) // what exceeds the bound is killed
		return out
	}
	out.runTime = scaleDuration(cmp.Or(g.Estimate, p.query.UnknownRunTime), stage(p.random.Float64()))
	return out
}

// drawRunTime draws the run time of one of the stage's tasks.
func (g *stageState) drawRunTime(r *rand.Rand) time.Duration {
	if g.runTime == unknownRunTime {
		return unknownRunTime
	}
	return scaleDuration(g.runTime, g.taskError(r.Float64()))
}

func (p *Forecaster) schedule(x *taskState, d time.Duration) {
	p.seq++
	x.seq, x.endsAt, x.cancelled = p.seq, p.now.Add(d), false
	byEnd.Push(&p.queue, x)
}

func scaleDuration(d time.Duration, factor float64) time.Duration {
	f := float64(d) * factor
	if !(f > 0) {
		return 0
	}
	return time.Duration(min(f, float64(1<<62)))
}

func (p *Forecaster) endTask(x *taskState) {
	if x.starts != nil {
		p.startReserved(x.starts)
	}
	if x.job == nil || x.cancelled {
		return
	}
	p.release(x, x.demand)
	g := &x.job.stages[x.stage]
	g.live--
	g.done++
	if x.job.tasksLeft--; x.job.tasksLeft == 0 {
		x.job.ended = p.now
	}
	if g.done >= g.spec.Tasks && x.job.lane == laneDeadline {
		x.job.updateSlack()
		p.sortJobs()
	}
}

func (p *Forecaster) release(x *taskState, d scheduler.Resources) {
	p.nodes[x.node].free = p.nodes[x.node].free.Add(d)
	p.charge(x.job, scheduler.Resources{}.Sub(d))
}

// placeAll places tasks that fit: first of deadline jobs in their order, except infeasible ones, and
// these preempt if they cannot wait; then suspended tasks; then, while something fits, the next task of
// the tenant with the least share. It drops jobs without a waiting task, and does nothing while not
// even the smallest demand fits: with many queued jobs most ends of tasks free capacity for one task.
func (p *Forecaster) placeAll() {
	p.round++
	p.dropInfeasible()
	for _, w := range p.lane {
		for p.placeOne(w) {
		}
	}
	if p.query.Preempt {
		p.preempt()
	}
	p.resumeSuspended()
	total := p.state.Cluster().Total()
	for t, jobs := range p.regular {
		for len(jobs) > 0 && !jobs[0].hasWaiting() {
			jobs = jobs[1:]
		}
		p.regular[t] = jobs
	}
	p.toPlace = append(p.toPlace[:0], p.regular...)
	for p.fitsAnywhere(p.least) {
		best, least := (*jobState)(nil), 0.0
		for t, jobs := range p.toPlace {
			for len(jobs) > 0 && jobs[0].nextStage(p.round) == nil {
				jobs = jobs[1:]
			}
			p.toPlace[t] = jobs
			if len(jobs) == 0 {
				continue
			}
			w := jobs[0]
			share := p.tenants[t].Add(w.nextStage(p.round).spec.Demand).DominantShare(total) / p.state.Tenants()[t].Spec.Weight
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

// takes reports whether a task of the stage may start on the node now: by its bound or estimate it
// must end before the node leaves. Tasks that are there when it leaves continue in a sample.
func (p *Forecaster) takes(n *nodeState, w *jobState, g *stageState) bool {
	return n.schedulable && (len(n.Spec.Windows) == 0 || !n.AwayWithin(p.now, p.now.Add(max(1, cmp.Or(w.spec.Bound, g.spec.Estimate)))))
}

// fitsAnywhere reports whether a demand fits on some schedulable node.
func (p *Forecaster) fitsAnywhere(d scheduler.Resources) bool {
	for i := range p.nodes {
		if n := &p.nodes[i]; n.schedulable && d.Fits(n.free) {
			return true
		}
	}
	return false
}

func (w *jobState) hasWaiting() bool {
	for i := range w.stages {
		if w.stages[i].waiting > 0 {
			return true
		}
	}
	return false
}

// resumeSuspended resumes suspended tasks whose node, which may be draining, has capacity, in the order of their
// suspension.
func (p *Forecaster) resumeSuspended() {
	waiting := p.suspended[:0]
	for _, x := range p.suspended {
		n := &p.nodes[x.node]
		more := x.demand.Sub(x.occupied)
		if (n.Spec.Down && !n.schedulable) || n.AwayWithin(p.now, p.now.Add(1)) || !more.Fits(n.free) || !p.withinCaps(x.job, x.demand, more) {
			waiting = append(waiting, x)
			continue
		}
		n.free = n.free.Sub(more)
		p.charge(x.job, more)
		again := *x // the cancelled end may still be in the queue
		p.schedule(&again, x.remaining)
	}
	p.suspended = waiting
}

// nextStage returns the first stage of a job that may start a task and has not lacked capacity in
// this round of placeAll, nil for none.
func (w *jobState) nextStage(round int32) *stageState {
	for i := range w.stages {
		g := &w.stages[i]
		if !g.mayStart() || g.noCapacity == round || !w.isOpen(g) {
			continue
		}
		return g
	}
	return nil
}

// mayStart reports whether a task of the stage waits and max_parallel allows it to start; suspended
// tasks count as running.
func (g *stageState) mayStart() bool {
	return g.waiting > 0 && (g.spec.MaxParallel == 0 || g.live < g.spec.MaxParallel)
}

func (w *jobState) isOpen(g *stageState) bool {
	return !slices.ContainsFunc(g.spec.After, func(a int32) bool { return w.stages[a].done < w.stages[a].spec.Tasks })
}

// placeOne places a task of the job on the first node with capacity. It returns false if the job has no task to place.
func (p *Forecaster) placeOne(w *jobState) bool {
	g := w.nextStage(p.round)
	if g == nil {
		return false
	}
	if !p.withinCaps(w, g.spec.Demand, g.spec.Demand) {
		g.noCapacity = p.round
		return true
	}
	leavesCaps := p.leavesCaps(w, g)
	for i := range p.nodes {
		if n := &p.nodes[i]; p.takes(n, w, g) && (leavesCaps || w.givesWayOn(n)) && g.spec.Demand.Fits(n.free) && g.spec.Demand.Fits(p.freeFor(n, w, g)) {
			p.place(w, g, int32(i))
			return true
		}
	}
	g.noCapacity = p.round
	return true
}

func (p *Forecaster) place(w *jobState, g *stageState, node int32) {
	g.waiting--
	p.start(&taskState{node: node, job: w, stage: g.index, demand: g.spec.Demand}, math.MaxInt64)
}

// start starts a task that runs for at most most.
func (p *Forecaster) start(x *taskState, most time.Duration) {
	g, n := &x.job.stages[x.stage], &p.nodes[x.node]
	n.free = n.free.Sub(x.demand)
	p.charge(x.job, x.demand)
	g.live++
	g.started, x.job.started = min(g.started, p.now), min(x.job.started, p.now)
	p.schedule(x, min(most, g.drawRunTime(p.random)))
}
