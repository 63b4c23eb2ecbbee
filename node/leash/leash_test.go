package leash

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
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

// world is a holder, files as of cgroups, and watches in goroutines under a clock
// that the test moves.
type world struct {
	*testing.T
	*Holder
	now    atomic.Int64
	starts atomic.Int32
	wg     sync.WaitGroup
	files  []string

	closed atomic.Bool // no watch starts any more
	mu     sync.Mutex
	kills  []context.CancelFunc // of the watches
}

func newWorld(t *testing.T, files int) *world {
	w := &world{T: t}
	dir := t.TempDir()
	w.Holder = &Holder{Path: filepath.Join(dir, "leash"), Start: w.watch}
	t.Cleanup(func() { w.closed.Store(true); w.kill(); w.wg.Wait() })
	for i := range files {
		name := filepath.Join(dir, "cgroup.freeze."+string(rune('a'+i)))
		if err := os.WriteFile(name, []byte("0"), 0o600); err != nil {
			t.Fatal(err)
		}
		w.files = append(w.files, name)
	}
	return w
}

// watch starts one in a goroutine.
func (w *world) watch(context.Context) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed.Load() {
		return nil
	}
	ctx, cancel := context.WithCancel(context.Background())
	w.kills = append(w.kills, cancel)
	w.starts.Add(1)
	w.wg.Go(func() {
		if err := Watch(ctx, w.Path, w.clock, w.watch); err != nil && ctx.Err() == nil {
			w.Errorf("watch: %v", err)
		}
	})
	return nil
}

// kill ends all watches.
func (w *world) kill() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, kill := range w.kills {
		kill()
	}
}

// both waits until there are two watches.
func (w *world) both() {
	w.Helper()
	w.until("two watches", func() bool {
		for i := range watches {
			if there, err := held(slot(w.Path, i)); !there || err != nil {
				return false
			}
		}
		return true
	})
}

func (w *world) until(what string, ok func() bool) {
	w.Helper()
	for end := time.Now().Add(20 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			w.Fatalf("no %s", what)
		}
	}
}

func (w *world) clock() time.Duration { return time.Duration(w.now.Load()) }

func (w *world) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

func (w *world) reads() string {
	var all strings.Builder
	for _, f := range w.files {
		text, err := os.ReadFile(f)
		w.must(err)
		all.Write(text)
	}
	return all.String()
}

func (w *world) await(want string) {
	w.Helper()
	for end := time.Now().Add(20 * time.Second); w.reads() != want; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			w.Fatalf("the files read %q, want %q", w.reads(), want)
		}
	}
}

func TestTheWatchFreezesWhatIsListedOnceTheLeaseIsOver(t *testing.T) {
	w := newWorld(t, 3)
	w.must(w.Clear())
	w.must(w.Renew(t.Context(), 10*time.Second))
	w.must(w.Add(t.Context(), w.files[0]))
	w.must(w.Add(t.Context(), w.files[1]))
	w.must(w.Add(t.Context(), w.files[1]))
	w.both()
	if wait, err := look(w.Path, w.clock, nil); err != nil || wait != lookEvery || w.reads() != "000" {
		t.Errorf("before the end: %v, %v, files %q", wait, err, w.reads())
	}
	w.now.Store(int64(10 * time.Second))
	w.await("110")
	w.must(w.Renew(t.Context(), 20*time.Second)) // the daemon was only slow
	if got := w.reads(); got != "000" {
		t.Errorf("once the lease is back the files read %q", got)
	}
	w.must(w.Remove(w.files[0])) // frozen by the daemon, for reasons of its own
	w.must(w.Remove(w.files[2])) // never listed
	w.now.Store(int64(30 * time.Second))
	w.await("010")
	w.must(os.WriteFile(w.files[0], []byte("1"), 0o600))
	w.must(w.Renew(t.Context(), 40*time.Second))
	if got := w.reads(); got != "100" {
		t.Errorf("what the daemon froze was let go: %q", got)
	}
	w.must(w.Remove(w.files[1]))
	w.wg.Wait() // nothing is listed: it ends
	before := w.starts.Load()
	w.must(w.Add(t.Context(), w.files[2]))
	if n := w.starts.Load(); n == before {
		t.Error("no other watch was started")
	}
	w.must(w.Clear())
	w.wg.Wait()
}

func TestWhatIsGoneIsNotInTheWay(t *testing.T) {
	w := newWorld(t, 2)
	w.must(w.Add(t.Context(), filepath.Join(t.TempDir(), "none")))
	w.must(w.Add(t.Context(), w.files[1])) // never renewed: its time is over
	w.await("01")
}

func TestAWatchThatDoesNotStartIsAnError(t *testing.T) {
	w := newWorld(t, 1)
	broken := errors.New("broken by the test")
	w.Start = func(context.Context) error { return broken }
	if err := w.Add(t.Context(), w.files[0]); !errors.Is(err, broken) {
		t.Errorf("got %v", err)
	}
	w.Start = func(context.Context) error { return nil }
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := w.Add(ctx, w.files[0]); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("one that says that it started and is not there: %v", err)
	}
}

func TestAThirdWatchEndsAtOnce(t *testing.T) {
	w := newWorld(t, 1)
	w.must(w.Renew(t.Context(), time.Hour))
	w.must(w.Add(t.Context(), w.files[0]))
	w.both()
	w.must(Watch(t.Context(), w.Path, w.clock, w.watch))
}

// Where both watches are killed, the daemon starts new ones when it renews.
func TestARenewalBringsTheWatchesBack(t *testing.T) {
	w := newWorld(t, 1)
	w.must(w.Renew(t.Context(), time.Hour))
	w.must(w.Add(t.Context(), w.files[0]))
	w.both()
	w.closed.Store(true)
	w.kill()
	w.wg.Wait()
	if there, err := Watched(w.Path); there || err != nil {
		t.Fatalf("after all were killed: %v, %v", there, err)
	}
	w.closed.Store(false)
	w.must(w.Renew(t.Context(), 2*time.Hour))
	w.both()
	w.now.Store(int64(2 * time.Hour))
	w.await("1")
}

func TestAPutThatWasCutShortIsRead(t *testing.T) {
	w := newWorld(t, 1)
	w.must(os.WriteFile(w.Path, []byte(`{"until_ns":5,"freeze":["x"],"fired":false}`+"\n"+`eeze":["y"],"fired":false}`), 0o600))
	w.must(locked(w.Path, func(_ *os.File, n note) error {
		if n.UntilNS != 5 || !slices.Equal(n.Freeze, []string{"x"}) {
			t.Errorf("read %+v", n)
		}
		return nil
	}))
}

// Whatever a daemon lists, takes back and renews, and whenever the watch looks: a
// listed task stands still when the time was over at the last look, and runs
// after a renewal.
func TestRandomHoldersAndWatches(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	w := newWorld(t, 4)
	w.Start = func(context.Context) error { return nil }
	alone, err := os.OpenFile(slot(w.Path, 0), os.O_RDWR|os.O_CREATE, 0o600)
	w.must(err)
	defer alone.Close()
	until, listed, held := time.Duration(0), map[string]bool{}, false
	for i := range 2000 {
		switch k := w.files[r.IntN(4)]; r.IntN(5) {
		case 0:
			if !held { // a watch is there
				w.must(flock(alone, 2))
				held = true
			}
			w.must(w.Add(t.Context(), k))
			if !listed[k] {
				w.must(os.WriteFile(k, []byte("0"), 0o600)) // the daemon lets it go
			}
			listed[k] = true
		case 1:
			w.must(w.Remove(k))
			delete(listed, k)
		case 2:
			until = max(until, w.clock()+time.Duration(r.IntN(100)))
			w.must(w.Renew(t.Context(), until))
			for f := range listed {
				if text, err := os.ReadFile(f); err != nil || string(text) != "0" {
					t.Fatalf("step %d: after a renewal %s reads %q, %v", i, f, text, err)
				}
			}
		case 3:
			w.now.Add(int64(r.IntN(100)))
		default:
			wait, err := look(w.Path, w.clock, alone)
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

// The real process outlives the one that started it, freezes, and ends.
func TestTheWatchIsAProcessOfItsOwn(t *testing.T) {
	w := newWorld(t, 1)
	self, err := os.Executable()
	w.must(err)
	w.Start = StartBy(w.Path, self, "helper")
	w.must(w.Renew(t.Context(), SinceBoot()+time.Hour))
	w.must(w.Add(t.Context(), w.files[0]))
	w.both()
	first := w.pid(0)
	w.must(syscall.Kill(first, syscall.SIGKILL)) // the other one starts it anew
	w.until("another first watch", func() bool { return w.pid(0) != first })
	w.both()
	w.must(syscall.Kill(w.pid(1), syscall.SIGKILL))
	if got := w.reads(); got != "0" {
		t.Errorf("within the lease the file reads %q", got)
	}
	w.must(locked(w.Path, func(f *os.File, n note) error { n.UntilNS = 1; return put(f, n) }))
	w.await("1")
	w.must(w.Remove(w.files[0]))
	w.until("end of the watches", func() bool {
		there, err := Watched(w.Path)
		w.must(err)
		return !there
	})
}

// pid is the process of a watch, which writes it down once it holds its slot.
func (w *world) pid(i int) (pid int) {
	w.Helper()
	w.until("process in a slot", func() bool {
		text, err := os.ReadFile(slot(w.Path, i))
		w.must(err)
		pid, err = strconv.Atoi(strings.TrimSpace(string(text)))
		return err == nil
	})
	return pid
}
