package scheduler

import (
	"fmt"
	"slices"
	"time"
)

// Outcome says how an attempt ended.
type Outcome uint8

// The outcomes of an attempt.
const (
	OutcomeSucceeded   Outcome = iota + 1
	OutcomeFailedUser          // exit code, limit or time; counts towards MaxAttempts
	OutcomeFailedInfra         // fault of the machine or of Drover; does not count
	OutcomeKilled              // by ActKill, with its job, or after the other attempt succeeded
	OutcomeLost                // with its node
)

// String returns the outcome's name.
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

// AttemptStarted reports that a placed attempt is running.
func (s *State) AttemptStarted(id AttemptID, run int32, now Time) error {
	a, _, _, err := s.eventAttempt(id, run)
	if err != nil {
		return err
	}
	if a.Phase != AttemptStarting {
		return refuse(ErrStale, "attempt "+id.String(), "it is %v, not starting", a.Phase)
	}
	a.Phase = AttemptRunning
	s.recordJobChange(s.stages[a.stage].Job)
	s.countChange()
	return nil
}

// AttemptProgress reports the completed fraction (0 to 1) of a live attempt and, if estimate
// is above 0, a new prediction of its total run time.
func (s *State) AttemptProgress(id AttemptID, run int32, progress float64, estimate time.Duration) error {
	a, g, _, err := s.eventAttempt(id, run)
	if err != nil {
		return err
	}
	if !(progress >= 0 && progress <= 1) || estimate < 0 {
		return refuse(ErrInvalid, "attempt "+id.String(), "progress is %v, estimate %v", progress, estimate)
	}
	g.progressSum += int64(progress*progressUnit) - int64(a.Progress*progressUnit)
	a.ownDetails().Progress = progress
	if estimate > 0 && a.Estimate != estimate {
		a.Estimate = estimate
		s.bumpNodeVersion(a.Node)
		s.recordJobChange(g.Job)
	} else {
		s.changeLog.add(ChangedOwner{Job: g.Job.Spec.ID, Project: g.Job.Spec.Project, ProgressOnly: true})
	}
	s.countChange()
	return nil
}

// SetParked records that a user suspended an attempt, so that no policy resumes it, or that
// policies may resume it again. O(1).
func (s *State) SetParked(id AttemptID, run int32, parked bool) error {
	a, _, _, err := s.eventAttempt(id, run)
	if err != nil {
		return err
	}
	if a.Parked != parked {
		a.Parked = parked
		s.recordJobChange(s.stages[a.stage].Job)
		s.countChange()
	}
	return nil
}

// SetRefusedLevels records the levels to which the node failed to bring an attempt; they are
// not requested again. O(1).
func (s *State) SetRefusedLevels(id AttemptID, run int32, refused LevelSet) error {
	a, _, _, err := s.eventAttempt(id, run)
	if err != nil {
		return err
	}
	if a.RefusedLevels != refused {
		a.RefusedLevels = refused
		s.countChange()
	}
	return nil
}

// CanReach reports whether an attempt can be brought to a level, as far as is known: its node
// supports the level and has not refused it for this attempt. O(1).
func (s *State) CanReach(a *Attempt, l Level) bool {
	return s.nodes[a.Node].Spec.Levels.Has(l) && !a.RefusedLevels.Has(l)
}

// AttemptEnded reports that an attempt has ended and occupies nothing any more. After a
// success its task is done, and a second attempt, if any, is marked as being killed; the
// caller must kill it. After a failure through the user's fault the task is pending again, or
// failed if its attempts are used up; the job is then failing. After any other outcome the
// task is pending again.
func (s *State) AttemptEnded(id AttemptID, run int32, outcome Outcome, now Time) error {
	a, _, _, err := s.eventAttempt(id, run)
	if err != nil {
		return err
	}
	if outcome < OutcomeSucceeded || outcome > OutcomeLost {
		return refuse(ErrInvalid, "attempt "+id.String(), "outcome is %v", outcome)
	}
	s.endAttempt(a, outcome, now)
	s.countChange()
	return nil
}

// endAttempt removes a live attempt and updates its task.
func (s *State) endAttempt(a *Attempt, outcome Outcome, now Time) {
	g := s.stages[a.stage]
	i := a.ID.Index
	g.accrueTaskTime(now)
	if b := g.Job.Spec.Bound; b <= 0 || a.Level.Suspended() || now != a.Placed.Add(b) {
		s.unplannedReleases++
	}
	slot, other := s.unlinkFromTask(g, a)
	if a.Phase <= AttemptRunning && a.From == NoNode {
		s.detachRunning(g, a, slot)
	} else {
		s.detach(a, slot)
	}
	g.Job.Live--
	s.live--
	g.progressSum -= int64(a.Progress * progressUnit)
	if outcome == OutcomeSucceeded && !g.done.has(i) {
		s.recordTask(g, a, now)
		g.done.set(i)
		g.Done++
		if other != nil {
			s.markKilling(other)
		}
		for _, n := range g.next {
			s.updateOpenFrom(g.Job, n)
		}
	} else {
		s.requeueOrFail(g, a, outcome)
	}
	if other == nil {
		g.busy.clear(i)
	}
	s.updateReady(g)
	s.freeSlots = append(s.freeSlots, slot)
}

// detachRunning is detach for the common case: an attempt that is not suspended and not
// migrating.
func (s *State) detachRunning(g *Stage, a *Attempt, slot int32) {
	n := s.nodes[a.Node]
	s.occupy(n, a.Disk, &a.Occupied, -1)
	if i := slices.Index(n.attempts, slot); i >= 0 {
		n.attempts = slices.Delete(n.attempts, i, i+1)
	}
	g.Running--
	s.charge(g.Job, Resources{}.Sub(a.Occupied.Resources), -1)
	s.updateFitIndex(a.Node)
}

// unlinkFromTask removes an attempt from its task. It returns its slot and the task's other
// attempt, or nil.
func (s *State) unlinkFromTask(g *Stage, a *Attempt) (int32, *Attempt) {
	i := a.ID.Index
	slot := g.active[i] - 1
	if first := s.attemptAt(slot); first != a {
		slot = first.sibling - 1
		first.sibling = 0
		return slot, first
	}
	g.active[i] = a.sibling
	if a.sibling == 0 {
		return slot, nil
	}
	return slot, s.attemptAt(a.sibling - 1)
}

// requeueOrFail makes a task whose attempt did not succeed pending again, or fails it.
func (s *State) requeueOrFail(g *Stage, a *Attempt, outcome Outcome) {
	i := a.ID.Index
	if g.pastAttempts == nil {
		g.pastAttempts = map[int32]pastAttempts{}
	}
	t := g.pastAttempts[i]
	t.Last = max(t.Last, a.ID.Attempt)
	if g.done.has(i) { // keep its number as used, in case the output is lost
		g.pastAttempts[i] = t
		return
	}
	if outcome == OutcomeFailedUser {
		t.Failures++
	}
	g.pastAttempts[i] = t
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

// markKilling puts the first attempt at a task into the phase of being killed.
func (s *State) markKilling(a *Attempt) {
	slot := s.stages[a.stage].active[a.ID.Index] - 1
	if a.Phase != AttemptKilling {
		s.detach(a, slot)
		a.Phase = AttemptKilling
		s.attach(a, slot)
	}
}

// updateOpenFrom updates stage n and, if it has no tasks, the stages after it.
func (s *State) updateOpenFrom(j *Job, n int32) {
	g := j.Stages[n]
	was := g.Open
	s.updateOpen(g)
	if g.Spec.Tasks == 0 && g.Open != was {
		for _, m := range g.next {
			s.updateOpenFrom(j, m)
		}
	}
}

// recordTask adds a task that succeeded to the history.
func (s *State) recordTask(g *Stage, a *Attempt, now Time) {
	f := finishedRecord{stage: g.finishedStageOf(), index: a.ID.Index, node: a.Node, run: a.RanFor(now), ended: now}
	if g.Spec.Inputs != nil {
		bytes, nodes, _ := g.Input(a.ID.Index)
		f.bytes, f.local = bytes, slices.Contains(nodes, a.Node)
	}
	s.history.tasks.put(f, HistoryTasks)
}

// OutputLost reports that the output of a done task is gone: the task is pending again, and a
// later stage that depends on it and has not started is closed.
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
		return refuse(ErrStale, "task "+id.String(), "it is not done, or an attempt at it is still live")
	}
	g.done.clear(i)
	g.Done--
	s.recordJobChange(g.Job)
	g.pending.set(i)
	g.Pending++
	if g.pastAttempts == nil {
		g.pastAttempts = map[int32]pastAttempts{}
	}
	t := g.pastAttempts[i]
	t.Last++
	g.pastAttempts[i] = t
	s.updateReady(g)
	for _, n := range g.next {
		s.updateOpenFrom(g.Job, n)
	}
	s.countChange()
	return nil
}

// AttemptSuspended reports that an attempt has reached a level, and its measured footprint
// there. The level may differ from the requested one.
func (s *State) AttemptSuspended(id AttemptID, run int32, level Level, has Footprint, now Time) error {
	a, g, slot, err := s.eventAttempt(id, run)
	if err != nil {
		return err
	}
	what := "attempt " + id.String()
	switch {
	case !level.Suspended():
		return refuse(ErrInvalid, what, "cannot suspend to level %v: use frozen, swapped or checkpointed", level)
	case !has.valid():
		return refuse(ErrInvalid, what, "footprint %+v", has)
	case a.Phase != AttemptSuspending:
		return refuse(ErrStale, what, "it is %v, not suspending", a.Phase)
	}
	g.accrueTaskTime(now)
	s.detach(a, slot)
	d := a.ownDetails()
	if a.Level == LevelRunning {
		d.Ran = a.RanFor(now)
		d.SuspendedAt = now
		d.Suspends++
	}
	a.Phase, a.Target, a.Level = AttemptSuspended, 0, level
	d.Footprint, d.Occupied = has, level.Occupancy(a.Demand, a.DiskSpace, has)
	s.attach(a, slot)
	s.countChange()
	return nil
}

// AttemptResumed reports that an attempt is running again: after a resume, after a migration
// (its source is then free), or because its suspension failed.
func (s *State) AttemptResumed(id AttemptID, run int32, now Time) error {
	a, g, slot, err := s.eventAttempt(id, run)
	if err != nil {
		return err
	}
	if a.Phase != AttemptResuming && a.Phase != AttemptSuspending {
		return refuse(ErrStale, "attempt "+id.String(), "it is %v", a.Phase)
	}
	g.accrueTaskTime(now)
	s.detach(a, slot)
	if a.Phase == AttemptSuspending && a.Level != LevelRunning {
		s.beginResume(a, now)
	}
	a.Phase, a.Target = AttemptRunning, 0
	if a.From != NoNode {
		a.From, a.FromDisk, a.FromOccupied = NoNode, -1, Occupancy{}
	}
	s.attach(a, slot)
	s.countChange()
	return nil
}

// eventAttempt returns the attempt that an event reports on.
func (s *State) eventAttempt(id AttemptID, run int32) (*Attempt, *Stage, int32, error) {
	if err := s.refuseInTry("report on an attempt"); err != nil {
		return nil, nil, 0, err
	}
	return s.findAttempt(id, run)
}
