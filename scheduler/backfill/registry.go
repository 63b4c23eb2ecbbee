package backfill

import (
	"iter"
	"math"
	"slices"

	"github.com/drover-run/drover/scheduler"
)

type registry struct {
	items          map[Key]*item // nil until item is called
	numItems       int
	projects       map[scheduler.ProjectID]*project
	submitOrder    []*project // by (Submitted, ID)
	numConstrained int        // groups that isConstrained holds for
	memory         memory
}

type project struct {
	Project
	groups     []*group
	guaranteed bool
	guarantee  Guarantee
	violated   bool
	unchecked  int // position in repairs.unchecked, from 1; 0 for none
}

// group is a request with its items that have not ended, by task.
type group struct {
	project      *project
	req          Request
	accountNeed  Need // req.Need in the resources of an account
	eqClass      *equivalenceClass
	predecessors []*group
	successors   []*group
	items        []*item
	base         []int64 // of req.Need
}

type item struct {
	key   Key
	group *group
	place
	started     bool
	pinned      bool     // must stay on spot.Bin and spot.Disk
	moved       bool     // see PlannedTask
	tried       bool     // for an item without a place: Restore or a later call searched for one
	follows     bool     // for an item without a place: Replan places it after its predecessors
	wasSearched bool     // see Existing.Searched
	touched     bool     // listed in rounds.touched
	binIndex    int      // index in binState.items
	home        Reserved // its reservation by the owner of the profile
}

// place is the planned place of an item, and what is known of earlier starts.
type place struct {
	spot     Spot
	end      scheduler.Time
	placed   bool
	searched searched
}

// searched is the last search that found a spot to be the earliest.
type searched struct {
	clock uint64         // freeClock at the search
	from  scheduler.Time // start of the range in which it is the earliest
	round uint32         // round of the search
}

func (q *registry) reset() {
	clear(q.projects)
	clear(q.submitOrder)
	q.memory.reset()
	*q = registry{projects: q.projects, submitOrder: q.submitOrder[:0], memory: q.memory}
}

// item returns a task, nil for an unknown one. The first call costs O(tasks).
func (q *registry) item(k Key) *item {
	if q.items == nil {
		q.items = make(map[Key]*item, q.numItems)
		for _, pr := range q.submitOrder {
			for it := range pr.items {
				q.items[it.key] = it
			}
		}
	}
	return q.items[k]
}

// isAtHome reports whether an item is at the place that the owner of the profile has reserved.
func (it *item) isAtHome() bool {
	if !it.placed || !it.home.Kept {
		return it.placed == it.home.Kept
	}
	r := &it.group.req
	return it.spot == it.home.Spot && it.end == it.home.End && r.Occupied == nil && equalNeeds(&r.Need, &it.home.Need)
}

func equalNeeds(a, b *Need) bool {
	return a.IO == b.IO && a.Space == b.Space && slices.Equal(a.Base, b.Base)
}

// departureSoFar returns when the last task of a project ends, Never if a search for one found no
// place. It leaves out tasks without a place that were not searched for yet; untried reports
// whether there are any.
func (p *project) departureSoFar() (end scheduler.Time, untried bool) {
	end = scheduler.Time(math.MinInt64)
	for it := range p.items {
		switch {
		case it.placed:
			end = max(end, it.end)
		case it.tried:
			end = scheduler.Never
		default:
			untried = true
		}
	}
	return end, untried
}

// departure returns when the last task of a project ends, Never if one has no place.
func (p *project) departure() scheduler.Time {
	end, untried := p.departureSoFar()
	if untried {
		return scheduler.Never
	}
	return end
}

// openTime returns the earliest start of the group's items that their predecessors
// allow, Never if a predecessor has no spot. O(items of the predecessors).
func (g *group) openTime(now scheduler.Time) scheduler.Time {
	at := max(now, g.req.NotBefore)
	for _, before := range g.predecessors {
		for _, o := range before.items {
			if !o.placed {
				return scheduler.Never
			}
			at = max(at, o.end)
		}
	}
	return at
}

// setSearched records that the item's spot is the earliest from a time on, with the bins as they
// were at a free clock.
func (it *item) setSearched(p *Planner, clock uint64, from scheduler.Time) {
	it.searched = searched{clock, from, p.rounds.round}
}

// isLate reports whether a waiting item has no spot or is planned to start before it can, given the
// openTime of its group.
func (it *item) isLate(open scheduler.Time) bool {
	return !it.started && (!it.placed || it.spot.At < open)
}

// register adds a project without placing any of its tasks.
func (q *registry) register(p *Planner, in Project) *project {
	pr := q.memory.projects.next()
	pr.Project = in
	pr.Requests = nil
	if cap(pr.groups) < len(in.Requests) {
		pr.groups = carve(&q.memory.groupLists, len(in.Requests))
	}
	for i := range in.Requests {
		q.addGroup(p, pr, &in.Requests[i])
	}
	for _, g := range pr.groups {
		q.numItems += len(g.items)
		if q.items != nil {
			for _, it := range g.items {
				q.items[it.key] = it
			}
		}
		if p.classes.classified {
			p.classes.classify(g)
		}
		if g.isConstrained() {
			q.numConstrained++
		}
	}
	q.projects[in.ID] = pr
	if n := len(q.submitOrder); n == 0 || bySubmission(q.submitOrder[n-1], pr) < 0 {
		q.submitOrder = append(q.submitOrder, pr)
		return pr
	}
	i, _ := slices.BinarySearchFunc(q.submitOrder, pr, bySubmission)
	q.submitOrder = slices.Insert(q.submitOrder, i, pr)
	return pr
}

func (q *registry) addGroup(p *Planner, pr *project, r *Request) {
	g := q.memory.groups.next()
	g.project, g.req = pr, *r
	if cap(g.base) < len(r.Need.Base) {
		g.base = carve(&q.memory.amounts, len(r.Need.Base))
	}
	g.base = append(g.base, r.Need.Base...)
	g.req.Need.Base, g.req.Tasks = g.base, nil
	if cap(g.items) < len(r.Tasks) {
		g.items = carve(&q.memory.itemLists, len(r.Tasks))
	}
	if p.space.accounts != nil {
		total := carve(&q.memory.amounts, len(r.Need.Base)+1)
		g.accountNeed = Need{Base: append(append(total, r.Need.Base...), r.Need.IO)}
	}
	for _, a := range r.After {
		for _, o := range pr.groups {
			if o.req.Job == r.Job && o.req.Stage == a {
				g.predecessors, o.successors = append(g.predecessors, o), append(o.successors, g)
			}
		}
	}
	for _, t := range r.Tasks {
		it := q.memory.items.next()
		it.key, it.group, it.spot.Bin = Key{r.Job, r.Stage, t}, g, -1
		g.items = append(g.items, it)
	}
	pr.groups = append(pr.groups, g)
}

// isConstrained reports whether the group's items can become late by more than the passing of time:
// they have predecessors or an earliest start.
func (g *group) isConstrained() bool {
	return len(g.predecessors) > 0 || g.req.NotBefore > 0
}

func bySubmission(a, b *project) int {
	return a.position().compare(b.position())
}

// unregister removes a project without placed items.
func (q *registry) unregister(p *Planner, pr *project) {
	for _, g := range pr.groups {
		for _, it := range g.items {
			delete(q.items, it.key)
		}
		q.numItems -= len(g.items)
		if g.eqClass != nil {
			g.eqClass.live -= len(g.items)
		}
		if g.isConstrained() {
			q.numConstrained--
		}
	}
	delete(q.projects, pr.ID)
	if i, ok := slices.BinarySearchFunc(q.submitOrder, pr, bySubmission); ok {
		q.submitOrder = slices.Delete(q.submitOrder, i, i+1)
	}
}

// items yields the items of a project by request and task.
func (p *project) items(yield func(*item) bool) {
	for _, g := range p.groups {
		for _, it := range g.items {
			if !yield(it) {
				return
			}
		}
	}
}

// waiting yields the items of a project without a place, and the openTime of each.
func (p *project) waiting(now scheduler.Time) iter.Seq2[*item, scheduler.Time] {
	return func(yield func(*item, scheduler.Time) bool) {
		for _, g := range p.groups {
			open := g.openTime(now)
			for _, it := range g.items {
				if !it.placed && !yield(it, open) {
					return
				}
			}
		}
	}
}

func (p *project) size() (n int) {
	for _, g := range p.groups {
		n += len(g.items)
	}
	return n
}
