package scheduler

import "slices"

// enqueue inserts a job into the orders of all jobs and of its tenant's jobs.
func (s *State) enqueue(j *Job, t *Tenant) {
	s.compactOrder()
	t.Jobs++
	s.order = insertJob(s.order, j, func(k *Job, r int32) { k.rank = r })
	t.order = insertJob(closeGaps(t.order, &t.ready, func(k *Job, r int32) { k.tenantRank = r }), j,
		func(k *Job, r int32) { k.tenantRank = r })
	s.ready.grow(int32(len(s.order)))
	t.ready.grow(int32(len(t.order)))
	if int(j.rank) < len(s.order)-1 {
		rebuildReady(&s.ready, s.order)
	}
	if int(j.tenantRank) < len(t.order)-1 {
		rebuildReady(&t.ready, t.order)
	}
}

func (s *State) compactOrder() {
	s.order = closeGaps(s.order, &s.ready, func(k *Job, r int32) { k.rank = r })
}

// closeGaps removes the nil entries of ended jobs when they are half of the order.
func closeGaps(order []*Job, ready *bitset, rank func(*Job, int32)) []*Job {
	gone := 0
	if n := len(order); n < 64 || n&(n-1) != 0 { // check only when append would grow the slice
		return order
	}
	for _, j := range order {
		if j == nil {
			gone++
		}
	}
	if 2*gone < len(order) {
		return order
	}
	order = slices.DeleteFunc(order, func(j *Job) bool { return j == nil })
	for i, j := range order {
		rank(j, int32(i))
	}
	rebuildReady(ready, order)
	return order
}

// rebuildReady recomputes the set of ranks with ready work.
func rebuildReady(ready *bitset, order []*Job) {
	clear(ready.l0)
	clear(ready.l1)
	clear(ready.l2)
	for i, j := range order {
		if j != nil && j.Ready > 0 {
			ready.set(int32(i))
		}
	}
}

// insertJob inserts a job by (Submitted, ID) and updates the ranks behind it. It scans from
// the end: most jobs are submitted last.
func insertJob(order []*Job, j *Job, rank func(*Job, int32)) []*Job {
	at := len(order)
	for i := at - 1; i >= 0; i-- {
		k := order[i]
		if k == nil {
			continue
		}
		if k.Spec.Submitted < j.Spec.Submitted || (k.Spec.Submitted == j.Spec.Submitted && k.Spec.ID < j.Spec.ID) {
			break
		}
		at = i
	}
	order = slices.Insert(order, at, j)
	for i := at; i < len(order); i++ {
		if order[i] != nil {
			rank(order[i], int32(i))
		}
	}
	return order
}

// dequeue removes a job from the orders, leaving nil entries except at the end.
func (s *State) dequeue(j *Job) {
	t := s.tenants[j.Spec.Tenant]
	t.Jobs--
	s.order[j.rank] = nil
	t.order[j.tenantRank] = nil
	trim := func(o []*Job) []*Job {
		for len(o) > 0 && o[len(o)-1] == nil {
			o = o[:len(o)-1]
		}
		return o
	}
	s.order, t.order = trim(s.order), trim(t.order)
}

// addStage adds a validated stage to a job.
func (s *State) addStage(j *Job, spec StageSpec) {
	g := &Stage{Job: j, Index: int32(len(j.Stages)), Spec: spec, Pending: spec.Tasks,
		pending: newBitset(spec.Tasks), busy: newBitset(spec.Tasks), done: newBitset(spec.Tasks),
		active: make([]int32, spec.Tasks)}
	g.Spec.After = slices.Clone(spec.After)
	g.pending.setAll(spec.Tasks)
	if n := len(s.freeStageIndexes); n > 0 {
		g.self = s.freeStageIndexes[n-1]
		s.freeStageIndexes = s.freeStageIndexes[:n-1]
		s.stages[g.self] = g
	} else {
		g.self = int32(len(s.stages))
		s.stages = append(s.stages, g)
	}
	j.Stages = append(j.Stages, g)
	for _, a := range g.Spec.After {
		j.Stages[a].next = append(j.Stages[a].next, g.Index)
	}
	s.updateOpen(g)
	for _, n := range g.next {
		s.updateOpen(j.Stages[n])
	}
	s.recordJobChange(j)
}

// updateOpen recomputes whether a stage may start, and its ready sets.
func (s *State) updateOpen(g *Stage) {
	g.Open = true
	for _, a := range g.Spec.After {
		before := g.Job.Stages[a]
		need := before.Spec.Tasks
		if g.Spec.Kind == KindReduce && before.Spec.Kind == KindMap && g.Spec.SlowStart > 0 {
			need = int32(ceil(g.Spec.SlowStart * float64(before.Spec.Tasks)))
		}
		if before.Done < need || (before.Spec.Tasks == 0 && !before.Open) {
			g.Open = false
			break
		}
	}
	s.updateReady(g)
}

func ceil(x float64) int64 {
	n := int64(x)
	if float64(n) < x {
		n++
	}
	return n
}

// updateReady brings the ready counts and sets in line with the stage's counts.
func (s *State) updateReady(g *Stage) {
	ready := g.Open && g.Pending > 0 && g.Job.Phase == JobActive
	if ready == g.ready {
		return
	}
	g.ready = ready
	j := g.Job
	if !ready {
		s.floor.drop()
		if j.Ready--; j.Ready > 0 {
			return
		}
		s.ready.clear(j.rank)
		t := s.tenants[j.Spec.Tenant]
		t.ready.clear(j.tenantRank)
		t.countHigh(j, -1)
		if t.ready.next(0) < 0 {
			s.readyTenant.clear(int32(j.Spec.Tenant))
		}
		return
	}
	s.floor.add(g)
	if j.Ready++; j.Ready > 1 {
		return
	}
	s.ready.set(j.rank)
	t := s.tenants[j.Spec.Tenant]
	t.ready.set(j.tenantRank)
	t.countHigh(j, 1)
	s.readyTenant.set(int32(j.Spec.Tenant))
}

// countHigh adds n to the tenant's count of ready jobs if the job has high priority.
func (t *Tenant) countHigh(j *Job, n int32) {
	if j.Spec.Priority == PriorityHigh {
		t.ReadyHigh += n
	}
}

// setPhase sets the job's phase; it changes which of its stages are ready.
func (s *State) setPhase(j *Job, p JobPhase) {
	j.Phase = p
	s.recordJobChange(j)
	for _, g := range j.Stages {
		s.updateReady(g)
	}
}
