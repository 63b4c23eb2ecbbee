package backfill

import (
	"math"
	"slices"

	"github.com/drover-run/drover/scheduler"
)

// rounds records what the planner has changed in its round, to undo it.
type rounds struct {
	touched   []*item // items that may have left their reservation
	altered   []alteredProject
	round     uint32     // of NextRound
	searched  bool       // see NextRound
	withdrawn slab[item] // the items of Withdraw and Occupy
	likeLast  *group     // group of the last withdrawn item, nil for none
}

// alteredProject is a project whose guarantee changed in this round, with its former guarantee.
type alteredProject struct {
	project    *project
	guaranteed bool
	guarantee  Guarantee
}

// Reset empties the planner for other profiles. They may belong to another owner, whose reservations are those
// passed to Restore: Close undoes the tries. accounts may be nil, and caps; caps must be nil if accounts is.
func (p *Planner) Reset(prof, accounts, caps *Profile) {
	p.now, p.changed, p.numKept = 0, false, 0
	p.space = space{prof, accounts, caps}
	p.registry.reset()
	p.bins.reset()
	p.journal = journal{log: p.journal.log[:0]}
	clear(p.classes.byKey)
	p.classes.classified = false
	p.placement.delayed = p.placement.delayed[:0]
	p.repairs = repairs{unchecked: p.repairs.unchecked[:0], repairedPos: math.MaxUint64, overloadedBins: p.repairs.overloadedBins[:0], suspectBins: p.repairs.suspectBins}
	o := &p.rounds
	o.withdrawn.reset()
	*o = rounds{round: 1, withdrawn: o.withdrawn, touched: o.touched[:0], altered: o.altered[:0]}
}

// NextRound prepares the planner for other tries on the same profiles, after Close, as Reset and
// Restore of the same projects would; their reservations must not have changed. It forgets the
// projects of which a task was tried elsewhere, and yields them. The caller restores these, and
// restores changed projects after Forget. searched applies to each task for which Existing.Searched
// was true. O(bins + changes of the last round).
func (p *Planner) NextRound(searched bool, forgotten func(scheduler.ProjectID)) {
	for _, a := range slices.Backward(p.rounds.altered) {
		if p.registry.projects[a.project.ID] == a.project {
			a.project.guaranteed, a.project.guarantee = a.guaranteed, a.guarantee
			if a.project.violated {
				a.project.violated = false
				p.repairs.markUnchecked(a.project)
			}
		}
	}
	p.rounds.withdrawn.reset()
	for _, it := range p.rounds.touched {
		if it.group == nil || it.group.project == nil { // withdrawn, or its project is forgotten by now
			continue
		}
		if pr := it.group.project; p.registry.projects[pr.ID] == pr {
			id := pr.ID
			p.Forget(id)
			forgotten(id)
		}
	}
	p.rounds.altered, p.rounds.touched = p.rounds.altered[:0], p.rounds.touched[:0]
	p.classes.dropUnused(len(p.registry.submitOrder))
	for i := range p.bins.states {
		p.bins.states[i].freedClock = 0
	}
	p.bins.recentlyFreed, p.bins.freeClock = p.bins.recentlyFreed[:0], 0
	p.repairs.overloadedBins, p.repairs.repairedPos = p.repairs.overloadedBins[:0], math.MaxUint64
	p.changed = false
	p.rounds.searched = searched
	p.rounds.round++
}

// Forget removes a project from a planner that has changed nothing since NextRound.
// Unknown projects are ignored. O(its tasks).
func (p *Planner) Forget(id scheduler.ProjectID) {
	pr := p.registry.projects[id]
	if pr == nil {
		return
	}
	for it := range pr.items {
		if it.placed {
			p.bins.unlink(it)
		}
		if it.home.Kept {
			p.numKept--
		}
	}
	p.registry.unregister(p, pr)
	p.repairs.unmarkUnchecked(pr)
	p.registry.memory.recycle(pr)
}

func (o *rounds) alter(pr *project) {
	o.altered = append(o.altered, alteredProject{pr, pr.guaranteed, pr.guarantee})
}

// syncSearched resets an item's searched fields for this round, in which it was not searched for
// yet.
func (o *rounds) syncSearched(it *item) {
	if it.searched.round == o.round {
		return
	}
	it.searched = searched{from: it.spot.At, round: o.round}
	if o.searched && it.wasSearched {
		it.searched.from = 0
	}
}

// Close restores the profiles to their state before the first call of Restore. The plan can still
// be read; nothing more can be planned.
func (p *Planner) Close() {
	for _, it := range p.rounds.touched {
		if it.isAtHome() {
			continue
		}
		if it.placed {
			p.space.occupy(it, &it.spot, it.end, &it.group.req.Need, 1)
			p.space.occupyBeyond(it, 1)
		}
		if it.home.Kept {
			p.space.occupy(it, &it.home.Spot, it.home.End, &it.home.Need, -1)
		}
	}
}

func (o *rounds) touch(it *item) {
	if !it.touched {
		it.touched = true
		o.touched = append(o.touched, it)
	}
}

// Restore adds a project that is not planned yet. at describes each of its tasks, given its need.
// The planner retains nothing of the arguments except what Occupied and Caps point to. guarantee is
// the project's guarantee if guaranteed is true. CompletePlan places tasks without a place.
func (p *Planner) Restore(in Project, guarantee Guarantee, guaranteed bool, at func(Key, *Need) Existing) {
	pr := p.registry.register(p, in)
	pr.guarantee, pr.guaranteed = guarantee, guaranteed
	p.repairs.markUnchecked(pr)
	for it := range pr.items {
		x := at(it.key, &it.group.req.Need)
		it.home, it.pinned, it.moved = x.Reserved, x.Pinned, x.Changed
		p.rounds.restoreItem(p, it, &x)
	}
}

// restoreItem puts an item at its reservation. If the reservation is Lost, or the bin would leave
// too early now, it takes the reservation out of the profile.
func (o *rounds) restoreItem(p *Planner, it *item, x *Existing) {
	if x.Kept && !x.Lost && !p.bins.leavesTooEarly(&it.group.req, &x.Spot) {
		it.spot, it.end, it.placed = x.Spot, p.bins.endOn(&it.group.req, x.Spot.Bin, x.Spot.At), true
		p.bins.link(it)
	} else if x.Pinned {
		it.spot = Spot{Bin: x.Bin, Disk: x.Disk}
	}
	if !x.Kept {
		it.moved = true
		return
	}
	p.numKept++
	if it.isAtHome() {
		it.wasSearched = x.Searched && !it.group.isConstrained()
		return
	}
	it.moved = true
	o.touch(it)
	p.space.occupy(it, &it.home.Spot, x.End, &it.home.Need, 1)
	p.bins.markFreed(it.home.Spot.Bin)
	if it.placed {
		p.space.occupy(it, &it.spot, it.end, &it.group.req.Need, -1)
		p.space.occupyBeyond(it, -1)
	}
}

// Withdraw takes a reservation of a State that belongs to no task of a restored project out of the
// profile of the given timeline. account is as in Project, caps as in Request.
func (p *Planner) Withdraw(t *scheduler.Timeline, r *scheduler.Reservation, account int32, caps []int32) {
	g := p.rounds.likeLast
	if g == nil || g.project.Account != account || !slices.Equal(g.req.Caps, caps) {
		g = newWithdrawn(account, caps, scheduler.NodeNeed(r.Demand, r.Disk))
	}
	spot, need, ok := t.ReservedAt(r, g.req.Need)
	if !ok {
		return
	}
	if !equalNeeds(&need, &g.req.Need) {
		g = newWithdrawn(account, caps, need)
	}
	p.rounds.likeLast = g
	it := p.rounds.withdrawn.next()
	it.group, it.home = g, Reserved{Spot: spot, End: r.End, Need: need, Kept: true}
	p.rounds.touch(it)
	p.space.occupy(it, &it.home.Spot, r.End, &it.home.Need, 1)
	p.bins.markFreed(spot.Bin)
}

// Occupation is capacity taken by Occupy.
type Occupation struct{ item *item }

// Occupy takes the need of a task that belongs to no restored project, until end; Vacate returns
// it, and so does Close. account is as in Project, caps as in Request.
func (p *Planner) Occupy(s Spot, end scheduler.Time, need Need, account int32, caps []int32) Occupation {
	it := p.rounds.withdrawn.next()
	it.group, it.spot, it.end, it.placed = newWithdrawn(account, caps, need), s, end, true
	p.rounds.touch(it)
	p.space.occupy(it, &it.spot, end, &it.group.req.Need, -1)
	return Occupation{it}
}

// Vacate returns the capacity of an Occupation.
func (p *Planner) Vacate(o Occupation) {
	it := o.item
	p.space.occupy(it, &it.spot, it.end, &it.group.req.Need, 1)
	p.bins.markFreed(it.spot.Bin)
	it.placed = false
}

// newWithdrawn returns a group of items that Withdraw takes out. Items of a job share it while their needs are equal.
func newWithdrawn(account int32, caps []int32, need Need) *group {
	return &group{project: &project{Project: Project{Account: account}}, req: Request{Need: need, Caps: caps}, accountNeed: Need{Base: append(slices.Clone(need.Base), need.IO)}}
}
