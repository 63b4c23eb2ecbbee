package scheduler

// policyStateBatch counts the policy states of each job, including those of the batch so far, so
// that the limit holds within a batch too.
type policyStateBatch struct {
	present map[PolicyStateKey]bool // keys that the batch stored (true) or deleted (false)
	perJob  map[JobID]int32         // change in the number of states; job 0: those without a job
}

func (b *policyStateBatch) begin() {
	if b.present == nil {
		b.present, b.perJob = map[PolicyStateKey]bool{}, map[JobID]int32{}
	}
	clear(b.present)
	clear(b.perJob)
}

// count counts a state that the batch stored (n 1) or deleted (-1).
func (b *policyStateBatch) count(k *PolicyStateKey, n int32) {
	b.present[*k] = n > 0
	b.perJob[k.Job] += n
}

// add adds the next state of the batch. It returns an error if the job or project does not exist, a value is invalid,
// or the limit is reached. A state that replaces another never exceeds the limit.
func (b *policyStateBatch) add(s *State, p *PolicyState) error {
	if err := p.validate(); err != nil {
		return err
	}
	k := p.about()
	had, known := b.present[k]
	if !known {
		_, had = s.policyStates.get(k)
	}
	if p.Kind == TombstoneState {
		if had {
			b.count(&k, -1)
		}
		return nil
	}
	j := s.jobs[p.Job]
	switch {
	case p.Job != 0 && j == nil:
		return p.refuse(ErrUnknown, "its job %d does not exist", p.Job)
	case p.Job == 0 && p.Project != 0 && s.projects[p.Project] == nil:
		return p.refuse(ErrUnknown, "its project %d does not exist", p.Project)
	case had:
		return nil
	}
	if j != nil {
		if have := int32(len(j.stateKeys)) + b.perJob[p.Job]; have >= MaxPolicyStatesPerJob {
			return p.refuse(ErrInvalid, "job %d already has the maximum of %d policy states", p.Job, have)
		}
	} else if have := s.joblessStates + int(b.perJob[0]); have >= maxPolicyStatesNoJob {
		return p.refuse(ErrInvalid, "there are already the maximum of %d policy states without a job", have)
	}
	b.count(&k, 1)
	return nil
}

// Apply stores policy states. It stores none of them if one is refused: its job or
// project does not exist, a number is not finite, or there are too many.
func (ps PolicyStates) Apply(states []PolicyState) error {
	if len(states) == 0 {
		return nil
	}
	ps.s.stateBatch.begin()
	for i := range states {
		if err := ps.s.stateBatch.add(ps.s, &states[i]); err != nil {
			return err
		}
	}
	for i := range states {
		ps.apply(&states[i])
	}
	ps.s.Journal().countStep()
	return nil
}
