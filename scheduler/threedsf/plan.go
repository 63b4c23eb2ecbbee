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

// plan is the reservation profile of all promises, kept in line with the State
// when something has to be planned (planFor): a bin for each node, an account for
// each tenant. What runs under a promise, or cannot be made to leave, is in it
// until its bound; what waits under a promise has a piece of work in the planner;
// what is due but has not begun yet keeps its room as it is.
type plan struct {
	p        *Policy
	prof     *backfill.Profile
	accounts *backfill.Profile
	planner  *backfill.Planner
	nodes    []plannedNode
	takings  map[takeKey]*taking
	visit    uint64                         // counts who was described
	takers   map[scheduler.ProjectID]*taker // who takes room: owners, and those who were refused and run
	firm     []scheduler.NodeID             // nodes on which nothing can be made to leave
	onFirm   map[scheduler.NodeID]*taker
	byKey    map[backfill.Key]*scheduler.Reservation
	known    map[scheduler.ProjectID]*owner // all owners in the planner
	owners   []*owner                       // the same, in promise order
	reorder  bool                           // they are not
	spoilt   bool                           // it must not be kept

	// When it was brought in line:
	state   *scheduler.State
	work    uint64
	nodesAt uint64
	now     scheduler.Time
	anew    bool // never yet

	foresight foresight

	// Of this cycle:
	late    []backfill.Key // were not begun in time
	missing []backfill.Key // have no place: they failed, or there was none
	moves   int            // to earlier instants that may still be carried out

	// Scratch:
	next    backfill.Project // an owner as the State has it
	until   scheduler.Time   // what is known of the taker at hand holds until then
	holding []takeKey        // what it takes
	ids     []scheduler.ProjectID
	jobs    []*scheduler.Job
	least   []scheduler.Resources
	bases   []scheduler.Resources // what each tenant's promises may take, as the accounts have it
}

// owner is a project, or a job by itself, with a promise or a wish for one.
type owner struct {
	id        scheduler.ProjectID
	jobs      []*scheduler.Job // one or more, by id
	asked     bool
	quote     backfill.Quote
	in        backfill.Project
	submitted scheduler.Time
	stands    bool // in the planner as it is in in, with its promise
	touched   bool // the plan may say otherwise than the State
	unsettled bool // it did at the end of the cycle before
}

// walkAtOnce is how many pieces of work are looked at in one cycle when holes are
// given forward.
const walkAtOnce = 2048

// keepPromises plans what has to be planned and brings the State's reservations
// and notes in line. O(jobs + nodes + reservations) where there is anything to
// plan, and for each new task what finding its place costs: O(nodes) at worst.
func (p *Policy) keepPromises() {
	p.survey()
	q := &p.promise
	for _, n := range q.broke {
		p.note(n)
	}
	if q.asked == 0 && !q.wrong && !q.walk {
		return
	}
	b := p.planFor()
	q.plan = b
	// 1. What was lost or could not begin in time is planned anew.
	b.mend()
	// 2. Holes are given forward, to some in this cycle and on from there in the next;
	// 3. new promises are made or refused. Both leave accepted deadlines their room.
	var refused []scheduler.Note
	if q.walk || q.asked > 0 {
		b.foresee()
		if q.walk {
			_, q.next, q.done = b.planner.WalkSome(p.now, q.from, p.walk)
		}
		refused = b.judge()
		b.forgetForeseen(0)
	}
	// 4. The State says what the plan says.
	b.carryOut(refused)
}

// submitted is when an owner was submitted.
func (b *plan) submitted(o *owner) scheduler.Time {
	if pr := b.p.s.Project(o.jobs[0].Spec.Project); pr != nil {
		return pr.Spec.Submitted
	}
	return o.jobs[0].Spec.Submitted
}

// account is the tenant whose account an owner is charged to.
func (b *plan) account(o *owner) scheduler.TenantID {
	if pr := b.p.s.Project(o.jobs[0].Spec.Project); pr != nil {
		return pr.Spec.Tenant
	}
	return o.jobs[0].Spec.Tenant
}

// openAccounts gives each tenant what its promises may take: its share of all
// there is, at least one task of what it asks for at a time.
func (b *plan) openAccounts() {
	s := b.p.s
	shares := b.p.promiseShares()
	b.least = append(b.least[:0], make([]scheduler.Resources, len(shares))...)
	least := b.least
	for _, o := range b.owners {
		if !o.asked {
			continue
		}
		t := b.account(o)
		for _, j := range o.jobs {
			for _, g := range j.Stages {
				least[t] = least[t].Max(g.Spec.Demand)
			}
		}
	}
	for t, share := range shares {
		var base scheduler.Resources
		for r, v := range s.Total() {
			base[r] = max(int64(share*float64(v)), least[t][r])
		}
		for id, n := scheduler.TenantID(t), 0; id != scheduler.NoTenant && n <= scheduler.MaxTenantDepth; n++ {
			above := s.Tenant(id)
			for r, most := range above.Spec.Caps.Total {
				if most > 0 {
					base[r] = min(base[r], most)
				}
			}
			id = above.Spec.Parent
		}
		switch {
		case t >= len(b.bases):
			b.accounts.AddBin(base[:])
			b.bases = append(b.bases, base)
		case base != b.bases[t]:
			b.accounts.Resize(int32(t), base[:])
			b.bases[t] = base
		}
	}
}

// overCaps tells whether one task of a job, or all that waits of it at once,
// would be over a cap: then nobody can say how it goes on.
func (b *plan) overCaps(j *scheduler.Job) bool {
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

// promiseShares is promise_share for each tenant: as configured, or its weighted
// fair share among those that have work.
func (p *Policy) promiseShares() []float64 {
	tenants := p.s.Tenants()
	out := make([]float64, len(tenants))
	if p.cfg.Promises.Share > 0 {
		for i := range out {
			out[i] = p.cfg.Promises.Share
		}
		return out
	}
	works := make([]bool, len(tenants))
	for id, x := range tenants {
		if x.Jobs == 0 {
			continue
		}
		t := scheduler.TenantID(id)
		for n := 0; t != scheduler.NoTenant && !works[t] && n <= scheduler.MaxTenantDepth; n++ {
			works[t] = true
			t = tenants[t].Spec.Parent
		}
	}
	sums := make([]float64, len(tenants)+1) // of the weights below each, those at the root last
	at := func(parent scheduler.TenantID) *float64 {
		if parent == scheduler.NoTenant {
			return &sums[len(tenants)]
		}
		return &sums[parent]
	}
	for i, t := range tenants {
		if works[i] {
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

// occupy takes what attempts of an owner's jobs hold that make room for no
// promise, and what is reserved for them otherwise; for the owner 0 what is
// reserved for no job.
func (b *plan) occupy(id scheduler.ProjectID) {
	s := b.p.s
	fix := func(list []*scheduler.Reservation) {
		for _, r := range list {
			if r.Kind.Promise() && !planned(r) && r.Node != scheduler.NoNode && r.End > b.p.now && (r.Job == 0) == (id == 0) {
				b.fix(r, -1)
			}
		}
	}
	if id == 0 {
		fix(s.Reservations())
	}
	for _, j := range b.jobsOf(id) {
		fix(j.Reservations())
		if j.Live == 0 || !s.Firm(j) {
			continue
		}
		for _, g := range j.Stages {
			for a := range s.AttemptsIn(g) {
				b.take(a, j, false)
			}
		}
	}
}

// overdueStay is how long a task that should be gone, and cannot be made to
// leave, is taken to stay.
const overdueStay = 10 * time.Second

// take takes what an attempt holds until it should be gone.
func (b *plan) take(a *scheduler.Attempt, j *scheduler.Job, node bool) {
	now := b.p.now
	end, fixed := b.endOf(a, j)
	b.holdsUntil(end, fixed)
	if end <= now {
		return
	}
	t := taking{bin: int32(a.Node), disk: a.Disk, start: now, end: end, held: a.Held, account: -1}
	if a.Level.Suspended() { // it comes back
		t.held = scheduler.Held{Resources: a.Demand, Disk: a.DiskSpace}
	}
	if b.p.s.Firm(j) {
		t.account = int32(a.Tenant)
	}
	b.hold(takeKey{attempt: a.ID, node: node}, t)
	if a.From != scheduler.NoNode {
		b.holdsUntil(now, false)
		b.hold(takeKey{attempt: a.ID, from: true, node: node}, taking{bin: int32(a.From), disk: a.FromDisk, start: now, end: now.Add(overdueStay), held: a.FromHeld, account: -1})
	}
}

// holdsUntil says that what is known of the taker at hand changes at an instant,
// or where it is not fixed, as time passes.
func (b *plan) holdsUntil(at scheduler.Time, fixed bool) {
	if !fixed {
		at = b.p.now
	}
	b.until = min(b.until, at)
}

// endOf is until when an attempt is taken to stay: by its bound or by what is
// predicted of it; what ran past its bound makes room if the node can make it.
// What is not fixed moves on with time.
func (b *plan) endOf(a *scheduler.Attempt, j *scheduler.Job) (at scheduler.Time, fixed bool) {
	now := b.p.now
	yields := !b.p.inLane(j) && b.p.isBroken(j) && canLeave(b.p.s.Node(a.Node))
	switch end, known := locality.EndOf(b.p.s, a); {
	case a.Level.Suspended() && j.Spec.Bound > 0:
		return now.Add(max(j.Spec.Bound-a.Ran, overdueStay)), false
	case a.Level.Suspended():
		return scheduler.Never, true
	case j.Spec.Bound > 0 && b.p.boundOf(a, j) > now:
		return b.p.boundOf(a, j), true
	case j.Spec.Bound > 0 && yields:
		return now, false
	case j.Spec.Bound > 0:
		return now.Add(overdueStay), false
	case !b.p.s.Firm(j):
		return scheduler.Never, true
	case known && end > now:
		return end, true
	default:
		return now.Add(overdueStay), false
	}
}

func canLeave(n *scheduler.Node) bool {
	return n.Spec.Levels.Has(scheduler.LevelSwapped) || n.Spec.Levels.Has(scheduler.LevelCheckpointed)
}

// fix takes a reservation as it is, on an account or with -1 on none.
func (b *plan) fix(r *scheduler.Reservation, account int32) {
	disk := r.OnDisk
	if int(disk) >= b.prof.Disks(int32(r.Node)) {
		disk = int16(b.prof.Disks(int32(r.Node))) - 1
	}
	b.hold(takeKey{reservation: r.ID}, taking{bin: int32(r.Node), disk: disk, start: r.Start, end: r.End,
		held: scheduler.Held{Resources: r.Demand, Disk: r.Disk}, account: account})
}

// restore brings an owner's waiting tasks into the planner.
func (b *plan) restore(o *owner) {
	account := b.account(o)
	b.next = backfill.Project{ID: o.id, Submitted: o.submitted, Account: int32(account) + 1, Requests: b.next.Requests[:0]}
	if pr := b.p.s.Project(o.jobs[0].Spec.Project); pr != nil {
		b.next.High = pr.Spec.Priority == scheduler.PriorityHigh
	} else {
		b.next.Deadline = o.jobs[0].Spec.Deadline
	}
	if !o.asked {
		o.quote = b.promised(o, b.next.Deadline)
	}
	for _, j := range o.jobs {
		for _, g := range j.Stages {
			b.request(o, g, account)
		}
	}
	b.bringIn(o, &b.next)
}

// gone tells whether the disk that a reservation is on is not there any more.
func (b *plan) gone(r *scheduler.Reservation) bool {
	disk := r.OnDisk
	if disk >= 0 {
		return int(disk) >= b.prof.Disks(int32(r.Node))
	}
	g := b.p.s.Stage(scheduler.StageID{Job: r.Job, Stage: r.Stage})
	return g.Spec.Demand[scheduler.IO] > 0 || g.Spec.Disk > 0
}

// promised is what an owner was promised.
func (b *plan) promised(o *owner, deadline scheduler.Time) backfill.Quote {
	s := b.p.s
	if deadline > 0 {
		n, _ := s.Note(noteKey(scheduler.NoteAccepted, o.id))
		return backfill.Quote{Departure: n.At, Latest: deadline}
	}
	promise, _ := s.Note(noteKey(scheduler.NotePromise, o.id))
	latest, _ := s.Note(noteKey(scheduler.NoteLatestStart, o.id))
	return backfill.Quote{Departure: promise.At, Latest: latest.At}
}

// request adds the waiting tasks of a stage to what is known of its owner. Those
// that are due keep their room where they are.
func (b *plan) request(o *owner, g *scheduler.Stage, account scheduler.TenantID) {
	if g.Pending == 0 {
		return
	}
	span := b.p.spanOf(g)
	if span <= 0 {
		span = overdueStay // its owner is refused, or was promised by somebody who knew more
	}
	list := &b.next.Requests
	*list = slices.Grow(*list, 1)[:len(*list)+1]
	r := &(*list)[len(*list)-1]
	*r = backfill.Request{Job: g.Job.Spec.ID, Stage: g.Index, Tasks: r.Tasks[:0], Need: backfill.NodeNeed(g.Spec.Demand, g.Spec.Disk), Bound: span,
		NotBefore: b.notBefore(g)}
	if !g.Open {
		r.After = g.Spec.After
	}
	for i := g.NextPending(0); i >= 0; i = g.NextPending(i + 1) {
		k := backfill.Key{Job: r.Job, Stage: r.Stage, Task: i}
		switch v := b.byKey[k]; {
		case v == nil || b.gone(v):
			b.holdsUntil(b.p.now, false)
			if !o.asked {
				b.missing = append(b.missing, k)
			}
		case b.p.expired(v):
			b.holdsUntil(b.p.now, false)
			b.late = append(b.late, k)
		case v.Start > b.p.now:
			b.holdsUntil(v.Start, true)
		default:
			b.holdsUntil(b.p.lastStart(v).Add(1), true)
			if b.p.s.Node(v.Node).Takes() {
				b.fix(v, int32(account))
				continue
			}
		}
		r.Tasks = append(r.Tasks, i)
	}
	if len(r.Tasks) == 0 {
		*list = (*list)[:len(*list)-1]
	}
}

// notBefore is when what runs or is due of the stages before one should have
// ended.
func (b *plan) notBefore(g *scheduler.Stage) scheduler.Time {
	at := scheduler.Time(0)
	if g.Open {
		return at
	}
	for _, before := range g.Spec.After {
		f := g.Job.Stages[before]
		for a := range b.p.s.AttemptsIn(f) {
			end, fixed := b.endOf(a, g.Job)
			b.holdsUntil(end, fixed)
			at = max(at, end)
		}
		for i := f.NextPending(0); i >= 0; i = f.NextPending(i + 1) {
			if r := b.byKey[backfill.Key{Job: g.Job.Spec.ID, Stage: before, Task: i}]; r != nil && r.Start <= b.p.now {
				at = max(at, r.End)
			}
		}
	}
	if at == scheduler.Never {
		b.holdsUntil(b.p.now, false)
		at = b.p.now.Add(overdueStay)
	}
	return at
}

// mend plans again what was lost, what does not fit any more and what could not
// begin in time, and says whose promise breaks by it.
func (b *plan) mend() {
	now := b.p.now
	b.broke(b.planner.Replan(now, backfill.CauseLate, b.late...))
	b.broke(b.planner.Replan(now, backfill.CauseFailed, b.missing...))
	for _, n := range b.p.s.Nodes() {
		if !n.Takes() && b.holdsOn(n.Spec.ID) {
			b.spoilt = true // a spare node may stand in for it
			b.broke(b.planner.Lose(int32(n.Spec.ID), now))
		}
	}
	cause := backfill.CauseNodeLost
	for _, n := range b.p.promise.broke {
		if n.Slot == int32(backfill.CauseOverrun) {
			cause = backfill.CauseOverrun
		}
	}
	b.broke(b.planner.Repair(now, cause))
}

// holdsOn tells whether anything is planned on a node.
func (b *plan) holdsOn(n scheduler.NodeID) bool {
	return slices.ContainsFunc(b.p.s.ReservationsOn(n), planned)
}

// broke notes promises that do not hold any more, once each.
func (b *plan) broke(list []backfill.Broken) {
	for _, x := range list {
		o := b.known[x.Project]
		if o == nil || o.asked || b.p.isBroken(o.jobs[0]) {
			continue
		}
		o.touched = true
		n := len(b.p.promise.broke)
		b.p.tell(x.Project, x.Cause)
		for _, k := range b.p.promise.broke[n:] {
			b.p.note(k)
		}
	}
}

// judge plans those who asked, first come first, as many as the cycle has actions
// for, and says whose wish is refused and what could be promised instead.
func (b *plan) judge() []scheduler.Note {
	var refused []scheduler.Note
	actions := 0
	for _, o := range b.owners {
		if !o.asked || actions >= b.p.left {
			continue
		}
		q, err := b.accept(o)
		if err == nil {
			o.quote = q
			actions += b.unreserved(o)
			continue
		}
		n := scheduler.Note{NoteKey: noteKey(scheduler.NoteRefused, o.id), Value: int64(o.in.Deadline)}
		if errors.Is(err, backfill.ErrTooLate) {
			n.At = q.Departure
		}
		refused = append(refused, n)
		for _, r := range o.in.Requests {
			for _, i := range r.Tasks {
				b.planner.End(backfill.Key{Job: r.Job, Stage: r.Stage, Task: i}, b.p.now)
			}
		}
	}
	return refused
}

// unreserved counts the tasks of an owner that the State does not have where they
// are planned: of some that asked in a cycle that was full it has the first ones.
func (b *plan) unreserved(o *owner) (n int) {
	for i := range o.in.Requests {
		r := &o.in.Requests[i]
		for _, task := range r.Tasks {
			k := backfill.Key{Job: r.Job, Stage: r.Stage, Task: task}
			at, here := b.reserved(k)
			if spot, _, ok := b.planner.At(k); ok && (!here || spot != at) {
				n++
			}
		}
	}
	return n
}

// errUnknown is for work nobody can say the end of.
var errUnknown = errors.New("its end is not known")

// accept plans one owner. A promise needs an end: a project's jobs need bounds, a
// deadline job's stages bounds or predictions. A stage of more tasks than may run
// at once, or a job beyond a cap, has no plan.
func (b *plan) accept(o *owner) (backfill.Quote, error) {
	for _, j := range o.jobs {
		if b.overCaps(j) {
			return backfill.Quote{}, errUnknown
		}
		for _, g := range j.Stages {
			if g.Remaining() == 0 {
				continue
			}
			partly := g.Spec.MaxParallel > 0 && g.Pending+g.Running+g.Suspended > g.Spec.MaxParallel
			if partly || (j.Spec.Project != 0 && j.Spec.Bound <= 0) || b.p.spanOf(g) <= 0 {
				return backfill.Quote{}, errUnknown
			}
		}
	}
	q, err := b.planner.Complete(b.p.now, o.id)
	if err != nil {
		return q, err
	}
	// What runs already counts too.
	for _, j := range o.jobs {
		for _, g := range j.Stages {
			for a := range b.p.s.AttemptsIn(g) {
				end, _ := b.endOf(a, j)
				q.Departure = max(q.Departure, end)
			}
		}
	}
	if o.in.Deadline > 0 && q.Departure > o.in.Deadline {
		return q, backfill.ErrTooLate
	}
	if q.Departure == math.MinInt64 || q.Departure == scheduler.Never {
		return q, errUnknown
	}
	q.Latest = max(q.Latest, q.Departure)
	return q, nil
}
