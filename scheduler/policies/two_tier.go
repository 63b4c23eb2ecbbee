package policies

import (
	"math"
	"slices"
	"time"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/backfill"
)

var reservingParams = []Param{boundParam,
	{Name: "spare_nodes", Kind: Int, Default: "0", Min: 0, Max: 1e6, Help: "nodes never used for guarantees, so that none of a waiting project is violated when as many are lost"},
	{Name: "margin", Kind: Duration, Default: "0s", Min: 0, Max: 3600, Help: "added to each bound for starting and stopping; about 1s on a live cluster, 0 in simulations"},
	{Name: "grace", Kind: Duration, Default: "10s", Min: 1e-3, Max: 1e6, Help: "how long a task past its bound is assumed to run on; doubled each time that passes"},
}

var twoTierInfo = Info{
	Name: "two_tier",
	Help: "two-tier backfilling: each project of jobs gets a guaranteed departure time at submission",
	Params: append([]Param{
		{Name: "variant", Kind: Choice, Default: "2tfb-sf", Choices: []string{"2tsb", "2tfb", "2tfb-sf", "2tpb"},
			Help: "what new work may displace: nothing; jobs but no departures; departures within their slack; low-priority projects by high-priority ones"},
		{Name: "sf", Kind: Float, Default: "0.5", Min: 0, Max: 1e6, Help: "slack factor: how far a departure may be delayed, as a part of its turn-around"},
		{Name: "pl", Kind: Int, Default: "-1", Min: -1, Max: 1e6, Help: "preemption limit: projects that one job may delay, -1 for no limit"},
		{Name: "max_tries", Kind: Int, Default: "1000", Min: 0, Max: 1e9, Help: "backfill times tried for one job, 0 for all"},
	}, reservingParams...),
	New: func(v Values) (scheduler.Policy, error) {
		cfg := backfill.Config{SlackFactor: v.Float("sf"), PreemptionLimit: v.Int("pl"), MaxTries: v.Int("max_tries")}
		for _, x := range []backfill.Variant{backfill.Strict, backfill.Flexible, backfill.FlexibleSF, backfill.Priority} {
			if x.String() == v.Text("variant") {
				cfg.Variant = x
			}
		}
		return newReservingPolicy("two_tier", cfg, true, v)
	},
}

var conservativeInfo = Info{
	Name:   "conservative",
	Help:   "conservative backfilling: each job gets the earliest start that delays no other, and is only moved earlier",
	Params: reservingParams,
	New: func(v Values) (scheduler.Policy, error) {
		return newReservingPolicy("conservative", backfill.Config{Variant: backfill.Strict}, false, v)
	},
}

func newReservingPolicy(name string, cfg backfill.Config, projects bool, v Values) (scheduler.Policy, error) {
	if err := cfg.Check(); err != nil {
		return nil, err
	}
	return &reservingPolicy{name: name, cfg: cfg, projects: projects, defaultBound: v.Duration("default_bound"),
		spare: v.Int("spare_nodes"), margin: v.Duration("margin"), grace: v.Duration("grace")}, nil
}

// reservingPolicy is backfilling with a reservation for every waiting task: two_tier
// and conservative. The plan is in the State's reservations, guarantees are policy
// states; what runs is planned until its bound and has no reservation. A task is the
// paper's job: its need is the stage's demand, its service time te the job's bound.
//
// A job without a bound of its own is planned by an estimate and its reservations
// are no guarantee. Past the estimate a task is suspended only where its capacity is
// guaranteed to others.
type reservingPolicy struct {
	name         string
	cfg          backfill.Config
	projects     bool
	defaultBound time.Duration
	margin       time.Duration
	grace        time.Duration
	spare        int

	placer              placer
	planner             *backfill.Planner
	cache               planCache
	reservationIDs      map[backfill.Key]scheduler.ReservationID
	nextID              scheduler.ReservationID
	states              []scheduler.PolicyState
	actionsExhausted    bool                             // the cycle's actions were used up
	needsAnotherRound   bool                             // something is blocked, suspended, unplanned or was replanned
	cannotCache         bool                             // the profile contains more than attempts and planned work
	hasOverrun          bool                             // something runs past its bound
	hasBounds           bool                             // some job has a bound of its own
	blockedReservations map[scheduler.ReservationID]bool // due, but blocked by something other than capacity
	blockedUntil        map[scheduler.StageID]scheduler.Time
	waitingOwners       []scheduler.ProjectID  // projects with waiting work
	newOwners           []scheduler.ProjectID  // those that were added or have no guarantee
	cacheUsed           bool                   // the plan was synchronised, not rebuilt
	dueTasks            []backfill.PlannedTask // scratch
	stageStarts         []stageStart           // scratch
}

// stageStart is when the next task of a stage is planned to start.
type stageStart struct {
	stage scheduler.StageID
	at    scheduler.Time
}

func (f *reservingPolicy) Name() string { return f.name }

// SetReasonsWanted sets whether decisions list why stages wait.
func (f *reservingPolicy) SetReasonsWanted(wanted bool) { f.placer.setReasons(wanted) }

// Decide costs O(1) if nothing changed. Otherwise it synchronises the cached plan
// with the State, O(attempts + reservations + waiting stages) for comparing and
// O(log) for each difference, and plans what that requires. If there is no cached
// plan, the nodes changed, or something is blocked or suspended, it rebuilds the
// plan from the State with the same result.
func (f *reservingPolicy) Decide(s *scheduler.State, now scheduler.Time, limit int) scheduler.Decision {
	p := &f.placer
	if p.beginWithoutResume(s, now, limit) {
		return p.idleDecision(now)
	}
	f.states, f.actionsExhausted = f.states[:0], false
	// If something was blocked or replanned, the decision may leave capacity for
	// more: repeat until nothing changes.
	const rounds = 5
	for range rounds {
		actions, notes := len(p.actions), len(f.states)
		f.runRound(s, now)
		if err := s.ApplyPolicyStates(f.states[notes:]); err != nil || f.actionsExhausted || !f.needsAnotherRound {
			break
		}
		if len(p.actions) == actions && len(f.states) == notes {
			break
		}
	}
	if !p.omitReasons {
		f.explain(s, now)
	}
	d := p.finish()
	d.PolicyStates = f.states
	p.idleAtStamp = p.idleAtStamp && len(f.states) == 0
	return d
}

// runRound plans once, on the State as this cycle has changed it so far.
func (f *reservingPolicy) runRound(s *scheduler.State, now scheduler.Time) {
	// 1. Synchronise the plan, without the reservations of finished work.
	if f.cacheUsed = f.sync(s, now); !f.cacheUsed {
		f.rebuild(s, now)
	}
	// 2. Stop what overran its bound.
	f.stopOverruns(s, now)
	// 3. Replan what no longer holds.
	f.repair(s, now)
	f.needsAnotherRound = f.needsAnotherRound || len(f.planner.DrainChanged()) > 0
	// 4. Compress the schedule, once after each unplanned release.
	mark, compressed := f.compress(s, now)
	// 5. Plan and guarantee new work.
	f.planNew(s, now)
	// 6. Start what is due and update reservations.
	f.commit(s, now)
	if compressed && !f.actionsExhausted {
		f.states = append(f.states, mark)
	}
	f.cache.isValid = !f.cannotCache && !f.actionsExhausted
}

// ownerOf returns the project that a job is planned in: its own, or one made of the
// job alone, with the high bit set.
func (f *reservingPolicy) ownerOf(j *scheduler.Job) scheduler.ProjectID {
	if f.projects && j.Spec.Project != 0 {
		return j.Spec.Project
	}
	return scheduler.ProjectID(j.Spec.ID) | 1<<63
}

// stateKey returns the key of a policy state of an owner.
func stateKey(kind scheduler.PolicyStateKind, id scheduler.ProjectID) scheduler.PolicyStateKey {
	if id>>63 == 1 {
		return scheduler.PolicyStateKey{Kind: kind, Job: scheduler.JobID(id &^ (1 << 63))}
	}
	return scheduler.PolicyStateKey{Kind: kind, Project: id}
}

func (f *reservingPolicy) nextReservationID() scheduler.ReservationID {
	f.nextID++
	return f.nextID
}

// lastID returns the highest id of a reservation, 0 if there are none.
func lastID(s *scheduler.State) scheduler.ReservationID {
	all := s.Reservations()
	if len(all) == 0 {
		return 0
	}
	return all[len(all)-1].ID
}

// isPlanned reports whether a reservation belongs to the plan.
func isPlanned(r *scheduler.Reservation) bool {
	return (r.Kind == scheduler.ReserveProject || r.Kind == scheduler.ReserveHead) && r.Job != 0 && r.Task >= 0 && r.Node != scheduler.NoNode
}

// rebuild builds the planner from the State.
func (f *reservingPolicy) rebuild(s *scheduler.State, now scheduler.Time) {
	f.beginRound()
	f.hasBounds = hasBoundedJob(s)
	prof := &backfill.Profile{}
	plan, err := backfill.NewPlanner(f.cfg, prof)
	if err != nil {
		panic("policies: " + err.Error()) // the config was checked by newReservingPolicy
	}
	f.planner, f.reservationIDs, f.nextID = plan, map[backfill.Key]scheduler.ReservationID{}, lastID(s)
	f.cache.reset()
	f.cache.state, f.cache.workSeen, f.cache.nodeChangesSeen, f.cache.versionSeen = s, s.ChangePosition(), s.NodeChangeCount(), math.MaxUint64
	for _, n := range s.Nodes() {
		b := prof.AddNode(&n.Spec)
		plan.SetNonPreemptible(b, f.hasBounds && !n.Spec.Levels.Has(scheduler.LevelSwapped) && !n.Spec.Levels.Has(scheduler.LevelCheckpointed))
		f.cache.addNode(n)
	}
	var stale []scheduler.ReservationID
	for _, r := range s.Reservations() {
		if !isPlanned(r) {
			continue
		}
		if g := s.Stage(scheduler.StageID{Job: r.Job, Stage: r.Stage}); g != nil && f.needsPlan(s, g, r.Task) && int(r.OnDisk) < len(s.Node(r.Node).Disks) {
			f.reservationIDs[keyOf(r)] = r.ID
		} else {
			stale = append(stale, r.ID)
		}
	}
	for _, id := range stale {
		f.tryApply(scheduler.Action{Kind: scheduler.ActUnreserve, Reservation: scheduler.Reservation{ID: id}})
	}
	f.syncOccupancy(s, now)
	f.syncOwners(s, now)
	f.planner.DrainChanged()
}

// beginRound clears the findings of the last round.
func (f *reservingPolicy) beginRound() {
	f.blockedReservations, f.blockedUntil = nil, nil
	f.needsAnotherRound, f.cannotCache, f.hasOverrun = false, false, false
	f.waitingOwners, f.newOwners = f.waitingOwners[:0], f.newOwners[:0]
}

func keyOf(r *scheduler.Reservation) backfill.Key {
	return backfill.Key{Job: r.Job, Stage: r.Stage, Task: r.Task}
}

// reservation returns the reservation of a planned task, or nil.
func (f *reservingPolicy) reservation(s *scheduler.State, k backfill.Key) *scheduler.Reservation {
	if id, ok := f.reservationIDs[k]; ok {
		return s.Reservation(id)
	}
	return nil
}

// needsPlan reports whether a task is planned for: it is pending, or suspended on
// its node.
func (f *reservingPolicy) needsPlan(s *scheduler.State, g *scheduler.Stage, task int32) bool {
	if g.Job.Phase != scheduler.JobActive || task >= g.Spec.Tasks {
		return false
	}
	return g.IsPending(task) || suspendedAttempt(s, g, task) != nil
}

func suspendedAttempt(s *scheduler.State, g *scheduler.Stage, task int32) *scheduler.Attempt {
	var only *scheduler.Attempt
	for a := range s.AttemptsOf(g, task) {
		if only != nil || a.Phase != scheduler.AttemptSuspended {
			return nil
		}
		only = a
	}
	return only
}

func (f *reservingPolicy) wakeAt(at, now scheduler.Time) {
	if p := &f.placer; at > now && at < scheduler.Never && (p.wake == 0 || at < p.wake) {
		p.wake = at
	}
}

// expectedEnd returns until when an attempt is assumed to occupy its capacity. One
// past its bound is assumed to run for grace longer, then 2 x grace, 4 x grace and
// so on, so that the plan changes at times known to Wake.
func (f *reservingPolicy) expectedEnd(s *scheduler.State, a *scheduler.Attempt, now scheduler.Time) scheduler.Time {
	if a.Level.Suspended() {
		return scheduler.Never
	}
	end := f.boundEnd(s, a)
	for grace := f.grace; end < now; grace *= 2 {
		if end = end.Add(grace); grace > 1<<61 {
			return scheduler.Never
		}
	}
	if end == now { // it may end right now; if not, the next cycle extends it
		f.wakeAt(now+1, now)
	}
	return end
}

// boundEnd returns when an attempt should have ended by its bound or estimate.
func (f *reservingPolicy) boundEnd(s *scheduler.State, a *scheduler.Attempt) scheduler.Time {
	g := s.StageOf(a)
	if g.Job.Spec.Bound <= 0 && f.staysForever(s, g.Job, a.Node) {
		return scheduler.Never
	}
	return a.Placed.Add(taskBound(g, f.defaultBound) + f.margin)
}

// hasBoundedJob reports whether any job has a bound of its own; without one nothing
// is guaranteed. O(1) if the first has one, O(jobs) if none has.
func hasBoundedJob(s *scheduler.State) bool {
	for j := range s.Jobs() {
		if j.Spec.Bound > 0 {
			return true
		}
	}
	return false
}

// staysForever reports whether a task of a job without a bound is assumed to stay on
// a node for ever: it is non-preemptible there, and its capacity may be guaranteed
// to others. If no job has a bound, nothing is guaranteed and the estimate is good
// enough.
func (f *reservingPolicy) staysForever(s *scheduler.State, j *scheduler.Job, n scheduler.NodeID) bool {
	return f.hasBounds && !canPreemptOn(s, j, n)
}

// canPreemptOn reports whether a task of a job can be moved out of memory on a node.
// It is the rule of Check for work without a bound.
func canPreemptOn(s *scheduler.State, j *scheduler.Job, n scheduler.NodeID) bool {
	l := s.Node(n).Spec.Levels
	return !s.Accepted(j) && j.Spec.Project == 0 && (l.Has(scheduler.LevelSwapped) || l.Has(scheduler.LevelCheckpointed))
}

// buildProject describes the waiting work of a project, or of a single job, in out,
// reusing its slices.
func (f *reservingPolicy) buildProject(s *scheduler.State, id scheduler.ProjectID, j *scheduler.Job, now scheduler.Time, out *backfill.Project) {
	k := &f.cache
	k.tasks, k.amounts, k.kinds = k.tasks[:0], k.amounts[:0], k.kinds[:0]
	*out = backfill.Project{ID: id, Submitted: j.Spec.Submitted, HighPriority: j.Spec.Priority == scheduler.PriorityHigh, Requests: out.Requests[:0]}
	if id>>63 == 1 {
		f.buildRequests(s, out, j, now)
		return
	}
	if p := s.Project(id); p != nil {
		out.Submitted, out.HighPriority = p.Spec.Submitted, p.Spec.Priority == scheduler.PriorityHigh
		if len(p.Jobs) == 1 { // the only job is j
			f.buildRequests(s, out, j, now)
			return
		}
		for _, id := range p.Jobs {
			f.buildRequests(s, out, s.Job(id), now)
		}
	}
}

func (f *reservingPolicy) buildRequests(s *scheduler.State, pr *backfill.Project, j *scheduler.Job, now scheduler.Time) {
	if j.Phase != scheduler.JobActive {
		return
	}
	f.cache.kinds = append(f.cache.kinds, f.reserveKind(j))
	for _, g := range j.Stages {
		if g.Pending > 0 || g.Suspended > 0 {
			f.buildRequest(s, pr, g, now)
		}
	}
}

// scratchNeed is backfill.NodeNeed with its amounts in scratch space.
func (f *reservingPolicy) scratchNeed(d scheduler.Resources, space int64) backfill.Need {
	k := &f.cache
	n := len(k.amounts)
	k.amounts = append(k.amounts, d[scheduler.CPU], d[scheduler.Memory])
	return backfill.Need{Base: k.amounts[n : n+2 : n+2], IO: d[scheduler.IO], Space: space}
}

// buildRequest adds a stage's waiting tasks to a project. Suspended tasks need only
// what they do not occupy, and only on their own node.
func (f *reservingPolicy) buildRequest(s *scheduler.State, pr *backfill.Project, g *scheduler.Stage, now scheduler.Time) {
	r := backfill.Request{Job: g.Job.Spec.ID, Stage: g.Index, Need: f.scratchNeed(g.Spec.Demand, g.Spec.Disk),
		Bound: taskBound(g, f.defaultBound) + f.margin, SoftBound: g.Job.Spec.Bound <= 0, After: g.Spec.After}
	if r.SoftBound && f.hasBounds && (g.Job.Spec.Accepted || g.Job.Spec.Project != 0) {
		r.Bound = math.MaxInt64 // non-preemptible
	}
	if g.Open { // its predecessors are done
		r.After = nil
	}
	r.NotBefore = f.earliestStart(s, g, now)
	blocked := f.isBlocked(s, g)
	f.limitValidity(s, g, blocked, now)
	from := len(f.cache.tasks)
	f.collectTasks(s, g)
	to := len(f.cache.tasks)
	if !blocked && g.Suspended == 0 {
		r.Tasks = f.cache.tasks[from:to:to]
	} else {
		for _, i := range f.cache.tasks[from:to] {
			if !f.addSpecialTask(s, pr, g, &r, i, blocked, now) {
				r.Tasks = append(r.Tasks, i)
			}
		}
	}
	if len(r.Tasks) > 0 {
		pr.Requests = append(pr.Requests, r)
	}
}

// limitValidity limits how long the description of a stage stays as it is if nothing
// happens to its job: only this cycle if attempts at its predecessors may overrun,
// something is suspended, or only some tasks may run; and until a reservation of a
// blocked stage is due.
func (f *reservingPolicy) limitValidity(s *scheduler.State, g *scheduler.Stage, blocked bool, now scheduler.Time) {
	k := &f.cache
	if !g.Open {
		for _, before := range g.Spec.After {
			if p := g.Job.Stages[before]; p.Running+p.Suspended > 0 {
				k.validUntil = now
			}
		}
	}
	if g.Suspended > 0 || exceedsParallelism(g) || (blocked && g.Open) {
		k.validUntil = now
	}
	if !blocked || k.validUntil <= now {
		return
	}
	for i := g.NextPending(0); i >= 0; i = g.NextPending(i + 1) {
		if r := f.reservation(s, backfill.Key{Job: g.Job.Spec.ID, Stage: g.Index, Task: i}); r != nil {
			k.validUntil = min(k.validUntil, max(r.Start, now))
		}
	}
}

// addSpecialTask handles a task that is due and blocked, or suspended, and returns
// false for any other.
func (f *reservingPolicy) addSpecialTask(s *scheduler.State, pr *backfill.Project, g *scheduler.Stage, r *backfill.Request, task int32, blocked bool, now scheduler.Time) bool {
	a := suspendedAttempt(s, g, task)
	if a != nil { // only caps can block it
		blocked = !s.WithinCaps(g.Job, a.Demand, a.Demand.Sub(a.Occupied.Resources))
	}
	if k := f.reservation(s, backfill.Key{Job: r.Job, Stage: r.Stage, Task: task}); blocked && k != nil && k.Start <= now {
		f.needsAnotherRound, f.cannotCache = true, true
		if f.blockedReservations == nil {
			f.blockedReservations, f.blockedUntil = map[scheduler.ReservationID]bool{}, map[scheduler.StageID]scheduler.Time{}
		}
		f.planner.Profile().Reserve(int32(k.Node), k.OnDisk, k.Start, k.End, &r.Need)
		f.blockedReservations[k.ID] = true
		f.blockedUntil[g.ID()] = max(f.blockedUntil[g.ID()], k.End)
		return true
	}
	if a == nil {
		return false
	}
	f.needsAnotherRound, f.cannotCache = true, true
	own := *r
	own.Tasks = []int32{task}
	own.Need = backfill.NodeNeed(a.Demand.Sub(a.Occupied.Resources).Max(scheduler.Resources{}), max(0, a.DiskSpace-a.Occupied.Disk))
	occupied := backfill.NodeNeed(a.Occupied.Resources, a.Occupied.Disk)
	own.Occupied = &occupied
	pr.Requests = append(pr.Requests, own)
	return true
}

// collectTasks collects the tasks of a stage to plan in scratch space: the pending
// ones; of a stage with max_parallel only as many as may start now, planned ones
// first; of a closed stage none while a predecessor is planned in part.
func (f *reservingPolicy) collectTasks(s *scheduler.State, g *scheduler.Stage) {
	if !g.Open && slices.ContainsFunc(g.Job.Stages, exceedsParallelism) {
		return
	}
	k := &f.cache
	if !exceedsParallelism(g) && g.Suspended == 0 {
		for i := g.NextPending(0); i >= 0; i = g.NextPending(i + 1) {
			k.tasks = append(k.tasks, i)
		}
		return
	}
	from := len(k.tasks)
	var later []int32
	slots := g.Spec.Tasks
	if exceedsParallelism(g) {
		f.needsAnotherRound = true
		slots = max(0, g.Spec.MaxParallel-g.Running-g.Suspended)
	}
	for i := range g.Spec.Tasks {
		switch {
		case !f.needsPlan(s, g, i):
		case !g.IsPending(i):
			k.tasks = append(k.tasks, i)
		case slots > 0 && f.reservation(s, backfill.Key{Job: g.Job.Spec.ID, Stage: g.Index, Task: i}) != nil:
			slots--
			k.tasks = append(k.tasks, i)
		default:
			later = append(later, i)
		}
	}
	k.tasks = append(k.tasks, later[:min(int(slots), len(later))]...)
	slices.Sort(k.tasks[from:])
}

// exceedsParallelism reports whether a stage has more tasks left than may run at
// once.
func exceedsParallelism(g *scheduler.Stage) bool {
	return g.Spec.MaxParallel > 0 && g.Pending+g.Running+g.Suspended > g.Spec.MaxParallel
}

// isBlocked reports whether something other than capacity keeps a due task from
// starting: a predecessor, max_parallel or a cap. Its reservation stays as it is
// until that changes.
func (f *reservingPolicy) isBlocked(s *scheduler.State, g *scheduler.Stage) bool {
	if !g.Open || g.Startable() == 0 {
		return true
	}
	_, _, _, ok := s.UnderCaps(g)
	return !ok
}

// earliestStart returns when the running tasks of a stage's predecessors should have
// ended.
func (f *reservingPolicy) earliestStart(s *scheduler.State, g *scheduler.Stage, now scheduler.Time) scheduler.Time {
	at := scheduler.Time(0)
	if !g.Open {
		for _, before := range g.Spec.After {
			at = max(at, f.blockedUntil[g.Job.Stages[before].ID()])
			for a := range s.AttemptsIn(g.Job.Stages[before]) {
				if !a.Level.Suspended() {
					at = max(at, f.expectedEnd(s, a, now))
				}
			}
		}
	}
	return at
}

// tryApply applies an action if the cycle has one left.
func (f *reservingPolicy) tryApply(a scheduler.Action) bool {
	if f.placer.actionsLeft <= 0 {
		f.actionsExhausted = true
		return false
	}
	f.placer.apply(a)
	return true
}
