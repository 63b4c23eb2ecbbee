package fluid

import "math"

// ps is processor sharing by virtual time: the service that every job present
// has been given since the server last became busy.
type ps struct {
	jobs   []Job
	ends   []float64
	now, v float64
	h      heap // by the virtual time of the end
}

func (p *ps) next() float64 {
	if len(p.h) == 0 {
		return math.Inf(1)
	}
	return p.now + (p.h[0].key-p.v)*float64(len(p.h))
}

func (p *ps) advance(t float64) {
	if len(p.h) == 0 {
		p.now, p.v = t, 0
		return
	}
	if t >= p.next() {
		top := p.h.pop()
		p.ends[top.job] = t
		p.now, p.v = t, top.key
		return
	}
	p.v += (t - p.now) / float64(len(p.h))
	p.now = t
}

func (p *ps) arrive(i int32) { p.h.push(item{p.v + p.jobs[i].Size, i}) }

// srpt serves the job with the least left; at[i] is what is left of job i.
type srpt struct {
	jobs []Job
	ends []float64
	at   []float64
	now  float64
	h    heap // by what is left; the first one is served
}

func (p *srpt) next() float64 {
	if len(p.h) == 0 {
		return math.Inf(1)
	}
	return p.now + p.h[0].key
}

func (p *srpt) advance(t float64) {
	if len(p.h) > 0 {
		if t >= p.now+p.h[0].key {
			p.ends[p.h.pop().job] = t
		} else {
			p.h[0].key -= t - p.now // it stays the least
		}
	}
	p.now = t
}

func (p *srpt) arrive(i int32) { p.h.push(item{p.jobs[i].Size, i}) }

// las serves the jobs that have had the least, all at the same rate. Jobs that
// have had the same are a group; groups lie in a stack, the least served on
// top. A group that reaches the next one joins it.
type las struct {
	jobs   []Job
	ends   []float64
	now    float64
	groups []group
}

type group struct {
	had float64
	h   heap // by size
}

func (p *las) top() *group { return &p.groups[len(p.groups)-1] }

func (p *las) next() float64 {
	if len(p.groups) == 0 {
		return math.Inf(1)
	}
	g := p.top()
	return p.now + (p.target()-g.had)*float64(len(g.h))
}

// target is the attained service at which the top group changes: its smallest
// job ends or it reaches the group below.
func (p *las) target() float64 {
	t := p.top().h[0].key
	if n := len(p.groups); n > 1 {
		t = min(t, p.groups[n-2].had)
	}
	return t
}

func (p *las) advance(t float64) {
	if len(p.groups) == 0 {
		p.now = t
		return
	}
	g := p.top()
	if t < p.next() {
		g.had += (t - p.now) / float64(len(g.h))
		p.now = t
		return
	}
	g.had = p.target()
	p.now = t
	for len(g.h) > 0 && g.h[0].key <= g.had {
		p.ends[g.h.pop().job] = t
	}
	p.merge()
}

// merge puts the top group into the one below where it has come up to it, the
// smaller heap into the larger: O(log^2 n) a job in all.
func (p *las) merge() {
	n := len(p.groups)
	top := &p.groups[n-1]
	if n > 1 && len(top.h) > 0 && top.had >= p.groups[n-2].had {
		below := &p.groups[n-2]
		if len(top.h) > len(below.h) {
			top.h, below.h = below.h, top.h
		}
		for _, x := range top.h {
			below.h.push(x)
		}
		top.h = nil
	}
	if len(top.h) == 0 {
		p.groups = p.groups[:n-1]
	}
}

func (p *las) arrive(i int32) {
	if n := len(p.groups); n == 0 || p.top().had > 0 {
		p.groups = append(p.groups, group{})
	}
	p.top().h.push(item{p.jobs[i].Size, i})
}
