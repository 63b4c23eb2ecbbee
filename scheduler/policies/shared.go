package policies

import (
	"cmp"
	"math"
	"slices"

	"github.com/drover-run/drover/scheduler"
)

var measureParam = Param{Name: "measure", Kind: Choice, Default: "memory", Choices: []string{"memory", "dominant"},
	Help: "what use is: memory alone, as YARN does by default, or the dominant share"}

var fairInfo = Info{
	Name: "fair",
	Help: "YARN's Fair Scheduler: the tenant with the least use for its weight, and in it the job with the least use for its own",
	Params: []Param{measureParam, reserveParam,
		{Name: "jobs", Kind: Choice, Default: "fair", Choices: []string{"fair", "fifo"}, Help: "order of the jobs of one tenant"}},
	New: func(v Values) (scheduler.Policy, error) {
		return &shared{name: "fair", dominant: v.Text("measure") == "dominant", fifo: v.Text("jobs") == "fifo", weighted: true, placer: placer{reserve: v.Bool("reserve")}}, nil
	},
}

var equInfo = Info{
	Name:   "equ",
	Help:   "fair with equal weights",
	Params: []Param{measureParam, reserveParam},
	New: func(v Values) (scheduler.Policy, error) {
		return &shared{name: "equ", dominant: v.Text("measure") == "dominant", placer: placer{reserve: v.Bool("reserve")}}, nil
	},
}

var capacityInfo = Info{
	Name: "capacity",
	Help: "YARN's Capacity Scheduler: queues by use over capacity (weights), elastic up to their caps, jobs by priority and submission; no preemption",
	Params: []Param{measureParam, reserveParam,
		{Name: "jobs", Kind: Choice, Default: "fifo", Choices: []string{"fifo", "fair"}, Help: "order of the jobs of one queue"}},
	New: func(v Values) (scheduler.Policy, error) {
		return &shared{name: "capacity", dominant: v.Text("measure") == "dominant", fifo: v.Text("jobs") == "fifo", priority: true, weighted: true, placer: placer{reserve: v.Bool("reserve")}}, nil
	},
}

// shared gives each place to the tenant with the least use for its weight, from
// the root of the tree down, and in it to the first job. Use is compared as it
// is now, before the placement, as YARN does; ties go by name, among jobs by
// submission and id. What does not fit is passed over. A capacity of YARN's
// Capacity Scheduler is a weight (the part of the parent's) and its maximum
// capacity is the tenant's cap.
type shared struct {
	name     string
	dominant bool // use is the dominant share, else memory
	fifo     bool // jobs of a tenant in order, else by their use
	priority bool // jobs of high priority before those of low
	weighted bool

	placer placer
	pools  []pool // by tenant, the root last
	names  []int32
	namesN scheduler.Stamp
}

// pool is a tenant with work: a heap of what competes in it.
type pool struct {
	heap  []claim
	alive bool
}

// claim is a job or a tenant below, in its pool's heap.
type claim struct {
	use   float64
	order int64 // priority, then name or submission
	job   entry // of a job
	child int32 // pool of a tenant below, -1 for a job
}

func (f *shared) Name() string { return f.name }

// Reasons says whether Decision.Waiting is wanted.
func (f *shared) Reasons(wanted bool) { f.placer.reasons(wanted) }

// Decide costs O(1) when nothing changed, else O(tenants + ready jobs +
// placements x depth x log).
func (f *shared) Decide(s *scheduler.State, now scheduler.Time, max int) scheduler.Decision {
	p := &f.placer
	if p.begin(s, now, max) {
		return p.idle(now)
	}
	for !p.full() && p.pass() {
		root := f.build(s)
		for len(f.pools[root].heap) > 0 && !p.full() {
			f.descend(s, root)
		}
	}
	return p.end()
}

// build makes the heaps of the tenants that have ready work.
func (f *shared) build(s *scheduler.State) int32 {
	n := int32(len(s.Tenants()))
	for int32(len(f.pools)) <= n {
		f.pools = append(f.pools, pool{})
	}
	for i := range f.pools {
		f.pools[i].heap, f.pools[i].alive = f.pools[i].heap[:0], false
	}
	f.rank(s)
	for t := s.NextReadyTenant(0); t != scheduler.NoTenant; t = s.NextReadyTenant(t + 1) {
		for j, at := s.NextReadyOf(t, 0); j != nil; j, at = s.NextReadyOf(t, at) {
			c := claim{order: int64(at), child: -1, job: entry{job: j}}
			if f.priority && j.Spec.Priority != scheduler.PriorityHigh {
				c.order += math.MaxInt32
			}
			c.use = f.use(s, &c)
			f.pools[t].heap = append(f.pools[t].heap, c)
		}
		f.enlist(s, t, n)
	}
	for i := range f.pools {
		h := f.pools[i].heap
		for k := len(h)/2 - 1; k >= 0; k-- {
			down(h, k, lessClaim)
		}
	}
	return n
}

// enlist puts a tenant, and those above it, into the pools above them.
func (f *shared) enlist(s *scheduler.State, t scheduler.TenantID, root int32) {
	for range scheduler.MaxTenantDepth {
		if f.pools[t].alive {
			return
		}
		f.pools[t].alive = true
		up, parent := root, s.Tenant(t).Spec.Parent
		if parent != scheduler.NoTenant {
			up = int32(parent)
		}
		c := claim{child: int32(t), order: int64(f.names[t])}
		c.use = f.use(s, &c)
		f.pools[up].heap = append(f.pools[up].heap, c)
		if parent == scheduler.NoTenant {
			return
		}
		t = parent
	}
}

// rank numbers the tenants by name.
func (f *shared) rank(s *scheduler.State) {
	if f.namesN == s.Stamp() && len(f.names) == len(s.Tenants()) {
		return
	}
	all := s.Tenants()
	byName := make([]int32, len(all))
	for i := range byName {
		byName[i] = int32(i)
	}
	slices.SortFunc(byName, func(a, b int32) int { return cmp.Compare(all[a].Spec.Name, all[b].Spec.Name) })
	f.names = slices.Grow(f.names[:0], len(all))[:len(all)]
	for i, t := range byName {
		f.names[t] = int32(i)
	}
	f.namesN = s.Stamp()
}

// use is what a claim holds for its weight.
func (f *shared) use(s *scheduler.State, c *claim) float64 {
	held, weight := scheduler.Resources{}, 1.0
	if c.child < 0 {
		if f.fifo {
			return 0
		}
		held = c.job.job.Used
		if w := c.job.job.Spec.Weight; f.weighted && w > 0 {
			weight = w
		}
	} else {
		t := s.Tenant(scheduler.TenantID(c.child))
		held = t.Used
		if f.weighted {
			weight = t.Spec.Weight
		}
	}
	if f.dominant {
		return held.DominantShare(s.Total()) / weight
	}
	return float64(held[scheduler.Memory]) / weight
}

// descend goes down to the job that is due and places one task of it; what
// cannot be placed leaves its heap.
func (f *shared) descend(s *scheduler.State, at int32) {
	h := f.pools[at].heap
	top := &h[0]
	if top.child < 0 {
		if !f.placer.placeNext(&top.job) {
			f.drop(at)
			return
		}
	} else {
		f.descend(s, top.child)
		if len(f.pools[top.child].heap) == 0 {
			f.drop(at)
			return
		}
	}
	top.use = f.use(s, top)
	down(h, 0, lessClaim)
}

func (f *shared) drop(at int32) {
	h := f.pools[at].heap
	last := len(h) - 1
	h[0] = h[last]
	f.pools[at].heap = h[:last]
	down(h[:last], 0, lessClaim)
}

// lessClaim orders by use, then tenants before the jobs of the tenant itself,
// then name or submission.
func lessClaim(a, b *claim) bool {
	return cmp.Or(cmp.Compare(a.use, b.use), cmp.Compare(kind(a), kind(b)), cmp.Compare(a.order, b.order)) < 0
}

func kind(c *claim) int {
	if c.child >= 0 {
		return 0
	}
	return 1
}
