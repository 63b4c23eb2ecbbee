package facts

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/jobspec"
)

// maxRestoreNodes bounds the nodes on which the restore of one checkpoint is
// tried.
const maxRestoreNodes = 3

// PreemptionTotals sums up the preemptions of a job or tenant. CPUMS is CPU
// time that attempts had used when they were suspended or killed for others. It
// is preserved once they resume, and lost if they cannot.
type PreemptionTotals struct {
	Suspends       int64 `json:"suspends,omitempty"`
	Resumes        int64 `json:"resumes,omitempty"`
	Migrations     int64 `json:"migrations,omitempty"` // the Resumes on another node
	Kills          int64 `json:"kills,omitempty"`      // killed for others, or because they could not be resumed
	CPUMS          int64 `json:"cpu_ms,omitempty"`
	PreservedCPUMS int64 `json:"preserved_cpu_ms,omitempty"`
	LostCPUMS      int64 `json:"lost_cpu_ms,omitempty"`
	SuspendedMS    int64 `json:"suspended_ms,omitempty"` // wall time of ended suspensions
}

// Proto returns p as a message.
func (p *PreemptionTotals) Proto() *droverv1.PreemptionTotals {
	return &droverv1.PreemptionTotals{Suspends: p.Suspends, Resumes: p.Resumes, Migrations: p.Migrations, Kills: p.Kills, CpuMs: p.CPUMS,
		PreservedCpuMs: p.PreservedCPUMS, LostCpuMs: p.LostCPUMS, SuspendedMs: p.SuspendedMS}
}

func (p *PreemptionTotals) add(d *PreemptionTotals) {
	p.Suspends += d.Suspends
	p.Resumes += d.Resumes
	p.Migrations += d.Migrations
	p.Kills += d.Kills
	p.CPUMS = addClamped(p.CPUMS, d.CPUMS)
	p.PreservedCPUMS = addClamped(p.PreservedCPUMS, d.PreservedCPUMS)
	p.LostCPUMS = addClamped(p.LostCPUMS, d.LostCPUMS)
	p.SuspendedMS = addClamped(p.SuspendedMS, d.SuspendedMS)
}

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

// addPreemption adds d to the totals of a job and its tenant. The job came from
// writableJob.
func (en levelEntries) addPreemption(j *Job, d PreemptionTotals) {
	j.Preempted.add(&d)
	t := en.f.tenantName[j.Spec.Tenant]
	if t == nil {
		return
	}
	n := *t
	n.Preempted.add(&d)
	en.f.tenants[n.ID] = &n
	en.f.tenantName[j.Spec.Tenant] = &n
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

// unparkDrained lets the scheduler resume what was parked since its node was drained.
func (en levelEntries) unparkDrained(node int32) {
	for _, k := range en.f.AttemptsOn(node) {
		if a := en.f.Attempt(k); a != nil && a.State == AttemptLive && a.Node == node && a.Suspension.Drained {
			en.park(k, a, false)
		}
	}
}

// Why a level is refused for the sake of the attempt's node. DropNoLevel stands before the level's name.
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

// clearImage forgets the node that held the image.
func (a *Attempt) clearImage() {
	a.Suspension.ImageNode, a.Suspension.ImageEpoch, a.Suspension.ImageRun, a.Suspension.ImageDisk, a.Suspension.RestoreFailedOn = 0, 0, 0, 0, nil
}

// recordTransition updates the attempt's own counts for a level that it has
// reached, and returns what to add to the totals of its job and tenant.
func (a *Attempt) recordTransition(was droverv1.Level, seen *droverv1.SeenAttempt, at int64) (d PreemptionTotals) {
	running := droverv1.Level_LEVEL_RUNNING
	if a.Level != was || a.Suspension.LevelSince == 0 {
		a.Suspension.LevelSince = at
	}
	switch {
	case was == running && a.Level != running:
		a.Suspension.Count++
		a.Suspension.SuspendedAt = at
		d.Suspends, d.CPUMS = 1, max(0, seen.GetUsage().GetCpuMs()-a.Suspension.PreemptedCPUMS)
		a.Suspension.PreemptedCPUMS += d.CPUMS
	case was != running && a.Level == running:
		d.Resumes, d.SuspendedMS = 1, max(0, (at-a.Suspension.SuspendedAt)/1e6)
		d.PreservedCPUMS = a.Suspension.PreemptedCPUMS - a.Suspension.PreservedCPUMS
		a.Suspension.PreservedCPUMS = a.Suspension.PreemptedCPUMS
		a.Suspension.SuspendedMS += d.SuspendedMS
	}
	return d
}

// preemptionAtEnd returns what the end of an attempt adds to the totals:
// preempted work that was not preserved is lost, unless the user stopped the
// attempt.
func (a *Attempt) preemptionAtEnd(state AttemptState, seen *droverv1.SeenAttempt) (d PreemptionTotals) {
	risk := a.Suspension.PreemptedCPUMS - a.Suspension.PreservedCPUMS
	suspended := a.Level != droverv1.Level_LEVEL_RUNNING
	switch {
	case a.Suspension.Killed && state != AttemptSucceeded:
		all := max(seen.GetUsage().GetCpuMs(), a.Seen().GetUsage().GetCpuMs())
		d.Kills, d.CPUMS, d.LostCPUMS = 1, max(0, all-a.Suspension.PreemptedCPUMS), all
	case suspended && (state == AttemptFailed || state == AttemptLost):
		d.Kills, d.LostCPUMS = 1, risk
	case suspended && state == AttemptSucceeded: // it finished before it was frozen
		d.PreservedCPUMS = risk
	}
	return d
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

// CanRestore reports whether a checkpoint made on one node can be restored on
// another: same driver, kernel, criu and runc, no earlier format of dumps, and at least the same CPU flags.
// The coordinator's classes of nodes name all that it compares.
func CanRestore(from, to *droverv1.NodeInfo) bool {
	can := func(i *droverv1.NodeInfo) bool {
		return slices.Contains(i.GetLevels(), droverv1.Level_LEVEL_CHECKPOINTED)
	}
	if !can(from) || !can(to) || from.GetDriver() != to.GetDriver() {
		return false
	}
	for _, p := range []string{"kernel", "criu", "runc"} {
		if from.GetVersions()[p] != to.GetVersions()[p] {
			return false
		}
	}
	if dumpFormat(from) > dumpFormat(to) {
		return false
	}
	has := make(map[string]bool, len(to.GetCpuFlags()))
	for _, flag := range to.GetCpuFlags() {
		has[flag] = true
	}
	for _, flag := range from.GetCpuFlags() {
		if !has[flag] {
			return false
		}
	}
	return true
}

// dumpFormat returns the version of the dumps that a node writes, 0 for a node that does not say it, whose Drover is
// of before the versions that do.
func dumpFormat(i *droverv1.NodeInfo) int {
	n, _ := strconv.Atoi(i.GetVersions()["dump"])
	return n
}

// migrate resumes a checkpointed attempt on another node.
func (en decisionEntries) migrate(e *droverv1.Entry, act *droverv1.ActionFact) string {
	k := KeyOf(act.GetKey())
	a, n := en.f.Attempt(k), en.f.Node(act.GetNode())
	switch {
	case a == nil:
		return "no such attempt"
	case act.GetKey().GetRun() != a.Run+1:
		return fmt.Sprintf("run %d, the next one is %d", act.GetKey().GetRun(), a.Run+1)
	case a.State != AttemptLive:
		return "the attempt is " + a.State.String()
	case a.Level != droverv1.Level_LEVEL_CHECKPOINTED || a.Target != 0:
		return "only a checkpointed task can migrate; it is " + LevelName(cmp.Or(a.Target, a.Level))
	case a.Suspension.Unknown:
		return unknownReason
	case n == nil || !n.TakesTasks(): // what Apply decides may not change; who chooses a node to propose asks Schedulable
		return "the node is not schedulable"
	case n.ID == a.Node:
		return "it is on that node already: resume it there"
	case act.GetDisk() < -1 || int(act.GetDisk()) >= len(n.Info.GetDisks()):
		return "the node has no such disk"
	case !CanRestore(en.f.Node(a.Node).Info, n.Info):
		return "the node cannot restore what node " + en.f.EventLog().nodeNameOf(a.Node) + " checkpoints: CPU flags, kernel, criu and runc must match, and its drover must not be older"
	case !en.f.jobs[k.Job].Demand(int(k.Stage)).fits(AmountsOf(n.Info.GetAllocatable()).add(n.Used, -1)):
		return "the node has no free capacity"
	}
	c := *a
	c.Suspension.Reason, c.Suspension.Actor, c.Suspension.Preemptor, c.Suspension.Parked = clip(act.GetReason(), 256), clip(e.GetActor(), 128), act.GetPreemptorJob(), false
	c.Suspension.Drained = false
	en.moveAttempt(e, k, &c, n, act.GetDisk())
	return ""
}

// moveAttempt assigns a, whose checkpoint some node holds, to another node. a is a copy of the current attempt.
// It is the only place that raises the run. Its callers know that no container of the old run is left: migrate because
// the attempt is checkpointed, handleResumeFailure because the node reported that the restore failed.
func (en decisionEntries) moveAttempt(e *droverv1.Entry, k Key, a *Attempt, to *Node, disk int32) {
	j := writerOf(en.f).writableJob(en.f.jobs[k.Job])
	from := en.f.EventLog().nodeNameOf(a.Node)
	nodesOf(en.f).charge(a.Node, a.Occupied, -1)
	delete(en.f.onNode[a.Node], k)
	if a.Suspension.ImageNode == 0 {
		a.Suspension.ImageNode, a.Suspension.ImageEpoch, a.Suspension.ImageRun, a.Suspension.ImageDisk = a.Node, a.Epoch, a.Run, a.Disk
	}
	old := Change{Kind: ChangeLevel, Key: k, Node: to.ID, Nodes: []int32{a.Node}, Run: a.Run}
	a.Node, a.Epoch, a.Disk, a.Run = to.ID, to.Epoch, disk, a.Run+1
	a.Target, a.Suspension.RequestedAt, a.Suspension.RefusedLevels = droverv1.Level_LEVEL_RUNNING, en.f.now, 0
	a.Suspension.clearTransient()
	a.Suspension.RefusalStreak = 0
	a.Occupied = j.Demand(int(k.Stage))
	nodesOf(en.f).charge(a.Node, a.Occupied, +1)
	writerOf(en.f).setTask(j, k.Stage, k.Task, j.Stages[k.Stage].Task(k.Task).withAttempt(a))
	if en.f.onNode[to.ID] == nil {
		en.f.onNode[to.ID] = map[Key]struct{}{}
	}
	en.f.onNode[to.ID][k] = struct{}{}
	en.f.EventLog().add(e, "task.migrating", &Event{Job: j.Name, JobID: j.ID, Task: j.taskName(k, a.Run), Node: to.Info.GetName(), Text: "from " + from + en.f.EventLog().preemptionText(j, a)})
	writerOf(en.f).recordChange(old)
}

// handleResumeFailure handles a node's failure to restore an attempt from its
// checkpoint: another node tries, or else the attempt fails, its work is lost
// and the task is retried.
func (en levelEntries) handleResumeFailure(e *droverv1.Entry, k Key, a *Attempt, seen *droverv1.SeenAttempt) {
	j := en.f.jobs[k.Job]
	detail := cmp.Or(seen.GetLevelNote(), "the node gave no reason")
	en.f.EventLog().add(e, "task.restore_failed", &Event{Job: j.Name, JobID: j.ID, Task: j.taskName(k, a.Run), Node: en.f.EventLog().nodeNameOf(a.Node), Text: detail})
	if a.Level == droverv1.Level_LEVEL_CHECKPOINTED && len(a.Suspension.RestoreFailedOn) < maxRestoreNodes {
		var n *Node
		if e.GetStepRules() >= probationRules {
			n = decisionsOf(en.f).findRestoreNode(k, a, (*Node).Schedulable)
		}
		if n == nil { // its work is lost otherwise
			n = decisionsOf(en.f).findRestoreNode(k, a, (*Node).TakesTasks)
		}
		if n != nil {
			c := *a
			c.Suspension.RestoreFailedOn = append(slices.Clone(a.Suspension.RestoreFailedOn), a.Node)
			c.Suspension.Reason = "it could not be restored on " + en.f.EventLog().nodeNameOf(a.Node)
			decisionsOf(en.f).moveAttempt(e, k, &c, n, n.FirstDisk())
			return
		}
	}
	end := &droverv1.SeenAttempt{Key: seen.GetKey(), Phase: droverv1.Phase_PHASE_FAILED, Cause: droverv1.Cause_CAUSE_INFRA, Usage: a.Seen().GetUsage(), Limits: a.Seen().GetLimits(),
		StartedMs: a.Seen().GetStartedMs(), RunningMs: a.Seen().GetRunningMs(), Level: a.Level, LevelNote: detail,
		Message: clip(fmt.Sprintf("its work is lost (%s of CPU time): %s; it starts again", formatElapsed(a.Seen().GetUsage().GetCpuMs()*1e6), detail), 1024)}
	attemptsOf(en.f).endAttempt(e, k, a, AttemptFailed, end)
}

// mayReachProbation reports whether, with an entry that is proposed, a checkpoint that could not be restored may go to a
// node on probation.
func (en levelEntries) mayReachProbation(e *droverv1.Entry) bool {
	failed := slices.ContainsFunc(e.GetAttempts().GetSeen(), func(seen *droverv1.SeenAttempt) bool {
		return seen.GetTargetRefused() == droverv1.Level_LEVEL_RUNNING
	})
	return failed && slices.ContainsFunc(en.f.nodes, func(n *Node) bool { return n.Probation })
}

// RestoreNode returns the schedulable node to which an attempt that is checkpointed may migrate now,
// nil if there is none. O(nodes).
func RestoreNode(f *Facts, k Key) *Node {
	a := f.Attempt(k)
	if a == nil || a.Level != droverv1.Level_LEVEL_CHECKPOINTED || a.Target != 0 {
		return nil
	}
	return decisionsOf(f).findRestoreNode(k, a, (*Node).Schedulable)
}

// findRestoreNode returns the node with the most free CPU among those that take the attempt, can
// restore its checkpoint, have the capacity and have not failed to
// restore it. One that leaves soon comes after all others. It returns nil if there is none, or if the node that holds the
// image is gone.
func (en decisionEntries) findRestoreNode(k Key, a *Attempt, takes func(*Node) bool) *Node {
	imageNode, epoch := a.Node, a.Epoch
	if a.Suspension.ImageNode != 0 {
		imageNode, epoch = a.Suspension.ImageNode, a.Suspension.ImageEpoch
	}
	h := en.f.Node(imageNode)
	if h == nil || !h.Up || h.Epoch != epoch {
		return nil
	}
	var best *Node
	free := func(n *Node) Amounts { return AmountsOf(n.Info.GetAllocatable()).add(n.Used, -1) }
	for _, n := range en.f.nodes {
		if !takes(n) || n.ID == imageNode || n.ID == a.Node || slices.Contains(a.Suspension.RestoreFailedOn, n.ID) || !CanRestore(h.Info, n.Info) {
			continue
		}
		if !en.f.jobs[k.Job].Demand(int(k.Stage)).fits(free(n)) {
			continue
		}
		stays := func(n *Node) int { return boolInt(!n.leavesBefore(en.f.now + max(int64(minStay), a.EstimateNS))) }
		if best == nil || cmp.Or(cmp.Compare(stays(n), stays(best)), cmp.Compare(free(n).CPU, free(best).CPU)) > 0 {
			best = n
		}
	}
	return best
}

// minStay is how long a node should at least stay to which a checkpoint is moved.
const minStay = 10 * time.Minute

// leavesBefore reports whether a maintenance window of the node begins before a time.
func (n *Node) leavesBefore(at int64) bool {
	return slices.ContainsFunc(n.Maintenance, func(w MaintenanceWindow) bool { return w.From < at })
}

func boolInt(b bool) int {
	if b {
		return 1
	}
	return 0
}
