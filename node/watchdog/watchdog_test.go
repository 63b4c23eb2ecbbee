package watchdog

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/drover-run/drover/internal/seed"
)

// TestMain makes the test binary the helper program too.
func TestMain(m *testing.M) {
	if len(os.Args) == 4 && os.Args[1] == "helper" {
		if err := Main(os.Args[1:2], os.Args[2], os.Args[3]); err != nil {
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// testHost is a client with freeze files and watchdogs in goroutines, under a clock
// that the test sets.
type testHost struct {
	*testing.T
	*Client
	now    atomic.Int64
	starts atomic.Int32
	wg     sync.WaitGroup
	files  []string

	closed atomic.Bool // no watchdog starts any more
	mu     sync.Mutex
	kills  []context.CancelFunc // one per watchdog
}

func newTestHost(t *testing.T, files int) *testHost {
	w := &testHost{T: t}
	dir := t.TempDir()
	w.Client = &Client{Path: filepath.Join(dir, "watchdog"), Start: w.startProcess}
	t.Cleanup(func() { w.closed.Store(true); w.killAll(); w.wg.Wait() })
	for i := range files {
		name := filepath.Join(dir, "cgroup.freeze."+string(rune('a'+i)))
		if err := os.WriteFile(name, []byte("0"), 0o600); err != nil {
			t.Fatal(err)
		}
		w.files = append(w.files, name)
	}
	return w
}

// startProcess starts a watchdog in a goroutine.
func (w *testHost) startProcess(context.Context) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed.Load() {
		return nil
	}
	ctx, cancel := context.WithCancel(context.Background())
	w.kills = append(w.kills, cancel)
	w.starts.Add(1)
	w.wg.Go(func() {
		if err := run(ctx, w.Path, w.clock, w.startProcess); err != nil && ctx.Err() == nil {
			w.Errorf("watch: %v", err)
		}
	})
	return nil
}

// killAll ends all watchdogs.
func (w *testHost) killAll() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, kill := range w.kills {
		kill()
	}
}

// awaitBoth waits until two watchdogs are running.
func (w *testHost) awaitBoth() {
	w.Helper()
	w.awaitCondition("two watches", func() bool {
		for i := range processCount {
			if there, err := isSlotTaken(slotPath(w.Path, i)); !there || err != nil {
				return false
			}
		}
		return true
	})
}

func (w *testHost) awaitCondition(what string, ok func() bool) {
	w.Helper()
	for end := time.Now().Add(20 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			w.Fatalf("no %s", what)
		}
	}
}

func (w *testHost) clock() time.Duration { return time.Duration(w.now.Load()) }

func (w *testHost) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// renew renews the lease and restarts the watchdogs where tasks are listed, as a daemon does.
func (w *testHost) renew(until time.Duration) error {
	listed, err := w.Renew(until)
	if err != nil || !listed {
		return err
	}
	return w.EnsureRunning(w.Context())
}

func (w *testHost) remove(file string) {
	w.Helper()
	_, err := w.Remove(file)
	w.must(err)
}

func (w *testHost) readFreezeFiles() string {
	var all strings.Builder
	for _, f := range w.files {
		text, err := os.ReadFile(f)
		w.must(err)
		all.Write(text)
	}
	return all.String()
}

func (w *testHost) awaitFreezeFiles(want string) {
	w.Helper()
	for end := time.Now().Add(20 * time.Second); w.readFreezeFiles() != want; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			w.Fatalf("the files read %q, want %q", w.readFreezeFiles(), want)
		}
	}
}

func TestFreezesListedTasksWhenLeaseExpires(t *testing.T) {
	w := newTestHost(t, 3)
	w.must(w.FreezeLeftovers())
	w.must(w.renew(10 * time.Second))
	w.must(w.Add(t.Context(), w.files[0]))
	w.must(w.Add(t.Context(), w.files[1]))
	w.must(w.Add(t.Context(), w.files[1]))
	w.awaitBoth()
	if wait, err := freezeIfExpired(w.Path, w.clock, nil); err != nil || wait != checkInterval || w.readFreezeFiles() != "000" {
		t.Errorf("before the end: %v, %v, files %q", wait, err, w.readFreezeFiles())
	}
	w.now.Store(int64(10 * time.Second))
	w.awaitFreezeFiles("110")
	w.must(w.renew(20 * time.Second)) // the daemon was only slow
	if got := w.readFreezeFiles(); got != "000" {
		t.Errorf("once the lease is back the files read %q", got)
	}
	w.remove(w.files[0]) // frozen by the daemon for another reason
	w.remove(w.files[2]) // never listed
	w.now.Store(int64(30 * time.Second))
	w.awaitFreezeFiles("010")
	w.must(os.WriteFile(w.files[0], []byte("1"), 0o600))
	w.must(w.renew(40 * time.Second))
	if got := w.readFreezeFiles(); got != "100" {
		t.Errorf("a task frozen by the daemon was thawed: %q", got)
	}
	w.remove(w.files[1])
	w.wg.Wait() // nothing is listed: the watchdogs end
	before := w.starts.Load()
	w.must(w.Add(t.Context(), w.files[2]))
	if n := w.starts.Load(); n == before {
		t.Error("no other watch was started")
	}
	w.must(w.FreezeLeftovers())
	w.wg.Wait()
}

// A task that a watchdog froze, and that one renewal could not thaw, is thawed by the next.
func TestFailedThawIsTriedAgain(t *testing.T) {
	w := newTestHost(t, 2)
	w.must(w.renew(time.Second))
	w.must(w.Add(t.Context(), w.files[0]))
	w.must(w.Add(t.Context(), w.files[1]))
	w.now.Store(int64(2 * time.Second))
	w.awaitFreezeFiles("11")
	w.must(os.Remove(w.files[0]))
	w.must(os.Mkdir(w.files[0], 0o700)) // nobody can write to it
	if _, err := w.Renew(time.Hour); err == nil {
		t.Error("a failed thaw is no error")
	}
	if text, err := os.ReadFile(w.files[1]); err != nil || string(text) != "0" {
		t.Errorf("the other task: %q, %v", text, err)
	}
	w.must(os.Remove(w.files[0]))
	w.must(os.WriteFile(w.files[0], []byte("1"), 0o600))
	w.must(w.renew(time.Hour))
	if got := w.readFreezeFiles(); got != "00" {
		t.Errorf("after the next renewal the files read %q", got)
	}
	w.remove(w.files[0])
	w.remove(w.files[1])
}

// A task that was given up is frozen at once, and no renewal thaws it; nor one that the
// daemon before had listed.
func TestTasksThatMustNotRunAgainStayFrozen(t *testing.T) {
	for name, giveUp := range map[string]func(w *testHost) error{
		"abandoned":                 func(w *testHost) error { return w.Abandon(w.files[0]) },
		"listed by an earlier life": func(w *testHost) error { return (&Client{Path: w.Path}).FreezeLeftovers() },
	} {
		t.Run(name, func(t *testing.T) {
			w := newTestHost(t, 2)
			w.must(w.renew(time.Second))
			w.must(w.Add(t.Context(), w.files[0]))
			w.now.Store(int64(2 * time.Second))
			w.awaitFreezeFiles("10")
			w.now.Store(0)
			w.must(os.WriteFile(w.files[0], []byte("0"), 0o600))
			w.must(giveUp(w))
			next := &Client{Path: w.Path, Start: w.startProcess}
			_, err := next.Renew(time.Hour)
			w.must(err)
			if got := w.readFreezeFiles(); got != "10" {
				t.Errorf("after a renewal the files read %q", got)
			}
			w.must(w.Abandon(w.files[1])) // never listed
			if got := w.readFreezeFiles(); got != "10" {
				t.Errorf("a task that was not listed was frozen: %q", got)
			}
		})
	}
}

func TestMissingFreezeFilesAreIgnored(t *testing.T) {
	w := newTestHost(t, 2)
	w.must(w.Add(t.Context(), filepath.Join(t.TempDir(), "none")))
	w.must(w.Add(t.Context(), w.files[1])) // never renewed: its lease has expired
	w.awaitFreezeFiles("01")
}

func TestFailedStartIsAnError(t *testing.T) {
	w := newTestHost(t, 1)
	broken := errors.New("broken by the test")
	w.Start = func(context.Context) error { return broken }
	if err := w.Add(t.Context(), w.files[0]); !errors.Is(err, broken) {
		t.Errorf("got %v", err)
	}
	w.Start = func(context.Context) error { return nil }
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := w.Add(ctx, w.files[0]); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a start without a running process: %v", err)
	}
}

// Nobody is left to empty the list of a node that was removed from its machine.
func TestWatchdogsEndWhenTheirFolderIsRemoved(t *testing.T) {
	w := newTestHost(t, 1)
	dir := filepath.Join(t.TempDir(), "data")
	w.must(os.Mkdir(dir, 0o700))
	w.Path = filepath.Join(dir, "watchdog")
	w.must(w.renew(time.Hour))
	w.must(w.Add(t.Context(), w.files[0]))
	w.awaitBoth()
	w.must(os.RemoveAll(dir))
	ended := make(chan struct{})
	go func() { w.wg.Wait(); close(ended) }()
	select {
	case <-ended:
	case <-time.After(20 * time.Second):
		t.Fatal("watchdogs of a removed node run on")
	}
}

func TestThirdProcessEndsAtOnce(t *testing.T) {
	w := newTestHost(t, 1)
	w.must(w.renew(time.Hour))
	w.must(w.Add(t.Context(), w.files[0]))
	w.awaitBoth()
	w.must(run(t.Context(), w.Path, w.clock, w.startProcess))
}

// If both watchdogs are killed, the daemon's next renewal restarts them.
func TestRenewRestartsWatchdogs(t *testing.T) {
	w := newTestHost(t, 1)
	w.must(w.renew(time.Hour))
	w.must(w.Add(t.Context(), w.files[0]))
	w.awaitBoth()
	w.closed.Store(true)
	w.killAll()
	w.wg.Wait()
	if there, err := IsRunning(w.Path); there || err != nil {
		t.Fatalf("after all were killed: %v, %v", there, err)
	}
	w.closed.Store(false)
	w.must(w.renew(2 * time.Hour))
	w.awaitBoth()
	w.now.Store(int64(2 * time.Hour))
	w.awaitFreezeFiles("1")
}

func TestTruncatedWriteIsRead(t *testing.T) {
	w := newTestHost(t, 1)
	w.must(os.WriteFile(w.Path, []byte(`{"until_ns":5,"freeze_files":["x"],"frozen":false}`+"\n"+`eeze_files":["y"],"frozen":false}`), 0o600))
	w.must(withLockedState(w.Path, func(_ *os.File, n state) error {
		if n.UntilNS != 5 || !slices.Equal(n.FreezeFiles, []string{"x"}) {
			t.Errorf("read %+v", n)
		}
		return nil
	}))
}

// For any sequence of listing, unlisting and renewing, and any time of checks: a
// listed task is frozen if the lease had expired at the last check, and runs after
// a renewal.
func TestRandomClientsAndProcesses(t *testing.T) {
	seed := seed.New(t)
	r := rand.New(rand.NewPCG(seed, 0))
	w := newTestHost(t, 4)
	w.Start = func(context.Context) error { return nil }
	alone, err := os.OpenFile(slotPath(w.Path, 0), os.O_RDWR|os.O_CREATE, 0o600)
	w.must(err)
	defer alone.Close()
	until, listed, held := time.Duration(0), map[string]bool{}, false
	for i := range 2000 {
		switch k := w.files[r.IntN(4)]; r.IntN(5) {
		case 0:
			if !held { // a watchdog is running
				w.must(flock(alone, 2))
				held = true
			}
			w.must(w.Add(t.Context(), k))
			if !listed[k] {
				w.must(os.WriteFile(k, []byte("0"), 0o600)) // the daemon thaws it
			}
			listed[k] = true
		case 1:
			w.remove(k)
			delete(listed, k)
		case 2:
			until = max(until, w.clock()+time.Duration(r.IntN(100)))
			w.must(w.renew(until))
			for f := range listed {
				if text, err := os.ReadFile(f); err != nil || string(text) != "0" {
					t.Fatalf("step %d: after a renewal %s reads %q, %v", i, f, text, err)
				}
			}
		case 3:
			w.now.Add(int64(r.IntN(100)))
		default:
			wait, err := freezeIfExpired(w.Path, w.clock, alone)
			w.must(err)
			if wait == 0 {
				held = false
				if len(listed) > 0 {
					t.Fatalf("step %d: it ended, and %v are listed", i, listed)
				}
			}
			for f := range listed {
				text, err := os.ReadFile(f)
				w.must(err)
				if over := until <= w.clock(); over && string(text) != "1" {
					t.Fatalf("step %d: the lease is over and %s reads %q", i, f, text)
				}
			}
		}
	}
}

// The watchdog process outlives the process that started it, freezes, and ends.
func TestWatchdogIsASeparateProcess(t *testing.T) {
	w := newTestHost(t, 1)
	self, err := os.Executable()
	w.must(err)
	w.Start = Starter(w.Path, self, "helper")
	w.must(w.renew(SinceBoot() + time.Hour))
	w.must(w.Add(t.Context(), w.files[0]))
	w.awaitBoth()
	first := w.pid(0)
	w.must(syscall.Kill(first, syscall.SIGKILL)) // the other one restarts it
	w.awaitCondition("another first watch", func() bool { return w.pid(0) != first })
	w.awaitBoth()
	w.precedesOthers(w.pid(0))
	w.precedesOthers(w.pid(1))
	w.must(syscall.Kill(w.pid(1), syscall.SIGKILL))
	if got := w.readFreezeFiles(); got != "0" {
		t.Errorf("within the lease the file reads %q", got)
	}
	w.must(withLockedState(w.Path, func(f *os.File, n state) error { n.UntilNS = 1; return writeState(f, n) }))
	w.awaitFreezeFiles("1")
	w.remove(w.files[0])
	w.awaitCondition("end of the watches", func() bool {
		there, err := IsRunning(w.Path)
		w.must(err)
		return !there
	})
}

// precedesOthers fails the test if a thread of a watchdog has no real-time
// priority although this process has the right to give it.
func (w *testHost) precedesOthers(pid int) {
	w.Helper()
	if err := mayPrecedeOthers(); err != nil {
		w.Logf("not proved here: that a watchdog has real-time priority: %v", err)
		return
	}
	threads, err := os.ReadDir("/proc/" + strconv.Itoa(pid) + "/task")
	w.must(err)
	for _, thread := range threads {
		id, err := strconv.Atoi(thread.Name())
		w.must(err)
		attr, err := unix.SchedGetAttr(id, 0)
		if errors.Is(err, unix.ESRCH) {
			continue
		}
		w.must(err)
		if attr.Policy != unix.SCHED_RR {
			w.Errorf("thread %d of watchdog %d has scheduling policy %d", id, pid, attr.Policy)
		}
	}
}

// mayPrecedeOthers gives a thread real-time priority, and ends the thread.
func mayPrecedeOthers() error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		done <- unix.SchedSetAttr(0, &unix.SchedAttr{Policy: unix.SCHED_RR, Priority: 1}, 0)
	}()
	return <-done
}

// pid returns the process ID of a watchdog, which its slot file contains.
func (w *testHost) pid(i int) (pid int) {
	w.Helper()
	w.awaitCondition("process in a slot", func() bool {
		text, err := os.ReadFile(slotPath(w.Path, i))
		w.must(err)
		pid, err = strconv.Atoi(strings.TrimSpace(string(text)))
		return err == nil
	})
	return pid
}
