package coordinator

import (
	"errors"
	"fmt"
	"time"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/coordinator/facts"
	"github.com/drover-run/drover/scheduler"
)

func (p *projection) syncPlaced(f *facts.Facts, k facts.Key) error {
	a := f.Attempt(k)
	if a == nil {
		return nil
	}
	if p.state.Attempt(attemptID(k)) == nil {
		return ignoreStale(p.place(k, a))
	}
	return p.setExpectedRunTime(k, a)
}

// setExpectedRunTime sets the run time that was predicted for an attempt at its
// placement.
func (p *projection) setExpectedRunTime(k facts.Key, a *facts.Attempt) error {
	have := p.state.Attempt(attemptID(k))
	if have == nil || a.EstimateNS == 0 || have.Run != a.Run || have.Estimate == time.Duration(a.EstimateNS) {
		return nil
	}
	return ignoreStale(p.state.Events().AttemptProgress(have.ID, have.Run, have.Progress, time.Duration(a.EstimateNS)))
}

// place creates an attempt in State on its node. A migrating attempt is created on its source node,
// so that the migration can follow.
func (p *projection) place(k facts.Key, a *facts.Attempt) error {
	act := &scheduler.Action{Kind: scheduler.ActPlace, Task: taskID(k), Attempt: k.Attempt, Run: a.Run, Node: nodeID(a.Node),
		Disk: int16(a.Disk), Speculative: a.Speculative}
	if a.Suspension.ImageNode != 0 {
		act.Run, act.Node, act.Disk = a.Run-1, nodeID(a.Suspension.ImageNode), int16(a.Suspension.ImageDisk)
	}
	if err := p.state.ApplyFact(act, scheduler.Time(a.Placed)); err != nil {
		return err
	}
	return p.setExpectedRunTime(k, a)
}

// syncLevel brings an attempt to its confirmed level and its pending target.
// Intermediate changes are skipped.
func (p *projection) syncLevel(f *facts.Facts, k facts.Key, at int64) error {
	a, have := f.Attempt(k), p.state.Attempt(attemptID(k))
	if a == nil || have == nil || !a.State.IsActive() || have.Phase == scheduler.AttemptKilling {
		return nil
	}
	now := scheduler.Time(at)
	if have.Run != a.Run {
		if err := p.syncMigration(k, a, have, now); err != nil {
			return err
		}
	}
	if a.Suspension.ImageNode == 0 {
		if err := p.syncLevelOnNode(f.Node(a.Node), k, a, have, now); err != nil {
			return err
		}
	}
	if a.Suspension.SuspendedAt == 0 { // State has the time at which it decided the placement
		return nil
	}
	return ignoreStale(p.state.Events().SetTimes(attemptID(k), a.Run, attemptTimes(a)))
}

// attemptTimes returns when an attempt that has been suspended ran. Without it State would use the
// times of its own events, which all have the same time in a rebuild.
func attemptTimes(a *facts.Attempt) scheduler.AttemptTimes {
	s := &a.Suspension
	ranUntil := s.SuspendedAt
	if a.Level == droverv1.Level_LEVEL_RUNNING {
		ranUntil = s.LevelSince
	}
	ran := max(0, ranUntil-a.Placed-s.SuspendedMS*int64(time.Millisecond))
	placed := ranUntil
	switch {
	case a.Level == droverv1.Level_LEVEL_RUNNING:
	case a.Target == droverv1.Level_LEVEL_RUNNING:
		placed = s.RequestedAt
	default: // the facts do not have the time of its last resume: assume that it ran without a break
		placed -= ran
	}
	return scheduler.AttemptTimes{Placed: scheduler.Time(max(0, placed)), Ran: time.Duration(ran), SuspendedAt: scheduler.Time(max(0, s.SuspendedAt)), Suspends: s.Count}
}

// timesAtEnd returns the attemptTimes of an attempt that has ended. They leave out a resume that
// its node did not confirm. They are right at whatever level State has the attempt, since State is
// not told of a level change just before the end.
func timesAtEnd(a *facts.Attempt) scheduler.AttemptTimes {
	t := attemptTimes(a)
	if a.Level == droverv1.Level_LEVEL_RUNNING {
		t.Ran += max(0, scheduler.Time(a.Ended).Sub(t.Placed))
	}
	t.Placed = scheduler.Time(a.Ended)
	return t
}

// syncLevelOnNode is syncLevel for an attempt that does not migrate.
func (p *projection) syncLevelOnNode(n *facts.Node, k facts.Key, a *facts.Attempt, have *scheduler.Attempt, now scheduler.Time) error {
	if err := p.confirmLevel(k, a, have, now); err != nil {
		return err
	}
	err := errors.Join(ignoreStale(p.state.Events().SetParked(attemptID(k), a.Run, a.Suspension.IsParkedOn(n))), ignoreStale(p.state.Events().SetRefusedLevels(attemptID(k), a.Run, scheduler.LevelSet(a.Suspension.Refused()))))
	if err != nil || a.Target == 0 {
		return err
	}
	if have.Target == scheduler.Level(a.Target) { // already pending
		return nil
	}
	return ignoreStale(p.requestLevel(k, a.Run, scheduler.Level(a.Target), now))
}

// syncMigration migrates an attempt in State. It first makes the attempt checkpointed on its source
// node, which State may not know yet.
func (p *projection) syncMigration(k facts.Key, a *facts.Attempt, have *scheduler.Attempt, now scheduler.Time) error {
	if have.Run != a.Run-1 {
		return fmt.Errorf("%w: attempt %v is at run %d, the facts at %d", errDrift, have.ID, have.Run, a.Run)
	}
	id, run := attemptID(k), a.Run-1
	if have.Phase == scheduler.AttemptResuming {
		if err := ignoreStale(p.state.Events().AttemptResumed(id, run, now)); err != nil {
			return err
		}
	}
	if have.Level != scheduler.LevelCheckpointed {
		if err := ignoreStale(p.requestLevel(k, run, scheduler.LevelCheckpointed, now)); err != nil {
			return err
		}
	}
	if have.Phase == scheduler.AttemptSuspending {
		if err := ignoreStale(p.state.Events().AttemptSuspended(id, run, scheduler.LevelCheckpointed, footprint(a), now)); err != nil {
			return err
		}
	}
	act := &scheduler.Action{Kind: scheduler.ActMigrate, Task: taskID(k), Attempt: k.Attempt, Run: a.Run, Node: nodeID(a.Node), Disk: int16(a.Disk)}
	if err := p.state.ApplyFact(act, now); err != nil {
		return fmt.Errorf("%w: %w", errDrift, err)
	}
	return errors.Join(ignoreStale(p.state.Events().SetParked(id, a.Run, false)), ignoreStale(p.state.Events().SetRefusedLevels(id, a.Run, 0)), p.setExpectedRunTime(k, a))
}

// footprint returns what a suspended attempt occupies, as measured by its node.
func footprint(a *facts.Attempt) scheduler.Footprint {
	image := a.Seen().GetImageOccupied()
	has := scheduler.Footprint{Memory: a.Occupied.Memory, Swap: a.Seen().GetSwapOccupied(), Image: image, Files: max(0, a.Seen().GetDiskOccupied()-image)}
	if a.Target == droverv1.Level_LEVEL_RUNNING { // Occupied is then what it will occupy
		has.Memory = a.Seen().GetOccupied().GetMemory()
	}
	if a.Level == droverv1.Level_LEVEL_SWAPPED {
		has.Memory += has.Swap // State expects the total, and subtracts what is swapped out
	}
	return has
}

// requestLevel requests a level of an attempt.
func (p *projection) requestLevel(k facts.Key, run int32, l scheduler.Level, now scheduler.Time) error {
	act := &scheduler.Action{Kind: scheduler.ActSuspend, Task: taskID(k), Attempt: k.Attempt, Run: run, Level: l}
	if l == scheduler.LevelRunning {
		act.Kind, act.Level = scheduler.ActResume, 0
	}
	return p.state.ApplyFact(act, now)
}

// confirmLevel applies the level that a node confirmed, after any request that
// State must have seen first.
func (p *projection) confirmLevel(k facts.Key, a *facts.Attempt, have *scheduler.Attempt, now scheduler.Time) error {
	to := scheduler.Level(a.Level)
	if to == scheduler.LevelRunning {
		if have.Phase == scheduler.AttemptSuspended {
			if err := ignoreStale(p.requestLevel(k, a.Run, to, now)); err != nil {
				return err
			}
		}
		target := scheduler.Level(a.Target)
		withdrawn := have.Phase == scheduler.AttemptSuspending && (target == 0 || target.Suspended() && target != have.Target) // and perhaps followed by another
		if have.Phase == scheduler.AttemptResuming || withdrawn {
			return ignoreStale(p.state.Events().AttemptResumed(attemptID(k), a.Run, now))
		}
		return nil
	}
	if have.Level == to && (have.Phase == scheduler.AttemptSuspended || a.Target != 0) {
		return nil
	}
	if have.Phase == scheduler.AttemptResuming {
		if err := ignoreStale(p.state.Events().AttemptResumed(attemptID(k), a.Run, now)); err != nil {
			return err
		}
	}
	if have.Phase != scheduler.AttemptSuspending {
		if err := ignoreStale(p.requestLevel(k, a.Run, to, now)); err != nil {
			return err
		}
	}
	return ignoreStale(p.state.Events().AttemptSuspended(attemptID(k), a.Run, to, footprint(a), now))
}

func (p *projection) stopAttempt(f *facts.Facts, k facts.Key, at int64) error {
	a := f.Attempt(k)
	if a == nil {
		return nil
	}
	return ignoreStale(p.state.ApplyFact(&scheduler.Action{Kind: scheduler.ActKill, Task: taskID(k), Attempt: k.Attempt, Run: p.runOf(k, a)}, scheduler.Time(at)))
}

func (p *projection) endAttempt(f *facts.Facts, k facts.Key, at int64) error {
	a := f.Attempt(k)
	if a == nil {
		return nil // its job was forgotten, so State has no such attempt
	}
	if err := p.end(attemptID(k), p.runOf(k, a), a, outcome(a), scheduler.Time(at)); err != nil {
		return err
	}
	if p.lateOutputLosses[taskID(k)] {
		delete(p.lateOutputLosses, taskID(k))
		if outcome(a) != scheduler.OutcomeSucceeded { // otherwise the sibling's output replaces it
			if err := p.outputLost(k); err != nil {
				return err
			}
		}
	}
	if p.replaying {
		return nil // more of its attempts may follow
	}
	return p.endJob(f, f.Job(k.Job))
}

// end ends an attempt in State. a is the attempt of that key in the facts: nil if its job was
// forgotten, active if the run was found again since.
func (p *projection) end(id scheduler.AttemptID, run int32, a *facts.Attempt, o scheduler.Outcome, at scheduler.Time) error {
	if a != nil && !a.State.IsActive() && a.Suspension.SuspendedAt != 0 {
		if err := ignoreStale(p.state.Events().SetTimes(id, run, timesAtEnd(a))); err != nil {
			return err
		}
	}
	return ignoreStale(p.state.Events().AttemptEnded(id, run, o, at))
}

// runOf returns the run under which State knows an attempt. An attempt that migrated and ended
// since the last change has its earlier run there, and need not migrate first.
func (p *projection) runOf(k facts.Key, a *facts.Attempt) int32 {
	if have := p.state.Attempt(attemptID(k)); have != nil {
		return have.Run
	}
	return a.Run
}

// outcome returns the outcome of an ended attempt. An attempt succeeded even if
// its output was lost later.
func outcome(a *facts.Attempt) scheduler.Outcome {
	switch {
	case a.State == facts.AttemptSucceeded || a.LostSeq > 0:
		return scheduler.OutcomeSucceeded
	case a.UserFault():
		return scheduler.OutcomeFailedUser
	case a.State == facts.AttemptFailed:
		return scheduler.OutcomeFailedInfra
	case a.State == facts.AttemptStopped:
		return scheduler.OutcomeKilled
	default:
		return scheduler.OutcomeLost
	}
}

func (p *projection) outputLost(k facts.Key) error {
	err := p.state.Events().OutputLost(taskID(k))
	if errors.Is(err, scheduler.ErrStale) {
		p.lateOutputLosses[taskID(k)] = true
		return nil
	}
	return ignoreStale(err)
}

// minProgressStep is the smallest change of progress that is passed to State.
const minProgressStep = 0.01

// applyProgress tells State which attempts run and their progress, neither of which is a fact.
// Reports of different attempts are independent, so their order does not matter. Stale reports are
// ignored.
func (p *projection) applyProgress(all []attemptProgress, now scheduler.Time) error {
	for i := range all {
		h := &all[i]
		a := p.state.Attempt(attemptID(h.key))
		if a == nil || a.Run != h.run {
			continue
		}
		if h.started && a.Phase == scheduler.AttemptStarting {
			if err := ignoreStale(p.state.Events().AttemptStarted(a.ID, h.run, now)); err != nil {
				return err
			}
		}
		if h.progress-a.Progress >= minProgressStep || (h.progress == 1 && a.Progress < 1) {
			if err := ignoreStale(p.state.Events().AttemptProgress(a.ID, h.run, h.progress, 0)); err != nil {
				return err
			}
		}
	}
	return nil
}
