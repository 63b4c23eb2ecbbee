package coordinator

import (
	"context"
	"hash/fnv"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/coordinator/facts"
	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/policies"
)

// A decision is made on State and becomes a fact when it has been replicated. If its project has
// ended in the meantime, its policy states and reservations become facts nevertheless, and no later
// event removes them. Likewise, what one scheduler has reserved stays when another one is
// configured, which may not know how to release it. Both are unowned.

// makerSlot is the slot of the policy state that records which scheduler made the others and the
// reservations. Policies use small slots.
const makerSlot = 1 << 30

// makerState returns the policy state that records a scheduler as the maker.
func makerState(name string) *droverv1.PolicyStateFact {
	h := fnv.New64a()
	h.Write([]byte(name))
	return &droverv1.PolicyStateFact{Kind: int32(scheduler.CursorState), Slot: makerSlot, Value: int64(h.Sum64())}
}

// madeBy returns the value of the makerState in the facts, 0 for none.
func madeBy(f *facts.Facts) int64 {
	for _, n := range f.PolicyStates() {
		if n.Kind == int32(scheduler.CursorState) && n.Slot == makerSlot {
			return n.Value
		}
	}
	return 0
}

// takeOver prepares the facts for a scheduler. If they record another maker, it is
// takeOverFromAnother. Otherwise it deletes what no scheduler owns, and all reservations if this
// scheduler makes none. States from before makers were recorded stay.
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

// takeOverFromAnother deletes all policy states and reservations, and records this scheduler as the
// maker of the next. It might be unable to keep the guarantees of another scheduler, and Check
// would then refuse each of its decisions. It deletes them whatever maker is recorded, since
// another scheduler may have decided earlier in this term.
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

// deletionScope selects what is deleted besides the policy states and reservations of projects that
// have ended.
type deletionScope struct{ allStates, allReservations bool }

// deletion returns the decision that deletes the unowned policy states and reservations in a scope.
// O(states and reservations).
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

// isOfGoneProject reports whether a policy state or reservation belongs to a project that does not
// exist. Those of a job end with the job.
func isOfGoneProject(f *facts.Facts, job, project uint64) bool {
	return job == 0 && project != 0 && f.Deadlines().Project(project) == nil
}

// proposeDeletion proposes the decision of deletion, unless it is empty. If State has what it
// deletes, State must be rebuilt afterwards.
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

// makesReservations reports whether a scheduler makes reservations; true if this program does not
// know the scheduler.
func makesReservations(name string) bool {
	i, err := policies.Get(name)
	return err != nil || i.Reserves
}
