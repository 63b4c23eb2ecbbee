package policies

import (
	"iter"
	"math"
	"slices"
	"time"

	"github.com/drover-run/drover/scheduler"
)

var multifactorInfo = Info{
	Name: "multifactor",
	Help: "Slurm's multifactor priority: age, fair share by decayed use, size, deadline and priority, weighted; with EASY backfilling behind the first job",
	Params: []Param{boundParam,
		weightParam("age_weight", "1000", "weight of a job's age"),
		weightParam("fair_share_weight", "1000", "weight of the tenant's fair share"),
		weightParam("size_weight", "0", "weight of a job's size"),
		weightParam("deadline_weight", "1000", "weight of a near deadline"),
		weightParam("priority_weight", "10000", "weight of high priority"),
		{Name: "favor_small", Kind: Bool, Default: "false", Help: "small jobs have a higher size factor, instead of large ones"},
		{Name: "max_age", Kind: Duration, Default: "168h", Min: 1, Max: 1e8, Help: "age at which the age factor is 1"},
		{Name: "half_life", Kind: Duration, Default: "168h", Min: 1, Max: 1e8, Help: "time after which use counts half"},
		{Name: "deadline_window", Kind: Duration, Default: "24h", Min: 1, Max: 1e8, Help: "time before its deadline in which a job's deadline factor rises from 0 to 1"},
		{Name: "calc_period", Kind: Duration, Default: "1m", Min: 1, Max: 1e6, Help: "time between two samples of use, and between two calculations of priorities while nothing else happens"}},
	new: func(v paramValues) scheduler.Policy {
		m := &multifactor{easy: *newEasy(v), favorSmall: v.bool("favor_small"),
			maxAge: v.duration("max_age"), halfLife: v.duration("half_life"), deadlineWindow: v.duration("deadline_window"), calcPeriod: v.duration("calc_period"),
			weights: factors{v.float("age_weight"), v.float("fair_share_weight"), v.float("size_weight"), v.float("deadline_weight"), v.float("priority_weight")}}
		m.order = m.byPriority
		return m
	},
}

func weightParam(name, value, help string) Param {
	return Param{Name: name, Kind: Float, Default: value, Min: 0, Max: 1e9, Help: help}
}

// factors are the parts of a priority, each 0 to 1, or their weights.
type factors struct{ age, fairShare, size, deadline, priority float64 }

func (w *factors) sum(f *factors) float64 {
	return w.age*f.age + w.fairShare*f.fairShare + w.size*f.size + w.deadline*f.deadline + w.priority*f.priority
}

// multifactor is the order of Slurm's multifactor priority plugin, with easy's backfilling. A tenant's past use is
// policy state (VirtualTimeState), sampled every calc_period as in Slurm: dominant share x seconds, halved every
// half_life. Priorities are calculated for the last multiple of calc_period, so that they are constant between samples.
type multifactor struct {
	easy
	weights                                      factors
	favorSmall                                   bool
	maxAge, halfLife, deadlineWindow, calcPeriod time.Duration

	fairShares, use  []float64 // by tenant, of this cycle
	uses, weightSums []float64 // sums over the children of each tenant, the root last
	entries          []jobEntry
	samples          []scheduler.PolicyState
}

func (m *multifactor) Name() string { return "multifactor" }

// Decide costs as easy's does, plus O(tenants), plus a sort of the ready jobs where something changed.
func (m *multifactor) Decide(s *scheduler.State, now scheduler.Time, limit int) scheduler.Decision {
	next := m.sampleUse(s, now)
	if len(m.samples) > 0 {
		m.placer.idleAtStamp = false // the order may have changed
	}
	d := m.easy.Decide(s, now, limit)
	d.PolicyStates = m.samples
	d.WakeAt(next)
	return d
}

func useKey(t scheduler.TenantID) scheduler.PolicyStateKey {
	return scheduler.PolicyStateKey{Kind: scheduler.VirtualTimeState, Tenant: t}
}

// sampleUse samples each tenant whose last sample is a calc_period old, even if it used nothing: a
// decision may change its use, but not whether a sample is due. The present use counts for one
// period. It returns when the next sample is due, Never if there is no use.
func (m *multifactor) sampleUse(s *scheduler.State, now scheduler.Time) (next scheduler.Time) {
	m.samples, next = m.samples[:0], scheduler.Never
	for i := range s.Tenants() {
		id := scheduler.TenantID(i)
		share := s.Tenant(id).Used.DominantShare(s.Cluster().Total())
		last, known := s.PolicyState(useKey(id))
		if !known || now >= last.At.Add(m.calcPeriod) {
			use := 0.0
			if known {
				use = finite(m.decayed(&last, now) + share*m.calcPeriod.Seconds())
			}
			last = scheduler.PolicyState{PolicyStateKey: useKey(id), Real: use, At: now}
			m.samples = append(m.samples, last)
		}
		if share > 0 {
			next = min(next, last.At.Add(m.calcPeriod))
		}
	}
	return next
}

func (m *multifactor) decayed(p *scheduler.PolicyState, at scheduler.Time) float64 {
	return p.Real * math.Exp2(-at.Sub(p.At).Seconds()/m.halfLife.Seconds())
}

func finite(x float64) float64 { return min(x, math.MaxFloat64) }

// byPriority yields the ready jobs, the highest priority first; ties go to the job submitted first.
func (m *multifactor) byPriority(s *scheduler.State, now scheduler.Time) iter.Seq[*scheduler.Job] {
	at := now - now%scheduler.Time(m.calcPeriod)
	m.calculateFairShares(s, at)
	m.entries = slices.Grow(m.entries[:0], min(s.JobCount(), s.Queue().Ready()))
	for j, seq := s.Queue().Next(0); j != nil; j, seq = s.Queue().Next(seq) {
		f := m.factorsOf(s, j, at)
		m.entries = append(m.entries, jobEntry{key: jobKey{-m.weights.sum(&f)}, seq: seq, job: j})
	}
	slices.SortFunc(m.entries, jobEntry.compare)
	if len(m.entries) > 0 { // waiting jobs may change places at the next calculation
		m.placer.wake = at.Add(m.calcPeriod)
	}
	return func(yield func(*scheduler.Job) bool) {
		for i := range m.entries {
			if !yield(m.entries[i].job) {
				return
			}
		}
	}
}

func (m *multifactor) factorsOf(s *scheduler.State, j *scheduler.Job, at scheduler.Time) factors {
	f := factors{age: clampUnit(at.Sub(j.Spec.Submitted).Seconds() / m.maxAge.Seconds()), fairShare: m.fairShares[j.Spec.Tenant]}
	if m.weights.size > 0 { // else it does not count, and would cost a read of each stage
		for _, g := range j.Stages { // size is the part of the cluster that all tasks of the largest stage occupy at once
			f.size = max(f.size, g.Spec.Demand.DominantShare(s.Cluster().Total())*float64(g.Spec.Tasks))
		}
		f.size = clampUnit(f.size)
		if m.favorSmall {
			f.size = 1 - f.size
		}
	}
	if j.Spec.Deadline > 0 {
		f.deadline = 1 - clampUnit(j.Spec.Deadline.Sub(at).Seconds()/m.deadlineWindow.Seconds())
	}
	if j.Spec.Priority == scheduler.PriorityHigh {
		f.priority = 1
	}
	return f
}

func clampUnit(x float64) float64 { return max(0, min(1, x)) }

// calculateFairShares sets the factor of each tenant: 2^(-U/S), where U is its part of the decayed
// use of its siblings and itself and S its part of their weights, times the factor of its parent.
func (m *multifactor) calculateFairShares(s *scheduler.State, at scheduler.Time) {
	all := s.Tenants()
	root := len(all)
	m.use = append(m.use[:0], make([]float64, len(all))...)
	m.uses = append(m.uses[:0], make([]float64, root+1)...)
	m.weightSums = append(m.weightSums[:0], make([]float64, root+1)...)
	parent := func(i int) int {
		if p := all[i].Spec.Parent; p != scheduler.NoTenant {
			return int(p)
		}
		return root
	}
	for i := range all {
		if p, known := s.PolicyState(useKey(scheduler.TenantID(i))); known {
			m.use[i] = m.decayed(&p, at)
		}
	}
	for i := range m.samples { // of this cycle: the next decision at the same time must have the same order
		m.use[m.samples[i].Tenant] = m.decayed(&m.samples[i], at)
	}
	for i := range all {
		m.uses[parent(i)] = finite(m.uses[parent(i)] + m.use[i])
		m.weightSums[parent(i)] += all[i].Spec.Weight
	}
	m.fairShares = m.fairShares[:0]
	for i := range all {
		factor := 1.0
		for k := i; k != root; k = parent(k) {
			if m.uses[parent(k)] > 0 {
				factor *= math.Exp2(-(m.use[k] / m.uses[parent(k)]) / (all[k].Spec.Weight / m.weightSums[parent(k)]))
			}
		}
		m.fairShares = append(m.fairShares, factor)
	}
}
