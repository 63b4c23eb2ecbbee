package scheduler

import (
	"maps"
	"slices"
)

// PolicyStates is the memory of the policies in a State.
type PolicyStates struct{ s *State }

// All returns all policy states in order of their keys. It allocates.
func (ps PolicyStates) All() []PolicyState {
	t := &ps.s.policyStates
	out := slices.Concat(slices.Collect(maps.Values(t.others)), slices.Concat(t.ofTenant...))
	slices.SortFunc(out, func(a, b PolicyState) int { return a.compare(&b.PolicyStateKey) })
	return out
}

const maxCauses = 16 // bounds the cause numbers of the ViolatedStates of a project that are looked up

// updateKinds updates the stateKinds of the job or project of a policy state that was added (there) or deleted.
func (ps PolicyStates) updateKinds(j *Job, k PolicyStateKey, there bool) {
	whole := k
	whole.Job, whole.Project = 0, 0
	if k.Kind == ViolatedState {
		whole.Slot = 0
	}
	if whole != (PolicyStateKey{Kind: k.Kind}) {
		return
	}
	var m *stateKindSet
	if j != nil && k.Project == 0 {
		m = &j.stateKinds
	} else if p := ps.s.projects[k.Project]; p != nil && k.Job == 0 {
		m = &p.stateKinds
	} else {
		return
	}
	switch { // a state with another cause may remain
	case k.Kind != ViolatedState || there:
	case j != nil:
		there = slices.ContainsFunc(j.stateKeys, func(o PolicyStateKey) bool { o.Slot = k.Slot; return o == k })
	default:
		for k.Slot = range int32(maxCauses) {
			_, left := ps.s.policyStates.get(k)
			there = there || left
		}
	}
	was := *m
	if *m &^= 1 << k.Kind; there {
		*m |= 1 << k.Kind
	}
	if *m != was && (k.Kind == AcceptedState || k.Kind == InfeasibleState || k.Kind == ViolatedState) {
		if j != nil {
			ps.s.links().bumpNodeVersionsOf(j)
			return
		}
		for _, id := range ps.s.projects[k.Project].Jobs {
			ps.s.links().bumpNodeVersionsOf(ps.s.jobs[id])
		}
	}
}

// put adds a policy state or replaces the one with its key.
func (ps PolicyStates) put(p *PolicyState) { ps.follow(p, true, ps.s.policyStates.put(p)) }

// drop deletes a policy state, which must exist.
func (ps PolicyStates) drop(k PolicyStateKey) {
	ps.s.policyStates.drop(k)
	ps.follow(&PolicyState{PolicyStateKey: k}, false, true)
}

// follow updates what depends on a policy state that was put (there) or deleted. counted: the number of states changed.
func (ps PolicyStates) follow(p *PolicyState, there, counted bool) {
	j, k := ps.s.jobs[p.Job], p.PolicyStateKey
	switch {
	case j != nil:
		ps.s.changeLog.recordJob(j)
	case k.Project != 0:
		ps.s.changeLog.add(ChangedOwner{Project: k.Project})
	case k.Job == 0 && ps.s.Tenant(k.Tenant) != nil:
		ps.s.Tenant(k.Tenant).StateVersion++
	}
	switch {
	case !counted:
	case j != nil && there:
		j.stateKeys = append(j.stateKeys, k)
	case j != nil:
		j.dropStateKey(k)
	case there:
		ps.s.joblessStates++
	default:
		ps.s.joblessStates--
	}
	ps.updateKinds(j, k, there)
	j.copyState(p, there)
}

// copyState copies to the job and its stages what each cycle reads of many jobs. there: the job has the policy state.
func (j *Job) copyState(p *PolicyState, there bool) {
	switch k := p.PolicyStateKey; {
	case j == nil || k != PolicyStateKey{Kind: k.Kind, Job: k.Job, Stage: k.Stage}:
	case k.Kind == QueueState && k.Stage == 0:
		j.queue = p.Value
	case k.Kind == WaitSinceState && k.Stage >= 0 && int(k.Stage) < len(j.Stages):
		g := j.Stages[k.Stage]
		g.waits, g.waitsSince = there, p.At
	}
}

// dropStateKey is the inverse of what follow appends. O(states of the job); the newest state is found first.
func (j *Job) dropStateKey(k PolicyStateKey) {
	last := len(j.stateKeys) - 1
	for i := last; i >= 0; i-- {
		if j.stateKeys[i] == k {
			j.stateKeys[i] = j.stateKeys[last]
			j.stateKeys = j.stateKeys[:last]
			return
		}
	}
}

func (ps PolicyStates) apply(p *PolicyState) {
	k := p.about()
	old, had := ps.s.policyStates.get(k)
	if p.Kind == TombstoneState && !had {
		return
	}
	old.PolicyStateKey = k
	save(&ps.s.undo, &ps.s.undo.policyStates, old, undoRec{op: undoPolicyState, isNew: !had})
	if p.Kind == TombstoneState {
		ps.drop(k)
	} else {
		ps.put(p)
	}
}
