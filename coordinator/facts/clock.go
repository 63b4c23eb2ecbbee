package facts

import (
	"fmt"
	"slices"
	"time"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
)

// ClockTolerance is how far a leader's clock may be behind the log's time before
// it is believed nevertheless. Within it the log's time stands still, so that
// times are in order across small corrections and across leaders. Beyond it the
// clock was ahead once, and the log's time steps back: the order of entries,
// placements and ends is kept by index and sequence numbers, never by time.
const ClockTolerance = time.Minute

// EntryTime returns the time, Unix ns, of an entry that is proposed now.
func (ck Clock) EntryTime(now int64) int64 {
	if now < ck.f.now && !ck.wasAhead(now) {
		return ck.f.now
	}
	return now
}

// Entry.step_rules is the version of the rules by which Apply treats an entry, of all of them and
// not, as its name has it, of steps of the clock alone: 0 is the first, and each has the rules of
// those below it, so that entries of earlier versions are replayed as they were applied. An entry
// has the lowest version that has each rule which may change its effect, mostly 0: servers stop at
// a version that they do not know (Newer).
const (
	tokenStepRules  = 1 // a step back of the log's time: tokens too
	drainStepRules  = 2 // a step back: deadlines of drains too
	infraStepRules  = 3 // a step back: when the infrastructure failed a job on a node too
	windowStepRules = 4 // a step back: maintenance windows that began too early too
	lossRules       = 5 // a lost map output: what its attempt had counted is taken off the totals
	violationRules  = 6 // a decision: violated guarantees are recorded
	levelStepRules  = 7 // a step back: when attempts reached their levels too
	projectRules    = 8 // a decision: the guarantee of a project, or its refusal, is an event
	probationRules  = 9 // a failed restore: a node on probation with an attempt takes the task only if no other can

	lastRules = probationRules
)

// ApplyRules returns the step_rules of an entry that is proposed now. Newest first: an entry has
// the highest rule that may change its effect.
func (ck Clock) ApplyRules(e *droverv1.Entry, now int64) uint32 {
	switch {
	case levelsOf(ck.f).mayReachProbation(e):
		return probationRules
	case ck.f.Deadlines().answersProject(e.GetDecision()):
		return projectRules
	case ck.wasAhead(now):
		return levelStepRules
	case recordsViolation(e.GetDecision()):
		return violationRules
	case attemptsOf(ck.f).mayLoseOutputs(e):
		return lossRules
	default:
		return 0
	}
}

// Ahead returns how far the log's time is ahead of a clock, 0 if it is not.
func (ck Clock) Ahead(now int64) time.Duration { return time.Duration(max(0, ck.f.now-now)) }

// Step returns when the log's time was last set back, Unix ns, and how far;
// zeros for never.
func (ck Clock) Step() (at int64, by time.Duration) { return ck.f.stepAt, time.Duration(ck.f.stepBy) }

func (ck Clock) wasAhead(now int64) bool { return ck.f.now-now > int64(ClockTolerance) }

// advance sets the time of the facts to an entry's.
func (ck Clock) advance(e *droverv1.Entry) {
	at := e.GetAt()
	if at > 0 && ck.wasAhead(at) {
		ck.stepBack(e, at)
		return
	}
	ck.f.now = max(ck.f.now, at)
}

// stepBack sets the time back to `to`. O(jobs and active attempts); the reader of the journal
// rebuilds.
//   - Ends of waits (quarantine, back-off) and times of recent failures move back as far.
//   - Times of things that have happened become at most `to`; those of ended attempts stay.
//   - Deadlines stay. One that lies ahead again is not missed.
//   - A token, or the deadline of a drain, that was made while the clock was ahead keeps its length.
//   - A maintenance window that began while the clock was ahead, and before its time, begins again.
func (ck Clock) stepBack(e *droverv1.Entry, to int64) {
	by := ck.f.now - to
	ck.f.now, ck.f.stepAt, ck.f.stepBy = to, to, by
	for i, n := range ck.f.nodes {
		c := *n
		c.RetryAt, c.SchedulableSince = shiftBack(n.RetryAt, by), shiftBack(n.SchedulableSince, by)
		if e.GetStepRules() >= drainStepRules && n.DrainSetAt > to {
			c.DrainSetAt, c.DrainDeadline = shiftBack(n.DrainSetAt, by), shiftBack(n.DrainDeadline, by)
		}
		c.InfraFailures = nil
		for _, at := range n.InfraFailures {
			c.InfraFailures = append(c.InfraFailures, at-by)
		}
		if e.GetStepRules() >= infraStepRules {
			c.InfraJobs = nil
			for _, j := range n.InfraJobs {
				c.InfraJobs = append(c.InfraJobs, InfraJob{j.Job, j.At - by})
			}
		}
		back := e.GetStepRules() >= windowStepRules && c.stepWindowsBack(to)
		ck.f.nodes[i] = &c
		if back {
			levelsOf(ck.f).unparkDrained(c.ID)
		}
	}
	for _, id := range ck.f.JobIDs() {
		ck.stepJobBack(e, writerOf(ck.f).writableJob(ck.f.jobs[id]), to, by)
	}
	for id, p := range ck.f.projects {
		c := *p
		c.Submitted = min(p.Submitted, to)
		ck.f.projects[id] = &c
	}
	for _, b := range ck.f.blobs {
		b.Added = min(b.Added, to)
	}
	for k, s := range ck.f.policyStates.all {
		switch k.Kind {
		case guaranteeState, latestDepartureState, acceptedState, refusedState: // in the future by their meaning
		default:
			c := *s
			c.At = min(s.At, to)
			ck.f.policyStates.all[k] = &c
		}
	}
	if e.GetStepRules() >= tokenStepRules {
		ck.f.Tokens().stepBack(to, by)
	}
	ck.f.journal = []Change{{Kind: ChangeReset, At: to}}
	ck.f.EventLog().add(e, "clock.stepped_back", &Event{Text: fmt.Sprintf("the clock had been ahead: the log's time went back by %s", time.Duration(by).Round(time.Second))})
}

// stepWindowsBack makes the maintenance windows of a node that begin after a time, and have begun,
// windows to come. It reports whether the node takes work again, as after the end of a window
// (endMaintenance). The node is a copy that is not in the facts yet.
func (n *Node) stepWindowsBack(to int64) (back bool) {
	n.Maintenance = slices.Clone(n.Maintenance)
	for i := range n.Maintenance {
		w := &n.Maintenance[i]
		if !w.Begun || w.From <= to {
			continue
		}
		back = back || !w.StaysDrained
		w.Begun, w.StaysDrained = false, false
	}
	if !back {
		return false
	}
	n.Draining, n.DrainDeadline, n.InfraFailures, n.SchedulableSince = false, 0, nil, to
	if n.Up { // else it says why the node is down
		n.Reason = ""
	}
	return true
}

func (ck Clock) stepJobBack(e *droverv1.Entry, j *Job, to, by int64) {
	j.Submitted, j.Started, j.Ended = min(j.Submitted, to), min(j.Started, to), min(j.Ended, to)
	if j.Miss != nil && !j.HasEnded() && j.DeadlineNS() > to {
		j.Miss = nil // the wrong clock found it; the right one may find it again
	}
	if j.Live == 0 {
		return
	}
	ck.f.EachActive(j, func(k Key, _ *Task, a *Attempt) {
		c := *a
		c.Placed = min(a.Placed, to)
		s := &c.Suspension
		s.RequestedAt, s.SuspendedAt, s.RetryAt = min(s.RequestedAt, to), min(s.SuspendedAt, to), shiftBack(s.RetryAt, by)
		if e.GetStepRules() >= levelStepRules { // an attempt that resumed has run since
			s.LevelSince = min(s.LevelSince, to)
		}
		writerOf(ck.f).setTask(j, k.Stage, k.Task, ck.f.Job(j.ID).Stages[k.Stage].Task(k.Task).withAttempt(&c))
	})
}

// shiftBack returns a time that is by earlier; zero stays zero, for "none".
func shiftBack(at, by int64) int64 {
	if at == 0 {
		return 0
	}
	return max(1, at-by)
}
