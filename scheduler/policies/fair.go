package policies

import (
	"cmp"
	"math"
	"slices"

	"github.com/drover-run/drover/internal/heaps"
	"github.com/drover-run/drover/scheduler"
)

var measureParam = Param{Name: "measure", Kind: Choice, Default: "memory", Choices: []string{"memory", "dominant"},
	Help: "how use is measured: by memory alone, as YARN does by default, or by the dominant share"}

var fairInfo = Info{
	Name: "fair",
	Help: "YARN's Fair Scheduler: the tenant with the least use over its weight is next, and in it the job with the least use over its weight",
	Params: []Param{measureParam, reserveParam,
		{Name: "jobs", Kind: Choice, Default: "fair", Choices: []string{"fair", "fifo"}, Help: "order of the jobs of one tenant"}},
	new: func(v paramValues) scheduler.Policy {
		return &fairShare{name: "fair", byDominantShare: v.choice("measure") == "dominant", fifoJobs: v.choice("jobs") == "fifo", weighted: true, placer: newPlacer(v)}
	},
}

var equInfo = Info{
	Name:   "equ",
	Help:   "fair with equal weights",
	Params: []Param{measureParam, reserveParam},
	new: func(v paramValues) scheduler.Policy {
		return &fairShare{name: "equ", byDominantShare: v.choice("measure") == "dominant", placer: newPlacer(v)}
	},
}

var capacityInfo = Info{
	Name: "capacity",
	Help: "YARN's Capacity Scheduler: queues by use over capacity (weights), elastic up to their caps, jobs by priority and submission; no preemption",
	Params: []Param{measureParam, reserveParam,
		{Name: "jobs", Kind: Choice, Default: "fifo", Choices: []string{"fifo", "fair"}, Help: "order of the jobs of one queue"}},
	new: func(v paramValues) scheduler.Policy {
		return &fairShare{name: "capacity", byDominantShare: v.choice("measure") == "dominant", fifoJobs: v.choice("jobs") == "fifo", priorityFirst: true, weighted: true, placer: newPlacer(v)}
	},
}

// fairShare serves the tenant with the least use per weight, from the root of the tree down, and then
// its first job. Use is compared before the placement, as in YARN; ties go by name, among jobs by
// submission and id. Tasks that do not fit are passed over. The capacity of a queue in YARN's Capacity
// Scheduler, a part of its parent's, is a weight here; its maximum capacity is the tenant's cap.
type fairShare struct {
	name            string
	byDominantShare bool // use is the dominant share, else memory
	fifoJobs        bool // jobs of a tenant in submission order, else by their use
	priorityFirst   bool // jobs of high priority before those of low priority
	weighted        bool

	placer
	heaps    []tenantHeap // by tenant, the root last
	nameRank []int32
	rankedAt scheduler.Stamp
}

// tenantHeap holds the contenders inside one tenant.
type tenantHeap struct {
	heap   []contender
	listed bool
}

// contender is a job or a child tenant in its tenant's heap. It is small, since there may be 100,000.
type contender struct {
	use      float64
	tieBreak int64          // priority, then name or submission
	job      *scheduler.Job // nil for a tenant
	at       int32          // the job's cursor (see placeNextStage), or the child tenant's index in heaps
}

func (f *fairShare) Name() string { return f.name }

// Decide costs O(1) if nothing changed, else O(tenants + ready jobs + placements x depth x log).
func (f *fairShare) Decide(s *scheduler.State, now scheduler.Time, limit int) scheduler.Decision {
	p := &f.placer
	if p.begin(s, now, limit) {
		return p.idleDecision(now)
	}
	for !p.isDone() && p.nextPass() {
		root := f.buildHeaps(s)
		for len(f.heaps[root].heap) > 0 && !p.isDone() {
			f.placeNext(s, root)
		}
	}
	p.placeBeyond()
	return p.finish(p.reason)
}

// buildHeaps fills the heaps of the tenants with ready work and returns the root's index.
func (f *fairShare) buildHeaps(s *scheduler.State) int32 {
	n := int32(len(s.Tenants()))
	for int32(len(f.heaps)) <= n {
		f.heaps = append(f.heaps, tenantHeap{})
	}
	for i := range f.heaps {
		f.heaps[i].heap, f.heaps[i].listed = f.heaps[i].heap[:0], false
	}
	f.rankNames(s)
	for t := s.Queue().NextTenant(0); t != scheduler.NoTenant; t = s.Queue().NextTenant(t + 1) {
		f.heaps[t].heap = slices.Grow(f.heaps[t].heap, int(s.Tenant(t).Jobs)) // at once: to grow it step by step would copy it several times
		for j, at := s.Queue().NextOf(t, 0); j != nil; j, at = s.Queue().NextOf(t, at) {
			c := contender{tieBreak: int64(at), job: j}
			if f.priorityFirst && j.Spec.Priority != scheduler.PriorityHigh {
				c.tieBreak += math.MaxInt32
			}
			c.use = f.weightedUse(s, &c)
			f.heaps[t].heap = append(f.heaps[t].heap, c)
		}
		f.addToParents(s, t, n)
	}
	for i := range f.heaps {
		byUse.Init(f.heaps[i].heap)
	}
	return n
}

// addToParents adds a tenant to its parent's heap, and so on up to the root.
func (f *fairShare) addToParents(s *scheduler.State, t scheduler.TenantID, root int32) {
	for t != scheduler.NoTenant && !f.heaps[t].listed {
		f.heaps[t].listed = true
		c := contender{at: int32(t), tieBreak: int64(f.nameRank[t])}
		c.use = f.weightedUse(s, &c)
		up := root
		if t = s.Tenant(t).Spec.Parent; t != scheduler.NoTenant {
			up = int32(t)
		}
		f.heaps[up].heap = append(f.heaps[up].heap, c)
	}
}

func (f *fairShare) rankNames(s *scheduler.State) {
	if f.rankedAt == s.Stamp() && len(f.nameRank) == len(s.Tenants()) {
		return
	}
	byName := slices.Clone(s.Tenants())
	slices.SortFunc(byName, func(a, b *scheduler.Tenant) int { return cmp.Compare(a.Spec.Name, b.Spec.Name) })
	f.nameRank = slices.Grow(f.nameRank[:0], len(byName))[:len(byName)]
	for i, t := range byName {
		f.nameRank[t.Spec.ID] = int32(i)
	}
	f.rankedAt = s.Stamp()
}

func (f *fairShare) weightedUse(s *scheduler.State, c *contender) float64 {
	var used scheduler.Resources
	weight := 0.0
	if c.job == nil {
		t := s.Tenant(scheduler.TenantID(c.at))
		used, weight = t.Used, t.Spec.Weight
	} else {
		if f.fifoJobs {
			return 0
		}
		used, weight = c.job.Used, c.job.Spec.Weight
	}
	if !f.weighted || weight == 0 {
		weight = 1
	}
	if f.byDominantShare {
		return used.DominantShare(s.Cluster().Total()) / weight
	}
	return float64(used[scheduler.Memory]) / weight
}

// placeNext descends to the next job and places one of its tasks. A contender that cannot be placed leaves its heap.
func (f *fairShare) placeNext(s *scheduler.State, at int32) {
	h := &f.heaps[at].heap
	top, done := &(*h)[0], false
	if top.job != nil {
		done = f.placer.placeNextStage(top.job, &top.at) == nil
	} else {
		f.placeNext(s, top.at)
		done = len(f.heaps[top.at].heap) == 0
	}
	if done {
		byUse.Pop(h)
		return
	}
	top.use = f.weightedUse(s, top)
	byUse.Fix(*h, 0)
}

// byUse orders by use, then child tenants before jobs, then name or submission.
var byUse = heaps.Order[contender]{Less: func(a, b contender) bool {
	if a.use == b.use && (a.job == nil) == (b.job == nil) {
		return a.tieBreak < b.tieBreak
	}
	return a.use < b.use || (a.use == b.use && a.job == nil)
}}
