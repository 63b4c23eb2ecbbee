package node

import (
	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/node/task"
)

// level returns the level that the attempt is at.
func (s *suspension) level(wanted *droverv1.WantedAttempt) droverv1.Level {
	switch {
	case s.container.isGone() && s.rec.Dumped, s.container.phase == task.ContainerNone && isToBeFetched(wanted, s.rec):
		return droverv1.Level_LEVEL_CHECKPOINTED
	case s.container.phase == task.ContainerUnknown && s.rec.Level != 0 && !s.isPausedForLease(wanted):
		return droverv1.Level(s.rec.Level)
	case s.container.phase != task.ContainerRunning || !s.frozen || s.isPausedForLease(wanted):
		return droverv1.Level_LEVEL_RUNNING
	case s.swapped:
		return droverv1.Level_LEVEL_SWAPPED
	default:
		return droverv1.Level_LEVEL_FROZEN
	}
}

// isPausedForLease reports whether the attempt is frozen only because the node has no lease, or had
// none until now. It is reported to the coordinator as running, which is the requested level.
func (s *suspension) isPausedForLease(wanted *droverv1.WantedAttempt) bool {
	return s.frozen && s.forLease && wanted.GetSpec().GetExclusive() && wanted.GetGoal() == droverv1.Goal_GOAL_RUN && wanted.GetLevel() <= droverv1.Level_LEVEL_RUNNING
}

// fill fills in the fields of a report that concern the level.
func (s *suspension) fill(r *droverv1.SeenAttempt, wanted *droverv1.WantedAttempt) {
	r.Level, r.LevelSinceMs, r.LevelNote, r.LevelSteps = s.level(wanted), s.rec.LevelSinceMS, s.rec.LevelNote, s.steps
	if wanted.GetGoal() == droverv1.Goal_GOAL_RUN && s.container.phase != task.ContainerUnknown { // the step may yet turn out to have succeeded
		requested := task.Level(max(wanted.GetLevel(), droverv1.Level_LEVEL_RUNNING))
		if s.refused.Has(requested) && s.isFallbackReached(requested) {
			r.TargetRefused, r.LevelsRefused = droverv1.Level(requested), levelList(s.refusedPermanently)
		}
	}
	switch r.Level {
	case droverv1.Level_LEVEL_RUNNING:
		if s.isPausedForLease(wanted) {
			r.LevelNote = leaseLostNote
		}
		return
	case droverv1.Level_LEVEL_CHECKPOINTED:
		r.Occupied, r.ImageOccupied = &droverv1.Resources{}, s.rec.DumpBytes
		r.DiskOccupied += s.rec.DumpBytes
		if r.TargetRefused != 0 {
			r.Phase = droverv1.Phase_PHASE_RUNNING // even if it never ran here: its level is decided
		}
	default:
		r.Occupied, r.SwapOccupied = &droverv1.Resources{Memory: s.cgroup.occupied.GetMemory()}, s.cgroup.swapBytes
	}
}

// levelList returns the levels of a set in order.
func levelList(s task.Levels) (all []droverv1.Level) {
	for l := task.LevelRunning; l <= task.LevelCheckpointed; l++ {
		if s.Has(l) {
			all = append(all, droverv1.Level(l))
		}
	}
	return all
}

// isFallbackReached reports whether the attempt is at the level that remains
// after refusals, so that no further step follows.
func (s *suspension) isFallbackReached(requested task.Level) bool {
	to := task.ReachableLevel(requested, s.refused)
	if requested == task.LevelRunning {
		return true
	}
	switch to {
	case task.LevelRunning:
		return !s.frozen
	case task.LevelFrozen:
		return s.frozen
	case task.LevelSwapped:
		return s.swapped
	default:
		return false
	}
}
