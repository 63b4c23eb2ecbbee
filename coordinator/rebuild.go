package coordinator

import (
	"cmp"
	"fmt"
	"slices"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/coordinator/facts"
	"github.com/drover-run/drover/scheduler"
)

// rebuild makes a new State of the facts, replaying what happened to the
// attempts of jobs that are not over in the order in which it happened.
func (p *projection) rebuild(f *facts.Facts) error {
	p.state = scheduler.New()
	clear(p.late)
	for _, t := range f.Tenants() {
		if err := p.putTenant(f, t); err != nil {
			return err
		}
	}
	for _, n := range f.Nodes() {
		if err := p.putNode(n); err != nil {
			return err
		}
	}
	var steps []step
	for _, id := range f.JobIDs() {
		j := f.Job(id)
		if j.HasEnded() && j.Live == 0 {
			continue
		}
		if err := p.submit(f, j); err != nil {
			return err
		}
		f.EachAttempt(j, func(k facts.Key, _ *facts.Task, a *facts.Attempt) { steps = append(steps, stepsOf(k, a)...) })
	}
	slices.SortFunc(steps, func(a, b step) int { return cmp.Compare(a.seq, b.seq) })
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

// step is one thing that happened to an attempt.
type step struct {
	seq  uint64
	kind facts.ChangeKind
	key  facts.Key
	a    *facts.Attempt
}

func stepsOf(k facts.Key, a *facts.Attempt) []step {
	out := []step{{a.Seq, facts.ChangePlaced, k, a}}
	if a.EndSeq > 0 {
		out = append(out, step{a.EndSeq, facts.ChangeEnded, k, a})
	}
	if a.LostSeq > 0 {
		out = append(out, step{a.LostSeq, facts.ChangeOutput, k, a})
	}
	return out
}

func (p *projection) replay(f *facts.Facts, s *step) error {
	switch s.kind {
	case facts.ChangePlaced:
		if err := p.place(s.key, s.a); err != nil {
			return fmt.Errorf("%w: %w", errDrift, err)
		}
		if s.a.State == facts.AttemptStopping { // State has it stop when its sibling succeeds, and then takes no level
			return p.restoreLevel(f, s.key, s.a)
		}
		return nil
	case facts.ChangeEnded:
		return p.ended(f, s.key, s.a.Ended)
	default:
		return p.outputLost(s.key)
	}
}

// restore brings in what is not a matter of order: levels, stops, notes.
func (p *projection) restore(f *facts.Facts) error {
	for _, id := range f.JobIDs() {
		j := f.Job(id)
		if err := p.job(f, j, f.At()); err != nil {
			return err
		}
		if j.Live == 0 {
			continue
		}
		var err error
		f.EachAttempt(j, func(k facts.Key, _ *facts.Task, a *facts.Attempt) {
			if err == nil && a.State.Holds() {
				err = p.restoreAttempt(f, k, a)
			}
		})
		if err != nil {
			return err
		}
	}
	return p.restoreNotes(f)
}

func (p *projection) restoreAttempt(f *facts.Facts, k facts.Key, a *facts.Attempt) error {
	if a.State == facts.AttemptStopping { // at its level since it was placed
		return p.stopping(f, k, f.At())
	}
	return p.restoreLevel(f, k, a)
}

func (p *projection) restoreLevel(f *facts.Facts, k facts.Key, a *facts.Attempt) error {
	if a.Level == droverv1.Level_LEVEL_RUNNING && a.Target == 0 && a.Sus.Holder == 0 && a.Sus.Bars() == 0 {
		return nil
	}
	return p.level(f, k, f.At())
}

func (p *projection) restoreNotes(f *facts.Facts) error {
	var notes []scheduler.Note
	for _, n := range f.Notes() {
		notes = append(notes, scheduler.Note{NoteKey: scheduler.NoteKey{Kind: scheduler.NoteKind(n.Kind), Job: scheduler.JobID(n.Job), Stage: n.Stage,
			Task: n.Task, Tenant: scheduler.TenantID(n.Tenant), Slot: n.Slot, Project: scheduler.ProjectID(n.Project)},
			Value: n.Value, Real: n.Real, At: scheduler.Time(n.At)})
	}
	if err := p.state.ApplyNotes(notes); err != nil {
		return fmt.Errorf("%w: %w", errDrift, err)
	}
	for _, r := range f.Reservations() {
		act := &scheduler.Action{Kind: scheduler.ActReserve, Reservation: reservation(r)}
		if err := settle(p.state.ApplyFact(act, scheduler.Time(f.At()))); err != nil {
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
