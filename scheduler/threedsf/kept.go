package threedsf

import (
	"maps"
	"slices"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/backfill"
)

// The plan is kept between cycles. Each time something is to be planned it is
// brought in line with the State: what attempts and due reservations take is
// described anew and compared with what the profile has, and so is the waiting
// work of each owner with what the planner has. Only what differs is changed, so
// that it costs little more than looking: O(promised attempts + reservations).
// A plan that is kept holds exactly what one built from the State would;
// TestTheKeptPlanIsTheOneBuiltAnew compares them.

// takeKey names something that takes room in the profile: an attempt, on its node
// or on the one it moves from, or a reservation.
type takeKey struct {
	attempt     scheduler.AttemptID
	from        bool
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

// same tells whether two takings are the same from now on.
func (t *taking) same(o *taking, now scheduler.Time) bool {
	return t.bin == o.bin && t.disk == o.disk && t.end == o.end && t.held == o.held && t.account == o.account &&
		(t.start == o.start || max(t.start, o.start) <= now)
}

// planFor gives the plan in line with the State: the kept one, or a new one where
// the nodes are others.
func (p *Policy) planFor() *plan {
	b := p.plan
	if b == nil || b.spoilt || !b.sameNodes() {
		b = p.newPlan()
	}
	p.plan = b
	b.begin()
	b.collect()
	b.openAccounts()
	b.occupy()
	b.restore()
	b.giveBack()
	b.planner.Changed()
	return b
}

// newPlan makes an empty plan of the State's nodes.
func (p *Policy) newPlan() *plan {
	c := &p.cfg.Promises
	b := &plan{p: p, prof: &backfill.Profile{}, accounts: &backfill.Profile{}, byKey: map[backfill.Key]*scheduler.Reservation{},
		takings: map[takeKey]*taking{}, known: map[scheduler.ProjectID]*owner{}}
	planner, err := backfill.NewPlanner(backfill.Config{Variant: backfill.FlexibleSF, SF: c.SF, PL: c.PL, MaxTries: c.Tries}, b.prof)
	if err != nil {
		panic("threedsf: " + err.Error()) // New checked it
	}
	b.planner = planner
	planner.Charge(b.accounts)
	nodes := p.s.Nodes()
	spare := c.Spare
	for _, n := range nodes {
		b.prof.AddNode(&n.Spec)
		b.nodes = append(b.nodes, plannedNode{n.Spec.Capacity, slices.Clone(n.Spec.Disks), n.Takes()})
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
}

// sameNodes tells whether the nodes are those of the plan.
func (b *plan) sameNodes() bool {
	nodes := b.p.s.Nodes()
	if len(nodes) != len(b.nodes) || len(b.p.s.Tenants()) < int(b.accounts.Bins()) {
		return false
	}
	for i, n := range nodes {
		o := &b.nodes[i]
		if o.capacity != n.Spec.Capacity || o.takes != n.Takes() || !slices.Equal(o.disks, n.Spec.Disks) {
			return false
		}
	}
	return true
}

// begin forgets what was found out for the cycle before.
func (b *plan) begin() {
	b.visit++
	b.late, b.missing, b.owners = b.late[:0], b.missing[:0], b.owners[:0]
	clear(b.byKey)
	b.prof.Forget(b.p.now)
	b.accounts.Forget(b.p.now)
	b.planner.Recheck()
}

// hold has the profile hold what something takes.
func (b *plan) hold(key takeKey, t taking) {
	now := b.p.now
	if t.end <= now {
		return
	}
	t.visit = b.visit
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

// giveBack gives back what nothing takes any more.
func (b *plan) giveBack() {
	for key, t := range b.takings { // the sum does not depend on the order
		if t.visit != b.visit {
			b.change(t, 1)
			delete(b.takings, key)
		}
	}
}

// ownerFor gives the owner of a project or a job with what is known of it, once
// a cycle.
func (b *plan) ownerFor(id scheduler.ProjectID) (o *owner, first bool) {
	o = b.known[id]
	if o == nil {
		o = &owner{id: id}
		b.known[id] = o
	}
	if o.visit == b.visit {
		return o, false
	}
	o.visit, o.asked, o.jobs, o.quote = b.visit, false, o.jobs[:0], backfill.Quote{}
	b.owners = append(b.owners, o)
	return o, true
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

// dropGone takes out of the planner who has no promise any more and wishes none.
func (b *plan) dropGone() {
	if len(b.known) == len(b.owners) {
		return
	}
	for _, id := range slices.Sorted(maps.Keys(b.known)) {
		if b.known[id].visit != b.visit {
			b.planner.Remove(id)
			delete(b.known, id)
		}
	}
}

func sameRequest(a, b backfill.Request) bool {
	return a.Job == b.Job && a.Stage == b.Stage && a.Bound == b.Bound && a.NotBefore == b.NotBefore && a.Need.IO == b.Need.IO &&
		a.Need.Space == b.Need.Space && slices.Equal(a.Need.Base, b.Need.Base) && slices.Equal(a.Tasks, b.Tasks) && slices.Equal(a.After, b.After)
}
