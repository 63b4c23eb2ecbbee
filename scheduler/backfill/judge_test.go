package backfill

import (
	"cmp"
	"slices"
	"time"

	"github.com/drover-run/drover/scheduler"
)

// judge is a naive implementation of the two-tier algorithms: all reservations in one
// slice, the reservation list of each bin rebuilt for each query, every bin considered
// each time. It shares only types with Planner.
type judge struct {
	cfg        Config
	totals     [][]int64
	shares     [][]int64     // capacity of each account; nil for no accounts
	caps       [][]int64     // capacity below each cap; used with accounts alone
	all        []*judgedTask // in submission order
	guarantees map[scheduler.ProjectID]Guarantee
}

type judgedTask struct {
	key     Key
	project Project
	need    []int64
	caps    []int32
	bound   time.Duration
	bin     int
	at      scheduler.Time
	started bool
}

func (j *judgedTask) end() scheduler.Time { return j.at.Add(j.bound) }

func (n *judge) binLists(without ...*judgedTask) []*reservationList {
	var out []*reservationList
	for _, t := range n.totals {
		out = append(out, &reservationList{total: t})
	}
	for _, x := range n.all {
		if x.bin >= 0 && !slices.Contains(without, x) {
			out[x.bin].reservations = append(out[x.bin].reservations, reservation{x.at, x.end(), x.need})
		}
	}
	return out
}

// account returns the reservations charged to the account of a project, nil if it has
// none.
func (n *judge) account(p Project, without ...*judgedTask) *reservationList {
	if n.shares == nil || p.Account == 0 {
		return nil
	}
	l := &reservationList{total: n.shares[p.Account-1]}
	for _, x := range n.all {
		if x.bin >= 0 && x.project.Account == p.Account && !slices.Contains(without, x) {
			l.reservations = append(l.reservations, reservation{x.at, x.end(), x.need})
		}
	}
	return l
}

// below returns the reservations below each cap of a task.
func (n *judge) below(x *judgedTask, without ...*judgedTask) (lists []*reservationList) {
	if n.shares == nil {
		return nil
	}
	for _, b := range x.caps {
		l := &reservationList{total: n.caps[b]}
		for _, y := range n.all {
			if y.bin >= 0 && slices.Contains(y.caps, b) && !slices.Contains(without, y) {
				l.reservations = append(l.reservations, reservation{y.at, y.end(), y.need})
			}
		}
		lists = append(lists, l)
	}
	return lists
}

func (n *judge) earliest(x *judgedTask, from, before scheduler.Time) (int, scheduler.Time) {
	bin, at := -1, before
	limits := n.below(x, x)
	if account := n.account(x.project, x); account != nil {
		limits = append(limits, account)
	}
	for b, l := range n.binLists(x) {
		times := l.changeTimes(from)
		for _, limit := range limits {
			times = append(times, limit.changeTimes(from)...)
		}
		slices.Sort(times)
		for _, t := range times {
			if t < at && l.fits(t, t.Add(x.bound), x.need) &&
				!slices.ContainsFunc(limits, func(o *reservationList) bool { return !o.fits(t, t.Add(x.bound), x.need) }) {
				bin, at = b, t
				break
			}
		}
	}
	return bin, at
}

func (n *judge) submit(now scheduler.Time, p Project) (Guarantee, bool) {
	saved := n.clone()
	flexible := n.cfg.Variant == Flexible || n.cfg.Variant == FlexibleSF || (n.cfg.Variant == Priority && p.HighPriority)
	for _, r := range p.Requests {
		for _, t := range r.Tasks {
			x := &judgedTask{key: Key{r.Job, r.Stage, t}, project: p, need: r.Need.Base, caps: r.Caps, bound: r.Bound, bin: -1}
			n.all = append(n.all, x)
			bin, at := n.earliest(x, now, scheduler.Never)
			if flexible && n.flexible(x, now, at) {
				continue
			}
			if bin < 0 {
				n.all = saved
				return Guarantee{}, false
			}
			x.bin, x.at = bin, at
		}
	}
	td := n.departure(p.ID)
	sf := n.cfg.SlackFactor
	if n.cfg.Variant == Strict || n.cfg.Variant == Flexible || (n.cfg.Variant == Priority && p.HighPriority) {
		sf = 0
	}
	q := Guarantee{td, td + scheduler.Time(sf*float64(td-p.Submitted))}
	n.guarantees[p.ID] = q
	return q, true
}

func (n *judge) clone() []*judgedTask {
	out := make([]*judgedTask, len(n.all))
	for i, x := range n.all {
		y := *x
		out[i] = &y
	}
	return out
}

func (n *judge) departure(id scheduler.ProjectID) scheduler.Time {
	var td scheduler.Time
	for _, x := range n.all {
		if x.project.ID == id {
			td = max(td, x.end())
		}
	}
	return td
}

// flexible is the loop over BT, for one job.
func (n *judge) flexible(x *judgedTask, now, limit scheduler.Time) bool {
	type bt struct {
		at  scheduler.Time
		bin int
	}
	var times []bt
	for b, l := range n.binLists(x) {
		for _, at := range l.changeTimes(now) {
			if at < limit {
				times = append(times, bt{at, b})
			}
		}
	}
	slices.SortFunc(times, func(a, b bt) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.bin, b.bin)) })
	if most := n.cfg.MaxTries; most > 0 && len(times) > most {
		times = times[:most]
	}
	lists := n.binLists(x)
	for _, t := range times {
		if !fits(x.need, lists[t.bin].free(t.at)) {
			continue
		}
		before := map[scheduler.ProjectID]scheduler.Time{}
		for _, y := range n.all {
			before[y.project.ID] = n.departure(y.project.ID)
		}
		type was struct {
			bin int
			at  scheduler.Time
		}
		old := make([]was, len(n.all))
		for i, y := range n.all {
			old[i] = was{y.bin, y.at}
		}
		x.bin, x.at = t.bin, t.at
		if n.displaceVictims(x, now, before) {
			return true
		}
		for i, y := range n.all {
			y.bin, y.at = old[i].bin, old[i].at
		}
		x.bin = -1
	}
	return false
}

func (n *judge) displaceVictims(x *judgedTask, now scheduler.Time, before map[scheduler.ProjectID]scheduler.Time) bool {
	for {
		l := n.binLists()[x.bin]
		over := scheduler.Never
		for _, at := range l.changeTimes(x.at) {
			if at < x.end() && slices.Min(l.free(at)) < 0 {
				over = at
				break
			}
		}
		exceeds := func(l *reservationList) bool {
			return slices.ContainsFunc(l.changeTimes(x.at), func(at scheduler.Time) bool { return at < x.end() && slices.Min(l.free(at)) < 0 })
		}
		l = n.account(x.project)
		overdrawn := l != nil && exceeds(l)
		if over == scheduler.Never && !overdrawn && !slices.ContainsFunc(n.below(x), exceeds) {
			return true
		}
		var v *judgedTask
		for _, y := range n.all {
			if overdrawn && y.project.Account != x.project.Account {
				continue
			}
			if y.bin != x.bin || y.started || y.project.ID == x.project.ID || y.at > over || y.end() <= over || (n.cfg.Variant == Priority && y.project.HighPriority) {
				continue
			}
			if v == nil || n.latestStart(y) > n.latestStart(v) || (n.latestStart(y) == n.latestStart(v) && y.key.Compare(v.key) < 0) {
				v = y
			}
		}
		if v == nil {
			return false
		}
		bin, at := n.earliest(v, now, n.latestStart(v)+1)
		if bin < 0 {
			return false
		}
		v.bin, v.at = bin, at
		late := 0
		for id, d := range before {
			if id != x.project.ID && n.departure(id) > d {
				late++
			}
		}
		if pl := n.cfg.PreemptionLimit; pl != NoLimit && late > pl {
			return false
		}
	}
}

func (n *judge) latestStart(x *judgedTask) scheduler.Time {
	return n.guarantees[x.project.ID].Latest.Add(-x.bound)
}

// compress removes each waiting job and places it again; the job stays where it is
// unless it can start earlier.
func (n *judge) compress(now scheduler.Time) {
	for _, x := range n.all {
		if x.started {
			continue
		}
		if bin, at := n.earliest(x, now, x.at); bin >= 0 {
			x.bin, x.at = bin, at
		}
	}
}

func (n *judge) end(k Key) {
	n.all = slices.DeleteFunc(n.all, func(x *judgedTask) bool { return x.key == k })
}

// reservationList is all reservations, with the free capacity summed up for each query.
type reservationList struct {
	total        []int64
	reservations []reservation
}

type reservation struct {
	start, end scheduler.Time
	need       []int64
}

func (l *reservationList) free(at scheduler.Time) []int64 {
	out := slices.Clone(l.total)
	for _, t := range l.reservations {
		if t.start <= at && at < t.end {
			for r, v := range t.need {
				out[r] -= v
			}
		}
	}
	return out
}

// changeTimes returns from and every later start and end.
func (l *reservationList) changeTimes(from scheduler.Time) []scheduler.Time {
	out := []scheduler.Time{from}
	for _, t := range l.reservations {
		for _, at := range []scheduler.Time{t.start, t.end} {
			if at > from && at != scheduler.Never {
				out = append(out, at)
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func (l *reservationList) fits(start, end scheduler.Time, d []int64) bool {
	for _, at := range l.changeTimes(start) {
		if at < end && !fits(d, l.free(at)) {
			return false
		}
	}
	return true
}

func fits(d, free []int64) bool {
	for r, v := range d {
		if v > free[r] {
			return false
		}
	}
	return true
}
