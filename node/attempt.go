package node

import (
	"context"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/mapreduce"
	"github.com/drover-run/drover/node/helper"
	"github.com/drover-run/drover/node/store"
	"github.com/drover-run/drover/node/task"
	"github.com/drover-run/drover/runtime"
)

// attempt is one attempt on this node. Its loop owns all fields except those
// under mu and those that name another lock; other goroutines post to inbox.
type attempt struct {
	d                 *daemon
	id                store.ID
	dir               folder
	orphaned          bool // unknown or of an older epoch: removed and never reported; set before the loop starts, later only under daemon.mu
	mayNeedOldHarness bool // started by an earlier daemon or on another node; set before the loop starts
	adopted           bool // an earlier daemon may have made its container; set before the loop starts

	wake  chan struct{}       // something under mu changed; capacity 1
	inbox chan func(*attempt) // calls posted by watchers and helpers

	looping sync.Mutex // held by the loop while it runs; see park.go

	mu     sync.Mutex
	parked bool                    // the attempt rests and has no loop
	wanted *droverv1.WantedAttempt // replaced, never modified; nil: not wanted
	spec   *droverv1.TaskSpec      // the last known; nil if the attempt is unknown to the coordinator
	seen   *droverv1.SeenAttempt   // what is reported; replaced, never modified
	// servedDump is the dump that other nodes may fetch; nil without one.
	servedDump *servableDump

	// Owned by the loop.
	loopCtx       context.Context       // of the loop; helpers live in it, not in a step's context
	loopStarted   time.Duration         // monotonic time at which the loop began
	sentUpdate    helper.Update         // last update sent to the shuffle helper
	output        *mapreduce.StoredFile // made by a task that exited successfully
	rec           store.Record
	recorded      bool
	container     task.Container
	status        runtime.Status // valid when container is stopped
	sharing       containerSharing
	hasImage      bool
	hasFiles      bool
	hasCgroup     bool
	secrets       map[string]string // values by variable, where the driver keeps its specs in memory
	waitsFor      string            // why a step that is tried again and again does not go on
	fetch         helperState
	upload        helperState
	exitOK        bool
	failure       *failure // a permanent failure; the attempt ends with it
	timedOut      bool     // the time limit has passed
	termSentAt    time.Duration
	termSent      bool
	stoppedAt     time.Duration // monotonic time at which the exit was observed
	appliedLimits *droverv1.Limits
	usage         *droverv1.Usage
	occupied      *droverv1.Resources
	oomKills      int64
	diskBytes     int64
	diskFiles     int64         // files and folders
	sampledAt     time.Duration // monotonic time of the last usage sample
	outcome       *outcome
	progress      progress
	currentStep   task.Do
	failures      map[task.Do]int
	// startError is the error of the last failed try to create or start the container.
	startError   string
	awaitingExit bool
	// generation is incremented when a new container takes the attempt's name;
	// results for an older generation are ignored.
	generation int
	suspension suspension
	wg         sync.WaitGroup
}

// progress is what a running task reports about itself.
type progress struct {
	fraction   float64
	counters   map[string]int64
	status     string
	inputBytes int64
	lostMaps   []int32
	refused    string // why something that the task reported was refused; "" if nothing was
}

func newAttempt(d *daemon, id store.ID) *attempt {
	return &attempt{
		d: d, id: id, dir: d.folderOf(id),
		wake: make(chan struct{}, 1), inbox: make(chan func(*attempt)),
		container: task.ContainerNone,
		fetch:     helperState{work: task.WorkIdle}, upload: helperState{work: task.WorkIdle},
		failures: map[task.Do]int{}, sampledAt: -minSampleGap,
		seen: &droverv1.SeenAttempt{Key: id.Key(), Phase: droverv1.Phase_PHASE_PREPARING, Level: droverv1.Level_LEVEL_RUNNING},
	}
}

// setWanted replaces the wanted state; nil means that the attempt must be removed.
func (a *attempt) setWanted(w *droverv1.WantedAttempt) {
	a.mu.Lock()
	a.wanted = w
	if w.GetSpec() != nil {
		a.spec = w.GetSpec()
	}
	a.mu.Unlock()
	a.wakeUp()
}

// wakeUp makes the loop run again, and starts it if the attempt is parked; it
// never blocks.
func (a *attempt) wakeUp() {
	select {
	case a.wake <- struct{}{}:
	default:
	}
	a.unpark(a.d.runCtx)
}

// post hands f to the loop, or drops it when ctx ends.
func (a *attempt) post(ctx context.Context, f func(*attempt)) {
	select {
	case a.inbox <- f:
	case <-ctx.Done():
	}
}

// snapshot returns the current report of the attempt.
func (a *attempt) snapshot() *droverv1.SeenAttempt {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.seen
}

// wantedAndSpec returns the wanted state and the last known spec.
func (a *attempt) wantedAndSpec() (*droverv1.WantedAttempt, *droverv1.TaskSpec) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.wanted, a.spec
}

// A running task's usage and progress are read every sampleEvery, and at most
// once per minSampleGap however often its loop wakes.
const (
	sampleEvery  = time.Second
	minSampleGap = sampleEvery / 2
)

// loop performs steps until nothing of the attempt is left or ctx ends. When ctx
// ends, containers keep running.
func (a *attempt) loop(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer a.wg.Wait()
	defer cancel()
	a.loopCtx, a.loopStarted = ctx, a.d.clock.Monotonic()
	for ctx.Err() == nil {
		if a.container == task.ContainerUnknown {
			if a.refreshContainer(ctx); a.container == task.ContainerRunning {
				a.recoverLevel(ctx) // the known level may be outdated
			}
		}
		a.startExitWatch(ctx)
		a.rec.Epoch = a.epoch()
		wanted, spec := a.wantedAndSpec()
		a.updateRequestedLevel(wanted)
		a.updateFetch(wanted)
		w, s := a.taskState(wanted, spec)
		step := task.Next(w, s)
		a.currentStep = step.Do
		a.publishReport()
		switch step.Do {
		case task.Rest:
			if w.Goal == task.GoalGone {
				if a.d.removeFinished(a) {
					return
				}
				continue
			}
			if a.park() {
				return
			}
			a.sleep(ctx, 0)
		case task.Wait:
			a.sleep(ctx, a.boundRecheck(step.RecheckAfter, spec))
			a.sampleIfDue(ctx)
		default:
			a.performStep(ctx, step.Do)
		}
	}
}

// epoch returns the epoch of the attempt's record. After a restore of the coordinator the attempt
// goes over to the node's new epoch.
func (a *attempt) epoch() uint64 {
	a.d.mu.Lock()
	defer a.d.mu.Unlock()
	if a.orphaned {
		return a.rec.Epoch
	}
	return a.d.id.Epoch
}

// sampleIfDue samples a task that runs or uploads. ClassifyExit takes a sample of
// its own, so a short task is not measured twice.
func (a *attempt) sampleIfDue(ctx context.Context) {
	now := a.d.clock.Monotonic()
	if now-a.sampledAt < minSampleGap || a.container == task.ContainerStopped && !a.exitOK {
		return
	}
	a.sampledAt = now
	a.sampleUsage(ctx)
}

// maxStartPause bounds the pause before a repeated attempt, which occupies its
// reserved capacity meanwhile.
const maxStartPause = 10 * time.Minute

// startPause returns the pause before a repeated attempt starts.
func startPause(spec *droverv1.TaskSpec) time.Duration {
	return min(time.Duration(spec.GetStartPauseMs())*time.Millisecond, maxStartPause)
}

// boundRecheck shortens a wait to the next usage sample of a running task and,
// for an exclusive task, to the end of the lease.
func (a *attempt) boundRecheck(d time.Duration, spec *droverv1.TaskSpec) time.Duration {
	if left := a.d.lease.remaining(); spec.GetExclusive() && left > 0 && (d <= 0 || d > left) {
		d = left
	}
	if a.container == task.ContainerRunning && !a.suspension.frozen || a.upload.work == task.WorkBusy {
		if d <= 0 || d > sampleEvery {
			return sampleEvery
		}
	}
	return d
}

// sleep waits for a change, for d (0: no limit) or for the end of ctx.
func (a *attempt) sleep(ctx context.Context, d time.Duration) {
	var after <-chan time.Time
	if d > 0 {
		t := time.NewTimer(d)
		defer t.Stop()
		after = t.C
	}
	select {
	case <-ctx.Done():
	case <-a.wake:
	case f := <-a.inbox:
		f(a)
	case <-after:
	}
}

// taskState returns the input of task.Next.
func (a *attempt) taskState(wanted *droverv1.WantedAttempt, spec *droverv1.TaskSpec) (task.Wanted, task.Seen) {
	w := task.Wanted{
		Goal:      goalOf(wanted),
		Level:     task.Level(wanted.GetLevel()),
		Resume:    wanted.GetResumeFrom() != "",
		Fetch:     spec.GetKind() == kindMap || spec.GetKind() == kindReduce,
		Upload:    spec.GetOutput() != "",
		TimeLimit: time.Duration(spec.GetTimeLimitMs()) * time.Millisecond,
		Grace:     a.d.cfg.Grace,
	}
	a.enforceLease(&w, spec)
	w.StartBlocked = w.StartBlocked || wanted.GetGoal() == droverv1.Goal_GOAL_UNDECIDED
	now := a.d.clock.Monotonic()
	if pause := startPause(spec); pause > 0 && !a.rec.Started {
		w.StartPause = max(0, a.loopStarted+pause-now)
	}
	s := task.Seen{
		Recorded: a.recorded, Started: a.rec.Started, Ended: len(a.rec.End) > 0,
		Folder: a.dir.isComplete(), Image: a.hasImage, Files: a.hasFiles, Cgroup: a.hasCgroup,
		Container: a.container,
		Dumping:   a.rec.Dumping, Dumped: a.rec.Dumped, Frozen: a.suspension.frozen, Swapped: a.suspension.swapped, StaleDump: a.suspension.staleDump, Refused: a.suspension.refused,
		Fetch: a.fetch.work, Upload: a.upload.work,
		ExitOK: a.exitOK, Failed: a.failure != nil, TermSent: a.termSent,
		Running: a.runningTime(now),
	}
	if w.Goal == task.GoalGone {
		s.Folder = a.dir.exists()
	}
	if a.termSent {
		s.SinceTerm = now - a.termSentAt
	}
	if s.Ended || w.Goal == task.GoalGone {
		s.StaleDump = s.StaleDump || a.rec.DumpNumber > 0 && pathExists(a.d.dumpsDir(a.id))
	}
	if s.Ended {
		s.Folder = a.dir.exists()
		s.Scratch = a.hasScratch(w.Goal)
	}
	if w.TimeLimit > 0 && s.Running >= w.TimeLimit {
		a.timedOut = true
	}
	return w, s
}

// hasScratch reports whether an ended attempt has files that are not needed. A
// stopped attempt keeps only its logs, a successful one its output and logs. A
// failed one keeps everything for inspection until the coordinator stops it.
func (a *attempt) hasScratch(goal task.Goal) bool {
	if goal == task.GoalStop {
		return pathExists(a.dir.join(nameTmp)) || pathExists(a.dir.task())
	}
	return a.outcome.succeeded() && pathExists(a.dir.join(nameTmp))
}

func goalOf(w *droverv1.WantedAttempt) task.Goal {
	if w == nil {
		return task.GoalGone
	}
	switch w.GetGoal() {
	case droverv1.Goal_GOAL_RUN, droverv1.Goal_GOAL_UNDECIDED:
		return task.GoalRun
	case droverv1.Goal_GOAL_KEEP:
		return task.GoalKeep
	default: // an unknown goal of a newer coordinator ends the attempt
		return task.GoalStop
	}
}

// runningTime returns the time the attempt has run unfrozen since its start, on
// the monotonic clock.
func (a *attempt) runningTime(now time.Duration) time.Duration {
	ran := time.Duration(a.rec.RanNS)
	if !a.rec.Started || a.rec.StartMono == 0 {
		return ran
	}
	if a.rec.BootID != a.d.bootID {
		return ran // the machine was rebooted: the time since the container last started is lost with it
	}
	if a.stoppedAt > 0 {
		now = a.stoppedAt
	}
	return ran + max(0, now-time.Duration(a.rec.StartMono)-time.Duration(a.rec.FrozenNS))
}

// refreshContainer queries the engine for the container's status.
func (a *attempt) refreshContainer(ctx context.Context) {
	all, err := a.d.containers.list(ctx)
	if err != nil {
		return // still unknown; task.Next waits
	}
	a.setStatus(all[a.id.String()])
}

// setStatus takes over the engine's status; the zero Status means no container.
func (a *attempt) setStatus(st runtime.Status) {
	switch st.Phase {
	case 0:
		a.container = task.ContainerNone
	case runtime.PhaseCreated:
		a.container = task.ContainerCreated
	case runtime.PhaseRunning:
		a.container = task.ContainerRunning
	case runtime.PhaseStopped:
		a.container = task.ContainerStopped
		a.status = st
		if a.d.cfg.Enforcer == nil && (st.CPU > 0 || st.PeakMemory > 0) { // a harness's result is more exact, and comes later
			a.usage = &droverv1.Usage{CpuMs: st.CPU.Milliseconds(), MemoryPeak: st.PeakMemory}
		}
		if a.stoppedAt == 0 {
			a.stoppedAt = a.d.clock.Monotonic()
			if !st.Exited.IsZero() { // it may have exited while no daemon was running
				a.stoppedAt -= max(0, a.d.clock.Now().Sub(st.Exited))
			}
		}
	default:
		a.container = task.ContainerUnknown
	}
}

// startExitWatch starts a goroutine that waits for the end of a running container.
func (a *attempt) startExitWatch(ctx context.Context) {
	if a.container != task.ContainerRunning || a.awaitingExit {
		return
	}
	a.awaitingExit = true
	generation := a.generation
	a.wg.Go(func() {
		st, err := a.d.cfg.Driver.Wait(ctx, a.id.String())
		a.post(ctx, func(a *attempt) {
			a.awaitingExit = false
			if a.generation != generation {
				return // status of the container before a dump
			}
			if a.container != task.ContainerRunning {
				return // deleted in the meantime
			}
			if err != nil {
				a.container = task.ContainerUnknown // an unreachable engine is not an exit
				return
			}
			a.setStatus(st)
		})
	})
}

// publishReport replaces the attempt's report if anything in it changed.
func (a *attempt) publishReport() {
	next := boundReport(a.buildReport())
	a.publishDump(next.GetLevel())
	a.mu.Lock()
	last := a.seen
	same := proto.Equal(next, last)
	if !same {
		a.seen = next
	}
	a.mu.Unlock()
	if !same {
		a.d.markChanged(a.id, !proto.Equal(withoutUsage(next), withoutUsage(last)))
	}
}

// withoutUsage returns a report without the fields that change constantly. Those
// wait for the next periodic report; other changes are sent at once.
func withoutUsage(s *droverv1.SeenAttempt) *droverv1.SeenAttempt {
	if s == nil {
		return nil
	}
	c := proto.CloneOf(s)
	c.Usage, c.Occupied, c.SwapOccupied, c.DiskOccupied, c.RunningMs = nil, nil, 0, 0, 0
	c.FetchingMs, c.CommittingMs = 0, 0
	c.Progress, c.Counters, c.Status, c.InputBytes = 0, nil, "", 0
	c.Step = "" // who waits long for a step sees it in the periodic report
	if c.GetPhase() < droverv1.Phase_PHASE_SUCCEEDED {
		c.Message = "" // what was refused of the counters
	}
	return c
}

// buildReport returns the attempt as reported to the coordinator.
func (a *attempt) buildReport() *droverv1.SeenAttempt {
	s := a.buildState()
	wanted, spec := a.wantedAndSpec()
	if a.outcome == nil {
		s.StartPauseMs = startPause(spec).Milliseconds()
	}
	if wanted.GetGoal() == droverv1.Goal_GOAL_UNDECIDED {
		s.Unknown = &droverv1.UnknownRun{JobName: spec.GetJobName(), StageName: spec.GetStageName(), Tenant: spec.GetTenant(), DiskName: spec.GetDiskName()}
	}
	return s
}

func (a *attempt) buildState() *droverv1.SeenAttempt {
	if a.outcome != nil {
		end := proto.CloneOf(a.outcome.end)
		end.DiskOccupied = a.diskBytes
		return end
	}
	now := a.d.clock.Monotonic()
	s := &droverv1.SeenAttempt{
		Key: a.id.Key(), Phase: droverv1.Phase_PHASE_PREPARING, Level: droverv1.Level_LEVEL_RUNNING,
		Usage: a.usage, Limits: a.appliedLimits, Occupied: a.occupied, DiskOccupied: a.diskBytes,
		StartedMs: a.rec.StartedMS, RunningMs: a.runningTime(now).Milliseconds(),
		FetchingMs: a.fetch.elapsed(now).Milliseconds(), CommittingMs: a.upload.elapsed(now).Milliseconds(),
		Progress: a.progress.fraction, Counters: a.progress.counters, Status: a.progress.status,
		InputBytes: a.progress.inputBytes, LostMaps: a.progress.lostMaps, Message: a.progress.refused,
		Step: a.currentStep.String(),
	}
	if a.waitsFor != "" && a.currentStep == task.GetFiles {
		s.Status = "waits: " + a.waitsFor
	}
	if a.rec.Started {
		s.Phase = droverv1.Phase_PHASE_RUNNING
		if a.currentStep == task.Wait && a.upload.work != task.WorkBusy {
			s.Step = ""
		}
	}
	a.fillLevel(s)
	return s
}
