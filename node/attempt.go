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

// attempt is one attempt on this node. Its loop owns all fields but those
// under mu; other goroutines post to inbox.
type attempt struct {
	d       *daemon
	id      store.ID
	dir     folder
	silent  bool // of an older epoch: removed and never reported; set before the loop starts or under mu
	adopted bool // an earlier daemon began it; set before the loop starts

	wake  chan struct{}       // something under mu changed; holds one
	inbox chan func(*attempt) // what watchers and helpers bring

	mu     sync.Mutex
	wanted *droverv1.WantedAttempt // never changed, only replaced; nil: not wanted
	spec   *droverv1.TaskSpec      // the last one known; nil for a stray
	seen   *droverv1.SeenAttempt   // what is reported; never changed, only replaced
	// holding is the dump that other nodes may fetch, nil without one.
	holding *held

	// What the loop knows.
	life      context.Context   // of the loop: helpers live in it, not in a step
	sent      helper.Update     // what the shuffle helper was told
	product   *mapreduce.Stored // what a task that passed has made
	rec       store.Record
	recorded  bool
	container task.Container
	status    runtime.Status // valid when stopped
	image     bool
	files     bool
	cgroup    bool
	fetch     helperState
	upload    helperState
	passed    bool
	fault     *verdict // a step failed for good
	over      bool     // the time limit was passed: said once
	term      time.Duration
	termSent  bool
	stoppedAt time.Duration // monotonic, when the stop was seen
	limits    *droverv1.Limits
	usage     *droverv1.Usage
	held      *droverv1.Resources
	oomKills  int64
	disk      int64
	sampled   time.Duration // monotonic, when use and progress were read
	result    *outcome
	progress  progress
	doing     task.Do
	retry     map[task.Do]int
	watching  bool
	// generation changes when the container of that name becomes another one:
	// what a watcher of the old one brings is past.
	generation int
	sus        suspension
	wg         sync.WaitGroup
}

// progress is what a running task says of itself.
type progress struct {
	fraction   float64
	counters   map[string]int64
	status     string
	inputBytes int64
	lostMaps   []int32
}

func newAttempt(d *daemon, id store.ID) *attempt {
	return &attempt{
		d: d, id: id, dir: d.folderOf(id),
		wake: make(chan struct{}, 1), inbox: make(chan func(*attempt)),
		container: task.ContainerNone,
		fetch:     helperState{work: task.WorkIdle}, upload: helperState{work: task.WorkIdle},
		retry: map[task.Do]int{}, sampled: -sampleGap,
		seen: &droverv1.SeenAttempt{Key: id.Key(), Phase: droverv1.Phase_PHASE_PREPARING, Level: droverv1.Level_LEVEL_RUNNING},
	}
}

// want replaces what is wanted; nil means that nothing shall be left.
func (a *attempt) want(w *droverv1.WantedAttempt) {
	a.mu.Lock()
	a.wanted = w
	if w.GetSpec() != nil {
		a.spec = w.GetSpec()
	}
	a.mu.Unlock()
	a.poke()
}

func (a *attempt) poke() {
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

// post hands f to the loop, or drops it when the daemon leaves.
func (a *attempt) post(ctx context.Context, f func(*attempt)) {
	select {
	case a.inbox <- f:
	case <-ctx.Done():
	}
}

// snapshot is what is to be reported now.
func (a *attempt) snapshot() *droverv1.SeenAttempt {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.seen
}

func (a *attempt) goal() (*droverv1.WantedAttempt, *droverv1.TaskSpec) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.wanted, a.spec
}

// How often a running task's use and progress are read: each sampleEvery, and
// not again within sampleGap however often its loop wakes.
const (
	sampleEvery = time.Second
	sampleGap   = sampleEvery / 2
)

// loop brings the attempt to its goal, again and again, until nothing of it is
// left or ctx ends (then all that runs, runs on).
func (a *attempt) loop(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer a.wg.Wait()
	defer cancel()
	a.life = ctx
	for ctx.Err() == nil {
		if a.container == task.ContainerUnknown {
			if a.refresh(ctx); a.container == task.ContainerRunning {
				a.adoptLevel(ctx) // what was known of it may be past
			}
		}
		a.watch(ctx)
		wanted, spec := a.goal()
		a.hearLevel(wanted)
		a.updateFetch(wanted)
		w, s := a.view(wanted, spec)
		step := task.Next(w, s)
		a.doing = step.Do
		a.publish()
		switch step.Do {
		case task.Rest:
			if w.Goal == task.GoalGone {
				if a.d.finished(a) {
					return
				}
				continue
			}
			a.sleep(ctx, 0)
		case task.Wait:
			a.sleep(ctx, a.again(step.Again, spec))
			if now := a.d.clock.Mono(); now-a.sampled >= sampleGap {
				a.sampled = now
				a.sample(ctx)
			}
		default:
			a.perform(ctx, step.Do)
		}
	}
}

// again bounds a wait by the next sample of a running task, and that of an
// exclusive one by the end of its lease.
func (a *attempt) again(d time.Duration, spec *droverv1.TaskSpec) time.Duration {
	if left := a.d.lease.left(); spec.GetExclusive() && left > 0 && (d <= 0 || d > left) {
		d = left
	}
	if a.container == task.ContainerRunning && !a.sus.frozen || a.upload.work == task.WorkBusy {
		if d <= 0 || d > sampleEvery {
			return sampleEvery
		}
	}
	return d
}

// sleep waits for a change, for d (0: for ever) or for the end.
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

// view turns what the loop knows into the values of the state machine.
func (a *attempt) view(wanted *droverv1.WantedAttempt, spec *droverv1.TaskSpec) (task.Wanted, task.Seen) {
	w := task.Wanted{
		Goal:      goalOf(wanted),
		Level:     task.Level(wanted.GetLevel()),
		Resume:    wanted.GetResumeFrom() != "",
		Fetch:     spec.GetKind() == kindMap || spec.GetKind() == kindReduce,
		Upload:    spec.GetOutput() != "",
		TimeLimit: time.Duration(spec.GetTimeLimitMs()) * time.Millisecond,
		Grace:     a.d.cfg.Grace,
	}
	a.withoutLease(&w, spec)
	now := a.d.clock.Mono()
	s := task.Seen{
		Recorded: a.recorded, Started: a.rec.Started, Ended: len(a.rec.End) > 0,
		Folder: a.dir.whole(), Image: a.image, Files: a.files, Cgroup: a.cgroup,
		Container: a.container,
		Dumping:   a.rec.Dumping, Dumped: a.rec.Dumped, Frozen: a.sus.frozen, Swapped: a.sus.swapped, OldDump: a.sus.oldDump, Barred: a.sus.barred,
		Fetch: a.fetch.work, Upload: a.upload.work,
		Passed: a.passed, Fault: a.fault != nil, Terminate: a.termSent,
		Running: a.running(now),
	}
	if w.Goal == task.GoalGone {
		s.Folder = a.dir.exists()
	}
	if a.termSent {
		s.SinceTerm = now - a.term
	}
	if s.Ended || w.Goal == task.GoalGone {
		s.OldDump = s.OldDump || a.rec.Dump > 0 && there(a.d.dumpsOf(a.id))
	}
	if s.Ended {
		s.Folder = a.dir.exists()
		s.Scratch = a.scratch(w.Goal)
	}
	if w.TimeLimit > 0 && s.Running >= w.TimeLimit {
		a.over = true
	}
	return w, s
}

// scratch tells whether an ended attempt holds files that it need not hold:
// stopped, all but logs; with an output that is wanted, all but that and logs.
// A failed one stays as it is, for a look, until the coordinator says stop.
func (a *attempt) scratch(goal task.Goal) bool {
	if goal == task.GoalStop {
		return there(a.dir.join(nameTmp)) || there(a.dir.task())
	}
	return a.result.succeeded() && there(a.dir.join(nameTmp))
}

func goalOf(w *droverv1.WantedAttempt) task.Goal {
	if w == nil {
		return task.GoalGone
	}
	switch w.GetGoal() {
	case droverv1.Goal_GOAL_RUN:
		return task.GoalRun
	case droverv1.Goal_GOAL_KEEP:
		return task.GoalKeep
	default: // a goal of a newer coordinator ends the attempt, it does not start one
		return task.GoalStop
	}
}

// running is the thawed time on the monotonic clock since the start.
func (a *attempt) running(now time.Duration) time.Duration {
	ran := time.Duration(a.rec.RanNS)
	if !a.rec.Started || a.rec.StartMono == 0 {
		return ran
	}
	if a.rec.BootID != a.d.boot {
		return ran // the machine was started again: the container is gone, and its time since it last began with it
	}
	if a.stoppedAt > 0 {
		now = a.stoppedAt
	}
	return ran + max(0, now-time.Duration(a.rec.StartMono)-time.Duration(a.rec.FrozenNS))
}

// refresh asks the engine about this container.
func (a *attempt) refresh(ctx context.Context) {
	all, err := a.d.containers.get(ctx)
	if err != nil {
		return // still unknown; Next waits
	}
	a.setStatus(all[a.id.String()])
}

// setStatus takes what the engine says; the zero Status means that it has none.
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
		if a.stoppedAt == 0 {
			a.stoppedAt = a.d.clock.Mono()
			if !st.Exited.IsZero() { // it may have stopped while no daemon looked
				a.stoppedAt -= max(0, a.d.clock.Now().Sub(st.Exited))
			}
		}
	default:
		a.container = task.ContainerUnknown
	}
}

// watch has a goroutine wait for the end of a running container.
func (a *attempt) watch(ctx context.Context) {
	if a.container != task.ContainerRunning || a.watching {
		return
	}
	a.watching = true
	generation := a.generation
	a.wg.Go(func() {
		st, err := a.d.cfg.Driver.Wait(ctx, a.id.String())
		a.post(ctx, func(a *attempt) {
			a.watching = false
			if a.generation != generation {
				return // of the container before a dump
			}
			if a.container != task.ContainerRunning {
				return // deleted meanwhile
			}
			if err != nil {
				a.container = task.ContainerUnknown // an engine that is gone is not an exit
				return
			}
			a.setStatus(st)
		})
	})
}

// publish makes a new report of the attempt if anything in it changed.
func (a *attempt) publish() {
	next := a.report()
	a.publishDump(next.GetLevel())
	a.mu.Lock()
	last := a.seen
	same := proto.Equal(next, last)
	if !same {
		a.seen = next
	}
	a.mu.Unlock()
	if !same {
		a.d.changed(a.id, !proto.Equal(withoutUse(next), withoutUse(last)))
	}
}

// withoutUse is a report but for what changes all the time: that goes with the
// next sign of life, the rest at once.
func withoutUse(s *droverv1.SeenAttempt) *droverv1.SeenAttempt {
	if s == nil {
		return nil
	}
	c := proto.CloneOf(s)
	c.Usage, c.Held, c.SwapHeld, c.DiskHeld, c.RunningMs = nil, nil, 0, 0, 0
	c.Progress, c.Counters, c.Status, c.InputBytes = 0, nil, "", 0
	return c
}

// report is the attempt as the coordinator shall see it.
func (a *attempt) report() *droverv1.SeenAttempt {
	if a.result != nil {
		end := proto.CloneOf(a.result.end)
		end.DiskHeld = a.disk
		return end
	}
	s := &droverv1.SeenAttempt{
		Key: a.id.Key(), Phase: droverv1.Phase_PHASE_PREPARING, Level: droverv1.Level_LEVEL_RUNNING,
		Usage: a.usage, Limits: a.limits, Held: a.held, DiskHeld: a.disk,
		StartedMs: a.rec.StartedMS, RunningMs: a.running(a.d.clock.Mono()).Milliseconds(),
		Progress: a.progress.fraction, Counters: a.progress.counters, Status: a.progress.status,
		InputBytes: a.progress.inputBytes, LostMaps: a.progress.lostMaps,
		Step: a.doing.String(),
	}
	if a.rec.Started {
		s.Phase = droverv1.Phase_PHASE_RUNNING
		if a.doing == task.Wait && a.upload.work != task.WorkBusy {
			s.Step = ""
		}
	}
	a.reportLevel(s)
	return s
}
