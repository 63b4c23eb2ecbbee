package scheduler

import "slices"

// All is what the policies remember in a State.
type PolicyStates struct{ s *State }

// All returns all policy states in order of their keys. It allocates.
func (ps PolicyStates) All() []PolicyState {
	out := make([]PolicyState, 0, len(ps.s.policyStates))
	for _, n := range ps.s.policyStates {
		out = append(out, n)
	}
	slices.SortFunc(out, func(a, b PolicyState) int { return a.PolicyStateKey.compare(b.PolicyStateKey) })
	return out
}

// updateKinds updates the stateKinds of the job or project of a policy state after the
// state was added (there) or deleted.
func (ps PolicyStates) updateKinds(k PolicyStateKey, there bool) {
	whole := k
	whole.Job, whole.Project = 0, 0
	if k.Kind == ViolatedState {
		whole.Slot = 0
	}
	if whole != (PolicyStateKey{Kind: k.Kind}) {
		return
	}
	var m *stateKindSet
	if j := ps.s.jobs[k.Job]; j != nil && k.Project == 0 {
		m = &j.stateKinds
	} else if p := ps.s.projects[k.Project]; p != nil && k.Job == 0 {
		m = &p.stateKinds
	} else {
		return
	}
	if k.Kind == ViolatedState && !there { // a state with another cause may remain
		for k.Slot = range int32(maxCauses) {
			_, left := ps.s.policyStates[k]
			there = there || left
		}
	}
	was := *m
	if *m &^= 1 << k.Kind; there {
		*m |= 1 << k.Kind
	}
	if *m != was && (k.Kind == AcceptedState || k.Kind == InfeasibleState || k.Kind == ViolatedState) {
		ps.s.links().bumpNodeVersionsOfOwner(k)
	}
}

// VersionOf returns a number that changes whenever a policy state of a tenant alone changes, of no job and no
// project, tries included. Numbers are never reused. O(1).
func (ps PolicyStates) VersionOf(t TenantID) uint64 {
	if tn := ps.s.Tenant(t); tn != nil {
		return tn.stateVersion
	}
	return 0
}

// countChange counts a change of a policy state that is of a tenant alone.
func (ps PolicyStates) countChange(k *PolicyStateKey) {
	if t := ps.s.Tenant(k.Tenant); t != nil && k.Job == 0 && k.Project == 0 {
		ps.s.stateVersion++
		t.stateVersion = ps.s.stateVersion
	}
}

func (ps PolicyStates) put(p PolicyState) {
	ps.countChange(&p.PolicyStateKey)
	ps.recordChange(&p.PolicyStateKey)
	ps.updateKinds(p.PolicyStateKey, true)
	if _, had := ps.s.policyStates[p.PolicyStateKey]; !had {
		ps.addKey(p.PolicyStateKey)
	}
	ps.s.policyStates[p.PolicyStateKey] = p
	ps.setQueue(p.PolicyStateKey, p.Value)
}

// setQueue stores the value of a QueueState at its job.
func (ps PolicyStates) setQueue(k PolicyStateKey, queue int64) {
	if j := ps.s.jobs[k.Job]; j != nil && k == (PolicyStateKey{Kind: QueueState, Job: k.Job}) {
		j.queue = queue
	}
}

func (ps PolicyStates) drop(k PolicyStateKey) {
	if _, had := ps.s.policyStates[k]; had {
		delete(ps.s.policyStates, k)
		ps.countChange(&k)
		ps.recordChange(&k)
		ps.dropKey(k)
		ps.updateKinds(k, false)
		ps.setQueue(k, 0)
	}
}

// recordChange logs that a policy state of a job or project changed.
func (ps PolicyStates) recordChange(k *PolicyStateKey) {
	if j := ps.s.jobs[k.Job]; j != nil {
		ps.s.changeLog.recordJob(j)
	} else if k.Project != 0 {
		ps.s.changeLog.add(ChangedOwner{Project: k.Project})
	}
}

// addKey notes a new policy state at its job. O(1).
func (ps PolicyStates) addKey(k PolicyStateKey) {
	if j := ps.s.jobs[k.Job]; j != nil {
		j.stateKeys = append(j.stateKeys, k)
	} else {
		ps.s.joblessStates++
	}
}

// dropKey is the inverse of addKey. O(states of the job); a new one is found at once.
func (ps PolicyStates) dropKey(k PolicyStateKey) {
	j := ps.s.jobs[k.Job]
	if j == nil {
		ps.s.joblessStates--
		return
	}
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
	k := p.PolicyStateKey
	if p.Kind == TombstoneState {
		k.Kind = PolicyStateKind(p.Value)
	}
	old, had := ps.s.policyStates[k]
	if ps.s.undo.depth > 0 {
		op := undoReplaceState
		if !had {
			old.PolicyStateKey, op = k, undoNewState
		}
		ps.s.undo.policyStates = append(ps.s.undo.policyStates, old)
		ps.s.undo.records = append(ps.s.undo.records, undoRec{op: op})
	}
	if p.Kind == TombstoneState {
		ps.drop(k)
		return
	}
	ps.put(*p)
}
