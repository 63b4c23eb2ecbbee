package node

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/node/store"
	"github.com/drover-run/drover/node/task"
	"github.com/drover-run/drover/runtime"
	"github.com/drover-run/drover/runtime/fake"
)

// smallDisk runs the test in a mount namespace of its own and returns, there, a folder with a disk
// of that size. Outside, it reports what the test found there, and returns "".
func smallDisk(t *testing.T, options string) string {
	t.Helper()
	const inside = "DROVER_TEST_SMALL_DISK"
	if dir := os.Getenv(inside); dir != "" {
		if err := unix.Mount("x", dir, "tmpfs", 0, options); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	dir := t.TempDir()
	if out, err := exec.Command("unshare", "-rm", "mount", "-t", "tmpfs", "x", dir).CombinedOutput(); err != nil {
		t.Skipf("not proved here: what a node does on such a disk; no mount namespace: %v %s", err, out)
	}
	cmd := exec.Command("unshare", "-rm", os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v", "-test.short=true")
	cmd.Env = append(os.Environ(), inside+"="+dir)
	out, err := cmd.CombinedOutput()
	t.Logf("%s", out)
	if err != nil {
		t.Error(err)
	}
	return ""
}

// fill takes all that is free on the disk of a folder, with the file that it returns.
func fill(t *testing.T, dir string) string {
	t.Helper()
	name := filepath.Join(dir, "fill")
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for page := make([]byte, 4096); err == nil; {
		_, err = f.Write(page)
	}
	if !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
	return name
}

// sharedLog is a log that a daemon writes while a test reads it.
type sharedLog struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *sharedLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *sharedLog) contains(text string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Contains(l.text.String(), text)
}

// problems returns the problems that the node last reported.
func (b *fakeCoordinator) problems() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return strings.Join(b.load.GetProblems(), "; ")
}

// A node whose disk is full says so, in its reports and in its log, fails no task for it, and
// goes on by itself when there is room.
func TestFullDiskOfANode(t *testing.T) {
	dir := smallDisk(t, "size=3m")
	if dir == "" {
		return
	}
	var starts atomic.Int32
	own := programs()
	own["stay"] = func(ctx context.Context, _ *fake.Process) int { // its log is on the disk, so it writes nothing
		starts.Add(1)
		<-ctx.Done()
		return 0
	}
	b := newTestNode(t, own)
	log := &sharedLog{}
	b.config.Data, b.config.Log = filepath.Join(dir, "data"), slog.New(slog.NewTextHandler(log, nil))
	b.start()
	before := groupTask(0, "stay")
	b.put(before)
	b.await(t, before, running)
	if p := b.problems(); p != "" {
		t.Errorf("before: %s", p)
	}
	filled := fill(t, dir)
	poll(t, "a report of the full disk", func() bool { return strings.Contains(b.problems(), "the disk of "+b.config.Data+" is full") })
	var more []*droverv1.WantedAttempt
	for i := range int32(30) { // more than its state has room for
		more = append(more, with(groupTask(i+1, "true"), func(w *droverv1.WantedAttempt) { w.Spec.Env = map[string]string{"X": strings.Repeat("x", 4<<10)} }))
		b.put(more[i])
	}
	poll(t, "an error that names the file and the cure", func() bool {
		return log.contains("node.db cannot be written") && log.contains("make room on its disk")
	})
	if err := os.Remove(filled); err != nil {
		t.Fatal(err)
	}
	for _, w := range more {
		b.await(t, w, succeeded)
	}
	poll(t, "no problem", func() bool { return b.problems() == "" })
	if s := b.get(before); s.GetPhase() != running || starts.Load() != 1 {
		t.Errorf("the task that ran before is %s, and was started %d times", s.GetPhase(), starts.Load())
	}
}

// A file of a job that is larger than what is free fails the task, and takes no space from others: each try removes what it has
// fetched.
func TestFileThatFillsTheDiskOfANode(t *testing.T) {
	dir := smallDisk(t, "size=6m")
	if dir == "" {
		return
	}
	b := newTestNode(t, programs())
	b.config.Data = filepath.Join(dir, "data")
	withFile := func(task int32, size int) *droverv1.WantedAttempt {
		data := make([]byte, size)
		digest := fmt.Sprintf("sha256:%x", sha256.Sum256(data))
		b.blobs[digest] = data
		return with(groupTask(task, "true"), func(w *droverv1.WantedAttempt) {
			w.Spec.Files = []*droverv1.FileRef{{Name: "f", Digest: digest}}
		})
	}
	w, fits := withFile(0, 8<<20), withFile(1, 1<<20)
	b.start()
	b.put(w)
	s := b.await(t, w, failed)
	if s.GetCause() != droverv1.Cause_CAUSE_INFRA || !strings.Contains(s.GetMessage(), unix.ENOSPC.Error()) {
		t.Errorf("%s %q", s.GetCause(), s.GetMessage())
	}
	left, err := os.ReadDir(filepath.Join(b.config.Data, "blobs"))
	if err != nil || len(left) > 0 {
		t.Errorf("left of the file: %v %v", left, err)
	}
	b.remove(w)
	b.await(t, w, gone)
	b.put(fits)
	b.await(t, fits, succeeded)
}

func TestDiskProblems(t *testing.T) {
	whole := unix.Statfs_t{Bsize: 4096, Blocks: 1 << 20, Bavail: 1 << 19, Files: 1 << 16, Ffree: 1 << 15} // 4 GiB
	with := func(f func(*unix.Statfs_t)) unix.Statfs_t { st := whole; f(&st); return st }
	for name, c := range map[string]struct {
		st   unix.Statfs_t
		want string
	}{
		"half full":                 {whole, ""},
		"full":                      {with(func(st *unix.Statfs_t) { st.Bavail = 16 }), "the disk of /d is full, 64KiB are free: make room on it"},
		"just enough":               {with(func(st *unix.Statfs_t) { st.Bavail = minFreeBytes / 4096 }), ""},
		"a small disk needs a part": {with(func(st *unix.Statfs_t) { st.Blocks, st.Bavail = 1000, 20 }), ""},
		"read-only":                 {with(func(st *unix.Statfs_t) { st.Flags = unix.ST_RDONLY }), "the disk of /d is read-only: look for its errors in the kernel's log, and mount it again"},
		"no inodes":                 {with(func(st *unix.Statfs_t) { st.Ffree = 7 }), "the disk of /d has 7 inodes free: remove files from it"},
		"inodes as needed":          {with(func(st *unix.Statfs_t) { st.Files, st.Ffree = 0, 0 }), ""},
	} {
		if got := problemOf("/d", &c.st); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
	if p := diskProblem(filepath.Join(t.TempDir(), "none")); !strings.Contains(p, "does not answer") {
		t.Errorf("a disk that is away: %q", p)
	}
}

// plainFreezer freezes whatever it is told to.
type plainFreezer struct {
	*fakeKernel
	frozen bool
}

func (f *plainFreezer) Freeze(context.Context, string) error         { f.frozen = true; return nil }
func (f *plainFreezer) Thaw(context.Context, string) error           { f.frozen = false; return nil }
func (f *plainFreezer) Frozen(context.Context, string) (bool, error) { return f.frozen, nil }

// fullDuringDump is a driver whose dump takes the last of the disk: the store is not writable when
// it has ended.
type fullDuringDump struct {
	*fake.Driver
	full func()
}

func (d fullDuringDump) Dump(_ context.Context, _, dir string) error {
	d.full()
	return os.MkdirAll(dir, 0o700)
}

// newStoreFaultAttempt returns a running attempt and its store, with another one that cannot be written.
func newStoreFaultAttempt(t *testing.T) (a *attempt, whole, broken *store.Store) {
	t.Helper()
	open := func(name string) *store.Store {
		s, err := store.Open(filepath.Join(t.TempDir(), name))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close() })
		return s
	}
	whole, broken = open("node.db"), open("other.db")
	if err := broken.Close(); err != nil {
		t.Fatal(err)
	}
	engine := fake.New(nil, nil)
	t.Cleanup(engine.Close)
	kernel := &plainFreezer{fakeKernel: newFakeKernel()}
	d := &daemon{log: slog.New(slog.DiscardHandler), clock: newClock(nil, nil), store: whole, exclusive: &exclusiveGuard{}, slots: make(chan struct{}, 1), dumpSlots: make(chan struct{}, 1), bootID: "b"}
	d.cfg = Config{Data: t.TempDir(), Info: &droverv1.NodeInfo{Name: "n1"}, Enforcer: kernel, Log: d.log}
	d.unallocatedIO = newUnallocatedIO(&d.cfg, func() int64 { return 0 })
	d.cfg.Driver = fullDuringDump{engine.Driver(), func() { a.rec.db = broken }}
	a = newAttempt(d, "1.0.0.1.1")
	a.container.phase = task.ContainerRunning
	if err := a.rec.setLevel(levelRunning, 0, func(r *store.Record) { r.Started = true }); err != nil {
		t.Fatal(err)
	}
	return a, whole, broken
}

// A task that is frozen while the store cannot be written is frozen again until it can: else its
// time counted as running, and its time limit ended it.
func TestFreezeIsRepeatedUntilItIsStored(t *testing.T) {
	a, whole, broken := newStoreFaultAttempt(t)
	spec := groupTask(0, "count").GetSpec()
	for _, c := range []struct {
		db   *store.Store
		want error
	}{{broken, store.ErrUnwritable}, {broken, store.ErrUnwritable}, {broken, store.ErrUnwritable}, {whole, nil}} {
		a.rec.db = c.db
		err := a.suspension.freeze(t.Context(), spec)
		if !errors.Is(err, c.want) {
			t.Fatalf("%v, want %v", err, c.want)
		}
		if err != nil {
			a.handleLevelFailure(task.Freeze, a.retries.add(task.Freeze, err), err)
			a.container.phase = task.ContainerRunning // as the engine says again
		}
		if a.suspension.refused != 0 || !a.suspension.frozen || a.suspension.unrecorded != (err != nil) {
			t.Fatalf("refused %v, frozen %v, unrecorded %v after %v", a.suspension.refused, a.suspension.frozen, a.suspension.unrecorded, err)
		}
	}
	if a.rec.StartMono != 0 || a.rec.Level != int32(levelFrozen) {
		t.Errorf("the record is %+v", a.rec.Record)
	}
}

// recordAtContinue is a driver whose restores succeed. It notes the record with which processes go on.
type recordAtContinue struct {
	*fake.Driver
	a   *attempt
	err error // of Continue
	at  []store.Record
}

func (d *recordAtContinue) RestoreStopped(context.Context, runtime.Spec, string) error { return nil }

func (d *recordAtContinue) Continue(context.Context, string) error {
	d.at = append(d.at, d.a.rec.Record)
	return d.err
}

// A task goes on only when the store has it as running, and its dump as none: else its time did not count, and what it had done
// by its end was done again from the dump.
func TestTaskGoesOnOnlyWhenThatIsStored(t *testing.T) {
	for name, restore := range map[string]bool{"thaw": false, "restore": true} {
		t.Run(name, func(t *testing.T) {
			a, whole, broken := newStoreFaultAttempt(t)
			spec, s := groupTask(0, "count").GetSpec(), &a.suspension
			kernel := a.d.cfg.Enforcer.(*plainFreezer)
			d := &recordAtContinue{Driver: a.d.cfg.Driver.(fullDuringDump).Driver, a: a}
			if err := s.freeze(t.Context(), spec); err != nil {
				t.Fatal(err)
			}
			first := func() error { return s.thaw(t.Context(), spec) }
			if restore {
				a.d.cfg.Driver = fullDuringDump{d.Driver, func() {}}
				if err := s.checkpoint(t.Context(), spec); err != nil {
					t.Fatal(err)
				}
				kernel.frozen = false
				first = func() error {
					return s.restore(t.Context(), spec, func() (runtime.Spec, error) { return runtime.Spec{}, nil })
				}
			}
			a.d.cfg.Driver = d
			before := a.rec.Record
			a.rec.db = broken
			if err := first(); !errors.Is(err, store.ErrUnwritable) || !reflect.DeepEqual(a.rec.Record, before) {
				t.Fatalf("%v, the record is %+v", err, a.rec.Record)
			}
			if !kernel.frozen || !s.frozen || len(d.at) != 0 {
				t.Fatalf("it runs, and the store does not have that: frozen %v, continued %d times", kernel.frozen, len(d.at))
			}
			a.rec.db = whole
			if restore {
				d.err = errors.New("no such process")
				before := a.rec.Record
				if err := s.thaw(t.Context(), spec); !errors.Is(err, d.err) || !reflect.DeepEqual(a.rec.Record, before) || !s.frozen {
					t.Fatalf("%v, frozen %v, the record is %+v", err, s.frozen, a.rec.Record)
				}
				d.err = nil
			}
			if err := s.thaw(t.Context(), spec); err != nil || kernel.frozen || s.frozen || a.rec.Level != int32(levelRunning) || a.rec.Stopped {
				t.Errorf("with room: %v, frozen %v, the record is %+v", err, kernel.frozen, a.rec.Record)
			}
			for _, r := range d.at {
				if r.Level != int32(levelRunning) || r.Dumping || r.Dumped || !r.Stopped {
					t.Errorf("it goes on with the record %+v", r)
				}
			}
			if want := map[bool]int{true: 2}[restore]; len(d.at) != want {
				t.Errorf("continued %d times, want %d", len(d.at), want)
			}
		})
	}
}

// A daemon that dies after it has recorded that a restored task runs, and before its processes go on, leaves that to the next.
func TestStoppedTaskIsContinuedByTheNextDaemon(t *testing.T) {
	a, _, _ := newStoreFaultAttempt(t)
	d := &recordAtContinue{Driver: a.d.cfg.Driver.(fullDuringDump).Driver, a: a}
	a.d.cfg.Driver = d
	if err := a.rec.change(func(r *store.Record) { r.Stopped = true }); err != nil {
		t.Fatal(err)
	}
	a.suspension.recoverLevel(t.Context())
	if !a.suspension.frozen || !a.suspension.unrecorded {
		t.Fatalf("frozen %v, unrecorded %v", a.suspension.frozen, a.suspension.unrecorded)
	}
	if err := a.suspension.thaw(t.Context(), groupTask(0, "count").GetSpec()); err != nil || len(d.at) != 1 || a.rec.Stopped {
		t.Errorf("%v, continued %d times, the record is %+v", err, len(d.at), a.rec.Record)
	}
}

// A dump that took the last of the disk is whole, although the store cannot be told: the work is not lost.
func TestDumpThatFillsTheDiskIsNotLost(t *testing.T) {
	a, whole, _ := newStoreFaultAttempt(t)
	spec := groupTask(0, "count").GetSpec()
	if err := a.suspension.freeze(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
	err := a.suspension.checkpoint(t.Context(), spec)
	if !errors.Is(err, store.ErrUnwritable) {
		t.Fatalf("the store was written: %v", err)
	}
	a.handleLevelFailure(task.Checkpoint, a.retries.add(task.Checkpoint, err), err)
	if a.failure != nil || a.suspension.refused != 0 {
		t.Fatalf("%+v, refused %v", a.failure, a.suspension.refused)
	}
	a.rec.db = whole
	a.d.cfg.Driver = fullDuringDump{a.d.cfg.Driver.(fullDuringDump).Driver, func() {}}
	if err := a.suspension.checkpoint(t.Context(), spec); err != nil || !a.rec.Dumped || a.rec.DumpNumber != 1 {
		t.Errorf("tried again: %v, %+v", err, a.rec.Record)
	}
}

// fullAfterDump is a driver whose dumps have ended the container, and could not be proven as the disk was full.
type fullAfterDump struct{ *fake.Driver }

func (fullAfterDump) Dump(context.Context, string, string) error {
	return fault.New(fault.Unavailable, "manifest: %w", &fs.PathError{Op: "write", Path: "manifest.json.new", Err: unix.ENOSPC})
}

// A dump that is whole and not yet proven is completed when there is room on the disk, however late that is.
func TestDumpThatWaitsForAFullDiskIsNotLost(t *testing.T) {
	a, _, _ := newStoreFaultAttempt(t)
	spec := groupTask(0, "count").GetSpec()
	if err := a.suspension.freeze(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
	engine := a.d.cfg.Driver.(fullDuringDump).Driver
	a.d.cfg.Driver = fullAfterDump{engine}
	for range 20 {
		err := a.suspension.checkpoint(t.Context(), spec)
		if !errors.Is(err, unix.ENOSPC) {
			t.Fatal(err)
		}
		a.handleLevelFailure(task.Checkpoint, a.retries.add(task.Checkpoint, err), err)
		if a.failure != nil || a.suspension.refused != 0 || !a.rec.Dumping {
			t.Fatalf("%+v, refused %v, %+v", a.failure, a.suspension.refused, a.rec.Record)
		}
		a.container.phase = task.ContainerStopped // as the engine says then
	}
	a.d.cfg.Driver = fullDuringDump{engine, func() {}}
	if err := a.suspension.checkpoint(t.Context(), spec); err != nil || !a.rec.Dumped || a.rec.DumpNumber != 1 {
		t.Errorf("with room: %v, %+v", err, a.rec.Record)
	}
}
