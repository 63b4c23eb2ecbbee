package scheduler

import (
	"math"
	"slices"
)

// Queue is the jobs of a State in order, and which of them have ready work.
type Queue struct{ s *State }

// Next returns the next job with ready work, in order of (Submitted, ID), at or after position at, and the position to
// continue from; nil at the end. The iteration stays correct while the caller places tasks. O(1) a step.
func (q Queue) Next(at int32) (*Job, int32) { return q.s.order.next(at) }

// NextOf is Next among the jobs of one tenant, without the tenants below it.
func (q Queue) NextOf(t TenantID, at int32) (*Job, int32) {
	if tn := q.s.Tenant(t); tn != nil {
		return tn.order.next(at)
	}
	return nil, at
}

// NextTenant returns the next tenant with ready work of its own and id >= at, or NoTenant. O(1).
func (q Queue) NextTenant(at TenantID) TenantID {
	return TenantID(q.s.tree.readyTenant.next(int32(at)))
}

// enqueue inserts a job without stages into the orders of all jobs and of its tenant's jobs.
func (q Queue) enqueue(j *Job, t *Tenant) {
	j.tenant = t
	t.Jobs++
	q.countSpec(j, 1)
	t.order.insert(j)
	if q.s.order.insert(j) {
		q.s.floor.recount.at = 0 // jobs may have moved to before its position
	}
}

// dequeue removes a job without ready work from the orders.
func (q Queue) dequeue(j *Job) {
	j.tenant.Jobs--
	q.countSpec(j, -1)
	q.s.order.remove(j)
	j.tenant.order.remove(j)
}

func (q Queue) addStage(j *Job, spec StageSpec) {
	g := &Stage{Job: j, Index: int32(len(j.Stages)), Spec: spec,
		pending: newBitset(spec.Tasks), busy: newBitset(spec.Tasks), done: newBitset(spec.Tasks),
		active: newTaskTable[int32](spec.Tasks)}
	g.Spec.After = slices.Clone(spec.After)
	g.pending.setAll(spec.Tasks)
	g.addPending(spec.Tasks)
	if in := spec.Inputs; in != nil && len(in.Nodes) >= manyReplicas {
		g.tasksByNode = indexTasksByNode(g)
	}
	if n := len(q.s.freeStageIndexes); n > 0 {
		g.self = q.s.freeStageIndexes[n-1]
		q.s.freeStageIndexes = q.s.freeStageIndexes[:n-1]
		q.s.stages[g.self] = g
	} else {
		g.self = int32(len(q.s.stages))
		q.s.stages = append(q.s.stages, g)
	}
	j.Stages = append(j.Stages, g)
	for _, a := range g.Spec.After {
		j.Stages[a].next = append(j.Stages[a].next, g.Index)
		j.Stages[a].opensEarly = j.Stages[a].opensEarly || g.hasSlowStart(j.Stages[a])
	}
	q.updateOpen(g)
	q.s.changeLog.recordJob(j)
}

// hasSlowStart reports whether g is a reduce stage whose tasks may start before all tasks of map
// stage before are done (StageSpec.SlowStart), if its job allows that.
func (g *Stage) hasSlowStart(before *Stage) bool {
	return g.Spec.SlowStart > 0 && g.Spec.SlowStart < 1 && g.Spec.Kind == KindReduce && before.Spec.Kind == KindMap
}

// updateOpen recomputes whether a stage may start, and its ready sets.
func (q Queue) updateOpen(g *Stage) {
	g.Open = true
	s := &g.Job.Spec
	early := s.Bound == 0 && s.Deadline == 0 && s.Project == 0
	for _, a := range g.Spec.After {
		before := g.Job.Stages[a]
		need := before.Spec.Tasks
		if early && g.hasSlowStart(before) && before.Pending == 0 && before.Suspended == 0 {
			need = int32(math.Ceil(g.Spec.SlowStart * float64(before.Spec.Tasks)))
		}
		if before.Done < need || (before.Spec.Tasks == 0 && !before.Open) {
			g.Open = false
			break
		}
	}
	q.s.stalled.update(g)
	q.updateReady(g)
}

// updateReady synchronises the ready counts and sets with the stage's counts. It is called when Pending
// becomes zero or positive, and for a stage with a max_parallel when anything starts or ends.
func (q Queue) updateReady(g *Stage) {
	q.openEarly(g)
	ready := g.Open && g.Pending > 0 && g.Job.Phase == JobActive
	was := g.ready
	g.ready = ready
	q.s.floor.update(g)
	if ready == was {
		return
	}
	j := g.Job
	j.misfit, j.plannedUntil, j.leastNeed = MisfitClass{}, 0, capacityVec{}
	j.tenant.ReadyChanges++
	step := int32(1)
	if !ready {
		step = -1
	}
	q.s.readyStages += int(step)
	if j.Ready += step; j.Ready > max(step, 0) { // it has other ready stages
		return
	}
	t := j.tenant
	q.s.order.setReady(j, ready)
	t.order.setReady(j, ready)
	if j.Spec.Priority == PriorityHigh {
		t.ReadyHigh += step
	}
	if ready {
		q.s.tree.readyTenant.set(int32(j.Spec.Tenant))
	} else if t.order.ready.next(0) < 0 {
		q.s.tree.readyTenant.clear(int32(j.Spec.Tenant))
	}
}

// openEarly recomputes which stages with a slow start may start before g is done; that depends on Pending
// and Suspended of g too. During a try no stage opens or closes, since only events increase the two. Other
// followers of g are not examined: if n stages each follow all earlier ones, that would take 2^n steps.
func (q Queue) openEarly(g *Stage) {
	if !g.opensEarly || q.s.undo.depth > 0 {
		return
	}
	for _, n := range g.next {
		if after := g.Job.Stages[n]; after.hasSlowStart(g) {
			q.updateOpen(after)
		}
	}
}

// setPhase sets the job's phase, which changes the readiness of its stages.
func (q Queue) setPhase(j *Job, p JobPhase) {
	j.Phase = p
	q.s.changeLog.recordJob(j)
	for _, g := range j.Stages {
		q.updateReady(g)
	}
}

// Ready returns the number of stages with a task that could start.
func (q Queue) Ready() int { return q.s.readyStages }

// Bounded returns the number of jobs with a bound of their own. O(1).
func (q Queue) Bounded() int { return q.s.boundedJobs }

// countSpec adds a job to Bounded and Tenant.ReadyHigh according to its spec (n 1), or removes it (n -1).
func (q Queue) countSpec(j *Job, n int32) {
	if j.Spec.Bound > 0 {
		q.s.boundedJobs += int(n)
	}
	if j.Ready > 0 && j.Spec.Priority == PriorityHigh {
		j.tenant.ReadyHigh += n
	}
}
