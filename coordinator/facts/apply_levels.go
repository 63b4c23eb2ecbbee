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

// maxTried bounds the nodes on which a dump that cannot be restored is tried.
const maxTried = 3

// Preempted sums up what was taken back from the tasks of a job or tenant. CPU
// time is what attempts had used when they were suspended or killed for others;
// it is kept once they go on, and lost when they cannot.
type Preempted struct {
	Suspends    int64 `json:"suspends,omitempty"`
	Resumes     int64 `json:"resumes,omitempty"`
	Moves       int64 `json:"moves,omitempty"` // of Resumes: on another node
	Kills       int64 `json:"kills,omitempty"` // ended for others, or because they could not be resumed
	CPUMS       int64 `json:"cpu_ms,omitempty"`
	KeptCPUMS   int64 `json:"kept_cpu_ms,omitempty"`
	LostCPUMS   int64 `json:"lost_cpu_ms,omitempty"`
	SuspendedMS int64 `json:"suspended_ms,omitempty"` // of spans that are over
}

// Proto gives the message.
func (p *Preempted) Proto() *droverv1.Preempted {
	return &droverv1.Preempted{Suspends: p.Suspends, Resumes: p.Resumes, Moves: p.Moves, Kills: p.Kills, CpuMs: p.CPUMS,
		KeptCpuMs: p.KeptCPUMS, LostCpuMs: p.LostCPUMS, SuspendedMs: p.SuspendedMS}
}

func (p *Preempted) add(d *Preempted) {
	p.Suspends += d.Suspends
	p.Resumes += d.Resumes
	p.Moves += d.Moves
	p.Kills += d.Kills
	p.CPUMS = addClamped(p.CPUMS, d.CPUMS)
	p.KeptCPUMS = addClamped(p.KeptCPUMS, d.KeptCPUMS)
	p.LostCPUMS = addClamped(p.LostCPUMS, d.LostCPUMS)
	p.SuspendedMS = addClamped(p.SuspendedMS, d.SuspendedMS)
}

// Suspension is what the facts know of an attempt's level besides the level.
type Suspension struct {
	At      int64  `json:"at,omitempty"`       // when it reached its level, Unix ns; 0: it never left running
	Asked   int64  `json:"asked,omitempty"`    // when its target was asked for
	From    int64  `json:"from,omitempty"`     // when it last left running
	Why     string `json:"why,omitempty"`      // in words for people
	By      string `json:"by,omitempty"`       // who asked
	For     uint64 `json:"for,omitempty"`      // the job that got the room
	Parked  bool   `json:"parked,omitempty"`   // by hand: no scheduler resumes it
	Barred  uint8  `json:"barred,omitempty"`   // 1<<level of those that its node can never bring it to
	Passing uint8  `json:"passing,omitempty"`  // likewise of those that its node could not bring it to for a reason that may pass
	Back    int64  `json:"back,omitempty"`     // of Passing: not before, Unix ns
	Passed  int32  `json:"passed,omitempty"`   // refusals of that kind since it last came back or reached what was asked
	Count   int32  `json:"count,omitempty"`    // suspensions so far
	TotalMS int64  `json:"total_ms,omitempty"` // of those that are over
	CPUMS   int64  `json:"cpu_ms,omitempty"`   // of the attempt, that were counted as taken back
	KeptMS  int64  `json:"kept_ms,omitempty"`  // of them, that were counted as kept
	Killed  bool   `json:"killed,omitempty"`   // it was told to end for others

	// While it moves: the node that holds its image, under which run, and the
	// nodes where the image could not be restored.
	Holder      int32   `json:"holder,omitempty"`
	HolderEpoch uint64  `json:"holder_epoch,omitempty"`
	HolderRun   int32   `json:"holder_run,omitempty"`
	HolderDisk  int32   `json:"holder_disk,omitempty"`
	Tried       []int32 `json:"tried,omitempty"` // replaced, never written
}

// count adds to the sums of a job and its tenant. The job came from write.
func (f *Facts) count(j *Job, d Preempted) {
	j.Preempted.add(&d)
	t := f.tenantName[j.Spec.Tenant]
	if t == nil {
		return
	}
	n := *t
	n.Preempted.add(&d)
	f.tenants[n.ID] = &n
	f.tenantName[j.Spec.Tenant] = &n
}

// setLevel has an attempt brought to a level; it gives "" or why not.
func (f *Facts) setLevel(e *droverv1.Entry, act *droverv1.ActionFact, l droverv1.Level) string {
	k, a, why := f.liveAttempt(act)
	if why != "" {
		return why
	}
	if why := f.maySetLevel(k, a, l); why != "" {
		return why
	}
	n := f.Node(a.Node)
	j := f.write(f.jobs[k.Job])
	c := *a
	c.Target = l
	c.Sus.Asked, c.Sus.Why, c.Sus.By, c.Sus.For, c.Sus.Parked = f.at, clip(act.GetWhy(), 256), clip(e.GetActor(), 128), act.GetForJob(), false
	kind := "task.suspending"
	if l == droverv1.Level_LEVEL_RUNNING {
		kind, c.Sus.Tried = "task.resuming", nil
		// A task on its way up is charged whole, so that nothing takes its room.
		f.hold(a.Node, a.Held, -1)
		c.Held = j.Demand(int(k.Stage))
		f.hold(a.Node, c.Held, +1)
	} else {
		c.Sus.Parked = act.GetByHand()
	}
	f.setTask(j, k.Stage, k.Task, j.Stages[k.Stage].Task(k.Task).with(&c))
	f.event(e, kind, &Event{Job: j.Name, JobID: j.ID, Task: j.taskName(k, a.Run), Node: n.Info.GetName(), Text: LevelName(a.Level) + " to " + LevelName(l) + f.forWhom(&c)})
	f.record(Change{Kind: ChangeLevel, Key: k, Node: a.Node})
	return ""
}

func (f *Facts) maySetLevel(k Key, a *Attempt, l droverv1.Level) string {
	n := f.Node(a.Node)
	switch {
	case l < droverv1.Level_LEVEL_RUNNING || l > droverv1.Level_LEVEL_CHECKPOINTED:
		return fmt.Sprintf("there is no level %d", l)
	case l != droverv1.Level_LEVEL_RUNNING && !slices.Contains(n.Info.GetLevels(), l):
		return "the node cannot do " + LevelName(l)
	case a.Target != 0:
		return "it is on its way to " + LevelName(a.Target)
	case l == droverv1.Level_LEVEL_RUNNING && a.Level == l:
		return "it is not suspended"
	case l != droverv1.Level_LEVEL_RUNNING && l <= a.Level:
		return "it is at " + LevelName(a.Level) + " already"
	}
	if room := AmountsOf(n.Info.GetAllocatable()).add(n.Used, -1).add(a.Held, +1); l == droverv1.Level_LEVEL_RUNNING && !f.jobs[k.Job].Demand(int(k.Stage)).fits(room) {
		return "the node has no room for it to resume"
	}
	return ""
}

// On lists the attempts that hold something on a node, or whose output it keeps,
// in order. O(n log n) in their number.
func (f *Facts) On(node int32) []Key {
	return slices.SortedFunc(maps.Keys(f.onNode[node]), CompareKeys)
}

// forWhom says why and for whom an attempt is at its level, for events.
func (f *Facts) forWhom(a *Attempt) string {
	s := ""
	if j := f.jobs[a.Sus.For]; a.Sus.For != 0 && j != nil {
		s += ", for job " + j.Name
	}
	if a.Sus.Why != "" {
		s += ": " + a.Sus.Why
	}
	return s
}

// LevelName is a level's word in events and views.
func LevelName(l droverv1.Level) string {
	return strings.ToLower(strings.TrimPrefix(l.String(), "LEVEL_"))
}

// confirmLevel takes a level that the node reached, on its way to the target or
// as its end, or the node's word that the target cannot be reached.
func (f *Facts) confirmLevel(e *droverv1.Entry, k Key, a *Attempt, seen *droverv1.SeenAttempt) bool {
	l, refused := seen.GetLevel(), seen.GetLevelRefused()
	switch {
	case l < droverv1.Level_LEVEL_RUNNING || l > droverv1.Level_LEVEL_CHECKPOINTED:
		return false
	case a.Target == 0 && l == a.Level, a.Target != 0 && l == a.Level && refused != a.Target:
		return false
	case refused == a.Target && refused == droverv1.Level_LEVEL_RUNNING:
		f.cannotResume(e, k, a, seen)
		return true
	}
	j := f.write(f.jobs[k.Job])
	c := *a
	c.Level, c.Seen = l, seen
	switch {
	case refused != 0 && refused == a.Target:
		c.Sus.bar(barredBy(l, refused), seen.GetLevelsNever(), f.at)
		c.Target = 0
	case c.Target == l:
		c.Sus.reached(l)
		c.Target = 0
	}
	if a.Level != droverv1.Level_LEVEL_RUNNING && l == droverv1.Level_LEVEL_RUNNING {
		c.Sus.tryAgain() // much may have changed
		c.Sus.Passed = 0
	}
	if c.Target == 0 && l == droverv1.Level_LEVEL_RUNNING {
		c.Sus.Parked = false
	}
	sum := c.tally(a.Level, seen, f.at)
	held := j.Demand(int(k.Stage))
	if l != droverv1.Level_LEVEL_RUNNING && c.Target != droverv1.Level_LEVEL_RUNNING {
		held = AmountsOf(seen.GetHeld())
	}
	f.hold(a.Node, a.Held, -1)
	c.Held = held
	f.hold(a.Node, c.Held, +1)
	s := &j.Stages[k.Stage]
	switch was, is := a.Level != droverv1.Level_LEVEL_RUNNING, l != droverv1.Level_LEVEL_RUNNING; {
	case is && !was:
		s.Suspended++
	case was && !is:
		s.Suspended--
	}
	change := Change{Kind: ChangeLevel, Key: k, Node: a.Node}
	if c.Sus.Holder != 0 && l == droverv1.Level_LEVEL_RUNNING { // it runs here: the image may go there
		sum.Moves++
		change.Nodes, change.Run = []int32{c.Sus.Holder}, c.Sus.HolderRun
		c.release()
	}
	f.setTask(j, k.Stage, k.Task, j.Stages[k.Stage].Task(k.Task).with(&c))
	f.count(j, sum)
	f.levelEvent(e, j, k, a, &c, refused)
	f.record(change)
	return true
}

// barredBy gives the levels that a node has none of when it stays at one instead
// of the one asked for: it takes the deepest on the way. What cannot even be
// frozen can be brought nowhere.
func barredBy(stays, asked droverv1.Level) (set uint8) {
	if stays == droverv1.Level_LEVEL_RUNNING {
		asked = droverv1.Level_LEVEL_CHECKPOINTED
	}
	for l := stays + 1; l <= asked; l++ {
		set |= 1 << l
	}
	return set
}

// Bars gives 1<<level of those that nobody is to ask for now.
func (s *Suspension) Bars() uint8 { return s.Barred | s.Passing }

// bar takes in the levels of a set that a node could not reach: those that it
// never can stay barred while the attempt is there; the others may be asked for
// again after BarFirst, twice as long each time in a row up to BarMost. What is
// refused while another level still waits belongs to the same time.
func (s *Suspension) bar(set uint8, never []droverv1.Level, at int64) {
	for _, l := range never {
		if l > droverv1.Level_LEVEL_RUNNING && l <= droverv1.Level_LEVEL_CHECKPOINTED {
			s.Barred |= set & (1 << l)
		}
	}
	if s.Passing |= set; s.Passing&^s.Barred == 0 {
		s.tryAgain()
		return
	}
	s.Passing &^= s.Barred
	if s.Back <= at || s.Passed == 0 {
		s.Passed++
	}
	s.Back = at + int64(min(BarMost, BarFirst<<min(s.Passed-1, 16)))
}

// tryAgain lets what was refused for a reason that may pass be asked for.
func (s *Suspension) tryAgain() { s.Passing, s.Back = 0, 0 }

// reached takes in that the node brought the attempt to a level: it can, and to
// those above it as well.
func (s *Suspension) reached(l droverv1.Level) {
	through := uint8(1)<<(l+1) - 1
	s.Barred, s.Passing, s.Passed = s.Barred&^through, s.Passing&^through, 0
	if s.Passing == 0 {
		s.Back = 0
	}
}

// applyBarsPassed lets attempts be asked again for what their nodes refused.
func (f *Facts) applyBarsPassed(b *droverv1.BarsPassedFact, r *Result) {
	for i, key := range b.GetAttempts() {
		k := KeyOf(key)
		a := f.Attempt(k)
		switch {
		case a == nil || a.Run != key.GetRun() || a.State != AttemptLive:
			r.Dropped = append(r.Dropped, Drop{At: i, Reason: "no such attempt"})
			continue
		case a.Sus.Passing == 0 || a.Sus.Back > f.at:
			r.Dropped = append(r.Dropped, Drop{At: i, Reason: "its time is not over"})
			continue
		}
		j := f.write(f.jobs[k.Job])
		c := *a
		c.Sus.tryAgain()
		f.setTask(j, k.Stage, k.Task, j.Stages[k.Stage].Task(k.Task).with(&c))
		f.record(Change{Kind: ChangeLevel, Key: k, Node: a.Node})
		r.Changed++
	}
}

// release forgets the node that held the image.
func (a *Attempt) release() {
	a.Sus.Holder, a.Sus.HolderEpoch, a.Sus.HolderRun, a.Sus.HolderDisk, a.Sus.Tried = 0, 0, 0, 0, nil
}

// tally brings the attempt's own counts up to a level that it reached, and gives
// what its job and tenant are charged for it.
func (a *Attempt) tally(was droverv1.Level, seen *droverv1.SeenAttempt, at int64) (d Preempted) {
	running := droverv1.Level_LEVEL_RUNNING
	if a.Level != was || a.Sus.At == 0 {
		a.Sus.At = at
	}
	switch {
	case was == running && a.Level != running:
		a.Sus.Count++
		a.Sus.From = at
		d.Suspends, d.CPUMS = 1, max(0, seen.GetUsage().GetCpuMs()-a.Sus.CPUMS)
		a.Sus.CPUMS += d.CPUMS
	case was != running && a.Level == running:
		d.Resumes, d.SuspendedMS = 1, max(0, (at-a.Sus.From)/1e6)
		d.KeptCPUMS = a.Sus.CPUMS - a.Sus.KeptMS
		a.Sus.KeptMS = a.Sus.CPUMS
		a.Sus.TotalMS += d.SuspendedMS
	}
	return d
}

// endTally is what an end means to the sums: work that was taken back and not
// kept is lost, unless the end was the user's wish.
func (a *Attempt) endTally(state AttemptState, seen *droverv1.SeenAttempt) (d Preempted) {
	risk := a.Sus.CPUMS - a.Sus.KeptMS
	suspended := a.Level != droverv1.Level_LEVEL_RUNNING
	switch {
	case a.Sus.Killed && state != AttemptSucceeded:
		all := max(seen.GetUsage().GetCpuMs(), a.Seen.GetUsage().GetCpuMs())
		d.Kills, d.CPUMS, d.LostCPUMS = 1, max(0, all-a.Sus.CPUMS), all
	case suspended && (state == AttemptFailed || state == AttemptLost):
		d.Kills, d.LostCPUMS = 1, risk
	case suspended && state == AttemptSucceeded: // it was done before it stood still
		d.KeptCPUMS = risk
	}
	return d
}

// levelEvent tells people what a node did, with how long each step took.
func (f *Facts) levelEvent(e *droverv1.Entry, j *Job, k Key, was, is *Attempt, refused droverv1.Level) {
	seen := is.Seen
	text, kind := "", "task.suspended"
	switch {
	case refused != 0 && refused == was.Target:
		kind = "task.level_refused"
		text = fmt.Sprintf("not %s, it stays %s: %s", LevelName(refused), LevelName(is.Level), cmp.Or(seen.GetLevelNote(), "its node did not say why"))
		if is.Sus.Passing != 0 {
			text += fmt.Sprintf("; not asked for again for %s", span(time.Duration(is.Sus.Back-f.at)))
		}
	case is.Level == droverv1.Level_LEVEL_RUNNING:
		kind = "task.resumed"
		text = fmt.Sprintf("from %s, after %s", LevelName(was.Level), took(f.at-was.Sus.From))
	default:
		text = fmt.Sprintf("%s, holds memory %s", LevelName(is.Level), jobspec.FormatSize(seen.GetHeld().GetMemory()))
		if seen.GetSwapHeld() > 0 {
			text += ", swap " + jobspec.FormatSize(seen.GetSwapHeld())
		}
		if seen.GetImageHeld() > 0 {
			text += ", image " + jobspec.FormatSize(seen.GetImageHeld())
		}
		text += f.forWhom(is)
	}
	if steps := stepsText(seen.GetLevelSteps()); steps != "" {
		text += "; " + steps
	}
	if was.Sus.Asked > 0 && was.Target != 0 && is.Target == 0 {
		text += "; asked " + took(f.at-was.Sus.Asked) + " before"
	}
	f.event(e, kind, &Event{Job: j.Name, JobID: j.ID, Task: j.taskName(k, is.Run), Node: f.nodeNameOf(is.Node), Text: text})
}

// took is a span for people, of so many nanoseconds.
func took(ns int64) string {
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

// stepsText is "freeze 12ms, checkpoint 2.6s (70MiB)".
func stepsText(steps []*droverv1.LevelStep) string {
	var out []string
	for _, s := range steps {
		if strings.Contains(s.GetStep(), "/") { // a part of the step before it
			continue
		}
		t := s.GetStep() + " " + took(s.GetUs()*1000)
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

// CanRestore tells whether a dump of one node can go on on another: same kernel,
// criu and runc, and at least the same CPU flags.
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

// migrate has a checkpointed attempt go on on another node. Its run is raised
// only here, when the node that holds the image has reported it whole and the
// container gone: so no two runs of it are ever under way.
func (f *Facts) migrate(e *droverv1.Entry, act *droverv1.ActionFact) string {
	k := KeyOf(act.GetKey())
	a, n := f.Attempt(k), f.Node(act.GetNode())
	switch {
	case a == nil:
		return "no such attempt"
	case act.GetKey().GetRun() != a.Run+1:
		return fmt.Sprintf("run %d, the next one is %d", act.GetKey().GetRun(), a.Run+1)
	case a.State != AttemptLive:
		return "the attempt is " + a.State.String()
	case a.Level != droverv1.Level_LEVEL_CHECKPOINTED || a.Target != 0:
		return "only a checkpointed task can move, and it is " + LevelName(cmp.Or(a.Target, a.Level))
	case n == nil || !n.Up || n.Draining:
		return "the node takes no work"
	case n.ID == a.Node:
		return "it is on that node: resume it there"
	case act.GetDisk() < -1 || int(act.GetDisk()) >= len(n.Info.GetDisks()):
		return "the node has no such disk"
	case !CanRestore(f.Node(a.Node).Info, n.Info):
		return "the node cannot restore what node " + f.nodeNameOf(a.Node) + " dumps: CPU flags, kernel, criu and runc must fit"
	case !f.jobs[k.Job].Demand(int(k.Stage)).fits(AmountsOf(n.Info.GetAllocatable()).add(n.Used, -1)):
		return "the node has no room"
	}
	c := *a
	c.Sus.Why, c.Sus.By, c.Sus.For, c.Sus.Parked = clip(act.GetWhy(), 256), clip(e.GetActor(), 128), act.GetForJob(), false
	f.move(e, k, &c, n, act.GetDisk())
	return ""
}

// move sends an attempt, whose dump some node holds, to another one. a is a copy
// of the present attempt.
func (f *Facts) move(e *droverv1.Entry, k Key, a *Attempt, to *Node, disk int32) {
	j := f.write(f.jobs[k.Job])
	from := f.nodeNameOf(a.Node)
	f.hold(a.Node, a.Held, -1)
	if a.Sus.Holder == 0 {
		a.Sus.Holder, a.Sus.HolderEpoch, a.Sus.HolderRun, a.Sus.HolderDisk = a.Node, a.Epoch, a.Run, a.Disk
	}
	old := Change{Kind: ChangeLevel, Key: k, Node: to.ID, Nodes: []int32{a.Node}, Run: a.Run}
	a.Node, a.Epoch, a.Disk, a.Run = to.ID, to.Epoch, disk, a.Run+1
	a.Target, a.Sus.Asked, a.Sus.Barred = droverv1.Level_LEVEL_RUNNING, f.at, 0
	a.Sus.tryAgain()
	a.Sus.Passed = 0
	a.Held = j.Demand(int(k.Stage))
	f.hold(a.Node, a.Held, +1)
	f.setTask(j, k.Stage, k.Task, j.Stages[k.Stage].Task(k.Task).with(a))
	if f.onNode[to.ID] == nil {
		f.onNode[to.ID] = map[Key]struct{}{}
	}
	f.onNode[to.ID][k] = struct{}{}
	f.event(e, "task.moving", &Event{Job: j.Name, JobID: j.ID, Task: j.taskName(k, a.Run), Node: to.Info.GetName(), Text: "from " + from + f.forWhom(a)})
	f.record(old)
}

// cannotResume takes a node's word that it cannot bring an attempt back from its
// dump: another node tries, else the task starts again and its work is lost.
func (f *Facts) cannotResume(e *droverv1.Entry, k Key, a *Attempt, seen *droverv1.SeenAttempt) {
	j := f.jobs[k.Job]
	note := cmp.Or(seen.GetLevelNote(), "its node did not say why")
	f.event(e, "task.restore_failed", &Event{Job: j.Name, JobID: j.ID, Task: j.taskName(k, a.Run), Node: f.nodeNameOf(a.Node), Text: note})
	if a.Level == droverv1.Level_LEVEL_CHECKPOINTED && len(a.Sus.Tried) < maxTried {
		if n := f.anotherNode(k, a); n != nil {
			c := *a
			c.Sus.Tried = append(slices.Clone(a.Sus.Tried), a.Node)
			c.Sus.Why = "it could not be restored on " + f.nodeNameOf(a.Node)
			f.move(e, k, &c, n, firstDisk(n))
			return
		}
	}
	end := &droverv1.SeenAttempt{Key: seen.GetKey(), Phase: droverv1.Phase_PHASE_FAILED, Cause: droverv1.Cause_CAUSE_INFRA, Usage: a.Seen.GetUsage(), Limits: a.Seen.GetLimits(),
		StartedMs: a.Seen.GetStartedMs(), RunningMs: a.Seen.GetRunningMs(), Level: a.Level, LevelNote: note,
		Message: clip(fmt.Sprintf("its work is lost (%s of CPU time): %s; it starts again", took(a.Seen.GetUsage().GetCpuMs()*1e6), note), 1024)}
	f.endAttempt(e, k, a, AttemptFailed, end)
}

func firstDisk(n *Node) int32 {
	if len(n.Info.GetDisks()) == 0 {
		return -1
	}
	return 0
}

// anotherNode gives the node with the most free CPU that can restore the
// attempt's dump, has room for it and was not tried; nil where there is none, or
// where the node that holds the dump is gone.
func (f *Facts) anotherNode(k Key, a *Attempt) *Node {
	holder, epoch := a.Node, a.Epoch
	if a.Sus.Holder != 0 {
		holder, epoch = a.Sus.Holder, a.Sus.HolderEpoch
	}
	h := f.Node(holder)
	if h == nil || !h.Up || h.Epoch != epoch {
		return nil
	}
	var best *Node
	free := func(n *Node) Amounts { return AmountsOf(n.Info.GetAllocatable()).add(n.Used, -1) }
	for _, n := range f.nodes {
		if !n.Up || n.Draining || n.ID == holder || n.ID == a.Node || slices.Contains(a.Sus.Tried, n.ID) || !CanRestore(h.Info, n.Info) {
			continue
		}
		if !f.jobs[k.Job].Demand(int(k.Stage)).fits(free(n)) {
			continue
		}
		if best == nil || free(n).CPU > free(best).CPU {
			best = n
		}
	}
	return best
}
