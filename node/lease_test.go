package node

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/node/store"
	"github.com/drover-run/drover/node/watchdog"
	"github.com/drover-run/drover/runtime"
	"github.com/drover-run/drover/runtime/fake"
)

func TestLease(t *testing.T) {
	now := time.Duration(0)
	l := lease{now: func() time.Duration { return now }}
	for _, c := range []struct {
		does     string
		now      time.Duration
		sent     time.Duration // of the answered report; negative: no report is answered
		ms       int64
		wantBack bool
		want     time.Duration // remaining time
	}{
		{"a new daemon has none", 100, -1, 0, false, -100},
		{"the first answer gives one", 100, 90, 1000, true, 90 + 660*time.Millisecond - 100},
		{"it expires", time.Second, -1, 0, false, 90 + 660*time.Millisecond - time.Second},
		{"an answer to an old report does not renew it", time.Second, 300 * time.Millisecond, 1000, false, -40 * time.Millisecond},
		{"an answer to a new report does", time.Second, 900 * time.Millisecond, 1000, true, 560 * time.Millisecond},
		{"a late answer to an older report does not shorten it", time.Second, 100 * time.Millisecond, 1000, false, 560 * time.Millisecond},
		{"nor does an answer without a lease", time.Second, time.Second, 0, false, 560 * time.Millisecond},
	} {
		now = c.now
		if c.sent >= 0 && l.renew(c.sent, c.ms) != c.wantBack {
			t.Errorf("%s: renew returned %v", c.does, !c.wantBack)
		}
		if got := l.remaining(); got != c.want {
			t.Errorf("%s: %s left, want %s", c.does, got, c.want)
		}
	}
}

func exclusive(w *droverv1.WantedAttempt) { w.Spec.Exclusive = true }

// loseCoordinator makes the coordinator unreachable and cuts its streams.
func (b *testNode) loseCoordinator() { b.setUnreachable(true); b.cutStreams() }

// longLease gives a node a lease of a minute, which no slow machine lets lapse, and returns a function that lets that time pass.
func longLease(b *testNode) (letLapse func()) {
	var passed atomic.Int64
	b.leaseMS = 60_000
	b.config.SinceBoot = func() time.Duration { return watchdog.SinceBoot() + time.Duration(passed.Load()) }
	return func() { passed.Add(int64(time.Minute)) }
}

func TestExclusiveTaskFreezesWithoutCoordinator(t *testing.T) {
	b, k := newLevelTestNode(t)
	letLapse := longLease(b)
	b.start()
	alone, other := with(groupTask(0, "count"), exclusive), groupTask(1, "count")
	b.put(alone, other)
	b.await(t, alone, running)
	b.await(t, other, running)
	b.awaitCounting(alone)
	for range 2 {
		froze := b.engine.Calls(fake.Freeze)
		b.loseCoordinator()
		letLapse()
		poll(t, "a freeze", func() bool { return b.engine.Calls(fake.Freeze) > froze })
		b.awaitNotCounting(alone)
		b.awaitCounting(other)
		b.setUnreachable(false)
		b.awaitCounting(alone)
		if s := b.get(alone); s.GetLevel() != levelRunning || s.GetPhase() != running {
			t.Errorf("the coordinator was told that it is %s, %s", s.GetPhase(), s.GetLevel())
		}
	}
	k.mu.Lock()
	for _, x := range k.thawed {
		if x.CPU != 100 || x.swap != 0 || x.io != 1<<20 {
			t.Errorf("it was thawed under %+v", x)
		}
	}
	k.mu.Unlock()
	if n := b.engine.Calls(fake.Start); n != 2 {
		t.Errorf("%d starts", n)
	}
	b.remove(other)
	b.await(t, other, gone)
	b.removeAndCheckClean(t, alone)
}

// A restarted daemon has no lease until the coordinator has answered; an adopted
// exclusive task stays frozen until then.
func TestExclusiveTaskWaitsForLeaseAfterRestart(t *testing.T) {
	b, _ := newLevelTestNode(t)
	b.leaseMS = 60_000
	b.start()
	w := with(groupTask(0, "count"), exclusive)
	b.put(w)
	b.await(t, w, running)
	b.stopDaemon()
	b.config.Driver = b.engine.Driver()
	froze := b.engine.Calls(fake.Freeze)
	b.mu.Lock()
	b.leaseMS = 0
	b.mu.Unlock()
	b.start()
	poll(t, "a freeze", func() bool { return b.engine.Calls(fake.Freeze) > froze })
	b.awaitNotCounting(w)
	poll(t, "the reason", func() bool { return strings.Contains(b.get(w).GetLevelNote(), "lost the coordinator") })
	if l := b.get(w).GetLevel(); l != levelRunning {
		t.Errorf("the coordinator was told that it is %s", l)
	}
	b.mu.Lock()
	b.leaseMS = 60_000
	b.mu.Unlock()
	b.awaitCounting(w)
	b.requestLevel(w, levelFrozen) // an explicit request of the coordinator works as usual
	b.awaitLevel(w, levelFrozen)
	b.requestLevel(w, levelRunning)
	b.awaitLevel(w, levelRunning)
	b.awaitCounting(w)
}

func TestExclusiveTaskDoesNotStartWithoutLease(t *testing.T) {
	b, _ := newLevelTestNode(t)
	b.start() // without a lease
	w := with(groupTask(0, "count"), exclusive)
	b.put(w)
	poll(t, "a container", func() bool {
		all, err := b.engine.Driver().List(t.Context())
		return err == nil && len(all) == 1
	})
	fulls := b.fullReports()
	b.cutStreams()
	poll(t, "another session", func() bool { return b.fullReports() > fulls })
	if n := b.engine.Calls(fake.Start); n != 0 {
		t.Fatalf("%d starts", n)
	}
	b.mu.Lock()
	b.leaseMS = 60_000
	b.mu.Unlock()
	b.await(t, w, running)
	b.awaitCounting(w)
}

func (b *fakeCoordinator) fullReports() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.fullReportCount
}

func TestExclusiveTaskThatCannotFreezeEnds(t *testing.T) {
	b, _ := newLevelTestNode(t)
	letLapse := longLease(b)
	b.engine.Inject(fake.Fault{Verb: fake.Freeze, Err: fault.New(fault.Unsupported, "the kernel does not")})
	b.start()
	w := with(groupTask(0, "count"), exclusive)
	b.put(w)
	b.await(t, w, running)
	b.loseCoordinator()
	letLapse()
	poll(t, "no container", func() bool {
		all, err := b.engine.Driver().List(t.Context())
		return err == nil && len(all) == 0
	})
	b.setUnreachable(false)
	if s := b.await(t, w, failed); s.GetCause() != droverv1.Cause_CAUSE_INFRA || !strings.Contains(s.GetMessage(), "exclusive") {
		t.Errorf("%s %q", s.GetCause(), s.GetMessage())
	}
}

// watchdogKernel is a kernel that another process can make freeze, through a file.
type watchdogKernel struct {
	*levelKernel
	dir string

	wmu         sync.Mutex
	onFreeze    func(context.Context) // before a freeze
	afterFreeze func(context.Context)
}

func (k *watchdogKernel) setOnFreeze(f func(context.Context)) {
	k.wmu.Lock()
	defer k.wmu.Unlock()
	k.onFreeze = f
}

func (k *watchdogKernel) setAfterFreeze(f func(context.Context)) {
	k.wmu.Lock()
	defer k.wmu.Unlock()
	k.afterFreeze = f
}

func (k *watchdogKernel) Freeze(ctx context.Context, id string) error {
	k.wmu.Lock()
	before, after := k.onFreeze, k.afterFreeze
	k.wmu.Unlock()
	if before != nil {
		before(ctx)
	}
	err := k.levelKernel.Freeze(ctx, id)
	if after != nil {
		after(ctx)
	}
	return err
}

func (k *watchdogKernel) FreezeFile(id string) string { return filepath.Join(k.dir, id) }

// startWatchedTestNode starts a node whose kernel another process can make freeze tasks.
func startWatchedTestNode(t *testing.T, leaseMS int64) (*testNode, *watchdogKernel) {
	t.Helper()
	b, k := newLevelTestNode(t)
	lk := &watchdogKernel{levelKernel: k, dir: t.TempDir()}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	b.config.Enforcer, b.config.Helper = lk, []string{self, "helper"}
	b.leaseMS = leaseMS
	t.Cleanup(func() { killWatchdogs(t, b.config.Data) })
	b.start()
	return b, lk
}

// lateKernel is a kernel of which the next freezes, so many as late says, are not in time.
type lateKernel struct {
	*watchdogKernel
	late atomic.Int64
}

func (k *lateKernel) FreezeLasting(ctx context.Context, id string) error {
	err := k.Freeze(ctx, id)
	if err == nil && k.late.Add(-1) >= 0 {
		return fault.New(fault.Unavailable, "not frozen in time")
	}
	return err
}

// A dump thaws an exclusive task for a moment only under the lease, and the watchdog looks at it only as long.
func TestExclusiveTaskRunsForAMomentUnderItsLease(t *testing.T) {
	b, k := newLevelTestNode(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	lk := &lateKernel{watchdogKernel: &watchdogKernel{levelKernel: k, dir: t.TempDir()}}
	b.config.Enforcer, b.config.Helper = lk, []string{self, "helper"}
	t.Cleanup(func() { killWatchdogs(t, b.config.Data) })
	letLapse := longLease(b)
	b.start()
	w := with(groupTask(0, "count"), exclusive)
	if err := os.WriteFile(lk.FreezeFile(idOf(w)), []byte("0"), 0o600); err != nil {
		t.Fatal(err)
	}
	b.put(w)
	b.await(t, w, running)
	b.requestLevel(w, levelSwapped)
	b.awaitLevel(w, levelSwapped)
	isListed := func() bool {
		text, err := os.ReadFile(filepath.Join(b.config.Data, "watchdog"))
		if err != nil {
			t.Error(err)
		}
		return strings.Contains(string(text), lk.FreezeFile(idOf(w)))
	}
	if isListed() {
		t.Error("the watchdog looks at a frozen task")
	}
	var thaws, late atomic.Int64
	k.setOnThaw(func() {
		thaws.Add(1)
		lk.late.Store(late.Load())
		if !isListed() {
			t.Error("it is thawed, and the watchdog does not know it")
		}
	})
	b.engine.Inject(mustRun(0))
	b.requestLevel(w, levelCheckpointed)
	b.awaitRefusal(w, levelCheckpointed)
	if thaws.Load() == 0 || isListed() {
		t.Errorf("under the lease it was thawed %d times; listed afterwards: %v", thaws.Load(), isListed())
	}
	late.Store(1)
	b.requestLevel(w, levelSwapped)
	poll(t, "no refusal any more", func() bool { return b.get(w).GetTargetRefused() == 0 })
	b.requestLevel(w, levelCheckpointed)
	if b.awaitRefusal(w, levelCheckpointed); isListed() {
		t.Error("the watchdog looks at a task that was not frozen in time, and stays freezing")
	}
	b.requestLevel(w, levelSwapped)
	poll(t, "no refusal any more", func() bool { return b.get(w).GetTargetRefused() == 0 })

	b.mu.Lock()
	b.leaseMS = 0
	b.mu.Unlock()
	letLapse()
	dumps, before := b.engine.Calls(fake.Checkpoint), thaws.Load()
	b.requestLevel(w, levelCheckpointed)
	if s := b.awaitRefusal(w, levelCheckpointed); !strings.Contains(s.GetLevelNote(), "lease") {
		t.Errorf("note %q", s.GetLevelNote())
	}
	if tried := b.engine.Calls(fake.Checkpoint) - dumps; thaws.Load() != before || tried == 0 || isListed() {
		t.Errorf("without a lease it was thawed %d times in %d dumps; listed: %v", thaws.Load()-before, tried, isListed())
	}
	b.awaitNotCounting(w)
	b.engine.Heal()
	b.mu.Lock()
	b.leaseMS = 60_000
	b.mu.Unlock()
	b.requestLevel(w, levelRunning)
	b.awaitLevel(w, levelRunning)
	b.awaitCounting(w)
}

// killWatchdogs kills the watchdog processes of a folder, and waits for their end: one that is just beginning makes its
// file there, beside the removal of the folder.
func killWatchdogs(t *testing.T, data string) {
	path := []byte(filepath.Join(data, "watchdog"))
	poll(t, "the end of the watchdogs", func() bool {
		processes, err := filepath.Glob("/proc/[0-9]*/cmdline")
		if err != nil {
			t.Fatal(err)
		}
		found := false
		for _, name := range processes {
			line, err := os.ReadFile(name)
			if err != nil || !bytes.Contains(line, path) { // it may have ended meanwhile
				continue
			}
			found = true
			if pid, err := strconv.Atoi(strings.Split(name, "/")[2]); err == nil {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
		}
		return !found
	})
}

// If a daemon is gone for longer than its lease, the watchdog freezes its exclusive
// tasks; the next daemon thaws them.
func TestWatchdogFreezesForDeadDaemon(t *testing.T) {
	b, lk := startWatchedTestNode(t, 5000)
	alone, other := with(groupTask(0, "count"), exclusive), groupTask(1, "count")
	for _, w := range []*droverv1.WantedAttempt{alone, other} {
		if err := os.WriteFile(lk.FreezeFile(idOf(w)), []byte("0"), 0o600); err != nil {
			t.Fatal(err)
		}
		b.put(w)
		b.await(t, w, running)
	}
	reads := func(w *droverv1.WantedAttempt) string {
		text, err := os.ReadFile(lk.FreezeFile(idOf(w)))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	path := filepath.Join(b.config.Data, "watchdog")
	watched := func() bool {
		there, err := watchdog.IsRunning(path)
		return err == nil && there
	}
	if !watched() || reads(alone) != "0" {
		t.Errorf("watched %v, the file reads %q", watched(), reads(alone))
	}
	b.stopDaemon()
	poll(t, "1 in the exclusive task's file", func() bool { return reads(alone) == "1" })
	if got := reads(other); got != "0" {
		t.Errorf("the other task's file reads %q", got)
	}
	b.config.Driver = b.engine.Driver()
	b.start()
	b.awaitCounting(alone)
	poll(t, "a watch for the next daemon", watched)
	b.requestLevel(alone, levelFrozen) // frozen by the daemon: there is nothing to watch
	b.awaitLevel(alone, levelFrozen)
	poll(t, "no watch", func() bool { return !watched() })
	b.requestLevel(alone, levelRunning)
	b.awaitLevel(alone, levelRunning)
	poll(t, "a watch again", watched)
	b.remove(other)
	b.await(t, other, gone)
	b.removeAndCheckClean(t, alone)
	poll(t, "no watch over nothing", func() bool { return !watched() })
}

// newWatchedTestNode returns such a node and its running exclusive task.
func newWatchedTestNode(t *testing.T, leaseMS int64) (*testNode, *watchdogKernel, *droverv1.WantedAttempt) {
	b, lk := startWatchedTestNode(t, leaseMS)
	w := with(groupTask(0, "count"), exclusive)
	if err := os.WriteFile(lk.FreezeFile(idOf(w)), []byte("0"), 0o600); err != nil {
		t.Fatal(err)
	}
	b.put(w)
	b.await(t, w, running)
	return b, lk, w
}

// freezeFileOf returns what the task's freeze file says.
func (k *watchdogKernel) freezeFileOf(t *testing.T, w *droverv1.WantedAttempt) string {
	t.Helper()
	text, err := os.ReadFile(k.FreezeFile(idOf(w)))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// A daemon that stood still comes back after the coordinator has started its exclusive task
// elsewhere: the lease of the new epoch does not thaw what the watchdog has frozen.
func TestGivenUpExclusiveTaskIsNotThawed(t *testing.T) {
	b, k, w := newWatchedTestNode(t, 5000)
	release := make(chan struct{})
	k.setOnFreeze(func(ctx context.Context) { // the daemon itself comes to nothing
		select {
		case <-release:
		case <-ctx.Done():
		}
	})
	b.loseCoordinator()
	poll(t, "the watchdog freezing the task", func() bool { return k.freezeFileOf(t, w) == "1" })
	b.mu.Lock()
	b.epoch++
	delete(b.wanted, store.IDOf(w.GetKey()))
	fulls := b.fullReportCount
	b.mu.Unlock()
	b.setUnreachable(false)
	poll(t, "a report in the new epoch", func() bool { return b.fullReports() > fulls })
	if got := k.freezeFileOf(t, w); got != "1" {
		t.Errorf("the lease of the new epoch wrote %s for a task of the old one", got)
	}
	k.setOnFreeze(nil)
	close(release)
	b.checkNothingLeft()
}

// slowKernel is a kernel that freezes no task in time: it stops it, and says that it is not frozen yet.
type slowKernel struct{ *watchdogKernel }

func (k slowKernel) Freeze(ctx context.Context, id string) error {
	return errors.Join(k.FreezeLasting(ctx, id), k.Thaw(ctx, id)) // the container runs on
}

func (k slowKernel) FreezeLasting(ctx context.Context, id string) error {
	if err := k.watchdogKernel.Freeze(ctx, id); err != nil {
		return err
	}
	return fault.New(fault.Unavailable, "not frozen in time")
}

// An exclusive task that is not frozen in time does not run on without a lease: it goes on with the lease, and never if the
// coordinator has given it up.
func TestExclusiveTaskStaysFreezing(t *testing.T) {
	b, k := newLevelTestNode(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	slow := slowKernel{&watchdogKernel{levelKernel: k, dir: t.TempDir()}}
	b.config.Enforcer, b.config.Helper = slow, []string{self, "helper"}
	t.Cleanup(func() { killWatchdogs(t, b.config.Data) })
	letLapse := longLease(b)
	b.start()
	w := with(groupTask(0, "count"), exclusive)
	if err := os.WriteFile(slow.FreezeFile(idOf(w)), []byte("0"), 0o600); err != nil {
		t.Fatal(err)
	}
	b.put(w)
	b.awaitCounting(w)
	b.loseCoordinator()
	letLapse()
	b.awaitNotCounting(w)
	b.setUnreachable(false)
	b.awaitCounting(w)

	b.loseCoordinator()
	letLapse()
	b.awaitNotCounting(w)
	b.mu.Lock()
	b.epoch++
	delete(b.wanted, store.IDOf(w.GetKey()))
	b.mu.Unlock()
	log, err := os.Open(filepath.Join(b.attemptFolder(w), "logs", "stdout.log")) // which goes with the attempt
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	before := b.countLogLines(w)
	b.setUnreachable(false)
	b.checkNothingLeft()
	text, err := io.ReadAll(log)
	if got := strings.Count(string(text), "\n"); err != nil || got != before {
		t.Errorf("it counted from %d to %d after it was given up: %v", before, got, err)
	}
}

// A renewal that thaws what the watchdog froze may come while the daemon freezes the task for
// another reason.
func TestFreezeOutlastsARenewal(t *testing.T) {
	b, k, w := newWatchedTestNode(t, 60_000)
	b.awaitCounting(w)
	var once sync.Once
	k.setAfterFreeze(func(ctx context.Context) {
		once.Do(func() {
			if err := k.Freezer.Thaw(ctx, idOf(w)); err != nil {
				t.Error(err)
			}
		})
	})
	b.requestLevel(w, levelFrozen)
	b.awaitLevel(w, levelFrozen)
	if frozen, err := k.Frozen(t.Context(), idOf(w)); err != nil || !frozen {
		t.Errorf("reported as frozen: %v, %v", frozen, err)
	}
}

// A daemon that does not start leaves no exclusive task running without a watchdog.
func TestExclusiveTaskIsFrozenIfTheNextDaemonDoesNotStart(t *testing.T) {
	b, k, w := newWatchedTestNode(t, 60_000)
	b.stopDaemon()
	b.config.Driver = b.engine.Driver()
	if got := k.freezeFileOf(t, w); got != "0" {
		t.Fatalf("within the lease the file says %s", got)
	}
	blobs := filepath.Join(b.config.Data, "blobs")
	if err := os.Rename(blobs, blobs+".away"); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(blobs, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if d, err := newDaemon(b.config); err == nil {
		t.Fatal("a daemon whose folder of blobs is a file starts", d.close())
	}
	if got := k.freezeFileOf(t, w); got != "1" {
		t.Errorf("no daemon runs and no watchdog, and the file says %s", got)
	}
	if err := errors.Join(os.Remove(blobs), os.Rename(blobs+".away", blobs)); err != nil {
		t.Fatal(err)
	}
	b.start()
	b.awaitCounting(w)
	b.removeAndCheckClean(t, w)
}

// A registration ends what was wanted and then renews the lease: a loop that sees the lease sees
// that nothing is wanted.
func TestLeaseIsReadBeforeWhatIsWanted(t *testing.T) {
	a := &attempt{d: &daemon{exclusive: &exclusiveGuard{}}, mail: mailbox{wanted: with(groupTask(0, "count"), exclusive)}}
	a.d.exclusive.lease.now = func() time.Duration { // a registration, just before the lease is read
		a.mail.want(nil)
		return -time.Hour
	}
	if hasLease, wanted, _ := a.wantedUnderLease(); hasLease && wanted != nil {
		t.Error("what the epoch before wanted runs under the lease of the next")
	}
}

// A coordinator that was restored may have placed the task of a run that it does not know elsewhere: the node has no lease
// before it has applied what that coordinator wants, also after a restart of its daemon.
func TestNoLeaseBeforeTheFirstFullSetAfterARestore(t *testing.T) {
	b, _ := newLevelTestNode(t)
	letLapse := longLease(b)
	b.start()
	known, unknown := with(groupTask(0, "count"), exclusive), with(groupTask(1, "count"), exclusive)
	b.put(known, unknown)
	b.awaitCounting(known)
	b.awaitCounting(unknown)
	b.loseCoordinator()
	letLapse()
	b.awaitNotCounting(known)
	b.awaitNotCounting(unknown)
	counted, thawed := b.countLogLines(unknown), b.engine.Calls(fake.Thaw)
	silent := make(chan struct{})
	b.mu.Lock()
	b.clusterEpoch++
	b.epoch++
	b.silent = silent
	delete(b.wanted, store.IDOf(unknown.GetKey()))
	b.mu.Unlock()
	awaitReports := func() {
		b.mu.Lock()
		from := b.reportCount
		b.mu.Unlock()
		poll(t, "answers to reports", func() bool {
			b.mu.Lock()
			defer b.mu.Unlock()
			return b.reportCount > from+5
		})
		b.awaitNotCounting(known)
		b.awaitNotCounting(unknown)
		if n := b.engine.Calls(fake.Thaw); n != thawed {
			t.Errorf("%d thaws before the node knows what is wanted", n-thawed)
		}
	}
	b.setUnreachable(false)
	awaitReports()
	b.stopDaemon()
	b.config.Driver = b.engine.Driver()
	b.start()
	awaitReports()
	close(silent)
	b.awaitCounting(known)
	poll(t, "a report of the unknown run", func() bool { return b.get(unknown).GetUnknown() != nil })
	if n := b.countLogLines(unknown); n != counted {
		t.Errorf("the unknown run counted from %d to %d", counted, n)
	}
}

// restoreObserver calls a function while a container is restored, and before its processes go on.
type restoreObserver struct {
	*fake.Driver
	observe func(step string)
}

func (d restoreObserver) RestoreStopped(ctx context.Context, s runtime.Spec, dir string) error {
	d.observe("restore")
	return d.Driver.RestoreStopped(ctx, s, dir)
}

func (d restoreObserver) Continue(ctx context.Context, id string) error {
	d.observe("continue")
	return d.Driver.Continue(ctx, id)
}

// pausingDriver waits where a start or a restore may take long; both were chosen under a lease.
type pausingDriver struct {
	*fake.Driver
	begun, release chan struct{}
}

func (d pausingDriver) pause(ctx context.Context) {
	select {
	case d.begun <- struct{}{}:
		select {
		case <-d.release:
		case <-ctx.Done():
		}
	case <-d.release:
	}
}

func (d pausingDriver) Prepare(ctx context.Context, id string) error {
	d.pause(ctx)
	return d.Driver.Prepare(ctx, id)
}

func (d pausingDriver) RestoreStopped(ctx context.Context, s runtime.Spec, dir string) error {
	d.pause(ctx)
	return d.Driver.RestoreStopped(ctx, s, dir)
}

// The lease may end, or the coordinator give the task up, within the step that lets an exclusive task run.
func TestExclusiveTaskNeedsItsLeaseAtTheEndOfAStep(t *testing.T) {
	for _, c := range []struct {
		name             string
		restore, givenUp bool
	}{{"start, given up", false, true}, {"start, lapsed", false, false}, {"restore, given up", true, true}, {"restore, lapsed", true, false}} {
		t.Run(c.name, func(t *testing.T) {
			b, lk := newLevelTestNode(t)
			k := &watchdogKernel{levelKernel: lk, dir: t.TempDir()}
			self, err := os.Executable()
			if err != nil {
				t.Fatal(err)
			}
			letLapse, log := longLease(b), &sharedLog{}
			b.config.Log, b.config.Enforcer, b.config.Helper = slog.New(slog.NewTextHandler(log, nil)), k, []string{self, "helper"}
			t.Cleanup(func() { killWatchdogs(t, b.config.Data) })
			d := pausingDriver{b.engine.Driver(), make(chan struct{}), make(chan struct{})}
			w := with(groupTask(0, "count"), exclusive)
			if c.restore {
				b.start()
				b.put(w)
				b.await(t, w, running)
				b.requestLevel(w, levelCheckpointed)
				b.awaitLevel(w, levelCheckpointed)
				b.stopDaemon()
				d.Driver = b.engine.Driver()
			}
			b.config.Driver = d
			b.start()
			b.requestLevel(w, levelRunning)
			<-d.begun
			ran := b.engine.Calls(fake.Start) + b.engine.Calls(fake.Continue)
			if c.givenUp {
				b.mu.Lock()
				b.epoch++
				delete(b.wanted, store.IDOf(w.GetKey()))
				b.mu.Unlock()
				b.cutStreams()
				poll(t, "the lease of the new epoch", func() bool { return log.contains("epoch=2") })
			} else {
				b.loseCoordinator()
				letLapse()
			}
			close(d.release)
			times := func() int { return b.engine.Calls(fake.Start) + b.engine.Calls(fake.Continue) - ran }
			poll(t, "the end of the step", func() bool { return times() > 0 || log.contains(errNoLease.Error()) })
			if c.givenUp {
				b.checkNothingLeft()
			}
			if n := times(); n != 0 {
				t.Errorf("it ran %d times without a lease", n)
			}
			if list, err := os.ReadFile(filepath.Join(b.config.Data, "watchdog")); err != nil || bytes.Contains(list, []byte(k.FreezeFile(idOf(w)))) {
				t.Errorf("listed although it does not run: %s %v", list, err)
			}
			if !c.givenUp {
				b.setUnreachable(false)
				b.awaitLevel(w, levelRunning)
				b.awaitCounting(w)
			}
		})
	}
}

// A watchdog that froze an exclusive task while criu restores it would stop criu for good: its task is watched from just
// before its processes go on.
func TestRestoreIsNotWatched(t *testing.T) {
	b, k, w := newWatchedTestNode(t, 60_000)
	b.stopDaemon()
	var mu sync.Mutex
	watched := map[string]bool{}
	b.config.Driver = restoreObserver{b.engine.Driver(), func(step string) {
		state, err := os.ReadFile(filepath.Join(b.config.Data, "watchdog"))
		if err != nil {
			t.Error(err)
		}
		mu.Lock()
		defer mu.Unlock()
		watched[step] = bytes.Contains(state, []byte(k.FreezeFile(idOf(w))))
	}}
	b.start()
	b.awaitCounting(w)
	b.requestLevel(w, levelCheckpointed)
	b.awaitLevel(w, levelCheckpointed)
	b.requestLevel(w, levelRunning)
	b.awaitLevel(w, levelRunning)
	b.awaitCounting(w)
	mu.Lock()
	defer mu.Unlock()
	if want := map[string]bool{"restore": false, "continue": true}; !maps.Equal(watched, want) {
		t.Errorf("watched: %v, want %v", watched, want)
	}
}

// ensureKernel says when limits are written.
type ensureKernel struct {
	*watchdogKernel
	onEnsure atomic.Pointer[func()]
}

func (k *ensureKernel) Ensure(ctx context.Context, id string, l Limits) (*droverv1.Limits, error) {
	if f := k.onEnsure.Load(); f != nil {
		(*f)()
	}
	return k.watchdogKernel.Ensure(ctx, id, l)
}

// An exclusive task that could not be thawed is frozen and not with the watchdog, whatever the thaw has done: a renewal of the
// lease, which thaws what is listed, must not let it run before the daemon does. So with one that could not go on after a restore.
func TestAnExclusiveTaskThatCannotBeThawedIsNotWatched(t *testing.T) {
	for name, c := range map[string]struct {
		from     droverv1.Level
		verb     fake.Verb
		actFirst bool
	}{
		"the thaw fails":              {levelFrozen, fake.Thaw, false},
		"the thaw's answer is lost":   {levelFrozen, fake.Thaw, true},
		"a restored one does not run": {levelCheckpointed, fake.Continue, false},
	} {
		t.Run(name, func(t *testing.T) {
			b, lk := newLevelTestNode(t)
			self, err := os.Executable()
			if err != nil {
				t.Fatal(err)
			}
			k := &ensureKernel{watchdogKernel: &watchdogKernel{levelKernel: lk, dir: t.TempDir()}}
			b.config.Enforcer, b.config.Helper, b.leaseMS = k, []string{self, "helper"}, 60_000
			t.Cleanup(func() { killWatchdogs(t, b.config.Data) })
			b.start()
			w := with(groupTask(0, "count"), exclusive)
			if err := os.WriteFile(k.FreezeFile(idOf(w)), []byte("0"), 0o600); err != nil {
				t.Fatal(err)
			}
			b.put(w)
			b.await(t, w, running)
			b.requestLevel(w, c.from)
			b.awaitLevel(w, c.from)
			var listed, running atomic.Int64
			look := func() {
				if text, err := os.ReadFile(filepath.Join(b.config.Data, "watchdog")); err != nil || strings.Contains(string(text), k.FreezeFile(idOf(w))) {
					listed.Add(1)
				}
				if frozen, err := k.Frozen(t.Context(), idOf(w)); err != nil || !frozen {
					running.Add(1)
				}
			}
			b.engine.Inject(fake.Fault{Verb: c.verb, Err: fault.New(fault.Unavailable, "not now"), ActFirst: c.actFirst})
			before := b.engine.Calls(c.verb)
			b.requestLevel(w, levelRunning)
			poll(t, "a try", func() bool { return b.engine.Calls(c.verb) > before })
			k.onEnsure.Store(&look) // of the next try
			poll(t, "another one", func() bool { return b.engine.Calls(c.verb) > before+2 })
			if listed.Load() > 0 || running.Load() > 0 {
				t.Errorf("at the next tries it was listed %d times, and not frozen %d times", listed.Load(), running.Load())
			}
			k.onEnsure.Store(nil)
			b.engine.Heal()
			b.awaitLevel(w, levelRunning)
			b.awaitCounting(w)
		})
	}
}

// limitlessKernel cannot write the limits of a running task while refuse is set.
type limitlessKernel struct {
	*levelKernel
	refuse atomic.Bool
}

func (k *limitlessKernel) Ensure(ctx context.Context, id string, l Limits) (*droverv1.Limits, error) {
	if k.refuse.Load() {
		return nil, errors.New("no such file")
	}
	return k.levelKernel.Ensure(ctx, id, l)
}

// TestExclusiveTaskRunsWhenItDoes: a task that is to go on is reported as running when it is thawed, also if its stage
// is exclusive; but a short time without a lease is no suspension.
func TestExclusiveTaskRunsWhenItDoes(t *testing.T) {
	for name, byLease := range map[string]bool{"frozen on request": false, "frozen without a lease": true} {
		t.Run(name, func(t *testing.T) {
			b, lk := newLevelTestNode(t)
			k := &limitlessKernel{levelKernel: lk}
			b.config.Enforcer, b.leaseMS = k, 60_000
			if byLease {
				b.leaseMS = 600
			}
			b.start()
			w := with(groupTask(0, "count"), exclusive)
			b.put(w)
			b.await(t, w, running)
			b.awaitCounting(w)
			if byLease {
				froze := b.engine.Calls(fake.Freeze)
				b.loseCoordinator()
				poll(t, "a freeze", func() bool { return b.engine.Calls(fake.Freeze) > froze })
				k.refuse.Store(true)
				b.setUnreachable(false)
			} else {
				b.requestLevel(w, levelFrozen)
				b.awaitLevel(w, levelFrozen)
				k.refuse.Store(true)
				b.requestLevel(w, levelRunning)
			}
			poll(t, "the reason", func() bool { return strings.Contains(b.get(w).GetLevelNote(), "cannot be thawed yet") })
			if s := b.get(w); s.GetLevel() != levelFrozen {
				t.Errorf("it is frozen and reported as %s", s.GetLevel())
			}
			k.refuse.Store(false)
			b.awaitLevel(w, levelRunning)
			b.awaitCounting(w)
		})
	}
}
