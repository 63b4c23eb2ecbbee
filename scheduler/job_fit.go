package scheduler

import "slices"

// What a search in the order of a tenant's jobs asks of each job on the way, answered from the job
// alone: with thousands of jobs that cannot start, their stages are rarely in the cache. The
// answers are caches.

// FitClass identifies the demand of a job's only ready stage: jobs of equal classes fit on the same
// nodes. The zero value stands for no class. It is valid until a node is added or avoided.
type FitClass struct {
	class      int32
	generation uint32
}

// IsZero reports whether it stands for no class.
func (k FitClass) IsZero() bool { return k.generation == 0 }

// FitClass returns the class of a job, none for one with several ready stages or that avoids nodes, and
// for a demand that was not searched for yet. O(1), O(stages) after a stage became ready or ceased to be.
func (q Queue) FitClass(j *Job) FitClass {
	c := &q.s.cluster
	if (j.fit.generation != c.fit.generation || j.fit.IsZero()) && !c.fit.findClass(j) {
		return FitClass{}
	}
	return j.fit
}

// ClassFitsNowhere reports whether no node fits a class. False says nothing if it is not valid any
// more. Amortised O(1).
func (q Queue) ClassFitsNowhere(k FitClass) bool {
	c := &q.s.cluster
	return k.generation == c.fit.generation && !k.IsZero() && c.nextFit(&c.fit.classes[k.class], 0) == NoNode
}

// findClass stores the class of a job's only ready stage. It returns false if there is no such class.
// What the stage comes to avoid later does not matter: it fits on no more nodes then.
func (f *fitIndex) findClass(j *Job) bool {
	if j.Ready != 1 {
		return false
	}
	g := j.Stages[slices.IndexFunc(j.Stages, (*Stage).Ready)]
	if g.eqClassGeneration != f.generation || g.eqClassGeneration == 0 || g.eqClassBegins != 0 || g.Avoider() != 0 {
		return false
	}
	j.fit = FitClass{g.eqClass, g.eqClassGeneration}
	return true
}

// plannedNever is Job.plannedUntil if some pending task has no place.
const plannedNever Time = -1

// PlannedUntil returns the time until which there are as many guarantees on nodes for the pending tasks of the job's
// only ready stage as there are such tasks: the first end of these guarantees. It returns 0 or less if there are
// fewer, or several ready stages. O(1) while the job does not change, else O(stages + reservations).
func (j *Job) PlannedUntil() Time {
	if j.plannedUntil == 0 {
		j.plannedUntil = j.findPlannedUntil()
	}
	return j.plannedUntil
}

func (j *Job) findPlannedUntil() Time {
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
	if planned < g.Pending {
		return plannedNever
	}
	return until
}
