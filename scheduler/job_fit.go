package scheduler

import "slices"

// A search in the order of a tenant's jobs asks these questions of each job on the way. They are answered from
// caches in the job: with thousands of jobs that cannot start, their stages are rarely in the CPU cache.

// MisfitClass identifies a demand such that no task of a job of the class fits while the demand fits nowhere:
// either the demand of the job's only ready stage, or a smaller one that fitted nowhere. The zero value is no
// class. A class is valid until a node is added or avoided; a smaller demand also only until a node fits it.
type MisfitClass struct {
	class      int32 // in fitIndex.classes, or minus the number in misfits.lowest
	generation uint32
}

// IsZero reports whether it stands for no class.
func (k MisfitClass) IsZero() bool { return k.generation == 0 }

// IsOwn reports whether it is the demand of a job itself, so that all jobs of the class fit on the same nodes.
func (k MisfitClass) IsOwn() bool { return k.class >= 0 && !k.IsZero() }

// MisfitClassOf returns the class of a job. If several stages are ready, the job avoids nodes or
// was not searched for, it returns a smaller demand that fits nowhere, if known. O(1); O(stages)
// after a stage changed readiness, or while no class is known.
func (q Queue) MisfitClassOf(j *Job) MisfitClass {
	c := &q.s.cluster
	if j.misfit.generation != c.fit.generation || j.misfit.IsZero() || (j.misfit.class < 0 && !q.ClassFitsNowhere(j.misfit)) {
		j.misfit = q.findClass(j)
	}
	return j.misfit
}

// ClassFitsNowhere reports whether no node fits a valid class; of an invalid class it returns false. Amortised O(1).
func (q Queue) ClassFitsNowhere(k MisfitClass) bool {
	c := &q.s.cluster
	if k.generation != c.fit.generation || k.IsZero() {
		return false
	}
	if k.class < 0 {
		return c.fit.misfits.recheck(c, -k.class)
	}
	return c.nextFit(&c.fit.classes[k.class], 0) == NoNode
}

// findClass returns the class of a job, the zero value if there is none. It stays right if the
// stage avoids more nodes later: the stage then fits on fewer nodes.
func (q Queue) findClass(j *Job) MisfitClass {
	c, least := &q.s.cluster, unsatisfiable
	f := &c.fit
	if j.leastNeed != (capacityVec{}) { // else its stages must be read, which are rarely in the cache
		if low := f.misfits.below(c, &j.leastNeed); low != 0 {
			return MisfitClass{-low, f.generation}
		}
	}
	for _, g := range j.Stages {
		if !g.Ready() {
			continue
		}
		if j.Ready == 1 && g.eqClassGeneration == f.generation && g.eqClassBegins == 0 && g.Avoider() == 0 {
			return MisfitClass{g.eqClass, f.generation}
		}
		need := g.need()
		least.lower(&need)
	}
	j.leastNeed = least
	if low := f.misfits.below(c, &least); low != 0 {
		return MisfitClass{-low, f.generation}
	}
	return MisfitClass{}
}

const plannedNever Time = -1 // Job.plannedUntil if some pending task has no place

// PlannedUntil returns the first end of the guarantees on nodes for the pending tasks of the job's
// only ready stage, if every such task has one. It returns 0 or less if some task has none, or if
// several stages are ready. O(1) while the job does not change, else O(stages + reservations).
func (j *Job) PlannedUntil() Time {
	if j.plannedUntil != 0 {
		return j.plannedUntil
	}
	j.plannedUntil = plannedNever
	if j.Ready != 1 || j.Guarantees == 0 {
		return plannedNever
	}
	g := j.Stages[slices.IndexFunc(j.Stages, (*Stage).Ready)]
	if j.Guarantees < g.Pending {
		return plannedNever
	}
	planned, until := int32(0), Never
	for _, r := range j.reservations {
		if r.Stage == g.Index && r.Kind.IsGuarantee() && r.IsOfTask() && g.IsPending(r.Task) {
			planned, until = planned+1, min(until, r.End)
		}
	}
	if planned >= g.Pending {
		j.plannedUntil = until
	}
	return j.plannedUntil
}
