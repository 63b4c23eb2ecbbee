package coordinator

import (
	"cmp"
	"fmt"
	"slices"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/coordinator/facts"
	"github.com/drover-run/drover/scheduler"
)

// rebuild builds a new State from the facts by replaying, in their original
// order, the placements, ends and output losses of all jobs that are not over.
func (p *projection) rebuild(f *facts.Facts) error {
	p.state, p.restoreClasses = scheduler.New(), newRestoreClasses(f.Nodes()) // all classes at once: no node is put twice
	clear(p.lateOutputLosses)
	for range 2 { // a tenant may be below one that was created later: the second pass puts it there
		for _, t := range f.Tenants() {
			if err := p.putTenant(f, t); err != nil {
				return err
			}
		}
	}
	disks := usedDisks(f)
	for _, n := range f.Nodes() {
		if err := p.putNode(n, disks[n.ID]); err != nil {
			return err
		}
	}
	var steps []replayStep
	for _, id := range f.JobIDs() {
		j := f.Job(id)
		if j.HasEnded() && j.Live == 0 {
			continue
		}
		if err := p.submitJob(f, j); err != nil {
			return err
		}
		f.EachAttempt(j, func(k facts.Key, _ *facts.Task, a *facts.Attempt) { steps = append(steps, replaySteps(k, a)...) })
	}
	slices.SortFunc(steps, func(a, b replayStep) int { return cmp.Compare(a.seq, b.seq) })
	p.replaying = true
	for _, s := range steps {
		if err := p.replay(f, &s); err != nil {
			p.replaying = false
			return err
		}
	}
	p.replaying = false
	return p.restore(f)
}

// replayStep is a placement, end or output loss of an attempt.
type replayStep struct {
	seq     uint64
	kind    facts.ChangeKind
	key     facts.Key
	attempt *facts.Attempt
}

func replaySteps(k facts.Key, a *facts.Attempt) []replayStep {
	out := []replayStep{{a.Seq, facts.ChangePlaced, k, a}}
	if a.EndSeq > 0 {
		out = append(out, replayStep{a.EndSeq, facts.ChangeEnded, k, a})
	}
	if a.LostSeq > 0 {
		out = append(out, replayStep{a.LostSeq, facts.ChangeOutput, k, a})
	}
	return out
}

func (p *projection) replay(f *facts.Facts, s *replayStep) error {
	switch s.kind {
	case facts.ChangePlaced:
		if err := p.place(s.key, s.attempt); err != nil {
			return fmt.Errorf("%w: %w", errDrift, err)
		}
		if s.attempt.State == facts.AttemptStopping { // State must know that it is stopping before its sibling succeeds, and accepts no level afterwards
			return p.restoreLevel(f, s.key, s.attempt, s.attempt.Placed)
		}
		return nil
	case facts.ChangeEnded:
		return p.endAttempt(f, s.key, s.attempt.Ended)
	default:
		return p.outputLost(s.key)
	}
}

// restore applies what does not depend on order: levels, stops and policy
// state.
func (p *projection) restore(f *facts.Facts) error {
	for _, id := range f.JobIDs() {
		j := f.Job(id)
		if err := p.syncJob(f, j); err != nil {
			return err
		}
		if j.Live == 0 {
			continue
		}
		var err error
		f.EachActive(j, func(k facts.Key, _ *facts.Task, a *facts.Attempt) {
			if err == nil {
				err = p.restoreAttempt(f, k, a)
			}
		})
		if err != nil {
			return err
		}
	}
	return p.restorePolicyStates(f)
}

func (p *projection) restoreAttempt(f *facts.Facts, k facts.Key, a *facts.Attempt) error {
	if a.State == facts.AttemptStopping { // it has had its level since it was placed
		return p.stopAttempt(f, k, f.Time())
	}
	return p.restoreLevel(f, k, a, f.Time())
}

// restoreLevel brings an attempt to its level. at must not be later than the steps that are
// replayed afterwards, or their run time would not count.
func (p *projection) restoreLevel(f *facts.Facts, k facts.Key, a *facts.Attempt, at int64) error {
	if a.Level == droverv1.Level_LEVEL_RUNNING && a.Target == 0 && a.Suspension.ImageNode == 0 && a.Suspension.Refused() == 0 && a.Suspension.SuspendedAt == 0 {
		return nil
	}
	return p.syncLevel(f, k, at)
}

func (p *projection) restorePolicyStates(f *facts.Facts) error {
	var states []scheduler.PolicyState
	for _, n := range f.PolicyStates() {
		if isOfGoneProject(f, n.Job, n.Project) { // State refuses it; see proposeDeletion
			continue
		}
		states = append(states, scheduler.PolicyState{PolicyStateKey: scheduler.PolicyStateKey{Kind: scheduler.PolicyStateKind(n.Kind), Job: scheduler.JobID(n.Job), Stage: n.Stage,
			Task: n.Task, Tenant: scheduler.TenantID(n.Tenant), Slot: n.Slot, Project: scheduler.ProjectID(n.Project)},
			Value: n.Value, Real: n.Real, At: scheduler.Time(n.At)})
	}
	if err := p.state.PolicyStates().Apply(states); err != nil {
		return fmt.Errorf("%w: %w", errDrift, err)
	}
	for _, r := range f.Reservations() {
		if r.GetNode() == 0 { // on no node: no scheduler makes such reservations, and none would use one
			continue
		}
		act := &scheduler.Action{Kind: scheduler.ActReserve, Reservation: reservation(r)}
		if err := ignoreStale(p.state.ApplyFact(act, scheduler.Time(f.Time()))); err != nil {
			return err
		}
	}
	p.state.SetIndex(f.Index())
	return nil
}

func reservation(r *droverv1.ReservationFact) scheduler.Reservation {
	return scheduler.Reservation{ID: scheduler.ReservationID(r.GetId()), Kind: scheduler.ReservationKind(r.GetKind()), Job: scheduler.JobID(r.GetJob()),
		Stage: r.GetStage(), Task: r.GetTask(), Project: scheduler.ProjectID(r.GetProject()), Node: nodeID(r.GetNode()),
		Demand: resources(facts.AmountsOf(r.GetDemand())), Disk: r.GetDisk(), OnDisk: int16(r.GetOnDisk()), Start: scheduler.Time(r.GetStart()), End: scheduler.Time(r.GetEnd()),
		Latest: scheduler.Time(r.GetLatest())}
}
