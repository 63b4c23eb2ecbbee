package node

import (
	"cmp"
	"context"
	"path/filepath"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/mapreduce"
	"github.com/drover-run/drover/node/store"
	"github.com/drover-run/drover/node/task"
)

// attempt is one attempt on this node. Its loop chooses the next step and performs it through the
// parts below, each of which owns its own state. The loop owns all of them, except mail and the
// fields that say otherwise. Other goroutines communicate with the attempt through mail.
type attempt struct {
	d                 *daemon
	id                store.ID
	dir               folder
	orphaned          bool // unknown, or of an older epoch: removed and never reported; set before the loop starts, later only under attemptTable.mu
	mayNeedOldHarness bool // started by an earlier daemon or on another node; set before the loop starts
	adopted           bool // an earlier daemon may have made its container; set before the loop starts

	mail    mailbox
	looping sync.Mutex // held by the loop while it runs; see rest.go
	wg      sync.WaitGroup

	// Owned by the loop.
	loopStarted time.Duration // monotonic time at which the loop began
	rec         attemptRecord
	place       folderState
	container   attemptContainer
	sharing     containerSharing
	cgroup      attemptCgroup
	disk        diskUse
	dumps       dumpFolder // never changes
	suspension  suspension
	secrets     attemptSecrets
	files       taskFiles
	helpers     attemptHelpers
	progress    progress
	retries     retries
	output      *mapreduce.StoredFile // made by a task that exited successfully
	exitOK      bool
	failure     *failure // a permanent failure; the attempt ends with it
	timedOut    bool     // the time limit has passed
	termSentAt  time.Duration
	termSent    bool
	sampledAt   time.Duration // monotonic time of the last usage sample
	outcome     *outcome
	currentStep task.Do
	levelKnown  bool // what an earlier daemon left was looked at
}

func newAttempt(d *daemon, id store.ID) *attempt {
	a := &attempt{
		d: d, id: id, dir: d.folderOf(id), dumps: d.cfg.dumpsOf(id), sampledAt: -d.cfg.SampleEvery,
		mail: mailbox{
			wake: make(chan struct{}, 1), inbox: make(chan func()),
			seen: &droverv1.SeenAttempt{Key: id.Key(), Phase: droverv1.Phase_PHASE_PREPARING, Level: droverv1.Level_LEVEL_RUNNING},
		},
		rec: attemptRecord{id: id, db: d.store, clock: d.clock, bootID: d.bootID},
	}
	a.place.dir = a.dir
	a.cgroup = attemptCgroup{id: id.String(), cfg: &d.cfg, io: d.unallocatedIO, rec: &a.rec}
	a.container = attemptContainer{phase: task.ContainerNone, id: id.String(), driver: d.cfg.Driver, lister: d.containers, clock: d.clock, cgroup: &a.cgroup}
	a.disk = diskUse{dir: a.dir, cfg: &d.cfg, method: d.quota}
	a.suspension = suspension{
		id: id, dir: a.dir, dumps: a.dumps, source: d.dumpSource, cfg: &d.cfg, rec: &a.rec, container: &a.container, cgroup: &a.cgroup,
		exclusive: d.exclusive, inSlot: d.inDumpSlot, log: d.log,
	}
	a.secrets = attemptSecrets{key: id.Key(), dir: filepath.Join(d.cfg.secretMount, id.String()), cfg: &d.cfg, source: d.secrets}
	a.files = taskFiles{id: id, dir: a.dir, cfg: &d.cfg, images: d.images, blobs: d.blobs, helpers: d.helpers}
	a.helpers = attemptHelpers{
		fetch: helperState{work: task.WorkIdle}, upload: helperState{work: task.WorkIdle},
		id: id, dir: a.dir, cfg: &d.cfg, runner: d.helpers, sockets: d.sockets, mail: &a.mail, clock: d.clock, log: d.log,
	}
	return a
}

// layout returns where the task finds its files. A dump needs the harness that its container was
// created with, even after an upgrade of the daemon.
func (a *attempt) layout() *taskLayout {
	return &taskLayout{
		id: a.id, dir: a.dir, cfg: &a.d.cfg, harness: cmp.Or(a.rec.HarnessPath, a.d.programs.harness),
		emptyRoot: a.d.emptyRoot, secrets: &a.secrets,
	}
}

// setWanted replaces the wanted state; nil means that the attempt must be removed.
func (a *attempt) setWanted(w *droverv1.WantedAttempt) {
	a.mail.want(w)
	a.wakeUp()
}

// wakeUp makes the loop run again; it starts the loop if the attempt rests, unless the daemon is
// stopping. It never blocks.
func (a *attempt) wakeUp() {
	if a.mail.notify() && a.d.runCtx.Err() == nil {
		a.startLoop()
	}
}

// loop performs steps until nothing of the attempt is left or ctx ends. When ctx
// ends, containers keep running.
func (a *attempt) loop(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer a.wg.Wait()
	defer a.helpers.wg.Wait()
	defer cancel()
	a.helpers.ctx, a.loopStarted = ctx, a.d.clock.Monotonic()
	for ctx.Err() == nil {
		a.observe(ctx)
		hasLease, wanted, spec := a.wantedUnderLease()
		a.takeOver(wanted)
		w := a.wantedState(wanted, spec)
		a.enforceLease(&w, spec, hasLease)
		s := a.seenState(w)
		a.timedOut = a.timedOut || reachedTimeLimit(w, s)
		step := task.Next(w, s)
		a.currentStep = step.Do
		a.publishReport()
		switch step.Do {
		case task.Rest:
			if a.rest(ctx, w.Goal) {
				return
			}
		case task.Wait:
			a.mail.sleep(ctx, a.boundRecheck(step.RecheckAfter, spec))
			a.sampleIfDue(ctx)
		default:
			a.performStep(ctx, step.Do)
		}
	}
}

// observe queries an engine that could not report the container's state, and waits in the
// background for the end of a running container. The level that an earlier daemon left is recovered
// here and not at adoption, because a freeze may take seconds, and the node registers meanwhile.
func (a *attempt) observe(ctx context.Context) {
	outdated := a.adopted && !a.levelKnown
	if a.container.phase == task.ContainerUnknown {
		a.container.refresh(ctx)
		outdated = outdated || a.container.phase == task.ContainerRunning
	}
	if outdated {
		a.suspension.recoverLevel(ctx)
		a.levelKnown = true
	}
	a.startExitWatch(ctx)
	a.rec.Epoch = a.d.attempts.epochOf(a, a.rec.Epoch)
}

// takeOver passes a new wanted state to the parts of the attempt.
func (a *attempt) takeOver(wanted *droverv1.WantedAttempt) {
	if a.suspension.request(wanted) {
		a.retries.clear(levelSteps...)
	}
	a.helpers.updateFetch(wanted)
	if a.rec.Waiting && wanted.GetMapOutputsComplete() {
		if err := a.rec.endWait(); err != nil { // it is tried again in the next round
			a.d.log.Warn("cannot record that the maps are done", "attempt", a.id, "err", err)
		}
	}
}

// rest waits for a change, and reports whether the loop ends: nothing of the attempt is left, or
// it rests without a loop.
func (a *attempt) rest(ctx context.Context, goal task.Goal) (end bool) {
	if goal == task.GoalGone {
		return a.d.removeFinished(a)
	}
	if a.tryRest() {
		return true
	}
	a.mail.sleep(ctx, 0)
	return false
}

// sampleIfDue samples a task that runs or uploads, at most twice per SampleEvery however often its
// loop wakes. ClassifyExit takes a sample of its own, so a short task is not measured twice.
func (a *attempt) sampleIfDue(ctx context.Context) {
	now := a.d.clock.Monotonic()
	if now-a.sampledAt < a.d.cfg.SampleEvery/2 || a.container.phase == task.ContainerStopped && !a.exitOK {
		return
	}
	a.sampledAt = now
	a.sampleUsage(ctx)
}

// maxStartPause bounds the pause before a repeated attempt, whose capacity is reserved meanwhile.
const maxStartPause = 10 * time.Minute

// startPause returns the pause before a repeated attempt starts.
func startPause(spec *droverv1.TaskSpec) time.Duration {
	return min(time.Duration(spec.GetStartPauseMs())*time.Millisecond, maxStartPause)
}

// boundRecheck shortens a wait to the next usage sample of a running task and,
// for an exclusive task, to the end of the lease.
func (a *attempt) boundRecheck(d time.Duration, spec *droverv1.TaskSpec) time.Duration {
	if left := a.d.exclusive.lease.remaining(); spec.GetExclusive() && left > 0 && (d <= 0 || d > left) {
		d = left
	}
	if a.container.phase == task.ContainerRunning && !a.suspension.frozen || a.helpers.upload.work == task.WorkBusy {
		if every := a.d.cfg.SampleEvery; d <= 0 || d > every {
			return every
		}
	}
	return d
}

// wantedState returns the goal for task.Next, before enforceLease.
func (a *attempt) wantedState(wanted *droverv1.WantedAttempt, spec *droverv1.TaskSpec) task.Wanted {
	w := task.Wanted{
		Goal:         goalOf(wanted),
		Level:        task.Level(wanted.GetLevel()),
		Resume:       wanted.GetResumeFrom() != "",
		StartBlocked: wanted.GetGoal() == droverv1.Goal_GOAL_UNDECIDED,
		Fetch:        spec.GetKind() == kindMap || spec.GetKind() == kindReduce,
		Upload:       spec.GetOutput() != "",
		TimeLimit:    time.Duration(spec.GetTimeLimitMs()) * time.Millisecond,
		Grace:        a.d.cfg.Grace,
	}
	if pause := startPause(spec); pause > 0 && !a.rec.Started {
		w.StartPause = max(0, a.loopStarted+pause-a.d.clock.Monotonic())
	}
	return w
}

// seenState returns the state for task.Next. It must be called after enforceLease, which may fail
// the attempt.
func (a *attempt) seenState(w task.Wanted) task.Seen {
	now := a.d.clock.Monotonic()
	s := task.Seen{
		Recorded:  a.rec.exists,
		Started:   a.rec.Started,
		Ended:     len(a.rec.End) > 0,
		Dumping:   a.rec.Dumping,
		Dumped:    a.rec.Dumped,
		Image:     a.files.hasImage,
		Files:     a.files.hasFiles,
		Cgroup:    a.cgroup.exists,
		Container: a.container.phase,
		Frozen:    a.suspension.frozen,
		Unstored:  a.suspension.unrecorded,
		Swapped:   a.suspension.swapped,
		StaleDump: a.suspension.staleDump,
		Fetch:     a.helpers.fetch.work,
		Upload:    a.helpers.upload.work,
		ExitOK:    a.exitOK,
		Failed:    a.failure != nil,
		TermSent:  a.termSent,
		Running:   a.container.running(&a.rec, now),
		Refused:   a.suspension.refused,
	}
	if a.termSent {
		s.SinceTerm = now - a.termSentAt
	}
	if s.Ended || w.Goal == task.GoalGone { // what is incomplete is removed too
		s.Folder = a.place.exists()
		s.StaleDump = s.StaleDump || a.rec.DumpNumber > 0 && a.dumps.exists()
	} else {
		s.Folder, s.Cgroup = a.place.isComplete(), a.cgroup.written
	}
	if s.Ended {
		s.Scratch = a.place.hasScratch(w.Goal == task.GoalStop, a.outcome.succeeded())
	}
	return s
}

// reachedTimeLimit reports whether the attempt is known to have run for its time limit.
func reachedTimeLimit(w task.Wanted, s task.Seen) bool {
	lost := s.Container == task.ContainerNone && s.Started && !s.Dumping && !s.Dumped                   // nobody knows for how long it ran
	return w.TimeLimit > 0 && s.Running >= w.TimeLimit && s.Container != task.ContainerUnknown && !lost // unknown: it may not even have started
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

// startExitWatch starts a goroutine that waits for the end of a running container.
func (a *attempt) startExitWatch(ctx context.Context) {
	if a.container.phase != task.ContainerRunning || a.container.awaitingExit {
		return
	}
	a.container.awaitingExit = true
	generation := a.container.generation
	a.wg.Go(func() {
		st, err := a.d.cfg.Driver.Wait(ctx, a.id.String())
		a.mail.post(ctx, func() {
			a.container.awaitingExit = false
			if a.container.generation != generation {
				return // status of the container before a dump
			}
			if a.container.phase != task.ContainerRunning {
				return // deleted in the meantime
			}
			if err != nil {
				a.container.phase = task.ContainerUnknown // an unreachable engine is not an exit
				return
			}
			a.container.set(st)
		})
	})
}

// publishReport replaces the attempt's report if anything in it changed.
func (a *attempt) publishReport() {
	next := boundReport(a.buildReport())
	if changed, atOnce := a.mail.publish(next, a.dumpToServe(next.GetLevel())); changed {
		a.d.attempts.markChanged(a.id, atOnce)
	}
}

// buildReport returns the attempt as reported to the coordinator.
func (a *attempt) buildReport() *droverv1.SeenAttempt {
	s := a.buildState()
	wanted, spec := a.mail.wantedAndSpec()
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
		return proto.CloneOf(a.outcome.end)
	}
	now := a.d.clock.Monotonic()
	s := &droverv1.SeenAttempt{
		Key: a.id.Key(), Phase: droverv1.Phase_PHASE_PREPARING, Level: droverv1.Level_LEVEL_RUNNING,
		Usage: a.cgroup.usage, Limits: a.cgroup.limits, Occupied: a.cgroup.occupied, DiskOccupied: a.disk.bytes,
		StartedMs: a.rec.StartedMS, RunningMs: a.container.running(&a.rec, now).Milliseconds(),
		FetchingMs: a.helpers.fetch.elapsed(now).Milliseconds(), CommittingMs: a.helpers.upload.elapsed(now).Milliseconds(),
		Progress: a.progress.fraction, Counters: a.progress.counters, Status: a.progress.status,
		InputBytes: a.progress.inputBytes, LostOutputs: a.progress.lostOutputs, Message: a.progress.refused,
		Step: a.currentStep.String(),
	}
	if a.secrets.waitsFor != "" && a.currentStep == task.GetFiles {
		s.Status = "waits: " + a.secrets.waitsFor
	}
	if a.rec.Started {
		s.Phase = droverv1.Phase_PHASE_RUNNING
		if a.currentStep == task.Wait && a.helpers.upload.work != task.WorkBusy {
			s.Step = ""
		}
	}
	wanted, _ := a.mail.wantedAndSpec()
	a.suspension.fill(s, wanted)
	return s
}
