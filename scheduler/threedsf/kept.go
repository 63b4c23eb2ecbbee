package threedsf

import (
	"cmp"
	"slices"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/backfill"
)

// The plan is kept between cycles. Each time something is to be planned it is
// brought in line with the State: for each owner to whose jobs something happened,
// or of whom what is known has passed by time alone, what attempts and due
// reservations take is described anew and compared with what the profile has, and
// so is the waiting work with what the planner has. Only what differs is changed.
// O(nodes + changes). A plan that is kept holds exactly what one built from the
// State would; TestTheKeptPlanIsTheOneBuiltAnew compares them.

// takeKey names something that takes room in the profile: an attempt, on its node
// or on the one it moves from, or a reservation. An attempt with a promise is its
// owner's, any other its node's.
type takeKey struct {
	attempt     scheduler.AttemptID
	from, node  bool
	reservation scheduler.ReservationID
}

// taking is what it takes, and when; and of which account, -1 for none.
type taking struct {
	bin        int32
	disk       int16
	start, end scheduler.Time
	held       scheduler.Held
	account    int32
	visit      uint64
}

// taker is who has takings: an owner, or a node on which nothing can be made to
// leave.
type taker struct {
	keys    []takeKey
	planned []backfill.Key // reservations of its jobs
	until   scheduler.Time // they stay as they are before then, if nothing happens
	version uint64         // of the node
}

// same tells whether two takings are the same from now on.
func (t *taking) same(o *taking, now scheduler.Time) bool {
	return t.bin == o.bin && t.disk == o.disk && t.end == o.end && t.held == o.held && t.account == o.account &&
		(t.start == o.start || max(t.start, o.start) <= now)
}

// planFor gives the plan in line with the State: the kept one, or a new one where
// the nodes are others.
func (p *Policy) planFor() *plan {
	b := p.plan
	if b == nil || b.spoilt || b.state != p.s || p.now < b.now || !b.sameNodes() {
		b = p.newPlan()
	}
	p.plan = b
	b.begin()
	ids := b.outOfLine()
	for _, id := range ids {
		b.collect(id)
	}
	b.sortOwners()
	b.openAccounts()
	b.occupyFirm()
	for _, id := range b.inOrder(ids) {
		b.describe(id)
	}
	b.planner.Changed()
	return b
}

// newPlan makes an empty plan of the State's nodes.
func (p *Policy) newPlan() *plan {
	c := &p.cfg.Promises
	b := &plan{p: p, state: p.s, nodesAt: p.s.NodeChanges(), prof: &backfill.Profile{}, accounts: &backfill.Profile{}, byKey: map[backfill.Key]*scheduler.Reservation{},
		takings: map[takeKey]*taking{}, known: map[scheduler.ProjectID]*owner{}, takers: map[scheduler.ProjectID]*taker{}, anew: true}
	planner, err := backfill.NewPlanner(backfill.Config{Variant: backfill.FlexibleSF, SF: c.SF, PL: c.PL, MaxTries: c.Tries}, b.prof)
	if err != nil {
		panic("threedsf: " + err.Error()) // New checked it
	}
	b.planner, b.onFirm = planner, map[scheduler.NodeID]*taker{}
	planner.Charge(b.accounts)
	nodes := p.s.Nodes()
	spare := c.Spare
	for _, n := range nodes {
		b.prof.AddNode(&n.Spec)
		b.nodes = append(b.nodes, plannedNode{n.Spec.Capacity, slices.Clone(n.Spec.Disks), n.Takes(), n.Spec.Levels})
		if !canLeave(n) {
			b.firm = append(b.firm, n.Spec.ID)
		}
		if !n.Takes() {
			spare--
		}
	}
	for i := len(nodes) - 1; i >= 0 && spare > 0; i-- {
		if nodes[i].Takes() {
			planner.Spare(int32(i), true)
			spare--
		}
	}
	return b
}

// plannedNode is a node as the plan knows it.
type plannedNode struct {
	capacity scheduler.Resources
	disks    []scheduler.Disk
	takes    bool
	levels   scheduler.LevelSet
}

// sameNodes tells whether the nodes are those of the plan.
func (b *plan) sameNodes() bool {
	if len(b.p.s.Tenants()) < int(b.accounts.Bins()) {
		return false
	}
	if b.nodesAt == b.p.s.NodeChanges() {
		return true
	}
	b.nodesAt = b.p.s.NodeChanges()
	nodes := b.p.s.Nodes()
	if len(nodes) != len(b.nodes) {
		return false
	}
	for i, n := range nodes {
		o := &b.nodes[i]
		if o.capacity != n.Spec.Capacity || o.takes != n.Takes() || o.levels != n.Spec.Levels || !slices.Equal(o.disks, n.Spec.Disks) {
			return false
		}
	}
	return true
}

// begin forgets what was found out for the cycle before.
func (b *plan) begin() {
	b.now = b.p.now
	b.late, b.missing = b.late[:0], b.missing[:0]
	b.prof.Forget(b.p.now)
	b.accounts.Forget(b.p.now)
	b.planner.Recheck()
}

// outOfLine lists the owners to look at again: those to whose jobs something happened, those of whom
// what is known has passed, those who ask, and those of whom the State does not say
// what the plan says. All, where too much has happened.
func (b *plan) outOfLine() []scheduler.ProjectID {
	s := b.p.s
	ids := b.ids[:0]
	last := scheduler.Worked{}
	all := b.anew || !s.WorkSince(b.work, func(w scheduler.Worked) {
		if w == last {
			return
		}
		if last = w; w.Project != 0 {
			ids = append(ids, w.Project)
		} else if j := s.Job(w.Job); j == nil || j.Spec.Deadline != 0 || j.Spec.Accepted || j.Promises != 0 || b.takers[ownAlone(w.Job)] != nil {
			ids = append(ids, ownAlone(w.Job))
		}
	})
	b.anew, b.work = false, s.Work()
	if all {
		for j := range s.Jobs() {
			ids = append(ids, ownerOf(j))
		}
	}
	for id, t := range b.takers { // they are sorted below
		if all || t.until <= b.p.now {
			ids = append(ids, id)
		}
	}
	for id, o := range b.known {
		if all || o.asked || o.unsettled {
			ids = append(ids, id)
		}
	}
	if s.Jobless() > 0 {
		ids = append(ids, 0)
	}
	slices.Sort(ids)
	b.ids = slices.Compact(ids)
	return b.ids
}

// collect brings an owner's jobs and reservations in line: it becomes one of the
// owners, stays one, or is one no more.
func (b *plan) collect(id scheduler.ProjectID) {
	t := b.takers[id]
	if t == nil {
		t = &taker{}
		b.takers[id] = t
	}
	for _, k := range t.planned {
		delete(b.byKey, k)
	}
	t.planned = t.planned[:0]
	o := b.known[id]
	if o != nil {
		o.jobs = o.jobs[:0]
	}
	for _, j := range b.jobsOf(id) {
		for _, r := range j.Reservations() {
			if planned(r) {
				k := backfill.Key{Job: r.Job, Stage: r.Stage, Task: r.Task}
				b.byKey[k] = r
				t.planned = append(t.planned, k)
			}
		}
		if j.Phase != scheduler.JobActive || (j.Spec.Project == 0 && j.Spec.Deadline == 0) {
			continue
		}
		stands := b.p.standing(j)
		if stands == free {
			continue
		}
		if o == nil {
			o = &owner{id: id}
			b.known[id] = o
			b.owners, b.reorder = append(b.owners, o), true
		}
		if len(o.jobs) == 0 {
			o.asked = stands == asks
		}
		o.jobs = append(o.jobs, j)
	}
	if o == nil {
		return
	}
	if len(o.jobs) == 0 {
		b.planner.Remove(id)
		delete(b.known, id)
		b.reorder = true
		return
	}
	if at := b.submitted(o); at != o.submitted {
		o.submitted, b.reorder = at, true
	}
	o.quote, o.touched = backfill.Quote{}, true
}

// inOrder brings owners in promise order, behind those who are none any more: what
// is late or missing is listed in this order.
func (b *plan) inOrder(ids []scheduler.ProjectID) []scheduler.ProjectID {
	slices.SortFunc(ids, func(x, y scheduler.ProjectID) int {
		switch o, q := b.known[x], b.known[y]; {
		case o != nil && q != nil:
			return inPromiseOrder(o, q)
		case o == nil && q == nil:
			return cmp.Compare(x, y)
		case o == nil:
			return -1
		default:
			return 1
		}
	})
	return ids
}

// jobsOf lists the jobs of an owner by id, none for the owner 0.
func (b *plan) jobsOf(id scheduler.ProjectID) []*scheduler.Job {
	s := b.p.s
	b.jobs = b.jobs[:0]
	if id>>63 == 1 {
		if j := s.Job(scheduler.JobID(id &^ (1 << 63))); j != nil {
			b.jobs = append(b.jobs, j)
		}
	} else if pr := s.Project(id); pr != nil {
		for _, k := range pr.Jobs {
			b.jobs = append(b.jobs, s.Job(k))
		}
	}
	return b.jobs
}

// sortOwners has the owners in promise order, without those that are none any
// more.
func (b *plan) sortOwners() {
	if !b.reorder {
		return
	}
	b.reorder = false
	b.owners = slices.DeleteFunc(b.owners, func(o *owner) bool { return b.known[o.id] != o })
	slices.SortFunc(b.owners, inPromiseOrder)
}

func inPromiseOrder(x, y *owner) int {
	return cmp.Or(cmp.Compare(x.submitted, y.submitted), cmp.Compare(x.id, y.id))
}

// describe has the profile and the planner hold what an owner's jobs take and
// wait for.
func (b *plan) describe(id scheduler.ProjectID) {
	t := b.takers[id]
	b.beginTaker()
	b.occupy(id)
	o := b.known[id]
	if o != nil {
		b.restore(o)
	}
	b.endTaker(t)
	if o == nil && len(t.keys) == 0 && len(t.planned) == 0 {
		delete(b.takers, id)
	}
}

// beginTaker starts to describe what one taker takes.
func (b *plan) beginTaker() {
	b.visit++
	b.holding, b.until = b.holding[:0], scheduler.Never
}

// endTaker gives back what a taker takes no more.
func (b *plan) endTaker(t *taker) {
	for _, key := range t.keys {
		if x := b.takings[key]; x != nil && x.visit != b.visit {
			b.change(x, 1)
			delete(b.takings, key)
		}
	}
	t.keys = append(t.keys[:0], b.holding...)
	t.until = b.until
}

// occupyFirm takes what runs without a promise on nodes on which nothing can be
// made to leave.
func (b *plan) occupyFirm() {
	s := b.p.s
	for _, id := range b.firm {
		t := b.onFirm[id]
		if t == nil {
			t = &taker{}
			b.onFirm[id] = t
		}
		v := s.NodeVersion(id)
		if t.version == v && b.p.now < t.until {
			continue
		}
		b.beginTaker()
		for a := range s.AttemptsOn(id) {
			if j := s.StageOf(a).Job; !s.Firm(j) {
				b.take(a, j, true)
			}
		}
		b.endTaker(t)
		t.version = v
	}
}

// hold has the profile hold what something takes.
func (b *plan) hold(key takeKey, t taking) {
	now := b.p.now
	if t.end <= now {
		return
	}
	t.visit = b.visit
	b.holding = append(b.holding, key)
	old := b.takings[key]
	if old != nil && old.same(&t, now) {
		old.visit = b.visit
		return
	}
	if old != nil {
		b.change(old, 1)
		*old = t
	} else {
		old = &taking{}
		*old = t
		b.takings[key] = old
	}
	b.change(&t, -1)
}

// change takes what t says from now on, or with sign 1 gives it back.
func (b *plan) change(t *taking, sign int64) {
	from := max(t.start, b.p.now)
	if from >= t.end {
		return
	}
	need := backfill.NodeNeed(t.held.Resources, t.held.Disk)
	if t.disk < 0 {
		need.IO, need.Space = 0, 0
	}
	total := backfill.Need{Base: t.held.Resources[:]}
	if sign < 0 {
		b.prof.Take(t.bin, t.disk, from, t.end, &need)
		if t.account >= 0 {
			b.accounts.Take(t.account, -1, from, t.end, &total)
		}
		return
	}
	b.prof.Give(t.bin, t.disk, from, t.end, &need)
	if t.account >= 0 {
		b.accounts.Give(t.account, -1, from, t.end, &total)
	}
	b.planner.Freed(t.bin)
}

// bringIn restores an owner's waiting work where it is not in the planner as it
// stands.
func (b *plan) bringIn(o *owner, next *backfill.Project) {
	if o.stands && !o.asked && o.in.Submitted == next.Submitted && o.in.High == next.High && o.in.Deadline == next.Deadline &&
		o.in.Account == next.Account && slices.EqualFunc(o.in.Requests, next.Requests, sameRequest) && b.agrees(o) {
		return
	}
	if o.in.ID != 0 {
		b.planner.Remove(o.id)
	}
	o.in = *next
	o.in.Requests = slices.Clone(next.Requests)
	for i := range o.in.Requests {
		r := &o.in.Requests[i]
		r.Tasks = slices.Clone(r.Tasks)
	}
	spot := func(k backfill.Key) (at backfill.Spot, started, pinned, here bool) {
		at, here = b.reserved(k)
		return at, false, false, here
	}
	if err := b.planner.Restore(o.in, o.quote, !o.asked, spot); err != nil {
		panic("threedsf: a job that State took cannot be planned: " + err.Error())
	}
	o.stands = !o.asked
}

// reserved is where a task is planned by the State.
func (b *plan) reserved(k backfill.Key) (at backfill.Spot, here bool) {
	r := b.byKey[k]
	if r == nil || b.gone(r) || b.p.expired(r) {
		return at, false
	}
	return backfill.Spot{Bin: int32(r.Node), Disk: r.OnDisk, At: r.Start}, true
}

// agrees tells whether the planner has an owner's work where the State has it,
// and the same promise.
func (b *plan) agrees(o *owner) bool {
	if q, ok := b.planner.Promised(o.id); !ok || q != o.quote {
		return false
	}
	for i := range o.in.Requests {
		r := &o.in.Requests[i]
		for _, task := range r.Tasks {
			k := backfill.Key{Job: r.Job, Stage: r.Stage, Task: task}
			at, here := b.reserved(k)
			spot, _, ok := b.planner.At(k)
			if ok != here || (ok && spot != at) {
				return false
			}
		}
	}
	return true
}

func sameRequest(a, b backfill.Request) bool {
	return a.Job == b.Job && a.Stage == b.Stage && a.Bound == b.Bound && a.NotBefore == b.NotBefore && a.Need.IO == b.Need.IO &&
		a.Need.Space == b.Need.Space && slices.Equal(a.Need.Base, b.Need.Base) && slices.Equal(a.Tasks, b.Tasks) && slices.Equal(a.After, b.After)
}
