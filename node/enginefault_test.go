package node

import (
	"context"
	"errors"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/internal/unixhttp"
	"github.com/drover-run/drover/node/shuffle"
	"github.com/drover-run/drover/runtime"
	"github.com/drover-run/drover/runtime/fake"
)

// hangingDriver is a driver whose engine can stop answering List.
type hangingDriver struct {
	runtime.Driver
	patient bool // whatever its context says
	hang    atomic.Bool
	hanging atomic.Int32
	release chan struct{}
}

func (d *hangingDriver) List(ctx context.Context) ([]runtime.Status, error) {
	if d.hang.Load() {
		d.hanging.Add(1)
		if d.patient {
			<-d.release
		}
		select {
		case <-d.release:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return d.Driver.List(ctx)
}

// hangingProcesses is a hangingDriver of plain processes.
type hangingProcesses struct{ *hangingDriver }

func (hangingProcesses) HostPaths() bool { return true }

func (b *fakeCoordinator) reports() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.reportCount
}

// An engine that hangs holds up no report: the node would be lost, and everything on it would be
// started again elsewhere.
func TestReportsDoNotWaitForAnEngineThatHangs(t *testing.T) {
	b := newTestNode(t, programs())
	d := &hangingDriver{Driver: b.engine.Driver(), patient: true, release: make(chan struct{})}
	release := sync.OnceFunc(func() { d.hang.Store(false); close(d.release) })
	defer release()
	b.config.Driver = d
	b.start()
	w := groupTask(0, "hang")
	b.put(w)
	b.await(t, w, running)
	lists := b.engine.Calls(fake.List)
	b.engine.Down(true)
	poll(t, "a failed list", func() bool { return b.engine.Calls(fake.List) > lists })
	d.hang.Store(true)
	poll(t, "a list that hangs", func() bool { return d.hanging.Load() > 0 })
	n := b.reports()
	poll(t, "reports", func() bool { return b.reports() > n+5 })
	b.engine.Down(false)
	release()
	if s := b.get(w); s.GetPhase() != running {
		t.Errorf("the task is %s", s.GetPhase())
	}
	b.remove(w)
	b.await(t, w, gone)
}

// A daemon that starts while the engine hangs registers before its lease at the coordinator is over.
func TestStartDoesNotWaitForAnEngineThatHangs(t *testing.T) {
	const lease = 15 * time.Second // the coordinator's default
	b := newTestNode(t, programs())
	d := &hangingDriver{Driver: b.engine.Driver(), release: make(chan struct{})}
	b.config.Driver, b.config.adoptLimit = d, 50*time.Millisecond
	b.start()
	w := groupTask(0, "hang")
	b.put(w)
	b.await(t, w, running)
	b.stopDaemon()
	d.hang.Store(true)
	began := time.Now()
	b.start()
	if took := time.Since(began); took > lease {
		t.Errorf("registered after %v", took)
	}
	d.hang.Store(false)
	close(d.release)
	b.remove(w)
	b.await(t, w, gone)
}

// slowToFreeze is a kernel that can stop freezing in time.
type slowToFreeze struct {
	*levelKernel
	slow    atomic.Bool
	release chan struct{}
}

func (k *slowToFreeze) FreezeLasting(ctx context.Context, id string) error {
	if k.slow.Load() {
		<-k.release
		return fault.New(fault.Unavailable, "not frozen in time")
	}
	return k.Freeze(ctx, id)
}

// Nor does it wait for the tasks that it freezes again, however many there are.
func TestStartDoesNotWaitForFreezes(t *testing.T) {
	b, lk := newLevelTestNode(t)
	k := &slowToFreeze{levelKernel: lk, release: make(chan struct{})}
	release := sync.OnceFunc(func() { k.slow.Store(false); close(k.release) })
	defer release()
	b.config.Enforcer = k
	b.start()
	w, other := groupTask(0, "count"), groupTask(1, "count")
	for _, w := range []*droverv1.WantedAttempt{w, other} {
		b.put(w)
		b.await(t, w, running)
		b.requestLevel(w, levelFrozen)
		b.awaitLevel(w, levelFrozen)
	}
	b.stopDaemon()
	b.config.Driver = b.engine.Driver()
	k.slow.Store(true)
	registered := b.registered()
	wait := b.startOnly()
	poll(t, "a registration", func() bool { return b.registered() > registered })
	wait()
	release()
	for _, w := range []*droverv1.WantedAttempt{w, other} {
		b.requestLevel(w, levelRunning)
		b.awaitLevel(w, levelRunning)
		b.awaitCounting(w)
	}
}

// A level that is known from the record alone, while the engine does not answer, is reported with the memory that the task has.
func TestLevelWithoutAnEngineHasItsMemory(t *testing.T) {
	b, _ := newLevelTestNode(t)
	b.start()
	w := groupTask(0, "count")
	b.put(w)
	b.await(t, w, running)
	b.requestLevel(w, levelSwapped)
	before := b.awaitLevel(w, levelSwapped)
	b.stopDaemon()
	b.mu.Lock()
	clear(b.seen)
	b.mu.Unlock()
	b.config.Driver = b.engine.Driver()
	b.engine.Down(true)
	b.start()
	s := b.awaitLevel(w, levelSwapped)
	if got, want := s.GetOccupied().GetMemory(), before.GetOccupied().GetMemory(); got != want || want == 0 {
		t.Errorf("%d bytes of memory, before %d", got, want)
	}
	if got, want := s.GetSwapOccupied(), before.GetSwapOccupied(); got != want || want == 0 {
		t.Errorf("%d bytes of swap, before %d", got, want)
	}
	b.engine.Down(false)
	b.requestLevel(w, levelRunning)
	b.awaitLevel(w, levelRunning)
}

// A daemon that has just started has not yet found what an earlier one left: it denies no map output, which would be made
// again, but asks for patience.
func TestAStartingDaemonDeniesNoMapOutput(t *testing.T) {
	b := newTestNode(t, nil)
	onProcesses(t, b)
	d := &hangingDriver{Driver: b.config.Driver, release: make(chan struct{})}
	release := sync.OnceFunc(func() { d.hang.Store(false); close(d.release) })
	defer release()
	b.config.Driver, b.config.adoptLimit = hangingProcesses{d}, time.Hour
	b.start()
	input, length, _ := writeText(t, 100)
	w := mapTask(0, input, 0, length, length, 1)
	b.put(w)
	b.await(t, w, succeeded)
	web := &http.Client{Transport: &http.Transport{DialContext: unixhttp.DialContext(&net.Dialer{})}}
	defer web.CloseIdleConnections()
	c := &shuffle.Client{HTTP: web, Scheme: "http", Token: "secret"}
	fetch := func() (*shuffle.Fetched, error) {
		return c.Fetch(t.Context(), b.address, outputKey(w.GetKey()), 0, filepath.Join(t.TempDir(), "p"))
	}
	b.stopDaemon()
	d.hang.Store(true)
	wait := b.startOnly()
	poll(t, "a daemon that adopts", func() bool { return d.hanging.Load() > 0 })
	var busy *shuffle.Busy
	if got, err := fetch(); !errors.As(err, &busy) || busy.Pause == 0 {
		t.Errorf("while the daemon starts: %+v %v", got, err)
	}
	release()
	wait()
	if got, err := fetch(); err != nil || got.Range.Length == 0 {
		t.Errorf("afterwards: %+v %v", got, err)
	}
}

// A container that is gone before its dump is complete, as after a reboot in the middle of one,
// ends the attempt: there is nothing left to try.
func TestContainerThatVanishesDuringItsDumpEndsTheAttempt(t *testing.T) {
	b, _ := newLevelTestNode(t)
	b.engine.Inject(fake.Fault{Verb: fake.Checkpoint, Err: fault.New(fault.Unavailable, "connection lost")})
	b.start()
	w := groupTask(0, "count")
	b.put(w)
	b.await(t, w, running)
	b.requestLevel(w, levelCheckpointed)
	poll(t, "a dump", func() bool { return b.engine.Calls(fake.Checkpoint) > 0 })
	b.stopDaemon()
	if err := b.engine.Driver().Delete(t.Context(), idOf(w)); err != nil {
		t.Fatal(err)
	}
	b.engine.Heal()
	b.config.Driver = b.engine.Driver()
	b.start()
	s := b.await(t, w, failed)
	if s.GetCause() != droverv1.Cause_CAUSE_INFRA || !strings.Contains(s.GetMessage(), "the dump is incomplete") {
		t.Errorf("%s %q", s.GetCause(), s.GetMessage())
	}
	b.removeAndCheckClean(t, w)
}
