package deadline

import (
	"math"
	"slices"

	"github.com/drover-run/drover/scheduler"
)

// capLack is what a tenant's cap on its total lacks for a task: the parts above 0.
type capLack struct {
	tenant scheduler.TenantID
	lacks  scheduler.Resources
}

// isCovered reports whether the cap lacks nothing any more.
func (l *capLack) isCovered() bool { return l.lacks.Fits(scheduler.Resources{}) }

// coversCaps reports whether no cap lacks anything any more.
func (p *Preemptor) coversCaps() bool {
	return !slices.ContainsFunc(p.lacks, func(l capLack) bool { return !l.isCovered() })
}

// FindCapVictims finds the attempts to preempt, on any nodes, so that a task of the stage stays
// within the total caps of its tenant and the tenants above, in addition to what due tasks below
// each tenant await. Victims on the given node come first in their group. There are none if enough
// is being released. Attempts that start or resume count if they can be preempted once they run,
// but are no victims yet. ok is false if no victims suffice: another cap stops the task, or the
// task alone exceeds the cap. The result is valid until the next call. O(depth of the tenant) if
// enough is being released, else O(jobs + attempts x log attempts below the tenants that lack).
func (p *Preemptor) FindCapVictims(s *scheduler.State, g *scheduler.Stage, node scheduler.NodeID, awaited func(scheduler.TenantID) scheduler.Resources,
	now scheduler.Time,
) (victims []Victim, ok bool) {
	p.now, p.current, p.victims = now, p.current[:0], p.victims[:0]
	if !p.listCapLacks(s, g, awaited) {
		return nil, false
	}
	if p.coversCaps() {
		return p.current, true
	}
	dominant := g.Spec.Demand.Dominant(s.Cluster().Total())
	for j := range s.Jobs() {
		if j.Live == 0 || !slices.ContainsFunc(p.lacks, func(l capLack) bool { return s.TenantTree().IsBelow(j.Spec.Tenant, l.tenant) }) {
			continue
		}
		for _, other := range j.Stages {
			for a := range s.Attempts().In(other) {
				if a.PendingRelease().IsZero() {
					p.addCandidate(s, g, a, dominant)
				}
			}
		}
	}
	p.sortCandidates(s, node)
	for i := range p.lacks { // victims below a tenant are also below its ancestors
		for k := 0; k < len(p.victims) && !p.lacks[i].isCovered(); k++ {
			p.takeCapVictim(s, g, &p.lacks[i], p.victims[k])
		}
		if !p.lacks[i].isCovered() {
			return nil, false
		}
	}
	p.prune(func(v *Victim, sign int64) { p.coverCapLacks(s, v, sign) }, p.coversCaps)
	p.dropStarting()
	return p.current, true
}

// listCapLacks lists what the caps lack for a task of the stage, from its tenant upwards, less what
// is being released. It returns false if no victim could cover that.
func (p *Preemptor) listCapLacks(s *scheduler.State, g *scheduler.Stage, awaited func(scheduler.TenantID) scheduler.Resources) bool {
	p.lacks = p.lacks[:0]
	d, t := g.Spec.Demand, s.Tenant(g.Job.Spec.Tenant)
	if _, ok := t.Spec.Caps.Task.Allows(d); !ok {
		return false
	}
	for ; t != nil; t = s.Tenant(t.Spec.Parent) {
		_, ofJob := t.Spec.Caps.Job.Allows(g.Job.Used.Add(d))
		_, alone := t.Spec.Caps.Total.Allows(d)
		if !ofJob || !alone {
			return false
		}
		l, used := capLack{tenant: t.Spec.ID}, t.Used.Add(awaited(t.Spec.ID)).Add(d)
		for r, limit := range t.Spec.Caps.Total {
			if limit > 0 {
				l.lacks[r] = used[r] - limit
			}
		}
		if !l.isCovered() {
			l.lacks = l.lacks.Sub(t.Releasing)
			p.lacks = append(p.lacks, l)
		}
	}
	return true
}

// coverCapLacks subtracts what a victim frees from the lacks of the caps above it, or adds it with sign -1.
func (p *Preemptor) coverCapLacks(s *scheduler.State, v *Victim, sign int64) {
	freed, _ := v.freedResources()
	for i := range p.lacks {
		if l := &p.lacks[i]; s.TenantTree().IsBelow(v.Attempt.Tenant, l.tenant) {
			l.lacks = l.lacks.Sub(freed.Times(sign))
		}
	}
}

// takeCapVictim adds a candidate to the victims if preempting it frees some of what a cap lacks.
func (p *Preemptor) takeCapVictim(s *scheduler.State, g *scheduler.Stage, l *capLack, v Victim) {
	a := v.Attempt
	if !s.TenantTree().IsBelow(a.Tenant, l.tenant) || slices.ContainsFunc(p.current, func(o Victim) bool { return o.Attempt == a }) {
		return
	}
	n, r := s.Node(a.Node), &p.capacity
	r.load(s, n, scheduler.Resources{}, 0)
	for i := range p.current {
		if o := &p.current[i]; o.Attempt.Node == a.Node && o.Level == scheduler.LevelSwapped {
			r.swap -= o.Attempt.Occupied.Resources[scheduler.Memory]
		}
	}
	// The node lacks nothing; the cap needs the memory.
	r.Free[scheduler.Memory] = math.MaxInt64
	was := p.Escalate
	p.Escalate = slices.ContainsFunc(p.lacks, func(o capLack) bool {
		return o.lacks[scheduler.Memory] > 0 && s.TenantTree().IsBelow(a.Tenant, o.tenant)
	})
	ok := p.chooseAction(n, g, r, &v)
	p.Escalate = was
	freed, _ := v.freedResources()
	for i := range freed {
		if ok && freed[i] > 0 && l.lacks[i] > 0 {
			p.coverCapLacks(s, &v, 1)
			p.current = append(p.current, v)
			return
		}
	}
}
