package fluid

import "math"

// ps is processor sharing by virtual time: the service that each present job has received since the
// server last became busy.
type ps struct {
	jobs             []Job
	ends             []float64
	now, virtualTime float64
	byVirtualEnd     heap // by the virtual time of the end
}

func (p *ps) nextEvent() float64 {
	if len(p.byVirtualEnd) == 0 {
		return math.Inf(1)
	}
	return p.now + (p.byVirtualEnd[0].key-p.virtualTime)*float64(len(p.byVirtualEnd))
}

func (p *ps) advance(t float64) {
	if len(p.byVirtualEnd) == 0 {
		p.now, p.virtualTime = t, 0
		return
	}
	if t >= p.nextEvent() {
		top := p.byVirtualEnd.pop()
		p.ends[top.job] = t
		p.now, p.virtualTime = t, top.key
		return
	}
	p.virtualTime += (t - p.now) / float64(len(p.byVirtualEnd))
	p.now = t
}

func (p *ps) arrive(i int32) { p.byVirtualEnd.push(item{p.virtualTime + p.jobs[i].Size, i}) }

// srpt serves the job with the least remaining size.
type srpt struct {
	jobs        []Job
	ends        []float64
	now         float64
	byRemaining heap // by remaining size; the first one is served
}

func (p *srpt) nextEvent() float64 {
	if len(p.byRemaining) == 0 {
		return math.Inf(1)
	}
	return p.now + p.byRemaining[0].key
}

func (p *srpt) advance(t float64) {
	if len(p.byRemaining) > 0 {
		if t >= p.now+p.byRemaining[0].key {
			p.ends[p.byRemaining.pop().job] = t
		} else {
			p.byRemaining[0].key -= t - p.now // it remains the smallest
		}
	}
	p.now = t
}

func (p *srpt) arrive(i int32) { p.byRemaining.push(item{p.jobs[i].Size, i}) }

// las serves the jobs with the least attained service, all at the same rate. Jobs with equal
// attained service form a group; the groups are a stack with the least served on top. A group that
// reaches the one below joins it.
type las struct {
	jobs   []Job
	ends   []float64
	now    float64
	groups []group
}

type group struct {
	attained float64
	bySize   heap
}

func (p *las) top() *group { return &p.groups[len(p.groups)-1] }

func (p *las) nextEvent() float64 {
	if len(p.groups) == 0 {
		return math.Inf(1)
	}
	g := p.top()
	return p.now + (p.nextChange()-g.attained)*float64(len(g.bySize))
}

// nextChange returns the attained service at which the top group changes: its smallest job ends or
// it reaches the group below.
func (p *las) nextChange() float64 {
	t := p.top().bySize[0].key
	if n := len(p.groups); n > 1 {
		t = min(t, p.groups[n-2].attained)
	}
	return t
}

func (p *las) advance(t float64) {
	if len(p.groups) == 0 {
		p.now = t
		return
	}
	g := p.top()
	if t < p.nextEvent() {
		g.attained += (t - p.now) / float64(len(g.bySize))
		p.now = t
		return
	}
	g.attained = p.nextChange()
	p.now = t
	for len(g.bySize) > 0 && g.bySize[0].key <= g.attained {
		p.ends[g.bySize.pop().job] = t
	}
	p.merge()
}

// merge merges the top group into the group below once they have equal attained service, the
// smaller heap into the larger: O(log^2 n) per job in total.
func (p *las) merge() {
	n := len(p.groups)
	top := &p.groups[n-1]
	if n > 1 && len(top.bySize) > 0 && top.attained >= p.groups[n-2].attained {
		below := &p.groups[n-2]
		if len(top.bySize) > len(below.bySize) {
			top.bySize, below.bySize = below.bySize, top.bySize
		}
		for _, x := range top.bySize {
			below.bySize.push(x)
		}
		top.bySize = nil
	}
	if len(top.bySize) == 0 {
		p.groups = p.groups[:n-1]
	}
}

func (p *las) arrive(i int32) {
	if n := len(p.groups); n == 0 || p.top().attained > 0 {
		p.groups = append(p.groups, group{})
	}
	p.top().bySize.push(item{p.jobs[i].Size, i})
}
