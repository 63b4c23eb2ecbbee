package coordinator

import (
	"context"
	"hash/fnv"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/coordinator/facts"
	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/policies"
)

// A decision is made on State and stored when it has been replicated. If its project has ended in the meantime, its
// policy states and reservations become facts all the same, and no event removes them later. And what a scheduler has
// reserved stays when another one is configured, which may not know how to release it. Both are unowned.

// makerSlot is the slot of the policy state that says which scheduler makes the others and the reservations; the slots of
// policies are small.
const makerSlot = 1 << 30

// makerState returns the policy state that says that a scheduler of this name makes the others.
func makerState(name string) *droverv1.PolicyStateFact {
	h := fnv.New64a()
	h.Write([]byte(name))
	return &droverv1.PolicyStateFact{Kind: int32(scheduler.CursorState), Slot: makerSlot, Value: int64(h.Sum64())}
}

// madeBy returns the value of the makerState that the facts have, 0 for none.
func madeBy(f *facts.Facts) int64 {
	for _, n := range f.PolicyStates() {
		if n.Kind == int32(scheduler.CursorState) && n.Slot == makerSlot {
			return n.Value
		}
	}
	return 0
}

// takeOver prepares the facts for a scheduler of this name. If they say that another one made the policy states, it is
// takeOverFromAnother; else it deletes what no scheduler owns, and all reservations if this one makes none. What was
// made before makers were recorded stays.
func takeOver(ctx context.Context, p proposer, name string) error {
	maker, before := makerState(name).GetValue(), int64(0)
	p.c.view(func(f *facts.Facts) { before = madeBy(f) })
	if before != 0 && before != maker {
		return takeOverFromAnother(ctx, p, name)
	}
	if err := p.proposeDeletion(ctx, deletionScope{allReservations: !makesReservations(name)}); err != nil || before == maker {
		return err
	}
	return recordMaker(ctx, p, name)
}

// takeOverFromAnother deletes all policy states and reservations, and records that a scheduler of this name makes the
// next: what another one has guaranteed may be nothing that this one can keep, and then Check refuses each of its
// decisions. It does not ask who the facts say made them: in this term another scheduler may have decided.
func takeOverFromAnother(ctx context.Context, p proposer, name string) error {
	if err := p.proposeDeletion(ctx, deletionScope{allStates: true, allReservations: true}); err != nil {
		return err
	}
	return recordMaker(ctx, p, name)
}

func recordMaker(ctx context.Context, p proposer, name string) error {
	_, err := p.proposeDecision(ctx, &droverv1.DecisionFact{PolicyStates: []*droverv1.PolicyStateFact{makerState(name)}})
	return err
}

// deletionScope says what is deleted besides the policy states and reservations of projects that have ended.
type deletionScope struct{ allStates, allReservations bool }

// deletion returns the decision that deletes the policy states and reservations in a scope. O(states and reservations).
func deletion(f *facts.Facts, scope deletionScope) *droverv1.DecisionFact {
	d := &droverv1.DecisionFact{Base: f.Index()}
	for _, n := range f.PolicyStates() {
		if scope.allStates || isOfGoneProject(f, n.Job, n.Project) {
			d.PolicyStates = append(d.PolicyStates, &droverv1.PolicyStateFact{Kind: int32(scheduler.TombstoneState), Job: n.Job, Stage: n.Stage,
				Task: n.Task, Tenant: n.Tenant, Slot: n.Slot, Project: n.Project, Value: int64(n.Kind)})
		}
	}
	for _, r := range f.Reservations() {
		if scope.allReservations || isOfGoneProject(f, r.GetJob(), r.GetProject()) {
			d.Actions = append(d.Actions, &droverv1.ActionFact{Kind: int32(scheduler.ActUnreserve), Reservation: &droverv1.ReservationFact{Id: r.GetId()}})
		}
	}
	return d
}

// isOfGoneProject reports whether a policy state or reservation is of a project that does not exist. What is of a job
// ends with the job.
func isOfGoneProject(f *facts.Facts, job, project uint64) bool {
	return job == 0 && project != 0 && f.Deadlines().Project(project) == nil
}

// proposeDeletion proposes what deletion returns, if that is anything. State must be rebuilt afterwards if it has what
// was deleted.
func (p proposer) proposeDeletion(ctx context.Context, scope deletionScope) error {
	var d *droverv1.DecisionFact
	p.c.view(func(f *facts.Facts) { d = deletion(f, scope) })
	if len(d.Actions) == 0 && len(d.PolicyStates) == 0 {
		return nil
	}
	p.c.log.Info("deleting what no scheduler owns", "reservations", len(d.Actions), "policy states", len(d.PolicyStates))
	_, err := p.proposeDecision(ctx, d)
	return err
}

// makesReservations reports whether a scheduler does. One that this program does not know is taken for one that does.
func makesReservations(name string) bool {
	i, err := policies.Get(name)
	return err != nil || i.Reserves
}
