package facts

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/jobspec"
)

// Suspension is the history of an attempt's levels, and what was refused.
type Suspension struct {
	LevelSince       int64  `json:"level_since,omitempty"`       // when it reached its level, Unix ns; 0: it has always been running
	RequestedAt      int64  `json:"requested_at,omitempty"`      // when its target was requested, Unix ns
	SuspendedAt      int64  `json:"suspended_at,omitempty"`      // when it last left running, Unix ns
	Reason           string `json:"reason,omitempty"`            // for users
	Actor            string `json:"actor,omitempty"`             // who requested the target
	Preemptor        uint64 `json:"preemptor,omitempty"`         // the job that it was suspended or killed for
	Parked           bool   `json:"parked,omitempty"`            // suspended manually: no scheduler resumes it
	Unknown          bool   `json:"unknown,omitempty"`           // parked until an operator adopts it: see apply_unknown.go
	Drained          bool   `json:"drained,omitempty"`           // parked since its node is drained, until it has moved or the drain ends
	RefusedLevels    uint8  `json:"refused_levels,omitempty"`    // 1<<level of those that its node can never bring it to
	TransientRefused uint8  `json:"transient_refused,omitempty"` // 1<<level of those that its node failed to reach for a retryable reason, e.g. a full disk
	RetryAt          int64  `json:"retry_at,omitempty"`          // when TransientRefused may be requested again, Unix ns
	RefusalStreak    int32  `json:"refusal_streak,omitempty"`    // consecutive transient refusals since it last resumed or reached a target
	Count            int32  `json:"count,omitempty"`             // suspensions confirmed so far
	SuspendedMS      int64  `json:"suspended_ms,omitempty"`      // wall time of ended suspensions
	PreemptedCPUMS   int64  `json:"preempted_cpu_ms,omitempty"`  // CPU time of the attempt counted as preempted
	PreservedCPUMS   int64  `json:"preserved_cpu_ms,omitempty"`  // part of PreemptedCPUMS counted as preserved
	Withdrawn        bool   `json:"withdrawn,omitempty"`         // the last suspension was withdrawn before its node confirmed it
	Killed           bool   `json:"killed,omitempty"`            // it was told to end for another job

	// During a migration: the node that holds the checkpoint image, under which
	// epoch, run and disk, and the nodes that failed to restore it.
	ImageNode       int32   `json:"image_node,omitempty"`
	ImageEpoch      uint64  `json:"image_epoch,omitempty"`
	ImageRun        int32   `json:"image_run,omitempty"`
	ImageDisk       int32   `json:"image_disk,omitempty"`
	RestoreFailedOn []int32 `json:"restore_failed_on,omitempty"` // replaced, never written to
}

// setLevel requests that an attempt be brought to level l. It returns "" or why
// it does not.
func (en decisionEntries) setLevel(e *droverv1.Entry, act *droverv1.ActionFact, l droverv1.Level) string {
	k, a, why := en.liveAttempt(act)
	if why != "" {
		return why
	}
	if act.GetDrain() && l == a.Level && a.Target == 0 && l != droverv1.Level_LEVEL_RUNNING {
		levelsOf(en.f).park(k, a, true)
		return ""
	}
	if why := en.f.Checks().whyNotLevel(k, a, l); why != "" {
		return why
	}
	n := en.f.Node(a.Node)
	j := writerOf(en.f).writableJob(en.f.jobs[k.Job])
	c := *a
	c.Target, c.Suspension.Withdrawn = l, withdraws(a, l)
	if c.Suspension.Withdrawn {
		c.Target = 0 // it is at that level already, unless the node was quicker
	}
	c.Suspension.RequestedAt, c.Suspension.Reason, c.Suspension.Actor, c.Suspension.Preemptor, c.Suspension.Parked = en.f.now, clip(act.GetReason(), 256), clip(e.GetActor(), 128), act.GetPreemptorJob(), false
	c.Suspension.Drained = false
	kind, text := "task.suspending", LevelName(a.Level)+" to "+LevelName(l)
	if c.Suspension.Withdrawn {
		text = "change to " + LevelName(a.Target) + " withdrawn"
	}
	if l == droverv1.Level_LEVEL_RUNNING {
		kind, c.Suspension.RestoreFailedOn = "task.resuming", nil
		// A resuming task is charged its whole demand, so that nothing takes
		// its capacity.
		nodesOf(en.f).charge(a.Node, a.Occupied, -1)
		c.Occupied = j.Demand(int(k.Stage))
		nodesOf(en.f).charge(a.Node, c.Occupied, +1)
	} else {
		c.Suspension.Parked, c.Suspension.Drained = act.GetManual() || act.GetDrain() || a.Suspension.Unknown, act.GetDrain()
	}
	writerOf(en.f).setTask(j, k.Stage, k.Task, j.Stages[k.Stage].Task(k.Task).withAttempt(&c))
	en.f.EventLog().add(e, kind, &Event{Job: j.Name, JobID: j.ID, Task: j.taskName(k, a.Run), Node: n.Info.GetName(), Text: text + en.f.EventLog().preemptionText(j, &c)})
	writerOf(en.f).recordChange(Change{Kind: ChangeLevel, Key: k, Node: a.Node})
	return ""
}

// park parks a suspended attempt since its node is drained, or ends that.
func (en levelEntries) park(k Key, a *Attempt, on bool) {
	if a.Suspension.Parked && !a.Suspension.Drained { // by a user, who ends it
		return
	}
	j := writerOf(en.f).writableJob(en.f.jobs[k.Job])
	c := *a
	c.Suspension.Parked, c.Suspension.Drained = on, on
	writerOf(en.f).setTask(j, k.Stage, k.Task, j.Stages[k.Stage].Task(k.Task).withAttempt(&c))
	writerOf(en.f).recordChange(Change{Kind: ChangeLevel, Key: k, Node: a.Node})
}

// IsParkedOn reports whether no scheduler may resume the attempt on its node. One that was parked for a drain by an entry
// that was proposed before the drain ended, and applied after it, is not: nothing else ends that.
func (s *Suspension) IsParkedOn(n *Node) bool { return s.Parked && (!s.Drained || n.DrainDeadline > 0) }

// unparkDrained lets the scheduler resume what was parked since its node was drained.
func (en levelEntries) unparkDrained(node int32) {
	for _, k := range en.f.AttemptsOn(node) {
		if a := en.f.Attempt(k); a != nil && a.State == AttemptLive && a.Node == node && a.Suspension.Drained {
			en.park(k, a, false)
		}
	}
}

// Why a level is refused for the sake of the attempt's node. DropNoLevel stands before the level's
// name.
const (
	DropNoCapacity = "the node has no free capacity to resume the task"
	DropNoLevel    = "the node cannot do "
)

// whyNotLevel returns why an attempt may not be brought to level l, or "".
func (c Checks) whyNotLevel(k Key, a *Attempt, l droverv1.Level) string {
	n := c.f.Node(a.Node)
	switch {
	case l < droverv1.Level_LEVEL_RUNNING || l > droverv1.Level_LEVEL_CHECKPOINTED:
		return fmt.Sprintf("there is no level %d", l)
	case l != droverv1.Level_LEVEL_RUNNING && !slices.Contains(n.Info.GetLevels(), l):
		return DropNoLevel + LevelName(l)
	case a.Target != 0 && !withdraws(a, l):
		return "a change to " + LevelName(a.Target) + " is pending"
	case l == droverv1.Level_LEVEL_RUNNING && a.Level == l && a.Target == 0:
		return "it is not suspended"
	case l == droverv1.Level_LEVEL_RUNNING && a.Suspension.Unknown:
		return unknownReason
	case l != droverv1.Level_LEVEL_RUNNING && l <= a.Level:
		return "it is at " + LevelName(a.Level) + " already"
	}
	if free := AmountsOf(n.Info.GetAllocatable()).add(n.Used, -1).add(a.Occupied, +1); l == droverv1.Level_LEVEL_RUNNING && !c.f.jobs[k.Job].Demand(int(k.Stage)).fits(free) {
		return DropNoCapacity
	}
	return ""
}

// withdraws reports whether a resume withdraws a suspension that the node has
// not confirmed, as for a task that is still being prepared or started.
func withdraws(a *Attempt, l droverv1.Level) bool {
	return l == droverv1.Level_LEVEL_RUNNING && a.Level == l && a.Target > l
}

// AttemptsOn returns the attempts that are active on a node or whose output it
// keeps, in key order. O(n log n) in their number.
func (f *Facts) AttemptsOn(node int32) []Key {
	return slices.SortedFunc(maps.Keys(f.onNode[node]), CompareKeys)
}

// preemptionText returns for whom and why an attempt is at its level, for
// events.
func (l EventLog) preemptionText(j *Job, a *Attempt) string {
	s := ""
	if name := l.f.JobNameIn(j.Spec.Tenant, a.Suspension.Preemptor); name != "" {
		s += ", for job " + name
	}
	if a.Suspension.Reason != "" {
		s += ": " + a.Suspension.Reason
	}
	return s
}

// LevelName returns a level's name in events and views.
func LevelName(l droverv1.Level) string {
	return strings.ToLower(strings.TrimPrefix(l.String(), "LEVEL_"))
}

// confirmLevel applies a level that the node reached, on the way to the target
// or as the target, or the node's refusal of the target. It reports whether the
// report changed anything.
func (en levelEntries) confirmLevel(e *droverv1.Entry, k Key, a *Attempt, seen *droverv1.SeenAttempt) bool {
	l, refused := seen.GetLevel(), seen.GetTargetRefused()
	switch {
	case l < droverv1.Level_LEVEL_RUNNING || l > droverv1.Level_LEVEL_CHECKPOINTED:
		return false
	case a.Target == 0 && l == a.Level, a.Target != 0 && l == a.Level && refused != a.Target:
		return false
	case refused == a.Target && refused == droverv1.Level_LEVEL_RUNNING:
		en.handleResumeFailure(e, k, a, seen)
		return true
	}
	j := writerOf(en.f).writableJob(en.f.jobs[k.Job])
	c := *a
	c.Level, c.seen, c.sealed = l, seen, nil
	switch {
	case refused != 0 && refused == a.Target:
		c.Suspension.recordRefusal(impliedRefusals(l, refused), seen.GetLevelsRefused(), en.f.now)
		c.Target = 0
	case c.Target == l:
		c.Suspension.recordReached(l)
		c.Target = 0
	}
	if c.Suspension.Withdrawn && c.Target == 0 && l != droverv1.Level_LEVEL_RUNNING {
		c.Target, c.Suspension.Withdrawn = droverv1.Level_LEVEL_RUNNING, false // the node was quicker: the attempt resumes
	}
	if a.Level != droverv1.Level_LEVEL_RUNNING && l == droverv1.Level_LEVEL_RUNNING {
		c.Suspension.clearTransient() // circumstances may have changed
		c.Suspension.RefusalStreak = 0
	}
	if c.Target == 0 && l == droverv1.Level_LEVEL_RUNNING {
		c.Suspension.Parked, c.Suspension.Drained = false, false
	}
	sum := c.recordTransition(a.Level, seen, en.f.now)
	occupied := j.Demand(int(k.Stage))
	if l != droverv1.Level_LEVEL_RUNNING && c.Target != droverv1.Level_LEVEL_RUNNING {
		occupied = AmountsOf(seen.GetOccupied())
	}
	nodesOf(en.f).charge(a.Node, a.Occupied, -1)
	c.Occupied = occupied
	nodesOf(en.f).charge(a.Node, c.Occupied, +1)
	s := &j.Stages[k.Stage]
	switch was, is := a.Level != droverv1.Level_LEVEL_RUNNING, l != droverv1.Level_LEVEL_RUNNING; {
	case is && !was:
		s.Suspended++
	case was && !is:
		s.Suspended--
	}
	change := Change{Kind: ChangeLevel, Key: k, Node: a.Node}
	if c.Suspension.ImageNode != 0 && l == droverv1.Level_LEVEL_RUNNING { // it runs here: the source node may delete the image
		sum.Migrations++
		change.Nodes, change.Run = []int32{c.Suspension.ImageNode}, c.Suspension.ImageRun
		c.clearImage()
	}
	writerOf(en.f).setTask(j, k.Stage, k.Task, j.Stages[k.Stage].Task(k.Task).withAttempt(&c))
	en.addPreemption(j, sum)
	en.addEvent(e, j, k, a, &c, refused)
	writerOf(en.f).recordChange(change)
	return true
}

// impliedRefusals returns the set (1<<level) of levels that a node has refused
// if an attempt stays at one level instead of reaching the requested one. The
// node takes the deepest level that it can, so all between the two are refused.
// A task that cannot be frozen can reach no level at all.
func impliedRefusals(stays, requested droverv1.Level) (set uint8) {
	if stays == droverv1.Level_LEVEL_RUNNING {
		requested = droverv1.Level_LEVEL_CHECKPOINTED
	}
	for l := stays + 1; l <= requested; l++ {
		set |= 1 << l
	}
	return set
}

// Refused returns the set (1<<level) of levels that must not be requested now.
func (s *Suspension) Refused() uint8 { return s.RefusedLevels | s.TransientRefused }

// recordRefusal records the levels of set as refused. Those that the node can
// never reach stay refused for the life of the attempt; the others may be
// requested again after RefusalBackoffMin, doubled each time in a row up to
// refusalBackoffMax. A refusal while another back-off is pending belongs to the
// same streak.
func (s *Suspension) recordRefusal(set uint8, never []droverv1.Level, at int64) {
	for _, l := range never {
		if l > droverv1.Level_LEVEL_RUNNING && l <= droverv1.Level_LEVEL_CHECKPOINTED {
			s.RefusedLevels |= set & (1 << l)
		}
	}
	if s.TransientRefused |= set; s.TransientRefused&^s.RefusedLevels == 0 {
		s.clearTransient()
		return
	}
	s.TransientRefused &^= s.RefusedLevels
	if s.RetryAt <= at || s.RefusalStreak == 0 {
		s.RefusalStreak++
	}
	s.RetryAt = at + int64(min(refusalBackoffMax, RefusalBackoffMin<<min(s.RefusalStreak-1, 16)))
}

// clearTransient permits levels that were refused for a retryable reason.
func (s *Suspension) clearTransient() { s.TransientRefused, s.RetryAt = 0, 0 }

// recordReached records that the node brought the attempt to level l: that
// level and those before it are refused no more.
func (s *Suspension) recordReached(l droverv1.Level) {
	through := uint8(1)<<(l+1) - 1
	s.RefusedLevels, s.TransientRefused, s.RefusalStreak = s.RefusedLevels&^through, s.TransientRefused&^through, 0
	if s.TransientRefused == 0 {
		s.RetryAt = 0
	}
}

// applyRefusalsExpired ends the back-off of attempts with transient refusals.
func (en levelEntries) applyRefusalsExpired(b *droverv1.RefusalsExpiredFact, r *Result) {
	for i, key := range b.GetAttempts() {
		k := KeyOf(key)
		a := en.f.Attempt(k)
		switch {
		case a == nil || a.Run != key.GetRun() || a.State != AttemptLive:
			r.Dropped = append(r.Dropped, Drop{Index: i, Reason: "no such attempt"})
			continue
		case a.Suspension.TransientRefused == 0 || a.Suspension.RetryAt > en.f.now:
			r.Dropped = append(r.Dropped, Drop{Index: i, Reason: "its back-off has not expired"})
			continue
		}
		j := writerOf(en.f).writableJob(en.f.jobs[k.Job])
		c := *a
		c.Suspension.clearTransient()
		writerOf(en.f).setTask(j, k.Stage, k.Task, j.Stages[k.Stage].Task(k.Task).withAttempt(&c))
		writerOf(en.f).recordChange(Change{Kind: ChangeLevel, Key: k, Node: a.Node})
		r.Changed++
	}
}

// addEvent reports to users what a node did, and how long each step took.
func (en levelEntries) addEvent(e *droverv1.Entry, j *Job, k Key, before, after *Attempt, refused droverv1.Level) {
	seen := after.Seen()
	text, kind := "", "task.suspended"
	switch {
	case refused != 0 && refused == before.Target:
		kind = "task.level_refused"
		text = fmt.Sprintf("not %s, it stays %s: %s", LevelName(refused), LevelName(after.Level), cmp.Or(seen.GetLevelNote(), "the node gave no reason"))
		if after.Suspension.TransientRefused != 0 {
			text += fmt.Sprintf("; not requested again for %s", formatDuration(time.Duration(after.Suspension.RetryAt-en.f.now)))
		}
	case after.Level == droverv1.Level_LEVEL_RUNNING:
		kind = "task.resumed"
		text = fmt.Sprintf("from %s, after %s", LevelName(before.Level), formatElapsed(en.f.now-before.Suspension.SuspendedAt))
	default:
		text = fmt.Sprintf("%s, occupies memory %s", LevelName(after.Level), jobspec.FormatSize(seen.GetOccupied().GetMemory()))
		if seen.GetSwapOccupied() > 0 {
			text += ", swap " + jobspec.FormatSize(seen.GetSwapOccupied())
		}
		if seen.GetImageOccupied() > 0 {
			text += ", image " + jobspec.FormatSize(seen.GetImageOccupied())
		}
		text += en.f.EventLog().preemptionText(j, after)
	}
	if steps := stepsText(seen.GetLevelSteps()); steps != "" {
		text += "; " + steps
	}
	if before.Suspension.RequestedAt > 0 && before.Target != 0 && after.Target == 0 {
		text += "; requested " + formatElapsed(en.f.now-before.Suspension.RequestedAt) + " earlier"
	}
	en.f.EventLog().add(e, kind, &Event{Job: j.Name, JobID: j.ID, Task: j.taskName(k, after.Run), Node: en.f.EventLog().nodeNameOf(after.Node), Text: text})
}

// formatElapsed formats nanoseconds for users.
func formatElapsed(ns int64) string {
	d := time.Duration(max(0, ns))
	switch {
	case d < 10*time.Millisecond:
		return d.Round(10 * time.Microsecond).String()
	case d < 10*time.Second:
		return d.Round(time.Millisecond).String()
	default:
		return d.Round(100 * time.Millisecond).String()
	}
}

// stepsText formats steps, e.g. "freeze 12ms, checkpoint 2.6s (70MiB)".
func stepsText(steps []*droverv1.LevelStep) string {
	var out []string
	for _, s := range steps {
		if strings.Contains(s.GetStep(), "/") { // part of the step before it
			continue
		}
		t := s.GetStep() + " " + formatElapsed(s.GetDurationUs()*1000)
		if s.GetBytes() > 0 {
			t += " (" + jobspec.FormatSize(s.GetBytes()) + ")"
		}
		if s.GetError() != "" {
			t += " failed"
		}
		out = append(out, t)
	}
	return strings.Join(out, ", ")
}

func boolInt(b bool) int {
	if b {
		return 1
	}
	return 0
}
