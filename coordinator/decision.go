package coordinator

import (
	"google.golang.org/protobuf/proto"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/coordinator/facts"
	"github.com/drover-run/drover/scheduler"
)

// decisionFact encodes a decision for the log. locality returns how near to its
// data each placement is.
func decisionFact(d *scheduler.Decision, locality func(*scheduler.Action) string) *droverv1.DecisionFact {
	out := &droverv1.DecisionFact{Base: d.Base}
	whom := forWhom(d.Actions)
	for i := range d.Actions {
		a := &d.Actions[i]
		k := facts.Key{Job: uint64(a.Task.Job), Stage: a.Task.Stage, Task: a.Task.Index, Attempt: a.Attempt}
		f := &droverv1.ActionFact{Kind: int32(a.Kind), Key: k.Proto(a.Run), Node: int32(a.Node) + 1, Disk: int32(a.Disk),
			Level: droverv1.Level(a.Level), Speculative: a.Speculative}
		switch a.Kind {
		case scheduler.ActPlace:
			f.Locality = locality(a)
		case scheduler.ActSuspend, scheduler.ActKill:
			if f.PreemptorJob = uint64(whom[i]); f.PreemptorJob != 0 {
				f.Reason = "it frees capacity for a task that is due first"
			}
		case scheduler.ActResume:
			f.Reason = "there is free capacity again"
		case scheduler.ActMigrate:
			f.Reason = "this node has free capacity"
		case scheduler.ActReserve, scheduler.ActUnreserve:
			f.Reservation = reservationFact(&a.Reservation)
		}
		out.Actions = append(out.Actions, f)
	}
	for i := range d.PolicyStates {
		n := &d.PolicyStates[i]
		out.PolicyStates = append(out.PolicyStates, &droverv1.PolicyStateFact{Kind: int32(n.Kind), Job: uint64(n.Job), Stage: n.Stage, Task: n.Task, Tenant: int32(n.Tenant),
			Slot: n.Slot, Project: uint64(n.Project), Value: n.Value, Real: n.Real, At: int64(n.At)})
	}
	return out
}

// keepParked makes a decision that suspends parked attempts to a deeper level leave them parked.
// Other tasks may need their memory, but only the user or drain that parked them may resume them.
func keepParked(f *facts.Facts, d *droverv1.DecisionFact) {
	for _, act := range d.GetActions() {
		if act.GetKind() != int32(facts.ActSuspend) {
			continue
		}
		if a := f.Attempt(facts.KeyOf(act.GetKey())); a != nil {
			act.Manual, act.Drain = parkedBy(a)
		}
	}
}

// parkedBy returns what has parked an attempt: a user, a drain, both or neither.
func parkedBy(a *facts.Attempt) (user, drain bool) {
	return a.Suspension.Parked && !a.Suspension.Drained, a.Suspension.Drained
}

// maxEntryPart bounds the bytes of actions and policy states in one entry, below replica.MaxEntry.
const maxEntryPart = 768 << 10

// decisionParts divides a decision into entries of bounded size, at least one. Policy states come
// first (there are few, except in a scheduler's first decision), then actions.
func decisionParts(d *droverv1.DecisionFact) []*droverv1.DecisionFact {
	var parts []*droverv1.DecisionFact
	room := 0
	part := func(m proto.Message) *droverv1.DecisionFact { // the one that m goes into
		n := proto.Size(m) + 8
		if room -= n; room < 0 {
			parts, room = append(parts, &droverv1.DecisionFact{Base: d.GetBase()}), maxEntryPart-n
		}
		return parts[len(parts)-1]
	}
	for _, x := range d.GetPolicyStates() {
		p := part(x)
		p.PolicyStates = append(p.PolicyStates, x)
	}
	for _, x := range d.GetActions() {
		p := part(x)
		p.Actions = append(p.Actions, x)
	}
	if len(parts) == 0 {
		parts = append(parts, &droverv1.DecisionFact{Base: d.GetBase()})
	}
	return parts
}

// forWhom returns, for each action, the job that a suspension or kill frees
// capacity for: that of the reservation that follows it, 0 if none does.
func forWhom(all []scheduler.Action) []scheduler.JobID {
	out := make([]scheduler.JobID, len(all))
	for i, first := 0, 0; i < len(all); i++ {
		switch a := &all[i]; {
		case a.Kind == scheduler.ActSuspend || a.Kind == scheduler.ActKill:
			continue
		case a.Kind == scheduler.ActReserve && a.Reservation.Kind == scheduler.ReservePreempt:
			for k := first; k < i; k++ {
				out[k] = a.Reservation.Job
			}
		}
		first = i + 1
	}
	return out
}

func reservationFact(r *scheduler.Reservation) *droverv1.ReservationFact {
	return &droverv1.ReservationFact{Id: uint64(r.ID), Kind: int32(r.Kind), Job: uint64(r.Job), Stage: r.Stage, Task: r.Task, Project: uint64(r.Project),
		Node: int32(r.Node) + 1, Demand: facts.Amounts{CPU: r.Demand[scheduler.CPU], Memory: r.Demand[scheduler.Memory], IO: r.Demand[scheduler.IO]}.Proto(),
		Disk: r.Disk, OnDisk: int32(r.OnDisk), Start: int64(r.Start), End: int64(r.End), Latest: int64(r.Latest)}
}

// withoutDropped returns d without the actions that the log dropped. It copies
// the remaining actions to a new slice.
func withoutDropped(d scheduler.Decision, dropped []facts.Drop) scheduler.Decision {
	gone := make(map[int]bool, len(dropped))
	for _, x := range dropped {
		gone[x.Index] = true
	}
	remaining := d.Actions[:0:0]
	for i := range d.Actions {
		if !gone[i] {
			remaining = append(remaining, d.Actions[i])
		}
	}
	d.Actions = remaining
	return d
}

// locality returns how near to its data a placement is: node, rack, remote, or none if the task
// reads nothing or the location is unknown. As in the simulator, a node that stores less than half
// of the input counts as rack.
func locality(s *scheduler.State, a *scheduler.Action) string {
	g := s.Stage(a.Task.StageID())
	if g == nil || g.Spec.Kind != scheduler.KindMap {
		return "none"
	}
	bytes, nodes, local := g.Input(a.Task.Index)
	if bytes == 0 || len(nodes) == 0 {
		return "none"
	}
	best := "remote"
	for k, n := range nodes {
		switch d := s.Cluster().Dist(a.Node, n); {
		case d == 0 && (local == nil || 2*local[k] >= bytes):
			return "node"
		case d <= 1:
			best = "rack"
		}
	}
	return best
}
