package backfill

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/drover-run/drover/scheduler"
)

// Submit plans a project and promises its departure time (Alg. 1-3). Jobs that
// can start at once are planned for now; Start has to be called for them. An
// error (ErrNeverFits, ErrTooLate, or a project that makes no sense) leaves the
// plan as it was; with ErrTooLate the quote says when it could depart. O(work of the project x bins) and the displacements tried.
func (p *Planner) Submit(now scheduler.Time, in Project) (Quote, error) {
	p.begin(now)
	defer p.keep()
	return p.submit(now, in)
}

// Quote says what Submit would promise, and changes nothing.
func (p *Planner) Quote(now scheduler.Time, in Project) (Quote, error) {
	p.begin(now)
	changed := len(p.changed)
	q, err := p.submit(now, in)
	if err == nil {
		p.rollback(0)
		p.drop(p.projects[in.ID])
		p.changed = p.changed[:changed]
	}
	p.keep()
	return q, err
}

func (p *Planner) begin(now scheduler.Time) {
	p.log, p.trying, p.now = p.log[:0], true, now
}

func (p *Planner) keep() { p.log, p.trying = p.log[:0], false }

func (p *Planner) submit(now scheduler.Time, in Project) (Quote, error) {
	pr, err := p.enter(in)
	if err != nil {
		return Quote{}, err
	}
	if err := p.complete(now, pr); err != nil {
		p.drop(pr)
		return pr.quote, err
	}
	return pr.quote, nil
}

// complete plans what is not planned of a project, and promises its departure
// where that was not done yet.
func (p *Planner) complete(now scheduler.Time, pr *project) error {
	flexible := p.cfg.Variant == Flexible || p.cfg.Variant == FlexibleSF || (p.cfg.Variant == Priority && pr.High)
	for _, g := range pr.groups {
		for _, it := range g.items {
			if !it.placed && !p.place(it, now, flexible) {
				p.rollback(0)
				return fmt.Errorf("project %d, job %d stage %d task %d: %w", pr.ID, it.key.Job, it.key.Stage, it.key.Task, ErrNeverFits)
			}
		}
	}
	if pr.promised {
		return nil
	}
	pr.quote = p.promise(pr)
	if pr.Deadline > 0 && pr.quote.Departure > pr.Deadline {
		p.rollback(0)
		return fmt.Errorf("project %d: %w", pr.ID, ErrTooLate)
	}
	pr.promised = true
	return nil
}

// CompleteSome is Complete for a project of which a part may fit nowhere: what
// can be planned is, and nothing is promised.
func (p *Planner) CompleteSome(now scheduler.Time, id scheduler.ProjectID) {
	pr := p.projects[id]
	if pr == nil {
		return
	}
	p.begin(now)
	defer p.keep()
	for _, g := range pr.groups {
		for _, it := range g.items {
			if !it.placed {
				p.place(it, now, false)
			}
		}
	}
}

// Restore brings in a project as it stood, for a planner that is built again:
// at says where each piece of work is planned or runs (false: not planned yet),
// and promise what was promised (false: nothing yet). Work that is suspended on
// a bin is pinned to it. Complete plans the rest.
func (p *Planner) Restore(in Project, promise Quote, promised bool, at func(Key) (spot Spot, started, pinned, planned bool)) error {
	pr, err := p.enter(in)
	if err != nil {
		return err
	}
	pr.quote, pr.promised = promise, promised
	p.doubt(pr)
	for _, g := range pr.groups {
		for _, it := range g.items {
			spot, started, pinned, planned := at(it.key)
			it.pinned, it.moved = pinned, true
			if planned {
				p.set(it, spot)
				it.from = spot.At
			} else if pinned {
				it.spot = Spot{Bin: spot.Bin, Disk: spot.Disk}
			}
			it.started = started
		}
		slices.SortStableFunc(g.items, func(a, b *item) int {
			switch {
			case a.started == b.started:
				return 0
			case a.started:
				return -1
			default:
				return 1
			}
		})
	}
	return nil
}

// Remove takes a project out of the plan with all of its work, for a caller that
// restores it otherwise or not at all. Its room counts as given back. An unknown
// project is ignored.
func (p *Planner) Remove(id scheduler.ProjectID) {
	pr := p.projects[id]
	if pr == nil {
		return
	}
	for _, g := range pr.groups {
		for _, it := range g.items {
			if it.placed {
				b := it.spot.Bin
				p.set(it, Spot{Bin: -1})
				p.Freed(b)
			}
		}
	}
	p.drop(pr)
}

// Unpromise takes back what was promised to a project, for a caller that did not
// pass it on: Complete promises anew. An unknown project is ignored.
func (p *Planner) Unpromise(id scheduler.ProjectID) {
	if pr := p.projects[id]; pr != nil {
		pr.promised, pr.broken, pr.quote = false, false, Quote{}
	}
}

// Complete plans what Restore left unplanned of a project and promises its
// departure if nothing was promised yet. With ErrNeverFits nothing changes.
func (p *Planner) Complete(now scheduler.Time, id scheduler.ProjectID) (Quote, error) {
	pr := p.projects[id]
	if pr == nil {
		return Quote{}, fmt.Errorf("project %d is not known", id)
	}
	p.begin(now)
	defer p.keep()
	err := p.complete(now, pr)
	return pr.quote, err
}

// promise computes td and td + SF x tn (Alg. 2 lines 19-22, Alg. 3 lines 7-11;
// the printed td_d and tn_(u,v) are td_u and tn_u).
func (p *Planner) promise(pr *project) Quote {
	td := pr.departure()
	q := Quote{Departure: td, Latest: td}
	if pr.Deadline > 0 {
		q.Latest = max(td, pr.Deadline)
		return q
	}
	sf := p.cfg.SF
	if p.cfg.Variant == Priority && pr.High {
		sf = 0 // (1 - pi) x SF with pi = 1
	}
	if slack := sf * float64(td.Sub(pr.Submitted)); slack > 0 && td != scheduler.Never {
		q.Latest = scheduler.Never
		if slack < float64(scheduler.Never-td) {
			q.Latest = td + scheduler.Time(slack)
		}
	}
	return q
}

// enter makes a project known without a plan.
func (p *Planner) enter(in Project) (*project, error) {
	if p.projects[in.ID] != nil {
		return nil, fmt.Errorf("project %d is planned already", in.ID)
	}
	pr := &project{Project: in}
	for i := range in.Requests {
		r := &in.Requests[i]
		if err := p.check(pr, r); err != nil {
			return nil, fmt.Errorf("project %d, job %d stage %d: %w", in.ID, r.Job, r.Stage, err)
		}
		g := &group{proj: pr, req: *r, class: p.classOf(r)}
		g.class.n += len(r.Tasks)
		if p.accounts != nil {
			g.total = Need{Base: append(slices.Clone(r.Need.Base), r.Need.IO)}
		}
		for _, a := range r.After {
			for _, o := range pr.groups {
				if o.req.Job == r.Job && o.req.Stage == a {
					g.after, o.next = append(g.after, o), append(o.next, g)
				}
			}
		}
		for _, t := range r.Tasks {
			g.items = append(g.items, &item{key: Key{r.Job, r.Stage, t}, group: g, spot: Spot{Bin: -1}})
		}
		pr.groups = append(pr.groups, g)
	}
	for _, g := range pr.groups {
		for _, it := range g.items {
			p.items[it.key] = it
		}
		if g.isTied() {
			p.tied++
		}
	}
	p.projects[in.ID] = pr
	i, _ := slices.BinarySearchFunc(p.order, pr, bySubmission)
	p.order = slices.Insert(p.order, i, pr)
	return pr, nil
}

// isTied tells whether what is planned of a group may be late by more than the
// time that passes.
func (g *group) isTied() bool {
	return len(g.after) > 0 || g.req.Parallel > 0 || g.req.NotBefore > 0
}

// has tells whether an earlier request of the same stage has the task.
func (p *project) has(k Key) bool {
	for _, g := range p.groups {
		if g.req.Job == k.Job && g.req.Stage == k.Stage && slices.Contains(g.req.Tasks, k.Task) {
			return true
		}
	}
	return false
}

func bySubmission(a, b *project) int {
	return cmp.Or(cmp.Compare(a.Submitted, b.Submitted), cmp.Compare(a.ID, b.ID))
}

func (p *Planner) check(pr *project, r *Request) error {
	if err := r.Need.Check(); err != nil {
		return err
	}
	if r.Bound <= 0 {
		return fmt.Errorf("bound is %v: it must be above 0", r.Bound)
	}
	if r.Parallel < 0 {
		return fmt.Errorf("parallel is %d: it must not be negative", r.Parallel)
	}
	for i, t := range r.Tasks {
		k := Key{r.Job, r.Stage, t}
		if p.items[k] != nil || (i > 0 && t <= r.Tasks[i-1]) || pr.has(k) {
			return fmt.Errorf("task %d is planned already or out of order", t)
		}
	}
	return nil
}

// drop forgets a project none of whose items is placed.
func (p *Planner) drop(pr *project) {
	for _, g := range pr.groups {
		for _, it := range g.items {
			delete(p.items, it.key)
		}
		g.class.n -= len(g.items)
		if g.isTied() {
			p.tied--
		}
	}
	p.forgetClasses()
	delete(p.projects, pr.ID)
	if i, ok := slices.BinarySearchFunc(p.order, pr, bySubmission); ok {
		p.order = slices.Delete(p.order, i, i+1)
	}
}

// place plans one item of a new project.
func (p *Planner) place(it *item, now scheduler.Time, flexible bool) bool {
	from := p.ready(it, now)
	if from == scheduler.Never {
		return false
	}
	if it.group.req.Need.IsZero() {
		return p.settle(it, from, scheduler.Never) || p.anywhere(it, now)
	}
	s, ok := p.search(it, from, scheduler.Never)
	seen := p.clock
	if flexible && !it.pinned && p.displace(it, from, now, s, ok) {
		it.seen, it.from = seen, from // before its victims left holes behind
		return true
	}
	if !ok {
		return false
	}
	p.set(it, s)
	it.seen, it.from = p.clock, from
	return true
}

// anywhere places an item that needs nothing where even that finds no room: a
// job with all-zero needs occupies nothing.
func (p *Planner) anywhere(it *item, now scheduler.Time) bool {
	for b := range p.prof.Bins() {
		if len(it.group.req.Need.Base) == p.prof.bins[b].base && !p.prof.bins[b].closed {
			p.set(it, Spot{Bin: b, Disk: -1, At: p.ready(it, now)})
			return true
		}
	}
	return false
}

// displace tries the backfill times before the earliest hole, ascending: the
// loop over BT of Alg. 2. limit is the earliest hole, if there is one.
func (p *Planner) displace(it *item, from, now scheduler.Time, limit Spot, bounded bool) bool {
	end := scheduler.Never
	if bounded {
		end = limit.At
	}
	p.backfillTimes(it, from, end)
	for n, s := range p.times {
		if p.cfg.MaxTries > 0 && n >= p.cfg.MaxTries {
			break
		}
		if p.prof.FitsAt(s.Bin, s.Disk, s.At, &it.group.req.Need) && p.shift(it, s, now) {
			return true
		}
	}
	return false
}

// backfillTimes lists from and the starts and ends of reservations in
// (from, end), by time, bin and disk: feasibleBackfillingTimes of Table 5.
// Whether there is room at that instant is asked when its turn comes. With
// Config.MaxTries it lists no more than those that come first.
func (p *Planner) backfillTimes(it *item, from, end scheduler.Time) {
	p.times = p.times[:0]
	if from >= end {
		return
	}
	limit := end // later ones are too many
	add := func(b int32, at scheduler.Time) {
		if at >= limit {
			return
		}
		disks := int16(p.prof.Disks(b))
		if disks == 0 {
			p.times = append(p.times, Spot{b, -1, at})
		}
		for d := range disks {
			p.times = append(p.times, Spot{b, d, at})
		}
		if most := p.cfg.MaxTries; most > 0 && len(p.times) >= 8*most+64 {
			p.sortTimes()
			p.times = p.times[:min(most, len(p.times))]
			if len(p.times) == most { // others of the very last instant are still to be compared
				limit = min(limit, p.times[most-1].At.Add(1))
			}
		}
	}
	for b := range p.prof.Bins() {
		if !p.prof.bins[b].closed && !p.bin(b).spare {
			add(b, from)
		}
	}
	if most := p.cfg.MaxTries; most > 0 && len(p.times) >= most {
		limit = min(limit, from.Add(1)) // nothing is earlier than from
	}
	for b := range p.prof.Bins() {
		if limit <= from.Add(1) {
			break
		}
		if p.prof.bins[b].closed || p.bin(b).spare {
			continue
		}
		for _, o := range p.bins[b].items {
			if o.spot.At > from {
				add(b, o.spot.At)
			}
			if o.end > from {
				add(b, o.end)
			}
		}
	}
	p.sortTimes()
}

// sortTimes brings the times in order, each once.
func (p *Planner) sortTimes() {
	slices.SortFunc(p.times, func(a, b Spot) int {
		switch {
		case a.At != b.At:
			return cmp.Compare(a.At, b.At)
		case a.Bin != b.Bin:
			return cmp.Compare(a.Bin, b.Bin)
		default:
			return cmp.Compare(a.Disk, b.Disk)
		}
	})
	p.times = slices.Compact(p.times)
}

// shift puts an item at a spot and moves what is in its way later, within each
// one's latest start and the preemption limit: shiftReservations of Table 5. Where
// its account has not that much, only reservations of the same account can help.
// It restores the plan where that fails.
func (p *Planner) shift(it *item, s Spot, now scheduler.Time) bool {
	mark := len(p.log)
	p.delayed = p.delayed[:0]
	p.set(it, s)
	for {
		at, overdrawn := p.prof.Over(s.Bin, s.At, it.end), p.overdrawn(it)
		if at == scheduler.Never && !overdrawn {
			p.leftHoles(it, mark)
			return true
		}
		v := p.victim(it, s.Bin, at, overdrawn)
		if v == nil || !p.postpone(v, now) {
			p.rollback(mark)
			return false
		}
	}
}

// overdrawn tells whether an item's account has less than nothing while it is
// planned.
func (p *Planner) overdrawn(it *item) bool {
	a := it.group.proj.Account
	return p.accounts != nil && a > 0 && p.accounts.Over(a-1, it.spot.At, it.end) < scheduler.Never
}

// leftHoles notes where the victims moved since mark stood before.
func (p *Planner) leftHoles(it *item, mark int) {
	for i := mark; i < len(p.log); i++ {
		if u := &p.log[i]; u.it != it && u.placed {
			p.Freed(u.spot.Bin)
		}
	}
}

// postpone moves a victim to the earliest spot that displaces nobody and keeps
// its latest start; false where there is none, or too many projects would
// depart later.
func (p *Planner) postpone(v *item, now scheduler.Time) bool {
	pr := v.group.proj
	i := slices.IndexFunc(p.delayed, func(d delay) bool { return d.proj == pr })
	if i < 0 {
		p.delayed = append(p.delayed, delay{pr, pr.departure()})
	}
	latest, was := p.latest(v), v.spot
	p.set(v, Spot{Bin: -1, Disk: was.Disk, At: was.At})
	if v.pinned {
		v.spot.Bin = was.Bin
	}
	if !p.settle(v, p.ready(v, now), latest.Add(1)) {
		return false
	}
	if p.cfg.PL == NoLimit {
		return true
	}
	late := 0
	for _, d := range p.delayed {
		if d.proj.departure() > d.was {
			late++
		}
	}
	return late <= p.cfg.PL
}

// victim is the reservation of another project that covers an instant, has not
// started and has the largest latest start; ties go to the smallest key. With own
// it is one of the item's own account.
func (p *Planner) victim(it *item, b int32, at scheduler.Time, own bool) *item {
	var best *item
	var most scheduler.Time
	for _, o := range p.bins[b].items {
		if o.started || o.group.req.Held != nil || o.spot.At > at || o.end <= at || o.group.proj == it.group.proj || !o.group.proj.promised {
			continue
		}
		if (p.cfg.Variant == Priority && o.group.proj.High) || (own && o.group.proj.Account != it.group.proj.Account) {
			continue
		}
		lts := o.group.proj.quote.Latest.Add(-p.span(o, b))
		if best == nil || lts > most || (lts == most && o.key.Compare(best.key) < 0) {
			best, most = o, lts
		}
	}
	return best
}
