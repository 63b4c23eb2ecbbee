package backfill

import (
	"cmp"
	"slices"
	"time"

	"github.com/drover-run/drover/scheduler"
)

// judge is the two-tier algorithms in their plainest form: all reservations in
// one slice, a list for each bin made anew for each question, every
// bin looked at each time. It shares nothing with Planner but its types.
type judge struct {
	cfg    Config
	totals [][]int64
	shares [][]int64 // what each account may take; nil: there are none
	all    []*judged // in submit order
	quotes map[scheduler.ProjectID]Quote
}

type judged struct {
	key     Key
	proj    Project
	d       []int64
	bound   time.Duration
	bin     int
	at      scheduler.Time
	started bool
}

func (j *judged) end() scheduler.Time { return j.at.Add(j.bound) }

func (n *judge) lines(without ...*judged) []*list {
	var out []*list
	for _, t := range n.totals {
		out = append(out, &list{total: t})
	}
	for _, x := range n.all {
		if x.bin >= 0 && !slices.Contains(without, x) {
			out[x.bin].taken = append(out[x.bin].taken, taken{x.at, x.end(), x.d})
		}
	}
	return out
}

// account lists what is planned on the account of a project; nil if it has none.
func (n *judge) account(p Project, without ...*judged) *list {
	if n.shares == nil || p.Account == 0 {
		return nil
	}
	l := &list{total: n.shares[p.Account-1]}
	for _, x := range n.all {
		if x.bin >= 0 && x.proj.Account == p.Account && !slices.Contains(without, x) {
			l.taken = append(l.taken, taken{x.at, x.end(), x.d})
		}
	}
	return l
}

func (n *judge) earliest(x *judged, from, before scheduler.Time) (int, scheduler.Time) {
	bin, at := -1, before
	account := n.account(x.proj, x)
	for b, l := range n.lines(x) {
		instants := l.instants(from)
		if account != nil {
			instants = append(instants, account.instants(from)...)
			slices.Sort(instants)
		}
		for _, t := range instants {
			if t < at && l.fits(t, t.Add(x.bound), x.d) && (account == nil || account.fits(t, t.Add(x.bound), x.d)) {
				bin, at = b, t
				break
			}
		}
	}
	return bin, at
}

func (n *judge) submit(now scheduler.Time, p Project) (Quote, bool) {
	saved := n.copy()
	flexible := n.cfg.Variant == Flexible || n.cfg.Variant == FlexibleSF || (n.cfg.Variant == Priority && p.High)
	for _, r := range p.Requests {
		for _, t := range r.Tasks {
			x := &judged{key: Key{r.Job, r.Stage, t}, proj: p, d: r.Need.Base, bound: r.Bound, bin: -1}
			n.all = append(n.all, x)
			bin, at := n.earliest(x, now, scheduler.Never)
			if flexible && n.flexible(x, now, at) {
				continue
			}
			if bin < 0 {
				n.all = saved
				return Quote{}, false
			}
			x.bin, x.at = bin, at
		}
	}
	td := n.departure(p.ID)
	sf := n.cfg.SF
	if n.cfg.Variant == Strict || n.cfg.Variant == Flexible || (n.cfg.Variant == Priority && p.High) {
		sf = 0
	}
	q := Quote{td, td + scheduler.Time(sf*float64(td-p.Submitted))}
	n.quotes[p.ID] = q
	return q, true
}

func (n *judge) copy() []*judged {
	out := make([]*judged, len(n.all))
	for i, x := range n.all {
		y := *x
		out[i] = &y
	}
	return out
}

func (n *judge) departure(id scheduler.ProjectID) scheduler.Time {
	var td scheduler.Time
	for _, x := range n.all {
		if x.proj.ID == id {
			td = max(td, x.end())
		}
	}
	return td
}

// flexible is the loop over BT, for one job.
func (n *judge) flexible(x *judged, now, limit scheduler.Time) bool {
	type bt struct {
		at  scheduler.Time
		bin int
	}
	var times []bt
	for b, l := range n.lines(x) {
		for _, at := range l.instants(now) {
			if at < limit && fits(x.d, l.free(at)) {
				times = append(times, bt{at, b})
			}
		}
	}
	slices.SortFunc(times, func(a, b bt) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.bin, b.bin)) })
	for _, t := range times {
		before := map[scheduler.ProjectID]scheduler.Time{}
		for _, y := range n.all {
			before[y.proj.ID] = n.departure(y.proj.ID)
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
		if n.makeRoom(x, now, before) {
			return true
		}
		for i, y := range n.all {
			y.bin, y.at = old[i].bin, old[i].at
		}
		x.bin = -1
	}
	return false
}

func (n *judge) makeRoom(x *judged, now scheduler.Time, before map[scheduler.ProjectID]scheduler.Time) bool {
	for {
		l := n.lines()[x.bin]
		over := scheduler.Never
		for _, at := range l.instants(x.at) {
			if at < x.end() && slices.Min(l.free(at)) < 0 {
				over = at
				break
			}
		}
		overdrawn := false
		if l := n.account(x.proj); l != nil {
			for _, at := range l.instants(x.at) {
				overdrawn = overdrawn || (at < x.end() && slices.Min(l.free(at)) < 0)
			}
		}
		if over == scheduler.Never && !overdrawn {
			return true
		}
		var v *judged
		for _, y := range n.all {
			if overdrawn && y.proj.Account != x.proj.Account {
				continue
			}
			if y.bin != x.bin || y.started || y.proj.ID == x.proj.ID || y.at > over || y.end() <= over || (n.cfg.Variant == Priority && y.proj.High) {
				continue
			}
			if v == nil || n.lts(y) > n.lts(v) || (n.lts(y) == n.lts(v) && y.key.Compare(v.key) < 0) {
				v = y
			}
		}
		if v == nil {
			return false
		}
		bin, at := n.earliest(v, now, n.lts(v)+1)
		if bin < 0 {
			return false
		}
		v.bin, v.at = bin, at
		late := 0
		for id, d := range before {
			if id != x.proj.ID && n.departure(id) > d {
				late++
			}
		}
		if pl := n.cfg.PL; pl != NoLimit && late > pl {
			return false
		}
	}
}

func (n *judge) lts(x *judged) scheduler.Time { return n.quotes[x.proj.ID].Latest.Add(-x.bound) }

// walk removes each waiting job and places it again; it stays where it is
// unless that is earlier.
func (n *judge) walk(now scheduler.Time) {
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
	n.all = slices.DeleteFunc(n.all, func(x *judged) bool { return x.key == k })
}
