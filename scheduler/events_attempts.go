package scheduler

import (
	"cmp"
	"slices"
	"time"

	"github.com/drover-run/drover/internal/enum"
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
	return enum.Name("outcome", o, []string{OutcomeSucceeded: "succeeded", OutcomeFailedUser: "failed", OutcomeFailedInfra: "failed by infrastructure",
		OutcomeKilled: "killed", OutcomeLost: "lost"})
}

// AttemptStarted reports that a placed attempt is running.
func (e Events) AttemptStarted(id AttemptID, run int32, now Time) error {
	a, g, _, err := e.s.applier().findAttempt(id, run)
	if err != nil {
		return err
	}
	if a.Phase != AttemptStarting {
		return a.refuse(ErrStale, "it is %v, not starting", a.Phase)
	}
	a.Phase = AttemptRunning
	e.changed(g.Job)
	return nil
}

// AttemptProgress reports the completed fraction (0 to 1) of a live attempt and, if estimate
// is above 0, a new prediction of its total run time.
func (e Events) AttemptProgress(id AttemptID, run int32, progress float64, estimate time.Duration) error {
	a, g, _, err := e.s.applier().findAttempt(id, run)
	if err != nil {
		return err
	}
	if !(progress >= 0 && progress <= 1) || estimate < 0 {
		return a.refuse(ErrInvalid, "progress is %v, estimate %v", progress, estimate)
	}
	g.progressSum += int64(progress*progressUnit) - int64(a.Progress*progressUnit)
	a.ownDetails().Progress = progress
	if estimate > 0 && a.Estimate != estimate {
		a.Estimate = estimate
		e.s.cluster.bumpNodeVersion(a.Node)
		e.s.changeLog.recordJob(g.Job)
	} else {
		e.s.changeLog.record(g.Job, true)
	}
	e.s.countChange()
	return nil
}

// SetParked records that a user suspended an attempt, so that no policy may resume it, or that policies may again. O(1).
func (e Events) SetParked(id AttemptID, run int32, parked bool) error {
	a, g, _, err := e.s.applier().findAttempt(id, run)
	if err != nil {
		return err
	}
	if a.Parked != parked {
		a.Parked = parked
		e.changed(g.Job)
	}
	return nil
}

// SetRefusedLevels records the levels to which the node failed to bring an attempt; they are not requested again. O(1).
func (e Events) SetRefusedLevels(id AttemptID, run int32, refused LevelSet) error {
	a, g, _, err := e.s.applier().findAttempt(id, run)
	if err != nil {
		return err
	}
	if a.RefusedLevels != refused {
		a.RefusedLevels = refused
		e.s.cluster.bumpNodeVersion(a.Node)
		e.changed(g.Job)
	}
	return nil
}

// AttemptTimes is when an attempt ran and was suspended: Placed, Ran, SuspendedAt and Suspends of an Attempt.
type AttemptTimes struct {
	Placed      Time
	Ran         time.Duration
	SuspendedAt Time
	Suspends    int32
}

// SetTimes records when an attempt ran and was suspended, for an owner that knows it better than the events applied,
// such as after rebuilding a State. The stage's TaskTime follows. O(1); O(suspended attempts) for a suspended one.
func (e Events) SetTimes(id AttemptID, run int32, t AttemptTimes) error {
	a, g, slot, err := e.s.applier().findAttempt(id, run)
	if err != nil {
		return err
	}
	if min(t.Placed, Time(t.Ran), t.SuspendedAt, Time(t.Suspends)) < 0 {
		return a.refuse(ErrInvalid, "times %+v", t)
	}
	if t == (AttemptTimes{a.Placed, a.Ran, a.SuspendedAt, a.Suspends}) {
		return nil
	}
	if a.Level.Suspended() { // the list of suspended attempts is in order of SuspendedAt
		e.s.suspended.remove(a, slot)
		defer e.s.suspended.add(a, slot)
	}
	g.taskTime += float64(t.Ran - a.Ran)
	if !a.Level.Suspended() { // it has run since Placed
		g.taskTime -= float64(t.Placed - a.Placed)
	}
	d := a.ownDetails()
	a.Placed, d.Ran, d.SuspendedAt, d.Suspends = t.Placed, t.Ran, t.SuspendedAt, t.Suspends
	e.s.cluster.bumpNodeVersion(a.Node)
	e.changed(g.Job)
	return nil
}

// AttemptEnded reports that an attempt has ended and occupies nothing any more. After a success its task is done,
// and a second attempt, if any, is marked as being killed; the caller must kill it. After a failure through the
// user's fault the task is pending again, or failed if its attempts are used up; the job is then failing. After any
// other outcome the task is pending again. After any failure the task prefers other nodes (Stage.FailedOn).
func (e Events) AttemptEnded(id AttemptID, run int32, outcome Outcome, now Time) error {
	a, _, _, err := e.s.applier().findAttempt(id, run)
	if err != nil {
		return err
	}
	if outcome < OutcomeSucceeded || outcome > OutcomeLost {
		return a.refuse(ErrInvalid, "outcome is %v", outcome)
	}
	e.endAttempt(a, outcome, now)
	e.s.countChange()
	return nil
}

// endAttempt removes a live attempt and updates its task.
func (e Events) endAttempt(a *Attempt, outcome Outcome, now Time) {
	g := e.s.stages[a.stage]
	i := a.ID.Index
	g.accrueTaskTime(now)
	if now != g.AssumedEnd(a) {
		e.s.unplannedReleases++
	}
	slot, other := e.s.links().unlinkFromTask(g, a)
	if a.Phase <= AttemptRunning && a.From == NoNode {
		e.s.links().detachRunning(g, a, slot)
	} else {
		e.s.links().detach(a, slot)
	}
	g.Job.Live--
	e.s.live--
	g.progressSum -= int64(a.Progress * progressUnit)
	if outcome == OutcomeSucceeded && !g.done.has(i) {
		e.recordTask(g, a, now)
		g.done.set(i)
		g.Done++
		if other != nil && other.Phase != AttemptKilling {
			otherSlot := g.active.get(i) - 1
			e.s.links().detach(other, otherSlot)
			other.Phase = AttemptKilling
			e.s.links().attach(other, otherSlot)
		}
		e.s.Queue().updateNext(g)
	} else {
		e.requeueOrFail(g, a, outcome)
		if other != nil { // now the task's only attempt: it must be protected as such
			other.Speculative = false
		}
	}
	if other == nil {
		g.busy.clear(i)
	}
	e.s.Queue().updateReady(g)
	e.s.freeSlots = append(e.s.freeSlots, slot)
}

func (e Events) requeueOrFail(g *Stage, a *Attempt, outcome Outcome) {
	i, done := a.ID.Index, g.done.has(a.ID.Index)
	past := g.pastAttempts[i]
	past.Last = max(past.Last, a.ID.Attempt)
	if outcome == OutcomeFailedUser && !done {
		past.Failures++
	}
	if (outcome == OutcomeFailedUser || outcome == OutcomeFailedInfra) && !done {
		past.failedOn(a.Node)
	}
	g.setPast(i, past)
	switch {
	case done || g.active.get(i) != 0:
	case past.Failures < cmp.Or(g.Spec.MaxAttempts, defaultAttempts):
		g.pending.set(i)
		g.addPending(1)
	default:
		g.Failed++
		if g.Job.Phase == JobActive {
			e.s.Queue().setPhase(g.Job, JobFailing)
		}
	}
}

func (g *Stage) setPast(i int32, past pastAttempts) {
	if g.pastAttempts == nil {
		g.pastAttempts = map[int32]pastAttempts{}
	}
	g.pastAttempts[i] = past
}

// updateNext updates the stages that come after g and, through stages without tasks, those after these.
func (q Queue) updateNext(g *Stage) {
	for _, n := range g.next {
		next := g.Job.Stages[n]
		was := next.Open
		q.updateOpen(next)
		if next.Spec.Tasks == 0 && next.Open != was {
			q.updateNext(next)
		}
	}
}

func (e Events) recordTask(g *Stage, a *Attempt, now Time) {
	t := FinishedTask{Task: a.ID.TaskID, Tenant: g.Job.Spec.Tenant, Kind: g.Spec.Kind, Stage: g.Spec.Name, JobName: g.Job.Spec.Name,
		Node: a.Node, Demand: g.Spec.Demand, Tasks: g.Spec.Tasks, RunTime: a.RanFor(now), Ended: now}
	if g.Spec.Inputs != nil {
		bytes, nodes, local := g.Input(a.ID.Index)
		k := slices.Index(nodes, a.Node)
		t.InputBytes, t.Local = bytes, k >= 0 && (local == nil || 2*local[k] >= bytes)
	}
	e.s.history.put(t)
}

// OutputLost reports that the output of a done task is gone: the task is pending again, and a
// later stage that depends on it and has not started is closed.
func (e Events) OutputLost(id TaskID) error {
	g, err := e.eventStage(id.StageID())
	if err != nil {
		return err
	}
	i := id.Index
	if !g.hasTask(i) {
		return refuse(ErrUnknown, "task "+id.String(), "there is no such task")
	}
	if !g.done.has(i) || g.busy.has(i) {
		return refuse(ErrStale, "task "+id.String(), "it is not done, or an attempt at it is still live")
	}
	g.done.clear(i)
	g.Done--
	e.s.changeLog.recordJob(g.Job)
	g.pending.set(i)
	g.addPending(1)
	past := g.pastAttempts[i]
	past.Last++
	g.setPast(i, past)
	e.s.Queue().updateReady(g)
	e.s.Queue().updateNext(g)
	e.s.countChange()
	return nil
}

// AttemptSuspended reports that an attempt has reached a level, and its measured footprint
// there. The level may differ from the requested one.
func (e Events) AttemptSuspended(id AttemptID, run int32, level Level, has Footprint, now Time) error {
	a, g, slot, err := e.s.applier().findAttempt(id, run)
	if err != nil {
		return err
	}
	switch {
	case !level.Suspended():
		return a.refuse(ErrInvalid, "cannot suspend to level %v: use frozen, swapped or checkpointed", level)
	case !has.valid():
		return a.refuse(ErrInvalid, "footprint %+v", has)
	case a.Phase != AttemptSuspending:
		return a.refuse(ErrStale, "it is %v, not suspending", a.Phase)
	}
	g.accrueTaskTime(now)
	e.s.links().detach(a, slot)
	d := a.ownDetails()
	if a.Level == LevelRunning {
		d.Ran = a.RanFor(now)
		d.SuspendedAt = now
		d.Suspends++
	}
	a.Phase, a.Target, a.Level = AttemptSuspended, 0, level
	d.Occupied = level.Occupancy(a.Demand, a.DiskSpace, has)
	if g.WaitsForInput() { // suspended for a map, which may be planned only after this attempt's end
		e.s.unplannedReleases++
	}
	e.s.links().attach(a, slot)
	e.s.countChange()
	return nil
}

// AttemptResumed reports that an attempt is running again: after a resume, after a migration
// (its source is then free), or because its suspension failed.
func (e Events) AttemptResumed(id AttemptID, run int32, now Time) error {
	a, g, slot, err := e.s.applier().findAttempt(id, run)
	if err != nil {
		return err
	}
	if a.Phase != AttemptResuming && a.Phase != AttemptSuspending {
		return a.refuse(ErrStale, "it is %v", a.Phase)
	}
	g.accrueTaskTime(now)
	e.s.links().detach(a, slot)
	if a.Phase == AttemptSuspending && a.Level != LevelRunning {
		e.s.links().beginResume(a, now)
	}
	a.Phase, a.Target = AttemptRunning, 0
	if a.From != NoNode {
		a.From, a.FromDisk, a.FromOccupied = NoNode, -1, Occupancy{}
	}
	e.s.links().attach(a, slot)
	e.s.countChange()
	return nil
}

func (f Footprint) valid() bool {
	return min(f.Memory, f.Swap, f.Image, f.Files) >= 0 && max(f.Memory, f.Swap, f.Image, f.Files) <= MaxAmount/4
}
