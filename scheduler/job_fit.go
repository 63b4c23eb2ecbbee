package scheduler

import "slices"

// What a search in the order of a tenant's jobs asks of each job on the way, answered from the job
// alone: with thousands of jobs that cannot start, their stages are rarely in the cache. Both
// answers are caches.

// FitsNowhere reports whether no node fits a task of any ready stage of the job. False says nothing: it is the
// answer for jobs with several ready stages, for jobs that avoid nodes, and for a demand that was
// not searched for yet. Amortised O(1), O(stages) after a stage became ready or ceased to be.
func (q Queue) FitsNowhere(j *Job) bool {
	c := &q.s.cluster
	if (j.fitGeneration != c.fit.generation || j.fitGeneration == 0) && !c.findClass(j) {
		return false
	}
	return c.nextFit(&c.fit.classes[j.fitClass], 0) == NoNode
}

// findClass stores the class of a job's only ready stage. It returns false if there is no such class.
// What the stage comes to avoid later does not matter: it fits on no more nodes then.
func (c *Cluster) findClass(j *Job) bool {
	if j.Ready != 1 {
		return false
	}
	g := j.Stages[slices.IndexFunc(j.Stages, (*Stage).Ready)]
	if g.eqClassGeneration != c.fit.generation || g.eqClassGeneration == 0 || g.eqClassBegins != 0 || g.Avoider() != 0 {
		return false
	}
	j.fitClass, j.fitGeneration = g.eqClass, g.eqClassGeneration
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
