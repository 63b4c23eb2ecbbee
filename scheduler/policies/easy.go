package policies

import (
	"iter"
	"slices"
	"time"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/timeline"
)

var boundParam = Param{Name: "default_bound", Kind: Duration, Default: "1h", Min: 1e-3, Max: 1e8,
	Help: "bound of a job that states none and has no estimate"}

var easyInfo = Info{
	Name:   "easy",
	Help:   "EASY backfilling: the first job that does not fit gets the earliest start; others overtake it only if they do not delay it",
	Params: []Param{boundParam},
	new:    func(v paramValues) scheduler.Policy { return newEasy(v) },
}

// easy is EASY (aggressive) backfilling on nodes. Only the head of the queue has a reservation.
// Each cycle finds it on the State's timeline, tries it there and takes it back, so nothing is
// remembered. A job blocked only by work at or past its bound is about to start: it keeps that
// capacity and is not the head, so the order of simultaneous ends does not matter.
type easy struct {
	assumptions untilBound
	// order yields the ready jobs in the order of service. It is called once in a cycle, and may
	// lower placer.wake to the time at which its order changes.
	order   func(s *scheduler.State, now scheduler.Time) iter.Seq[*scheduler.Job]
	placer  placer
	profile *timeline.Profile
	tried   []triedReservation // in the profile
	noRoom  []timedNeed        // needs that fit on no node of the profile now; during a cycle its capacity only shrinks
	most    int                // bounds noRoom

	misfits        []*scheduler.Stage        // stages that did not fit, in order
	head           *scheduler.Stage          // the first misfit with an earliest start, nil for none
	hasReservation bool                      // a task of the head, or of a misfit behind it, has its reservation for later
	reservesNow    bool                      // a waiting task has a reservation that begins now, so the decision depends on the time
	waiting        map[*scheduler.Stage]bool // the misfits; true: it fitted on a node but would have delayed a reservation
}

const maxBackfillVisits = 1 << 14

func newEasy(v paramValues) *easy {
	e := &easy{order: inSubmissionOrder, most: maxNoRoom, assumptions: untilBound{v.duration("default_bound")}, waiting: map[*scheduler.Stage]bool{}}
	e.placer.misfits.maxVisits = maxBackfillVisits
	return e
}

// triedReservation is capacity that is taken from the profile until the end of a cycle.
type triedReservation struct {
	spot timeline.Spot
	end  scheduler.Time
	need *timeline.Need
}

type timedNeed struct {
	need     timeline.Need
	duration time.Duration
}

const maxNoRoom = 32

// hasNoRoom reports whether a smaller need fitted nowhere in this cycle. False is not certain.
func (e *easy) hasNoRoom(need *timeline.Need, duration time.Duration) bool {
	return slices.ContainsFunc(e.noRoom, func(x timedNeed) bool {
		return x.duration <= duration && x.need.Base[0] <= need.Base[0] && x.need.Base[1] <= need.Base[1] && x.need.IO <= need.IO && x.need.Space <= need.Space
	})
}

// untilBound are the assumptions of easy: each attempt runs until its bound. An attempt past its
// bound counts as ended, so that decisions change when it really ends and not with the clock.
type untilBound struct{ defaultBound time.Duration }

// ChargeTenants reports false: reservations are not charged to tenants.
func (untilBound) ChargeTenants() bool { return false }

// ClaimOf returns what an attempt occupies, until its bound.
func (u untilBound) ClaimOf(s *scheduler.State, a *scheduler.Attempt, now scheduler.Time) scheduler.Claim {
	end := a.Placed.Add(boundLeft(s.StageOf(a), u.defaultBound, a.Ran))
	if a.Level.Suspended() {
		end = scheduler.Never
	}
	c := scheduler.Claim{Occupied: a.Occupied, End: end, SourceEnd: end, ValidUntil: end}
	if end <= now {
		c.ValidUntil = scheduler.Never
	}
	return c
}

func (e *easy) Name() string { return "easy" }

// SetReasonsWanted implements scheduler.Reasoner.
func (e *easy) SetReasonsWanted(wanted bool) { e.placer.SetReasonsWanted(wanted) }

// Decide costs O(1) if nothing changed, unless a waiting task has a reservation that begins now; O(visited stages +
// placements) while everything fits or nothing behind a misfit would fit; else O(nodes + attempts + visited stages x
// scanned nodes).
func (e *easy) Decide(s *scheduler.State, now scheduler.Time, limit int) scheduler.Decision {
	p := &e.placer
	if p.begin(s, now, limit) {
		return p.idleDecision(now)
	}
	e.misfits, e.noRoom, e.head, e.hasReservation, e.reservesNow = e.misfits[:0], e.noRoom[:0], nil, false, false
	clear(e.waiting)
	for j := range e.order(s, now) {
		if p.isDone() {
			break
		}
		for _, g := range j.Stages {
			if g.Ready() && !p.misfits.isSpent() {
				e.visit(g)
			}
		}
	}
	p.visitBeyond(e.visit)
	for _, r := range e.tried {
		e.profile.Release(r.spot.Bin, r.spot.Disk, r.spot.At, r.end, r.need)
	}
	e.tried = e.tried[:0]
	// A stage with a reservation that is now over a cap is no longer the head: others may start.
	overCap := func(g *scheduler.Stage) bool { return !s.TenantTree().Allows(g) }
	if e.head != nil && len(p.actions) > 0 && slices.ContainsFunc(e.misfits, overCap) {
		p.wake = now.Add(1)
	}
	d := p.finish(e.reason)
	if e.reservesNow {
		p.idleAtStamp = false // a reservation that begins later may no longer fit
	}
	return d
}

// visit places tasks of a stage, or reserves for them, once in a cycle.
func (e *easy) visit(g *scheduler.Stage) {
	p := &e.placer
	p.misfits.visits++
	if _, again := e.waiting[g]; again {
		return
	}
	if e.head == nil && len(e.misfits) > 0 && p.mayPlace(g) && p.s.Cluster().NextNode(g, 0) != scheduler.NoNode {
		e.reserveMisfits()
	}
	if e.head != nil {
		if e.placeWithoutDelay(g) {
			e.reserveStage(g)
			e.misfits = append(e.misfits, g)
		}
		return
	}
	for p.mayPlace(g) {
		node, disk := p.bestNode(g)
		if node == scheduler.NoNode {
			p.misfits.remember(p.s.Cluster().DemandClassOf(g))
			e.misfits, e.waiting[g] = append(e.misfits, g), false
			return
		}
		p.place(g, node, disk)
	}
}

func (e *easy) reason(g *scheduler.Stage) scheduler.Waiting {
	if e.waiting[g] {
		return scheduler.Waiting{Stage: g.ID(), Reason: scheduler.ReasonHeadOfLine, Tasks: g.Pending, Behind: e.head.ID()}
	}
	return e.placer.reason(g)
}

func (e *easy) reserve(spot timeline.Spot, duration time.Duration, need *timeline.Need) {
	end := spot.At.Add(duration)
	e.profile.Reserve(spot.Bin, spot.Disk, spot.At, end, need)
	e.tried = append(e.tried, triedReservation{spot, end, need})
}

func inSubmissionOrder(s *scheduler.State, _ scheduler.Time) iter.Seq[*scheduler.Job] {
	return func(yield func(*scheduler.Job) bool) {
		for j, at := s.Queue().Next(0); j != nil && yield(j); j, at = s.Queue().Next(at) {
		}
	}
}

// reserveMisfits reserves for the stages that did not fit, in order, and finds the head. It is called only when
// a stage behind them could start: earlier their start does not matter, and whether the cycle ends before such
// a stage depends on caches of Queue.CapacityForAny. It skips stages that fit on no node at all.
func (e *easy) reserveMisfits() {
	index := e.placer.s.Timeline(e.assumptions, e.placer.now)
	e.profile = index.Nodes
	e.placer.wakeAt(index.NextChange())
	for _, g := range e.misfits {
		if e.head == nil {
			need := scheduler.NodeNeed(g.Spec.Demand, g.Spec.Disk)
			if _, canStart := e.earliest(g, taskBound(g, e.assumptions.defaultBound), scheduler.Never, &need); !canStart {
				continue
			}
			e.head = g
		}
		e.reserveStage(g)
	}
	if e.head == nil {
		e.misfits = e.misfits[:0]
	}
}

// earliest returns the earliest start of a task of the stage before a time, ties to the
// lowest node. O(nodes) for a job that avoids nodes.
func (e *easy) earliest(g *scheduler.Stage, duration time.Duration, before scheduler.Time, need *timeline.Need) (spot timeline.Spot, ok bool) {
	if g.Avoider() == 0 {
		return e.profile.Earliest(e.placer.now, duration, before, need)
	}
	for _, n := range e.placer.s.Nodes() {
		if id := n.Spec.ID; n.Schedulable() && !e.placer.s.Cluster().Avoids(g, id) {
			if s, found := e.profile.EarliestOn(int32(id), e.placer.now, duration, before, need); found {
				spot, ok, before = s, true, s.At
			}
		}
	}
	return spot, ok
}

// reserveStage reserves what the stage's tasks could start on now. If no task has a reservation for
// later yet, the first one that must wait gets its earliest start.
func (e *easy) reserveStage(g *scheduler.Stage) {
	now, before := e.placer.now, scheduler.Never
	if e.hasReservation {
		before = now.Add(1)
	}
	need, duration := scheduler.NodeNeed(g.Spec.Demand, g.Spec.Disk), taskBound(g, e.assumptions.defaultBound)
	if e.hasReservation && e.hasNoRoom(&need, duration) {
		return
	}
	for range g.Startable() {
		spot, ok := e.earliest(g, duration, before, &need)
		if !ok {
			if e.hasReservation && g.Avoider() == 0 && len(e.noRoom) < e.most {
				e.noRoom = append(e.noRoom, timedNeed{need, duration})
			}
			break
		}
		e.reserve(spot, duration, &need)
		if spot.At > now {
			e.hasReservation = true
			return
		}
		e.reservesNow = true
	}
}

// placeWithoutDelay places tasks of a stage that do not delay any reservation. It
// reports whether tasks are left that only lack capacity.
func (e *easy) placeWithoutDelay(g *scheduler.Stage) bool {
	p := &e.placer
	need, duration := scheduler.NodeNeed(g.Spec.Demand, g.Spec.Disk), taskBound(g, e.assumptions.defaultBound)
	for g.Ready() {
		if !p.mayPlace(g) {
			return false
		}
		failed := g.NextFailedOn() // nodes to avoid, if another is possible
		placed := !e.hasNoRoom(&need, duration) &&
			(len(failed) > 0 && e.placeTaskExcept(g, &need, duration, failed) || e.placeTaskExcept(g, &need, duration, nil))
		if !placed {
			e.waiting[g] = p.s.Cluster().NextNode(g, 0) != scheduler.NoNode
			return true
		}
	}
	return false
}

// placeTaskExcept places the next task of a stage on a node that is not excluded, if that delays no reservation.
func (e *easy) placeTaskExcept(g *scheduler.Stage, need *timeline.Need, duration time.Duration, excluded []scheduler.NodeID) bool {
	p := &e.placer
	for n := p.s.Cluster().NextNode(g, 0); n != scheduler.NoNode; n = p.s.Cluster().NextNode(g, n+1) {
		if slices.Contains(excluded, n) {
			continue
		}
		if spot, ok := e.spotWithoutDelay(g, n, need, duration); ok {
			e.reserve(spot, duration, need)
			p.place(g, n, spot.Disk)
			return true
		}
	}
	return false
}

// spotWithoutDelay returns the first disk of a node on which a task both fits now and delays no reservation. A disk
// that the profile has free may still be occupied, by a task past its bound: the next disk may be free in both.
func (e *easy) spotWithoutDelay(g *scheduler.Stage, n scheduler.NodeID, need *timeline.Need, duration time.Duration) (spot timeline.Spot, ok bool) {
	now, node := e.placer.now, e.placer.s.Node(n)
	for i := range max(1, len(node.Disks)) {
		disk := int16(min(i, len(node.Disks)-1)) // -1 if there is none
		if !fitsOnDisk(node, disk, g) {
			continue
		}
		if spot, ok = e.profile.EarliestAt(int32(n), disk, now, duration, now.Add(1), need); ok {
			return spot, true
		}
	}
	return spot, false
}

// taskBound returns a task's assumed maximum run time: its job's bound, else its estimate, else a default.
func taskBound(g *scheduler.Stage, otherwise time.Duration) time.Duration {
	switch {
	case g.Job.Spec.Bound > 0:
		return g.Job.Spec.Bound
	case g.Spec.Estimate > 0:
		return g.Spec.Estimate
	default:
		return otherwise
	}
}

// boundLeft is taskBound for a task that has run for ran, as Stage.BoundLeft is for Stage.Bound.
func boundLeft(g *scheduler.Stage, otherwise, ran time.Duration) time.Duration {
	b := taskBound(g, otherwise)
	if ran < b {
		return b - ran
	}
	return b
}
