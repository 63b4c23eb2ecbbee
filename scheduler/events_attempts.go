package scheduler

import (
	"fmt"
	"slices"
	"time"
)

// Outcome is how an attempt ended.
type Outcome uint8

// The outcomes of an attempt.
const (
	OutcomeSucceeded   Outcome = iota + 1
	OutcomeFailedUser          // exit code, limit, time: counts towards the attempts
	OutcomeFailedInfra         // the machine's or our fault: does not count
	OutcomeKilled              // by a Kill, a stopped job, or a faster sibling
	OutcomeLost                // with its node
)

// String gives the outcome's name.
func (o Outcome) String() string {
	switch o {
	case OutcomeSucceeded:
		return "succeeded"
	case OutcomeFailedUser:
		return "failed"
	case OutcomeFailedInfra:
		return "failed by infrastructure"
	case OutcomeKilled:
		return "killed"
	case OutcomeLost:
		return "lost"
	default:
		return fmt.Sprintf("outcome(%d)", uint8(o))
	}
}

// AttemptStarted tells that a placed attempt runs.
func (s *State) AttemptStarted(id AttemptID, run int32, now Time) error {
	a, _, _, err := s.event(id, run)
	if err != nil {
		return err
	}
	if a.Phase != AttemptStarting {
		return refuse(ErrStale, "attempt "+id.String(), "it is %v, not starting", a.Phase)
	}
	a.Phase = AttemptRunning
	s.worked(s.stages[a.stage].Job)
	s.changed()
	return nil
}

// AttemptProgress tells the part done (0..1) of a live attempt and, if above 0, a new
// prediction of its whole run time.
func (s *State) AttemptProgress(id AttemptID, run int32, part float64, estimate time.Duration) error {
	a, g, _, err := s.event(id, run)
	if err != nil {
		return err
	}
	if !(part >= 0 && part <= 1) || estimate < 0 {
		return refuse(ErrInvalid, "attempt "+id.String(), "progress is %v, estimate %v", part, estimate)
	}
	g.parts += int64(part*partUnit) - int64(a.Progress*partUnit)
	a.own().Progress = part
	if estimate > 0 && a.Estimate != estimate {
		a.Estimate = estimate
		s.predictedAnew(a.Node)
		s.worked(g.Job)
	}
	s.changed()
	return nil
}

// SetParked tells that a person suspended an attempt, or that it may be resumed
// by anybody again. O(1).
func (s *State) SetParked(id AttemptID, run int32, parked bool) error {
	a, _, _, err := s.event(id, run)
	if err != nil {
		return err
	}
	if a.Parked != parked {
		a.Parked = parked
		s.worked(s.stages[a.stage].Job)
		s.changed()
	}
	return nil
}

// SetBarred tells to which levels an attempt's node could not bring it; nobody
// asks for them any more. O(1).
func (s *State) SetBarred(id AttemptID, run int32, barred LevelSet) error {
	a, _, _, err := s.event(id, run)
	if err != nil {
		return err
	}
	if a.Barred != barred {
		a.Barred = barred
		s.changed()
	}
	return nil
}

// CanReach tells whether an attempt can be brought to a level as far as is known:
// its node can do it, and has not failed to with this one. O(1).
func (s *State) CanReach(a *Attempt, l Level) bool {
	return s.nodes[a.Node].Spec.Levels.Has(l) && !a.Barred.Has(l)
}

// AttemptEnded tells that an attempt is gone and holds nothing any more.
// After success its task is done and a sibling attempt, if any, is marked as
// being killed, for the caller to see to. After a failure by the user's fault
// the task waits again unless its attempts are used up: then the task has
// failed and the job is failing. After any other end it waits again.
func (s *State) AttemptEnded(id AttemptID, run int32, outcome Outcome, now Time) error {
	a, _, _, err := s.event(id, run)
	if err != nil {
		return err
	}
	if outcome < OutcomeSucceeded || outcome > OutcomeLost {
		return refuse(ErrInvalid, "attempt "+id.String(), "outcome is %v", outcome)
	}
	s.endAttempt(a, outcome, now)
	s.changed()
	return nil
}

// endAttempt takes a live attempt out and settles its task.
func (s *State) endAttempt(a *Attempt, outcome Outcome, now Time) {
	g := s.stages[a.stage]
	i := a.ID.Index
	g.tick(now)
	if b := g.Job.Spec.Bound; b <= 0 || a.Level.Suspended() || now != a.Placed.Add(b) {
		s.holes++
	}
	slot, other := s.unhook(g, a)
	if a.Phase <= AttemptRunning && a.From == NoNode {
		s.leave(g, a, slot)
	} else {
		s.detach(a, slot)
	}
	g.Job.Live--
	s.live--
	g.parts -= int64(a.Progress * partUnit)
	if outcome == OutcomeSucceeded && !g.done.has(i) {
		s.record(g, a, now)
		g.done.set(i)
		g.Done++
		if other != nil {
			s.markKilling(other)
		}
		for _, n := range g.next {
			s.reopenOn(g.Job, n)
		}
	} else {
		s.settle(g, a, outcome)
	}
	if other == nil {
		g.busy.clear(i)
	}
	s.refresh(g)
	s.freeSlots = append(s.freeSlots, slot)
}

// leave is detach for an attempt that simply runs, the common case.
func (s *State) leave(g *Stage, a *Attempt, slot int32) {
	n := s.nodes[a.Node]
	s.occupy(n, a.Disk, &a.Held, -1)
	if i := slices.Index(n.attempts, slot); i >= 0 {
		n.attempts = slices.Delete(n.attempts, i, i+1)
	}
	g.Running--
	s.charge(g.Job, Resources{}.Sub(a.Held.Resources), -1)
	s.touch(a.Node)
}

// unhook takes an attempt off its task and gives its slot and its sibling.
func (s *State) unhook(g *Stage, a *Attempt) (int32, *Attempt) {
	i := a.ID.Index
	slot := g.active[i] - 1
	if first := s.at(slot); first != a {
		slot = first.sibling - 1
		first.sibling = 0
		return slot, first
	}
	g.active[i] = a.sibling
	if a.sibling == 0 {
		return slot, nil
	}
	return slot, s.at(a.sibling - 1)
}

// settle says what becomes of a task whose attempt did not succeed.
func (s *State) settle(g *Stage, a *Attempt, outcome Outcome) {
	i := a.ID.Index
	if g.tries == nil {
		g.tries = map[int32]tries{}
	}
	t := g.tries[i]
	t.Last = max(t.Last, a.ID.Attempt)
	if g.done.has(i) { // its number stays used, should the output be lost
		g.tries[i] = t
		return
	}
	if outcome == OutcomeFailedUser {
		t.Failures++
	}
	g.tries[i] = t
	if g.active[i] != 0 {
		return
	}
	if t.Failures >= g.maxAttempts() {
		g.Failed++
		if g.Job.Phase == JobActive {
			s.setPhase(g.Job, JobFailing)
		}
		return
	}
	g.pending.set(i)
	g.Pending++
}

func (s *State) markKilling(a *Attempt) {
	slot := s.stages[a.stage].active[a.ID.Index] - 1
	if a.Phase != AttemptKilling {
		s.detach(a, slot)
		a.Phase = AttemptKilling
		s.attach(a, slot)
	}
}

// reopenOn reopens stage n, and what follows it where it has no tasks.
func (s *State) reopenOn(j *Job, n int32) {
	g := j.Stages[n]
	was := g.Open
	s.reopen(g)
	if g.Spec.Tasks == 0 && g.Open != was {
		for _, m := range g.next {
			s.reopenOn(j, m)
		}
	}
}

func (s *State) record(g *Stage, a *Attempt, now Time) {
	f := finished{of: g.inFinished(), index: a.ID.Index, node: a.Node, run: a.RanFor(now), ended: now}
	if g.Spec.Inputs != nil {
		bytes, nodes, _ := g.Input(a.ID.Index)
		f.bytes, f.local = bytes, slices.Contains(nodes, a.Node)
	}
	s.history.tasks.put(f, HistoryTasks)
}

// OutputLost tells that the output of a task that was done is gone: it waits
// again, and a stage that came after it and has not started is closed.
func (s *State) OutputLost(id TaskID) error {
	g, err := s.eventStage(id.StageID())
	if err != nil {
		return err
	}
	i := id.Index
	if i < 0 || i >= g.Spec.Tasks {
		return refuse(ErrUnknown, "task "+id.String(), "there is no such task")
	}
	if !g.done.has(i) || g.busy.has(i) {
		return refuse(ErrStale, "task "+id.String(), "it is not done, or an attempt at it still lives")
	}
	g.done.clear(i)
	g.Done--
	s.worked(g.Job)
	g.pending.set(i)
	g.Pending++
	if g.tries == nil {
		g.tries = map[int32]tries{}
	}
	t := g.tries[i]
	t.Last++
	g.tries[i] = t
	s.refresh(g)
	for _, n := range g.next {
		s.reopenOn(g.Job, n)
	}
	s.changed()
	return nil
}

// AttemptSuspended tells that an attempt reached a level, with what it was measured
// to have there. It is also how a suspension that ended at another level than
// asked is told.
func (s *State) AttemptSuspended(id AttemptID, run int32, level Level, has Footprint, now Time) error {
	a, g, slot, err := s.event(id, run)
	if err != nil {
		return err
	}
	what := "attempt " + id.String()
	switch {
	case !level.Suspended():
		return refuse(ErrInvalid, what, "%v is no level to suspend to", level)
	case !has.valid():
		return refuse(ErrInvalid, what, "footprint %+v", has)
	case a.Phase != AttemptSuspending:
		return refuse(ErrStale, what, "it is %v, not suspending", a.Phase)
	}
	g.tick(now)
	s.detach(a, slot)
	d := a.own()
	if a.Level == LevelRunning {
		d.Ran = a.RanFor(now)
		d.SuspendedAt = now
		d.Suspends++
	}
	a.Phase, a.Target, a.Level = AttemptSuspended, 0, level
	d.Footprint, d.Held = has, level.Holds(a.Demand, a.DiskSpace, has)
	s.attach(a, slot)
	s.changed()
	return nil
}

// AttemptResumed tells that an attempt runs again: after a resume, after a migration
// (its source then holds nothing any more), or because suspending it failed.
func (s *State) AttemptResumed(id AttemptID, run int32, now Time) error {
	a, g, slot, err := s.event(id, run)
	if err != nil {
		return err
	}
	if a.Phase != AttemptResuming && a.Phase != AttemptSuspending {
		return refuse(ErrStale, "attempt "+id.String(), "it is %v", a.Phase)
	}
	g.tick(now)
	s.detach(a, slot)
	if a.Phase == AttemptSuspending && a.Level != LevelRunning {
		s.run(a, now)
	}
	a.Phase, a.Target = AttemptRunning, 0
	if a.From != NoNode {
		a.From, a.FromDisk, a.FromHeld = NoNode, -1, Held{}
	}
	s.attach(a, slot)
	s.changed()
	return nil
}

func (s *State) event(id AttemptID, run int32) (*Attempt, *Stage, int32, error) {
	if err := s.atRest("report on an attempt"); err != nil {
		return nil, nil, 0, err
	}
	return s.current(id, run)
}
