package threedsf

import (
	"errors"
	"math"
	"slices"
	"time"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/backfill"
	"github.com/drover-run/drover/scheduler/locality"
)

// plan is the profile of all guarantee reservations, synchronised with the State
// when something has to be planned (syncPlan). The profile has a bin for each node
// and an account for each tenant. It contains:
//
//   - what runs under a guarantee or cannot be preempted, until its bound;
//   - due reservations whose task has not started, unchanged;
//   - the waiting tasks with a guarantee, which the planner may move.
type plan struct {
	p              *Policy
	profile        *backfill.Profile
	accounts       *backfill.Profile
	planner        *backfill.Planner
	nodes          []plannedNode
	claims         map[claimKey]*claim
	generation     uint64                            // incremented for each claimant that is synchronised
	claimants      map[scheduler.ProjectID]*claimant // by owner; also of jobs that run although their guarantee was refused
	nonPreemptible []scheduler.NodeID                // nodes on which no attempt can be preempted
	nodeClaimants  map[scheduler.NodeID]*claimant
	reservations   map[backfill.Key]*scheduler.Reservation
	ownerByID      map[scheduler.ProjectID]*owner // all owners in the planner
	owners         []*owner                       // the same, ordered by compareOwners
	unsorted       bool                           // owners must be sorted again
	invalid        bool                           // must not be reused in the next cycle

	// The State's position when the plan was last synchronised:
	state       *scheduler.State
	workSeen    uint64
	nodeChanges uint64
	now         scheduler.Time
	unsynced    bool // never synchronised

	shadow shadowState

	// Of this cycle:
	late      []backfill.Key // did not start in time
	missing   []backfill.Key // have no place: they failed or never had one
	movesLeft int            // moves to earlier times that this cycle may still commit

	// Scratch:
	nextProject   backfill.Project // an owner's waiting work by the State
	validUntil    scheduler.Time   // until when the claims of the claimant at hand stay as they are
	claimKeys     []claimKey       // its claims
	ids           []scheduler.ProjectID
	jobs          []*scheduler.Job
	minAccounts   []scheduler.Resources
	accountLimits []scheduler.Resources // what each tenant's guarantees may take, as in accounts
}

// owner is a project, or a single job, that has or requests a guarantee.
type owner struct {
	id        scheduler.ProjectID
	jobs      []*scheduler.Job // at least one, ordered by id
	requested bool
	guarantee backfill.Guarantee
	project   backfill.Project
	submitted scheduler.Time
	restored  bool // the planner has project and guarantee unchanged
	dirty     bool // the plan may differ from the State
	unsynced  bool // it still did at the end of the last cycle
}

// defaultCompressBatch is how many pieces of work one cycle of a compression visits.
const defaultCompressBatch = 2048

// planGuarantees repairs and compresses the plan, decides on requests and commits
// the result to the State. O(jobs + nodes + reservations) where something has to be
// planned, plus the search for a place of each new task, O(nodes) at worst.
func (p *Policy) planGuarantees() {
	p.surveyGuarantees()
	q := &p.survey
	for _, n := range q.violations {
		p.recordState(n)
	}
	if q.requests == 0 && !q.needsReplan && !q.compress {
		return
	}
	b := p.syncPlan()
	q.plan = b
	// 1. Plan again what was lost or could not start in time.
	b.repair()
	// 2. Compress the schedule, a batch a cycle.
	// 3. Accept or refuse requests.
	// Both leave accepted deadlines their shadow reservations.
	var refused []scheduler.PolicyState
	if q.compress || q.requests > 0 {
		b.reserveShadows()
		if q.compress {
			_, q.nextCursor, q.finished = b.planner.CompressSome(p.now, q.cursor, p.compressBatch)
		}
		refused = b.planRequests()
		b.releaseShadows(0)
	}
	// 4. Make the State's reservations those of the plan.
	b.commit(refused)
}

// submissionTime returns when an owner was submitted.
func (b *plan) submissionTime(o *owner) scheduler.Time {
	if pr := b.p.s.Project(o.jobs[0].Spec.Project); pr != nil {
		return pr.Spec.Submitted
	}
	return o.jobs[0].Spec.Submitted
}

// accountOf returns the tenant that an owner is charged to.
func (b *plan) accountOf(o *owner) scheduler.TenantID {
	if pr := b.p.s.Project(o.jobs[0].Spec.Project); pr != nil {
		return pr.Spec.Tenant
	}
	return o.jobs[0].Spec.Tenant
}

// syncAccounts sets what the guarantees of each tenant may take: its share of the
// cluster, but at least one task of each size that it requests, and at most its
// caps.
func (b *plan) syncAccounts() {
	s := b.p.s
	shares := b.p.guaranteeShares()
	b.minAccounts = append(b.minAccounts[:0], make([]scheduler.Resources, len(shares))...)
	least := b.minAccounts
	for _, o := range b.owners {
		if !o.requested {
			continue
		}
		t := b.accountOf(o)
		for _, j := range o.jobs {
			for _, g := range j.Stages {
				least[t] = least[t].Max(g.Spec.Demand)
			}
		}
	}
	for t, share := range shares {
		var limits scheduler.Resources
		for r, v := range s.Total() {
			limits[r] = max(int64(share*float64(v)), least[t][r])
		}
		for id, n := scheduler.TenantID(t), 0; id != scheduler.NoTenant && n <= scheduler.MaxTenantDepth; n++ {
			above := s.Tenant(id)
			for r, cap := range above.Spec.Caps.Total {
				if cap > 0 {
					limits[r] = min(limits[r], cap)
				}
			}
			id = above.Spec.Parent
		}
		switch {
		case t >= len(b.accountLimits):
			b.accounts.AddBin(limits[:])
			b.accountLimits = append(b.accountLimits, limits)
		case limits != b.accountLimits[t]:
			b.accounts.Resize(int32(t), limits[:])
			b.accountLimits[t] = limits
		}
	}
}

// exceedsCaps reports whether one task of a job, or all its waiting tasks together,
// would exceed a cap: then its completion time is unknown.
func (b *plan) exceedsCaps(j *scheduler.Job) bool {
	var all, task scheduler.Resources
	for _, g := range j.Stages {
		d, ok := g.Spec.Demand.TimesChecked(int64(g.Pending))
		if !ok {
			return true
		}
		all = all.Add(d)
		task = task.Max(g.Spec.Demand)
	}
	t := b.p.s.Tenant(j.Spec.Tenant)
	if _, ok := t.Spec.Caps.Task.Allows(task); !ok {
		return true
	}
	for n := 0; t != nil && n <= scheduler.MaxTenantDepth; n++ {
		_, job := t.Spec.Caps.Job.Allows(j.Used.Add(all))
		_, total := t.Spec.Caps.Total.Allows(task)
		if !job || !total {
			return true
		}
		t = b.p.s.Tenant(t.Spec.Parent)
	}
	return false
}

// guaranteeShares returns guarantee_share for each tenant: the configured one, or
// the weighted fair share among the tenants that have work.
func (p *Policy) guaranteeShares() []float64 {
	tenants := p.s.Tenants()
	out := make([]float64, len(tenants))
	if p.cfg.Guarantees.Share > 0 {
		for i := range out {
			out[i] = p.cfg.Guarantees.Share
		}
		return out
	}
	active := make([]bool, len(tenants))
	for id, x := range tenants {
		if x.Jobs == 0 {
			continue
		}
		t := scheduler.TenantID(id)
		for n := 0; t != scheduler.NoTenant && !active[t] && n <= scheduler.MaxTenantDepth; n++ {
			active[t] = true
			t = tenants[t].Spec.Parent
		}
	}
	sums := make([]float64, len(tenants)+1) // sum of the weights of each tenant's active children; the last is the root's
	at := func(parent scheduler.TenantID) *float64 {
		if parent == scheduler.NoTenant {
			return &sums[len(tenants)]
		}
		return &sums[parent]
	}
	for i, t := range tenants {
		if active[i] {
			*at(t.Spec.Parent) += t.Spec.Weight
		}
	}
	for i, t := range tenants {
		out[i] = 1
		for n := 0; n <= scheduler.MaxTenantDepth; n++ {
			if sum := *at(t.Spec.Parent); sum > 0 {
				out[i] *= min(1, t.Spec.Weight/sum)
			}
			if t.Spec.Parent == scheduler.NoTenant {
				break
			}
			t = tenants[t.Spec.Parent]
		}
	}
	return out
}

// claimOwner claims, for an owner's jobs, what non-preemptible attempts occupy and
// the reservations that are not planned. For owner 0 it claims the reservations of
// no job.
func (b *plan) claimOwner(id scheduler.ProjectID) {
	s := b.p.s
	claimAll := func(list []*scheduler.Reservation) {
		for _, r := range list {
			if r.Kind.IsGuarantee() && !isPlanned(r) && r.Node != scheduler.NoNode && r.End > b.p.now && (r.Job == 0) == (id == 0) {
				b.claimReservation(r, -1)
			}
		}
	}
	if id == 0 {
		claimAll(s.Reservations())
	}
	for _, j := range b.jobsOf(id) {
		claimAll(j.Reservations())
		if j.Live == 0 || !s.NonPreemptible(j) {
			continue
		}
		for _, g := range j.Stages {
			for a := range s.AttemptsIn(g) {
				b.claimAttempt(a, j, false)
			}
		}
	}
}

// overdueExtension is how long a non-preemptible task past its expected end is
// assumed to run on.
const overdueExtension = 10 * time.Second

// claimAttempt claims what an attempt occupies until its expected end, and while it
// migrates what it occupies on the source node. node is set for claims of a node's
// claimant.
func (b *plan) claimAttempt(a *scheduler.Attempt, j *scheduler.Job, node bool) {
	now := b.p.now
	end, fixed := b.expectedEnd(a, j)
	b.limitValidity(end, fixed)
	if end <= now {
		return
	}
	t := claim{bin: int32(a.Node), disk: a.Disk, start: now, end: end, occupied: a.Occupied, account: -1}
	if a.Level.Suspended() { // it will resume and need its full demand
		t.occupied = scheduler.Occupancy{Resources: a.Demand, Disk: a.DiskSpace}
	}
	if b.p.s.NonPreemptible(j) {
		t.account = int32(a.Tenant)
	}
	b.setClaim(claimKey{attempt: a.ID, byNode: node}, t)
	if a.From != scheduler.NoNode {
		b.limitValidity(now, false)
		b.setClaim(claimKey{attempt: a.ID, isSource: true, byNode: node}, claim{bin: int32(a.From), disk: a.FromDisk, start: now,
			end: now.Add(overdueExtension), occupied: a.FromOccupied, account: -1})
	}
}

// limitValidity limits how long the claims at hand stay as they are: until at, or if
// at is not fixed, only for this cycle.
func (b *plan) limitValidity(at scheduler.Time, fixed bool) {
	if !fixed {
		at = b.p.now
	}
	b.validUntil = min(b.validUntil, at)
}

// expectedEnd returns until when an attempt is assumed to run: until its bound or
// its predicted end. One past its bound ends now if its guarantee is violated and
// the node can preempt it. fixed is false if the result moves with time.
func (b *plan) expectedEnd(a *scheduler.Attempt, j *scheduler.Job) (at scheduler.Time, fixed bool) {
	now := b.p.now
	preemptible := !b.p.inLane(j) && b.p.isViolated(j) && canPreemptOn(b.p.s.Node(a.Node))
	switch end, known := locality.PredictedEnd(b.p.s, a); {
	case a.Level.Suspended() && j.Spec.Bound > 0:
		return now.Add(max(j.Spec.Bound-a.Ran, overdueExtension)), false
	case a.Level.Suspended():
		return scheduler.Never, true
	case j.Spec.Bound > 0 && b.p.boundEnd(a, j) > now:
		return b.p.boundEnd(a, j), true
	case j.Spec.Bound > 0 && preemptible:
		return now, false
	case j.Spec.Bound > 0:
		return now.Add(overdueExtension), false
	case !b.p.s.NonPreemptible(j):
		return scheduler.Never, true
	case known && end > now:
		return end, true
	default:
		return now.Add(overdueExtension), false
	}
}

func canPreemptOn(n *scheduler.Node) bool {
	return n.Spec.Levels.Has(scheduler.LevelSwapped) || n.Spec.Levels.Has(scheduler.LevelCheckpointed)
}

// claimReservation claims a reservation as it is, charged to an account unless
// account is -1.
func (b *plan) claimReservation(r *scheduler.Reservation, account int32) {
	disk := r.OnDisk
	if int(disk) >= b.profile.Disks(int32(r.Node)) {
		disk = int16(b.profile.Disks(int32(r.Node))) - 1
	}
	b.setClaim(claimKey{reservation: r.ID}, claim{bin: int32(r.Node), disk: disk, start: r.Start, end: r.End,
		occupied: scheduler.Occupancy{Resources: r.Demand, Disk: r.Disk}, account: account})
}

// buildProject brings an owner's waiting tasks into the planner.
func (b *plan) buildProject(o *owner) {
	account := b.accountOf(o)
	b.nextProject = backfill.Project{ID: o.id, Submitted: o.submitted, Account: int32(account) + 1, Requests: b.nextProject.Requests[:0]}
	if pr := b.p.s.Project(o.jobs[0].Spec.Project); pr != nil {
		b.nextProject.HighPriority = pr.Spec.Priority == scheduler.PriorityHigh
	} else {
		b.nextProject.Deadline = o.jobs[0].Spec.Deadline
	}
	if !o.requested {
		o.guarantee = b.currentGuarantee(o, b.nextProject.Deadline)
	}
	for _, j := range o.jobs {
		for _, g := range j.Stages {
			b.buildRequest(o, g, account)
		}
	}
	b.restoreOwner(o, &b.nextProject)
}

// isDiskGone reports whether the disk of a reservation does not exist any more.
func (b *plan) isDiskGone(r *scheduler.Reservation) bool {
	disk := r.OnDisk
	if disk >= 0 {
		return int(disk) >= b.profile.Disks(int32(r.Node))
	}
	g := b.p.s.Stage(scheduler.StageID{Job: r.Job, Stage: r.Stage})
	return g.Spec.Demand[scheduler.IO] > 0 || g.Spec.Disk > 0
}

// currentGuarantee returns the guarantee that an owner has.
func (b *plan) currentGuarantee(o *owner, deadline scheduler.Time) backfill.Guarantee {
	s := b.p.s
	if deadline > 0 {
		n, _ := s.PolicyState(stateKey(scheduler.AcceptedState, o.id))
		return backfill.Guarantee{Departure: n.At, Latest: deadline}
	}
	guarantee, _ := s.PolicyState(stateKey(scheduler.GuaranteeState, o.id))
	latest, _ := s.PolicyState(stateKey(scheduler.LatestDepartureState, o.id))
	return backfill.Guarantee{Departure: guarantee.At, Latest: latest.At}
}

// buildRequest adds the waiting tasks of a stage to nextProject. Those that are due
// keep their place: their reservation is claimed instead.
func (b *plan) buildRequest(o *owner, g *scheduler.Stage, account scheduler.TenantID) {
	if g.Pending == 0 {
		return
	}
	duration := b.p.taskDuration(g)
	if duration <= 0 {
		duration = overdueExtension // unknown: the owner will be refused, or has a guarantee made elsewhere
	}
	list := &b.nextProject.Requests
	*list = slices.Grow(*list, 1)[:len(*list)+1]
	r := &(*list)[len(*list)-1]
	*r = backfill.Request{Job: g.Job.Spec.ID, Stage: g.Index, Tasks: r.Tasks[:0], Need: backfill.NodeNeed(g.Spec.Demand, g.Spec.Disk), Bound: duration,
		NotBefore: b.earliestStart(g)}
	if !g.Open {
		r.After = g.Spec.After
	}
	for i := g.NextPending(0); i >= 0; i = g.NextPending(i + 1) {
		k := backfill.Key{Job: r.Job, Stage: r.Stage, Task: i}
		switch v := b.reservations[k]; {
		case v == nil || b.isDiskGone(v):
			b.limitValidity(b.p.now, false)
			if !o.requested {
				b.missing = append(b.missing, k)
			}
		case b.p.isExpired(v):
			b.limitValidity(b.p.now, false)
			b.late = append(b.late, k)
		case v.Start > b.p.now:
			b.limitValidity(v.Start, true)
		default:
			b.limitValidity(b.p.latestStart(v).Add(1), true)
			if b.p.s.Node(v.Node).Schedulable() {
				b.claimReservation(v, int32(account))
				continue
			}
		}
		r.Tasks = append(r.Tasks, i)
	}
	if len(r.Tasks) == 0 {
		*list = (*list)[:len(*list)-1]
	}
}

// earliestStart returns when the running and due tasks of a stage's predecessors are
// expected to have ended.
func (b *plan) earliestStart(g *scheduler.Stage) scheduler.Time {
	at := scheduler.Time(0)
	if g.Open {
		return at
	}
	for _, before := range g.Spec.After {
		f := g.Job.Stages[before]
		for a := range b.p.s.AttemptsIn(f) {
			end, fixed := b.expectedEnd(a, g.Job)
			b.limitValidity(end, fixed)
			at = max(at, end)
		}
		for i := f.NextPending(0); i >= 0; i = f.NextPending(i + 1) {
			if r := b.reservations[backfill.Key{Job: g.Job.Spec.ID, Stage: before, Task: i}]; r != nil && r.Start <= b.p.now {
				at = max(at, r.End)
			}
		}
	}
	if at == scheduler.Never {
		b.limitValidity(b.p.now, false)
		at = b.p.now.Add(overdueExtension)
	}
	return at
}

// repair plans again what was lost, what no longer fits and what could not start in
// time, and records whose guarantee that violates.
func (b *plan) repair() {
	now := b.p.now
	b.recordViolations(b.planner.Replan(now, backfill.CauseLate, b.late...))
	b.recordViolations(b.planner.Replan(now, backfill.CauseFailed, b.missing...))
	for _, n := range b.p.s.Nodes() {
		if !n.Schedulable() && b.hasPlannedOn(n.Spec.ID) {
			b.invalid = true // spare nodes may have been opened to replace it
			b.recordViolations(b.planner.LoseBin(int32(n.Spec.ID), now))
		}
	}
	cause := backfill.CauseNodeLost
	for _, n := range b.p.survey.violations {
		if n.Slot == int32(backfill.CauseOverrun) {
			cause = backfill.CauseOverrun
		}
	}
	b.recordViolations(b.planner.Repair(now, cause))
}

// hasPlannedOn reports whether anything is planned on a node.
func (b *plan) hasPlannedOn(n scheduler.NodeID) bool {
	return slices.ContainsFunc(b.p.s.ReservationsOn(n), isPlanned)
}

// recordViolations records each guarantee that no longer holds, once.
func (b *plan) recordViolations(list []backfill.Violation) {
	for _, x := range list {
		o := b.ownerByID[x.Project]
		if o == nil || o.requested || b.p.isViolated(o.jobs[0]) {
			continue
		}
		o.dirty = true
		n := len(b.p.survey.violations)
		b.p.recordOwnerViolation(x.Project, x.Cause)
		for _, k := range b.p.survey.violations[n:] {
			b.p.recordState(k)
		}
	}
}

// planRequests plans the owners that request a guarantee in order of submission, as
// many as the cycle has actions for. It returns the states that refuse a request,
// with the earliest departure that could be guaranteed.
func (b *plan) planRequests() []scheduler.PolicyState {
	var refused []scheduler.PolicyState
	actions := 0
	for _, o := range b.owners {
		if !o.requested || actions >= b.p.actionsLeft {
			continue
		}
		q, err := b.planOwner(o)
		if err == nil {
			o.guarantee = q
			actions += b.countUnreserved(o)
			continue
		}
		n := scheduler.PolicyState{PolicyStateKey: stateKey(scheduler.RefusedState, o.id), Value: int64(o.project.Deadline)}
		if errors.Is(err, backfill.ErrTooLate) {
			n.At = q.Departure
		}
		refused = append(refused, n)
		for _, r := range o.project.Requests {
			for _, i := range r.Tasks {
				b.planner.End(backfill.Key{Job: r.Job, Stage: r.Stage, Task: i}, b.p.now)
			}
		}
	}
	return refused
}

// countUnreserved returns how many planned tasks of an owner the State has no such
// reservation for: an owner whose request did not fit into a cycle has its first
// ones.
func (b *plan) countUnreserved(o *owner) (n int) {
	for i := range o.project.Requests {
		r := &o.project.Requests[i]
		for _, task := range r.Tasks {
			k := backfill.Key{Job: r.Job, Stage: r.Stage, Task: task}
			at, here := b.reservedSpot(k)
			if spot, _, ok := b.planner.SpotOf(k); ok && (!here || spot != at) {
				n++
			}
		}
	}
	return n
}

// errUnknownEnd refuses a request without a computable end.
var errUnknownEnd = errors.New("completion time unknown")

// planOwner plans one owner. A guarantee needs a known end: a project's jobs need
// bounds, a deadline job's stages need bounds or predictions. A job beyond a cap, or
// with a stage of more tasks than may run at once, has none.
func (b *plan) planOwner(o *owner) (backfill.Guarantee, error) {
	for _, j := range o.jobs {
		if b.exceedsCaps(j) {
			return backfill.Guarantee{}, errUnknownEnd
		}
		for _, g := range j.Stages {
			if g.Remaining() == 0 {
				continue
			}
			partly := g.Spec.MaxParallel > 0 && g.Pending+g.Running+g.Suspended > g.Spec.MaxParallel
			if partly || (j.Spec.Project != 0 && j.Spec.Bound <= 0) || b.p.taskDuration(g) <= 0 {
				return backfill.Guarantee{}, errUnknownEnd
			}
		}
	}
	q, err := b.planner.CompletePlan(b.p.now, o.id)
	if err != nil {
		return q, err
	}
	// The departure includes what already runs.
	for _, j := range o.jobs {
		for _, g := range j.Stages {
			for a := range b.p.s.AttemptsIn(g) {
				end, _ := b.expectedEnd(a, j)
				q.Departure = max(q.Departure, end)
			}
		}
	}
	if o.project.Deadline > 0 && q.Departure > o.project.Deadline {
		return q, backfill.ErrTooLate
	}
	if q.Departure == math.MinInt64 || q.Departure == scheduler.Never {
		return q, errUnknownEnd
	}
	q.Latest = max(q.Latest, q.Departure)
	return q, nil
}
