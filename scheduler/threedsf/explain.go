package threedsf

import (
	"slices"

	"github.com/drover-run/drover/scheduler"
)

// maxExamined bounds how many comparisons of nodes with demands explain why stages wait, if earlier
// cycles know nothing. At least minExamined different demands are compared.
const (
	maxExamined = 1 << 19
	minExamined = 64
)

// explainer finds out why stages wait.
type explainer struct {
	c            *cycle
	open         *openNodes
	nodes        *reservedNodes
	waits        *inputWaits
	tenants      *tenantOrder
	survey       *guaranteeSurvey
	jobs         *jobCache
	reservations *preemptReservations

	round         scheduler.WaitingRound
	examined      map[scheduler.DemandClass]struct{} // demands that were compared with the nodes
	lastMisfit    scheduler.MisfitClass              // the last class that fitted nowhere, why, and on how many nodes: often the next stage has it too
	lastReason    scheduler.Reason
	lastNodes     int32
	maxExamined   int                                  // bounds examined
	plannedStarts map[scheduler.StageID]scheduler.Time // cache of nextPlannedStart, empty until it is first called
}

// explain records a reason for each waiting stage, or for the next part of them; began is the State's stamp
// at the start of the decision. It requests the other parts at once, since no other event may trigger them.
func (e *explainer) explain(began scheduler.Stamp) {
	e.open.beginShrinkOnly()
	clear(e.examined)
	clear(e.plannedStarts)
	e.lastMisfit = scheduler.MisfitClass{}
	e.maxExamined = max(minExamined, maxExamined/max(1, len(e.c.s.Nodes())))
	// At once: to grow the list step by step would copy it several times.
	e.c.waitingReasons = slices.Grow(e.c.waitingReasons, min(e.c.s.Queue().Ready(), scheduler.MaxExplained))
	e.round.Next(e.c.s.Queue(), began, scheduler.MaxExplained, func(g *scheduler.Stage) { e.c.waitingReasons = append(e.c.waitingReasons, e.reason(g)) })
	e.c.waitingContinues, e.c.waitingMore = e.round.Continues, e.round.More
	if e.round.Unfinished {
		e.c.wakeAt(e.c.now + 1)
	}
}

func (e *explainer) reason(g *scheduler.Stage) scheduler.Waiting {
	w := e.c.s.TenantTree().Waiting(g)
	if w.Reason != 0 {
		return w
	}
	if e.reservations.count(g) > 0 {
		if node, ok := e.releasingNode(g); ok {
			w.Reason, w.Node = scheduler.ReasonSuspending, node
			return w
		}
	}
	if x := e.capWait(g); x != nil {
		r := x.reservation
		if x.stage == g {
			w.Reason, w.Node, w.Reservation = scheduler.ReasonDue, r.Node, r.ID
		} else {
			w.Reason, w.Reservation, w.Until = scheduler.ReasonReservation, r.ID, r.End
		}
		return w
	}
	class := e.c.s.Queue().MisfitClassOf(g.Job)
	if class.IsOwn() && class == e.lastMisfit {
		w.Reason, w.Nodes = e.lastReason, e.lastNodes
		return w
	}
	if !e.admitDemand(g) {
		w.Reason = scheduler.ReasonNotExamined
		return w
	}
	if e.c.s.Cluster().NextNode(g, 0) == scheduler.NoNode {
		w.Reason, w.Nodes = e.c.s.Cluster().WhyNowhere(g)
		e.lastMisfit, e.lastReason, e.lastNodes = class, w.Reason, w.Nodes
		return w
	}
	switch x := e.waits.of(g); {
	case x.waits:
		w.Reason, w.Node, w.Until = scheduler.ReasonData, x.node, x.until
	case e.isBeingPlanned(g.Job):
		w.Reason = scheduler.ReasonPlanning
	case e.c.actionsLeft <= 0:
		w.Reason = scheduler.ReasonCycleFull
	case e.c.isStoppedByMiss(g.Job):
		w.Reason = scheduler.ReasonNotAdmitted
	case e.tenants.firstMisfit != nil:
		w.Reason, w.Behind = scheduler.ReasonHeadOfLine, e.tenants.firstMisfit.ID()
	case e.open.hasReservations() && e.open.nextOpenNode(g, 0) == scheduler.NoNode:
		e.explainReserved(&w, g)
	case e.tenants.queues.mayBeUnread(g.Job):
		w.Reason = scheduler.ReasonNotExamined
	default:
		panic("threedsf: stage " + g.ID().String() + " waits for no known reason")
	}
	return w
}

// explainReserved sets the reason of a stage for which all nodes that fit are reserved.
func (e *explainer) explainReserved(w *scheduler.Waiting, g *scheduler.Stage) {
	if k := e.nodes.reservingStage(g); k != nil {
		w.Reason, w.Behind = scheduler.ReasonShare, k.ID()
		return
	}
	r := e.open.guarantees.reservationBelowCap(g)
	if r == nil {
		r = e.blockingReservation(g)
	}
	if r != nil {
		w.Reason, w.Reservation, w.Until = scheduler.ReasonReservation, r.ID, r.End
		return
	}
	// Only guarantees of its own job exclude it: its tasks are planned, or will be.
	w.Reason, w.Until = scheduler.ReasonLater, e.nextPlannedStart(g)
}

// capWait returns a due task for which a stage may not use its caps, nil for none. If a task of the stage itself is
// due and waits, it returns one served before it or, if these leave it enough and its node has too little, its own.
func (e *explainer) capWait(g *scheduler.Stage) *capWait {
	waits := e.c.capWaits
	if i := slices.IndexFunc(waits, func(x capWait) bool { return x.stage == g }); i >= 0 {
		if x := capWaitAgainst(e.c.s, waits[:i], g.Job, g.Spec.Demand); x != nil {
			return x
		}
		if _, fits := e.c.s.Node(waits[i].reservation.Node).Fits(g.Spec.Demand, g.Spec.Disk); !fits {
			return &waits[i]
		}
	}
	return capWaitAgainst(e.c.s, waits, g.Job, g.Spec.Demand)
}

// admitDemand reports whether the nodes may be compared with the demand of a stage: only with the
// first maxExamined demands of a decision.
func (e *explainer) admitDemand(g *scheduler.Stage) bool {
	key := e.c.s.Cluster().DemandClassOf(g)
	if _, known := e.examined[key]; known {
		return true
	}
	if len(e.examined) >= e.maxExamined {
		return false
	}
	e.examined[key] = struct{}{}
	return true
}

// isBeingPlanned reports whether a job or its project requests a guarantee and this decision left a part of the
// planning to the next one.
func (e *explainer) isBeingPlanned(j *scheduler.Job) bool {
	if !e.survey.deferred {
		return false
	}
	i, ok := e.jobs.index[j.Spec.ID]
	return ok && e.jobs.jobs[i].status == statusRequested
}

// releasingNode returns a node where capacity is being freed for the stage.
func (e *explainer) releasingNode(g *scheduler.Stage) (scheduler.NodeID, bool) {
	for _, r := range e.c.s.Reservations().Unguaranteed() {
		n := e.c.s.Node(r.Node)
		if isForNewTask(r, g) && r.End > e.c.now && !n.Releasing.IsZero() && g.Spec.Demand.Fits(n.Free.Add(n.Releasing).Max(scheduler.Resources{})) {
			return r.Node, true
		}
	}
	return scheduler.NoNode, false
}

// blockingReservation returns another job's reservation that keeps a task of the stage off a node
// with free capacity. It returns nil if on some node only the job's own reservations do.
func (e *explainer) blockingReservation(g *scheduler.Stage) *scheduler.Reservation {
	var first *scheduler.Reservation
	for id := e.c.s.Cluster().NextNode(g, 0); id != scheduler.NoNode; id = e.c.s.Cluster().NextNode(g, id+1) {
		i := slices.IndexFunc(e.c.s.Reservations().On(id), func(r *scheduler.Reservation) bool {
			return (r.Kind == scheduler.ReservePreempt || r.Kind.IsGuarantee()) && r.Job != g.Job.Spec.ID && r.End > e.c.now
		})
		if i < 0 {
			return nil
		}
		if first == nil {
			first = e.c.s.Reservations().On(id)[i]
		}
	}
	return first
}

// nextPlannedStart returns when the first task of a stage is planned to start after now, or Never.
// The starts of all stages are listed once per cycle.
func (e *explainer) nextPlannedStart(g *scheduler.Stage) scheduler.Time {
	if len(e.plannedStarts) == 0 {
		for _, r := range e.c.s.Reservations().Guarantees() { // sorted by start
			if id := r.StageID(); isPlanned(r) && r.Start > e.c.now {
				if _, known := e.plannedStarts[id]; !known {
					e.plannedStarts[id] = r.Start
				}
			}
		}
	}
	if at, ok := e.plannedStarts[g.ID()]; ok {
		return at
	}
	return scheduler.Never
}
