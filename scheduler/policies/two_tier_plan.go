package policies

import (
	"math"
	"slices"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/backfill"
)

// roundPlan is the plan of one round, read from the State. Its planner tries reservations in the
// State's timeline until Close.
type roundPlan struct {
	planner *backfill.Planner
	boundAssumptions
	s                   *scheduler.State
	now                 scheduler.Time
	projects            bool // jobs are planned in their projects, not each alone
	timeline            *scheduler.Timeline
	nextID              scheduler.ReservationID          // of a new reservation
	needsAnotherRound   bool                             // something is blocked, suspended, unplanned or was replanned
	blockedReservations map[scheduler.ReservationID]bool // due, but blocked by something other than capacity
	blockedUntil        map[scheduler.StageID]scheduler.Time
	restored            restoredOwners
	newOwners           []*restoredOwner      // owners not planned in full or without a guarantee
	displaced           bool                  // repairs may have taken the place of planned work
	searched            bool                  // no reservation can start earlier except on nodes marked as freed
	pinned              []backfill.Key        // tasks that wait for their own node only, in this round
	notSearched         map[backfill.Key]bool // tasks that were pinned at the last compression or since
	suspendedStage      *scheduler.Stage
	unfinished          bool           // the budget is spent: the next decision continues
	tasksLeft           int32          // tasks of the current project that may still be planned
	scarce              bool           // there are too few reservations for all tasks, see mayPlan
	reservable          int            // reservations for tasks that have none and may be planned; see mayPlan
	optional            bool           // the current project has no guarantee: its tasks may be left out
	truncated           bool           // the current project has more tasks than are planned
	window              int            // tasks, see chooseWindow; 0 for windowTasks
	nextTurn            scheduler.Time // when the window moves on, 0 if it holds all

	// Scratch, valid until the next round:
	project   backfill.Project
	tasks     []int32
	jobs      []*scheduler.Job
	needs     backfill.NeedBuffer
	toRestore []*restoredOwner
}

func (p *roundPlan) begin(s *scheduler.State, now scheduler.Time) {
	p.s, p.now, p.needsAnotherRound, p.unfinished = s, now, false, false
	p.newOwners, p.tasks, p.pinned, p.suspendedStage = p.newOwners[:0], p.tasks[:0], p.pinned[:0], nil
	p.needs.Reset()
	if p.blockedReservations == nil {
		p.blockedReservations, p.blockedUntil = map[scheduler.ReservationID]bool{}, map[scheduler.StageID]scheduler.Time{}
		p.notSearched = map[backfill.Key]bool{}
	}
	clear(p.blockedReservations)
	clear(p.blockedUntil)
}

// readPlan reads from the State what changed in the plan since the last round. It drops
// reservations of work that is no longer planned.
func (f *reservingPolicy) readPlan(s *scheduler.State, now scheduler.Time) {
	p := &f.plan
	p.begin(s, now)
	p.nextID = s.Reservations().NextID()
	p.hasBounds = s.Queue().Bounded() > 0 // without a bound nothing is guaranteed
	p.timeline = s.Timeline(p.boundAssumptions, now)
	p.searched = f.spare == 0 && f.compressed.isCurrent(s, p.timeline)
	switch {
	case p.searched:
		f.compressed.moved = nil // they were accepted
	case f.spare == 0 && f.compressed.timeline == p.timeline: // its moves were refused, or the policy state is another compression's
		f.compressed.timeline = nil
	}
	if f.readOwners(s, f.spare == 0 && !p.scarce); !p.restored.readAll && p.exceedsReservations() { // all must be read to decide which are left out
		p.begin(s, now)
		f.readOwners(s, false)
	}
	p.needsAnotherRound = p.needsAnotherRound || p.scarce                                         // starting tasks release reservations for others
	p.eachUnplanned(func(r *scheduler.Reservation) { p.planner.Withdraw(p.timeline, r, 0, nil) }) // except those that are due and blocked
	p.planner.HasChanged()
	f.wakeAt(p.timeline.NextChange(), now)
	f.wakeAt(p.nextTurn, now)
}

// readOwners reads the owners that changed, or all, and restores them in the planner. It drops the
// reservations of work that is no longer planned.
func (f *reservingPolicy) readOwners(s *scheduler.State, keep bool) {
	p := &f.plan
	p.findChanged(keep)
	p.readReservations()
	p.chooseWindow()
	for i := range p.restored.stale {
		f.tryApply(scheduler.Unreserve(p.restored.stale[i].id))
	}
	for _, n := range s.Nodes() {
		p.planner.SetNonPreemptible(int32(n.Spec.ID), p.hasBounds && !n.Spec.Levels.FreesMemory())
		p.planner.SetWindows(int32(n.Spec.ID), n.Spec.Windows)
	}
	if p.searched {
		p.timeline.FreedSince(f.compressed.clock, func(n scheduler.NodeID) { p.planner.MarkFreed(int32(n)) })
		for b, freed := range f.compressed.freed {
			if freed {
				p.planner.MarkFreed(int32(b))
			}
		}
	}
	p.restoreOwners()
}

// keptReservations is how many reservations are left for guaranteed tasks that fail or are lost, and for suspended tasks.
const keptReservations = 1 << 13

// exceedsReservations reports whether the planner has more tasks without a reservation than the
// State can still reserve for, less keptReservations.
func (p *roundPlan) exceedsReservations() bool {
	return p.planner.Len()-p.planner.NumKept() > p.s.Reservations().Left()-keptReservations
}

// mayPlan reports whether a waiting task of the current project may be planned: a planned task that
// does not start needs a reservation. When all owners are read, those without a guarantee get the
// reservations that are left in order; their other tasks are left out until earlier tasks have
// started, and scarce is set. So no place in the plan depends on a place that is not in the State.
func (p *roundPlan) mayPlan(g *scheduler.Stage, task int32) bool {
	if !p.restored.readAll || g.PlannedAt(task) != nil {
		return true
	}
	if p.optional && p.reservable <= 0 {
		p.truncated, p.scarce = true, true
		return false
	}
	p.reservable--
	return true
}

// restoreOwners restores the changed owners in the planner, and lists all with work to plan.
func (p *roundPlan) restoreOwners() {
	p.scarce, p.reservable = false, p.s.Reservations().Left()-keptReservations
	for _, list := range [][]*restoredOwner{p.restored.changed, p.restored.entered} {
		for _, o := range list {
			if o.first != nil && !o.leftOut {
				p.restoreOwner(o)
			}
		}
	}
	for _, o := range p.restored.ordered {
		if o.incomplete {
			p.newOwners = append(p.newOwners, o)
		}
	}
}

func (p *roundPlan) restoreOwner(o *restoredOwner) {
	guaranteed := p.isGuaranteed(o)
	another := p.needsAnotherRound
	p.needsAnotherRound, p.tasksLeft, p.truncated, p.optional = false, maxPlannedTasks, false, !guaranteed
	if guaranteed {
		p.tasksLeft = math.MaxInt32
	}
	p.buildProject(o.id, o.first)
	o.truncated = p.truncated
	dependsOnTime := slices.ContainsFunc(p.project.Requests, func(r backfill.Request) bool { return r.NotBefore > 0 })
	o.volatile = o.volatile || p.needsAnotherRound || dependsOnTime
	p.needsAnotherRound = p.needsAnotherRound || another
	if len(p.project.Requests) == 0 {
		return
	}
	var guarantee backfill.Guarantee
	if guaranteed {
		guarantee = backfill.GuaranteeOf(p.s, o.id)
	}
	p.planner.Restore(p.project, guarantee, guaranteed, p.existing)
	o.planned, o.guaranteed = true, guaranteed
	o.unplaced = p.planner.NumUnplacedOf(o.id) > 0
	o.incomplete = !guaranteed || o.unplaced
}

// existing returns the planner's description of a planned task: where it is suspended, and its
// reservation.
func (p *roundPlan) existing(k backfill.Key, need *backfill.Need) (x backfill.Existing) {
	g := p.suspendedStage // the last stage, usually that of the task before
	if g == nil || g.Job.Spec.ID != k.Job || g.Index != k.Stage {
		g = p.s.Stage(k.StageID())
		p.suspendedStage = g
	}
	r := p.reservationOf(k)
	if g.Suspended > 0 {
		if a := suspendedAttempt(p.s, g, k.Task); a != nil {
			x.Pinned, x.Bin, x.Disk = true, int32(a.Node), a.Disk
			x.Lost = r != nil && (r.Node != a.Node || r.OnDisk != a.Disk)
			p.pinned, p.notSearched[k] = append(p.pinned, k), true
		}
	}
	if r != nil {
		x.Spot, x.Need, x.Kept = p.timeline.ReservedAt(r, *need)
		x.End, x.Searched = r.End, p.searched && len(g.Spec.After) == 0 && (x.Pinned || !p.notSearched[k]) // its predecessors may have ended since
		x.Ref = uint64(r.ID)
		x.Changed = r.Kind != p.reserveKind(g.Job, r.Node) || r.Project != g.Job.Spec.Project || r.Latest != 0
	}
	return x
}

// eachUnplanned yields the reservations of the plan whose tasks are not planned in this round,
// except those that are due and blocked. O(1) if there are none.
func (p *roundPlan) eachUnplanned(yield func(*scheduler.Reservation)) {
	if p.restored.reserved == p.planner.NumKept()+len(p.blockedReservations) {
		return
	}
	for _, r := range p.s.Reservations().All() {
		if !r.IsPlanOfTask() || p.blockedReservations[r.ID] || p.reservationOf(backfill.KeyOf(r)) != r || !p.needsPlan(p.s.Stage(r.StageID()), r.Task) {
			continue
		}
		if _, planned := p.planner.Find(backfill.KeyOf(r)); !planned {
			yield(r)
		}
	}
}

// needsPlan reports whether a task is planned: it is pending, or suspended on its node and not
// parked.
func (p *roundPlan) needsPlan(g *scheduler.Stage, task int32) bool {
	if g.Job.Phase != scheduler.JobActive || task >= g.Spec.Tasks {
		return false
	}
	return g.IsPending(task) || suspendedAttempt(p.s, g, task) != nil
}

// suspendedAttempt returns the first unparked attempt of a task that isSuspended, nil if there is
// none. A task with a second attempt has two, and only the planned one resumes.
func suspendedAttempt(s *scheduler.State, g *scheduler.Stage, task int32) *scheduler.Attempt {
	var first *scheduler.Attempt
	for a := range s.Attempts().Of(g, task) {
		if a.Phase != scheduler.AttemptSuspended {
			return nil
		}
		if !a.Parked && (first == nil || a.ID.Attempt < first.ID.Attempt) {
			first = a
		}
	}
	return first
}

// isSuspended reports whether there are attempts of a task, and all of them are suspended.
func isSuspended(s *scheduler.State, g *scheduler.Stage, task int32) (all bool) {
	for a := range s.Attempts().Of(g, task) {
		if all = a.Phase == scheduler.AttemptSuspended; !all {
			return false
		}
	}
	return all
}

// hasParked reports whether all attempts of some task of a stage are parked: the end of the stage
// is then unknown. O(1) if none is suspended, else O(tasks of the stage).
func (p *roundPlan) hasParked(g *scheduler.Stage) bool {
	if g.Suspended > 0 {
		for a := range p.s.Attempts().In(g) {
			if a.Parked && isSuspended(p.s, g, a.ID.Index) && suspendedAttempt(p.s, g, a.ID.Index) == nil {
				return true
			}
		}
	}
	return false
}

// buildProject sets p.project to the waiting work of a project, or of a single job.
func (p *roundPlan) buildProject(id scheduler.ProjectID, j *scheduler.Job) {
	requests := p.project.Requests[:0]
	p.project = backfill.ProjectFor(p.s, id, j)
	p.project.Requests = requests
	for _, j := range p.jobsOf(id) {
		if j.Phase != scheduler.JobActive {
			continue
		}
		for _, g := range j.Stages {
			if g.Pending > 0 || g.Suspended > 0 {
				p.buildRequest(g)
			}
		}
	}
}

// buildRequest adds a stage's waiting tasks to the project. Suspended tasks need only what they do
// not occupy, and only on their own node.
func (p *roundPlan) buildRequest(g *scheduler.Stage) {
	r := backfill.Request{Job: g.Job.Spec.ID, Stage: g.Index, Need: p.needs.NeedOf(g.Spec.Demand, g.Spec.Disk), NotBefore: p.earliestStart(g),
		Bound: taskBound(g, p.defaultBound) + p.margin, SoftBound: g.Job.Spec.Bound <= 0, Unknown: isUnknown(g)}
	r.Stays = r.SoftBound && p.hasBounds && (g.Job.Spec.AcceptedByQuote || g.Job.Spec.Project != 0) // non-preemptible
	if !g.Open {
		r.After = g.Spec.After
	}
	blocked := isBlocked(p.s, g)
	from := len(p.tasks)
	p.collectTasks(g)
	to := len(p.tasks)
	if !blocked && g.Suspended == 0 {
		r.Tasks = p.tasks[from:to:to]
	} else {
		for _, i := range p.tasks[from:to] {
			if !p.addSpecialTask(g, &r, i, blocked) {
				r.Tasks = append(r.Tasks, i)
			}
		}
	}
	if len(r.Tasks) > 0 {
		p.project.Requests = append(p.project.Requests, r)
	}
}

// addSpecialTask adds a task that is suspended, or due and blocked, whose reservation then stays.
// It returns false for any other task.
func (p *roundPlan) addSpecialTask(g *scheduler.Stage, r *backfill.Request, task int32, blocked bool) bool {
	a := suspendedAttempt(p.s, g, task)
	if a != nil { // only caps can block it
		blocked = !p.s.TenantTree().WithinCaps(g.Job, a.Demand, a.Demand.Sub(a.Occupied.Resources))
	}
	if k := p.reservationOf(backfill.Key{Job: r.Job, Stage: r.Stage, Task: task}); blocked && k != nil && k.Start <= p.now {
		p.needsAnotherRound = true
		p.blockedReservations[k.ID] = true
		p.blockedUntil[g.ID()] = max(p.blockedUntil[g.ID()], k.End)
		return true
	}
	if a == nil {
		return false
	}
	p.needsAnotherRound = true
	own := *r
	own.Tasks, own.Bound = []int32{task}, boundLeft(g, p.defaultBound, a.Ran)+p.margin
	own.Need = scheduler.NodeNeed(a.Demand.Sub(a.Occupied.Resources).Max(scheduler.Resources{}), max(0, a.DiskSpace-a.Occupied.Disk))
	occupied := scheduler.NodeNeed(a.Occupied.Resources, a.Occupied.Disk)
	own.Occupied = &occupied
	p.project.Requests = append(p.project.Requests, own)
	return true
}

// collectTasks collects the tasks of a stage to plan in scratch space: the pending tasks; of a
// stage with max_parallel only as many as may start now, planned ones first; of a closed stage none
// while a predecessor is planned in part or an earlier task is parked. Of a project without a
// guarantee it collects tasksLeft at most.
func (p *roundPlan) collectTasks(g *scheduler.Stage) {
	if !g.Open && (p.truncated || slices.ContainsFunc(g.Job.Stages, (*scheduler.Stage).ExceedsParallel) ||
		slices.ContainsFunc(g.Job.Stages[:g.Index], p.hasParked)) {
		return
	}
	if !g.ExceedsParallel() && g.Suspended == 0 {
		for i := g.NextPending(0); i >= 0; i = g.NextPending(i + 1) {
			if p.tasksLeft == 0 {
				p.truncated = true
				return
			}
			if p.mayPlan(g, i) {
				p.tasksLeft--
				p.tasks = append(p.tasks, i)
			}
		}
		return
	}
	from := len(p.tasks)
	var later []int32
	slots := g.Spec.Tasks
	if g.ExceedsParallel() {
		p.needsAnotherRound = true
		slots = max(0, g.Spec.MaxParallel-g.Running-g.Suspended)
	}
	p.truncated = p.truncated || min(slots, g.Pending) > p.tasksLeft
	slots = min(slots, p.tasksLeft)
	for i := range g.Spec.Tasks {
		switch {
		case !p.needsPlan(g, i):
		case !g.IsPending(i):
			p.tasks = append(p.tasks, i)
		case slots > 0 && p.reservationOf(backfill.Key{Job: g.Job.Spec.ID, Stage: g.Index, Task: i}) != nil:
			slots--
			p.tasks = append(p.tasks, i)
		default:
			later = append(later, i)
		}
	}
	for _, i := range later[:min(int(slots), len(later))] {
		if p.mayPlan(g, i) {
			p.tasks = append(p.tasks, i)
		}
	}
	p.tasksLeft = max(0, p.tasksLeft-int32(len(p.tasks)-from))
	slices.Sort(p.tasks[from:])
}

// isBlocked reports whether something other than capacity keeps a due task from starting: a
// predecessor, max_parallel or a cap. Its reservation stays until that changes.
func isBlocked(s *scheduler.State, g *scheduler.Stage) bool {
	return !g.Open || g.Startable() == 0 || !s.TenantTree().Allows(g)
}

// earliestStart returns when the running tasks of a stage's predecessors should have ended.
func (p *roundPlan) earliestStart(g *scheduler.Stage) scheduler.Time {
	at := scheduler.Time(0)
	if !g.Open {
		for _, before := range g.Spec.After {
			at = max(at, p.blockedUntil[g.Job.Stages[before].ID()])
			for a := range p.s.Attempts().In(g.Job.Stages[before]) {
				if !a.Level.Suspended() {
					at = max(at, p.expectedEnd(p.s, a, p.now))
				}
			}
		}
	}
	return at
}

// reserveKind returns the kind of a job's reservations on a node: guarantees, or plans based on an
// estimate. A task that stays until its node leaves needs a guarantee, since capacity there may be
// guaranteed to others after that.
func (p *roundPlan) reserveKind(j *scheduler.Job, n scheduler.NodeID) scheduler.ReservationKind {
	mayStay := j.Spec.Project != 0 || j.Spec.AcceptedByQuote || (len(p.s.Node(n).Spec.Windows) > 0 && p.stays(p.s, j, n))
	if j.Spec.Bound <= 0 && (!p.hasBounds || !mayStay) {
		return scheduler.ReserveHead
	}
	return scheduler.ReserveProject
}
