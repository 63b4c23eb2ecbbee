package scheduler

import (
	"maps"
	"slices"
)

// Clone returns an independent copy of the State, rebuilt from its facts without caches, so that decisions on the
// copy cannot depend on them. Inputs and lists in specs are shared. O(jobs + attempts + tasks/64 + history).
func (s *State) Clone() *State {
	c := New()
	for _, n := range s.cluster.nodes {
		mustCopy(c.Events().AddNode(n.Spec))
	}
	// A tenant's parent may come later in the list: add all first, then set the parents.
	for _, t := range s.tree.tenants {
		spec := t.Spec
		spec.Parent = NoTenant
		mustCopy(c.Events().PutTenant(spec))
	}
	for _, t := range s.tree.tenants {
		mustCopy(c.Events().PutTenant(t.Spec))
	}
	for _, p := range s.Projects() {
		mustCopy(c.Events().PutProject(p.Spec))
	}
	for j := range s.Jobs() {
		c.copyJob(s, j)
	}
	for _, r := range s.reservations {
		mustCopy(c.applier().reserve(r))
	}
	mustCopy(c.PolicyStates().Apply(s.PolicyStates().All()))
	c.history = History{tasks: slices.Concat(s.history.tasks[s.history.head:], s.history.tasks[:s.history.head]), total: s.history.total}
	c.index, c.seq, c.unplannedReleases = s.index, s.seq, s.unplannedReleases
	return c
}

// mustCopy panics if the copy refuses a fact that the original State holds.
func mustCopy(err error) {
	if err != nil {
		panic("scheduler: cannot copy a state: " + err.Error())
	}
}

// copyJob adds a job of another State, with its attempts.
func (c *State) copyJob(s *State, from *Job) {
	stages := make([]StageSpec, len(from.Stages))
	for i, g := range from.Stages {
		stages[i] = g.Spec
	}
	mustCopy(c.Events().SubmitJob(from.Spec, stages))
	mustCopy(c.Events().SetAvoided(from.Spec.ID, from.avoided))
	j := c.jobs[from.Spec.ID]
	j.FirstPlaced, j.begun = from.FirstPlaced, from.begun
	for i, g := range j.Stages {
		o := from.Stages[i]
		g.pending, g.busy, g.done = o.pending.cloneFor(o.pending.n), o.busy.cloneFor(o.busy.n), o.done.cloneFor(o.done.n)
		g.addPending(o.Pending - g.Pending)
		g.Done, g.Failed = o.Done, o.Failed
		g.pastAttempts, g.moved = maps.Clone(o.pastAttempts), maps.Clone(o.moved)
		g.taskTime, g.lastTick, g.progressSum = o.taskTime, o.lastTick, o.progressSum
		for a := range s.Attempts().In(o) {
			c.copyAttempt(g, a)
		}
	}
	c.Queue().setPhase(j, from.Phase)
	for _, g := range j.Stages {
		c.Queue().updateOpen(g)
	}
}

// copyAttempt adds a live attempt of another State to a stage, behind those at earlier tasks.
func (c *State) copyAttempt(g *Stage, from *Attempt) {
	slot := c.Attempts().newSlot()
	a := c.Attempts().at(slot)
	*a = *from
	details := *from.attemptDetails
	details.owned, details.stage = true, g.self
	a.attemptDetails, a.sibling = &details, 0
	if first := g.active.get(a.ID.Index); first != 0 {
		c.Attempts().at(first - 1).sibling = slot + 1
	} else {
		g.active.set(a.ID.Index, slot+1)
	}
	g.Job.Live++
	c.live++
	c.links().attach(a, slot)
}
