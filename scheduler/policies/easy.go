package policies

import (
	"time"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/backfill"
)

var boundParam = Param{Name: "default_bound", Kind: Duration, Default: "1h", Min: 1e-3, Max: 1e8,
	Help: "taken as the bound of a job that states none and has no estimate"}

var easyInfo = Info{
	Name:   "easy",
	Help:   "EASY backfilling: the first job that does not fit gets the earliest start, others overtake it only if they do not delay that",
	Params: []Param{boundParam},
	New: func(v Values) (scheduler.Policy, error) {
		return &easy{bound: v.Duration("default_bound")}, nil
	},
}

// easy is EASY (aggressive) backfilling on nodes. Only the head of line has a
// reservation; it is worked out anew in each cycle from the bounds of what
// runs, so nothing has to be remembered. A job whose room is held only by work
// at or past its bound is as good as started: it keeps that room, and is no head.
// For where several jobs end at one instant their ends may come one by one: what
// is decided in between is decided as if all had ended.
type easy struct {
	bound  time.Duration
	placer placer
	prof   backfill.Profile

	lacking []*scheduler.Stage // what found no room, in order
}

func (e *easy) Name() string { return "easy" }

// Reasons says whether Decision.Waiting is wanted.
func (e *easy) Reasons(wanted bool) { e.placer.reasons(wanted) }

// Decide costs O(1) when nothing changed; else O(ready stages + placements) while
// everything fits, and while nothing that waits behind what does not has room;
// else O(nodes + attempts + waiting x nodes looked at).
func (e *easy) Decide(s *scheduler.State, now scheduler.Time, max int) scheduler.Decision {
	p := &e.placer
	if p.begin(s, now, max) {
		return p.idle(now)
	}
	e.lacking = e.lacking[:0]
	var first *scheduler.Stage // that did not fit
	headed := false            // the head of line has its reservation
	for j, at := s.NextReady(0); j != nil && (len(e.lacking) == 0 || !p.full()); j, at = s.NextReady(at) {
		for _, g := range j.Stages {
			if !g.Ready() {
				continue
			}
			if first == nil && len(e.lacking) > 0 && s.NextNode(g, 0) != scheduler.NoNode {
				first, headed = e.line(s, now)
			}
			if first != nil {
				if e.fill(g, first) {
					headed = e.reserve(g, headed)
				}
			} else if p.placeAll(g); p.head == g {
				p.head, e.lacking = nil, append(e.lacking, g)
			}
		}
	}
	return p.end()
}

// line reserves for the stages that did not fit, in their order, once one behind
// them would have room: before that it does not matter what they wait for. It
// gives the first of them, and whether the head of line has its reservation. What
// fits on no node at all is left out: nobody waits for it.
func (e *easy) line(s *scheduler.State, now scheduler.Time) (first *scheduler.Stage, headed bool) {
	e.outlook(s, now)
	for _, g := range e.lacking {
		if first == nil && !e.ever(g) {
			continue
		}
		if first == nil {
			first = g
		}
		headed = e.reserve(g, headed)
	}
	if first == nil {
		e.lacking = e.lacking[:0]
	}
	return first, headed
}

// outlook makes the profile of what runs.
func (e *easy) outlook(s *scheduler.State, now scheduler.Time) {
	e.prof = backfill.Profile{}
	for _, n := range s.Nodes() {
		e.prof.AddNode(&n.Spec)
	}
	p := &e.placer
	for _, n := range s.Nodes() {
		for a := range s.AttemptsOn(n.Spec.ID) {
			end := e.take(s, a, now)
			if end > now && end < scheduler.Never && (p.wake == 0 || end < p.wake) {
				p.wake = end
			}
		}
	}
}

// ever tells whether a task of the stage has an earliest start.
func (e *easy) ever(g *scheduler.Stage) bool {
	need := backfill.NodeNeed(g.Spec.Demand, g.Spec.Disk)
	_, ok := e.prof.Earliest(e.placer.now, taskBound(g, e.bound), scheduler.Never, &need)
	return ok
}

// reserve gives the stage's tasks the room they could start in now, and if there
// is no head of line yet, the first that is later than now its earliest start:
// that one is the head. It tells whether there is a head then.
func (e *easy) reserve(g *scheduler.Stage, headed bool) bool {
	now, before := e.placer.now, scheduler.Never
	if headed {
		before = now.Add(1)
	}
	need, span := backfill.NodeNeed(g.Spec.Demand, g.Spec.Disk), taskBound(g, e.bound)
	for range g.Startable() {
		spot, ok := e.prof.Earliest(now, span, before, &need)
		if !ok {
			break
		}
		e.prof.Take(spot.Bin, spot.Disk, spot.At, spot.At.Add(span), &need)
		if spot.At > now {
			return true
		}
	}
	return headed
}

// take takes what an attempt holds until its bound; past that it counts as
// gone, so that only its real end, and no clock, changes anything.
func (e *easy) take(s *scheduler.State, a *scheduler.Attempt, now scheduler.Time) scheduler.Time {
	end := a.Placed.Add(taskBound(s.StageOf(a), e.bound))
	if a.Level.Suspended() {
		end = scheduler.Never
	}
	held := backfill.NodeNeed(a.Held.Resources, a.Held.Disk)
	e.prof.Take(int32(a.Node), a.Disk, now, end, &held)
	if a.From != scheduler.NoNode {
		held = backfill.NodeNeed(a.FromHeld.Resources, a.FromHeld.Disk)
		e.prof.Take(int32(a.From), a.FromDisk, now, end, &held)
	}
	return end
}

// fill places tasks of a stage that do not delay what is reserved; true: some
// are left, and room is all they wait for.
func (e *easy) fill(g, first *scheduler.Stage) bool {
	p := &e.placer
	need, span := backfill.NodeNeed(g.Spec.Demand, g.Spec.Disk), taskBound(g, e.bound)
	for g.Ready() {
		w := scheduler.Waiting{Stage: g.ID(), Tasks: g.Pending}
		ok, room := true, false
		if g.Startable() == 0 {
			w.Reason = scheduler.ReasonMaxParallel
		} else if p.left <= 0 {
			w.Reason = scheduler.ReasonTurn
		} else if w.Tenant, w.Cap, w.Resource, ok = p.s.UnderCaps(g); !ok {
			w.Reason = scheduler.ReasonCap
		} else if e.fillOne(g, &need, span) {
			continue
		} else if room = true; p.s.NextNode(g, 0) != scheduler.NoNode {
			w.Reason, w.Behind = scheduler.ReasonHeadOfLine, first.ID()
		}
		p.wait(w)
		return room
	}
	return false
}

func (e *easy) fillOne(g *scheduler.Stage, need *backfill.Need, span time.Duration) bool {
	p := &e.placer
	for n := p.s.NextNode(g, 0); n != scheduler.NoNode; n = p.s.NextNode(g, n+1) {
		spot, ok := e.prof.EarliestOn(int32(n), p.now, span, p.now.Add(1), need)
		if !ok {
			continue
		}
		if disk := p.s.Node(n).Disks; len(disk) > 0 && (disk[spot.Disk].FreeIO < need.IO || disk[spot.Disk].FreeSpace < need.Space) {
			continue
		}
		e.prof.Take(spot.Bin, spot.Disk, p.now, p.now.Add(span), need)
		p.place(g, n, spot.Disk)
		return true
	}
	return false
}

// taskBound is for how long a task is taken to run at most: its job's bound,
// else its estimate, else what the parameter says.
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
