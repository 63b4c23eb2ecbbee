package scheduler

import "slices"

// enqueue gives a job its place among all jobs and among its tenant's.
func (s *State) enqueue(j *Job, t *Tenant) {
	s.compact()
	t.Jobs++
	s.order = insertJob(s.order, j, func(k *Job, r int32) { k.rank = r })
	t.order = insertJob(compactJobs(t.order, &t.ready, func(k *Job, r int32) { k.tenantRank = r }), j,
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

func (s *State) compact() {
	s.order = compactJobs(s.order, &s.ready, func(k *Job, r int32) { k.rank = r })
}

// compactJobs closes the gaps that ended jobs left, when they are half of it.
func compactJobs(order []*Job, ready *bitset, rank func(*Job, int32)) []*Job {
	gone := 0
	if n := len(order); n < 64 || n&(n-1) != 0 { // look only when it would grow
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

func (s *State) addStage(j *Job, spec StageSpec) {
	g := &Stage{Job: j, Index: int32(len(j.Stages)), Spec: spec, Pending: spec.Tasks,
		pending: newBitset(spec.Tasks), busy: newBitset(spec.Tasks), done: newBitset(spec.Tasks),
		active: make([]int32, spec.Tasks)}
	g.Spec.After = slices.Clone(spec.After)
	g.pending.setAll(spec.Tasks)
	if n := len(s.freeRefs); n > 0 {
		g.self = s.freeRefs[n-1]
		s.freeRefs = s.freeRefs[:n-1]
		s.stages[g.self] = g
	} else {
		g.self = int32(len(s.stages))
		s.stages = append(s.stages, g)
	}
	j.Stages = append(j.Stages, g)
	for _, a := range g.Spec.After {
		j.Stages[a].next = append(j.Stages[a].next, g.Index)
	}
	s.reopen(g)
	for _, n := range g.next {
		s.reopen(j.Stages[n])
	}
	s.worked(j)
}

// reopen works out whether a stage may start and puts it among the ready.
func (s *State) reopen(g *Stage) {
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
	s.refresh(g)
}

func ceil(x float64) int64 {
	n := int64(x)
	if float64(n) < x {
		n++
	}
	return n
}

// refresh brings ready counts and sets in line with a stage's counts.
func (s *State) refresh(g *Stage) {
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

// countHigh counts a job with ready work where its priority is high.
func (t *Tenant) countHigh(j *Job, n int32) {
	if j.Spec.Priority == PriorityHigh {
		t.ReadyHigh += n
	}
}

func (s *State) setPhase(j *Job, p JobPhase) {
	j.Phase = p
	s.worked(j)
	for _, g := range j.Stages {
		s.refresh(g)
	}
}
