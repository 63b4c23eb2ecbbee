package node

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/node/dump"
	"github.com/drover-run/drover/node/store"
	"github.com/drover-run/drover/node/task"
	"github.com/drover-run/drover/runtime/fake"
)

// twoNodes returns two nodes whose engines can restore each other's dumps.
func twoNodes(t *testing.T) (a, b *testNode) {
	a, _ = newLevelTestNode(t)
	b, _ = newLevelTestNode(t)
	b.engine.ShareDumps(a.engine)
	a.start()
	b.start()
	return a, b
}

// startAndCheckpoint starts a task on a node and checkpoints it.
func startAndCheckpoint(t *testing.T, n *testNode, change ...func(*droverv1.WantedAttempt)) *droverv1.WantedAttempt {
	return startWithFiles(t, n, func(folder string) error {
		return errors.Join(os.WriteFile(filepath.Join(folder, "kept"), []byte(strings.Repeat("work", 100_000)), 0o640), os.Symlink("kept", filepath.Join(folder, "link")))
	}, change...)
}

// startWithFiles starts a task on a node, lets write fill its folder, and checkpoints it.
func startWithFiles(t *testing.T, n *testNode, write func(folder string) error, change ...func(*droverv1.WantedAttempt)) *droverv1.WantedAttempt {
	w := with(groupTask(0, "count"), func(w *droverv1.WantedAttempt) { w.Spec.ShuffleToken = "secret" })
	for _, f := range change {
		f(w)
	}
	n.put(w)
	n.await(t, w, running)
	n.awaitCounting(w)
	if err := write(filepath.Join(n.attemptFolder(w), "task")); err != nil {
		t.Fatal(err)
	}
	n.requestLevel(w, levelCheckpointed)
	n.awaitLevel(w, levelCheckpointed)
	return w
}

// movedTo returns the attempt as the coordinator sends it to the next node.
func movedTo(w *droverv1.WantedAttempt, from *testNode) *droverv1.WantedAttempt {
	return with(groupTask(0, "count"), func(n *droverv1.WantedAttempt) {
		n.Key.Run, n.Spec.ShuffleToken = w.GetKey().GetRun()+1, w.GetSpec().GetShuffleToken()
		n.ResumeFrom, n.ResumeRun = from.address, w.GetKey().GetRun()
	})
}

func TestMoveKeepsWorkFilesAndLogs(t *testing.T) {
	a, b := twoNodes(t)
	w := startAndCheckpoint(t, a)
	ran := a.get(w).GetRunningMs()
	m := movedTo(w, a)
	b.put(m)
	s := b.awaitLevel(m, levelRunning)
	a.remove(w)
	a.await(t, w, gone)
	b.awaitCounting(m) // from 0 on, so the log was transferred
	kept, err := os.ReadFile(filepath.Join(b.attemptFolder(m), "task", "link"))
	if err != nil || string(kept) != strings.Repeat("work", 100_000) {
		t.Errorf("a file of the task: %d bytes, %v", len(kept), err)
	}
	if st, err := os.Stat(filepath.Join(b.attemptFolder(m), "task", "kept")); err != nil || st.Mode().Perm() != 0o640 {
		t.Errorf("its mode: %v, %v", st, err)
	}
	if s.GetRunningMs() < ran {
		t.Errorf("ran %d ms, on the node before %d", s.GetRunningMs(), ran)
	}
	if n := b.engine.Calls(fake.Start); n != 0 {
		t.Errorf("%d starts on the second node", n)
	}
	// And back to the first node.
	b.requestLevel(m, levelCheckpointed)
	b.awaitLevel(m, levelCheckpointed)
	back := movedTo(m, b)
	a.put(back)
	a.awaitLevel(back, levelRunning)
	a.awaitCounting(back)
	b.remove(m)
	b.await(t, m, gone)
	b.checkNothingLeft()
}

// TestMoveKeepsHoles: a task whose files have holes, or several names, takes no more of the disk after a move.
func TestMoveKeepsHoles(t *testing.T) {
	const quotaBytes, fileBytes = 1 << 20, 8 << 20
	limited := func(w *droverv1.WantedAttempt) { w.Spec.Disk = quotaBytes }
	a, b := twoNodes(t)
	b.stopDaemon()
	b.config.SampleEvery = 5 * time.Millisecond
	b.start()
	w := startWithFiles(t, a, func(task string) error {
		f, err := os.Create(filepath.Join(task, "map"))
		if err != nil {
			return err
		}
		_, err = f.WriteAt(make([]byte, 4096), fileBytes/2)
		return errors.Join(err, f.Truncate(fileBytes), f.Close(),
			os.WriteFile(filepath.Join(task, "one"), []byte(strings.Repeat("o", quotaBytes/2)), 0o600), os.Link(filepath.Join(task, "one"), filepath.Join(task, "two")))
	}, limited)
	m := with(movedTo(w, a), limited)
	b.put(m)
	b.awaitLevel(m, levelRunning)
	b.awaitCounting(m)
	poll(t, "its disk space is measured", func() bool { return b.get(m).GetDiskOccupied() > 0 })
	b.awaitCounting(m)
	s := b.get(m)
	if s.GetPhase() != running || s.GetDiskOccupied() > quotaBytes {
		t.Errorf("%s %q, %d bytes", s.GetPhase(), s.GetMessage(), s.GetDiskOccupied())
	}
	if st, err := os.Stat(filepath.Join(b.attemptFolder(m), "task", "map")); err != nil || st.Size() != fileBytes {
		t.Errorf("%v, %v", st, err)
	}
}

// damageFolder flips a bit in a file of a suspended task. Any goroutine may call it.
func damageFolder(t *testing.T, n *testNode, w *droverv1.WantedAttempt) {
	t.Helper()
	file := filepath.Join(n.attemptFolder(w), "task", "kept")
	b, err := os.ReadFile(file)
	if err != nil {
		t.Error(err)
		return
	}
	b[len(b)/2] ^= 4
	if err := os.WriteFile(file, b, 0); err != nil {
		t.Error(err)
	}
}

// TestDamagedFolderIsNotResumed: neither where it was suspended nor where it was moved to.
func TestDamagedFolderIsNotResumed(t *testing.T) {
	a, b := twoNodes(t)
	w := startAndCheckpoint(t, a)
	damageFolder(t, a, w)
	a.requestLevel(w, levelRunning)
	s := a.awaitRefusal(w, levelRunning)
	if s.GetLevel() != levelCheckpointed || !strings.Contains(s.GetLevelNote(), `"task/kept" is not what it was`) {
		t.Errorf("at %s: %q", s.GetLevel(), s.GetLevelNote())
	}
	damageFolder(t, a, w) // and back
	b.engine.Inject(fake.Fault{Verb: fake.Restore, Nth: 1, Err: fault.New(fault.Unavailable, "not now")})
	m := movedTo(w, a)
	b.stopDaemon()
	var once sync.Once
	b.config.Driver = restoreObserver{b.engine.Driver(), func(string) { once.Do(func() { damageFolder(t, b, m) }) }}
	b.start()
	b.put(m)
	s = b.awaitRefusal(m, levelRunning)
	if s.GetLevel() != levelCheckpointed || !strings.Contains(s.GetLevelNote(), `"task/kept" is not what it was`) {
		t.Errorf("moved, at %s: %q", s.GetLevel(), s.GetLevelNote())
	}
}

func TestMoveRefused(t *testing.T) {
	for name, c := range map[string]struct {
		harm func(t *testing.T, a *testNode, w, m *droverv1.WantedAttempt)
		note string
	}{
		"the holder does not have it": {func(t *testing.T, a *testNode, w, _ *droverv1.WantedAttempt) {
			a.remove(w)
			a.await(t, w, gone)
		}, "does not have the dump"},
		"the asker has another token": {func(_ *testing.T, _ *testNode, _, m *droverv1.WantedAttempt) { m.Spec.ShuffleToken = "guess" }, "token"},
		"the dump is damaged": {func(t *testing.T, a *testNode, w, _ *droverv1.WantedAttempt) {
			if err := os.WriteFile(filepath.Join(a.config.Data, "images", idOf(w), "1", "dump.json"), []byte("{}"), 0o600); err != nil {
				t.Fatal(err)
			}
		}, "damaged"},
		"a file of the task is damaged": {func(t *testing.T, a *testNode, w, _ *droverv1.WantedAttempt) {
			damageFolder(t, a, w)
		}, `"task/kept" is not what it was`},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := twoNodes(t)
			w := startAndCheckpoint(t, a)
			m := movedTo(w, a)
			c.harm(t, a, w, m)
			b.put(m)
			s := b.awaitRefusal(m, levelRunning)
			if s.GetLevel() != levelCheckpointed || !strings.Contains(s.GetLevelNote(), c.note) || s.GetPhase() != running {
				t.Errorf("%s at %s: %q", s.GetPhase(), s.GetLevel(), s.GetLevelNote())
			}
			if n := b.engine.Calls(fake.Start) + b.engine.Calls(fake.Create); n != 0 {
				t.Errorf("it was started again")
			}
			b.remove(m)
			b.await(t, m, gone)
			b.checkNothingLeft()
		})
	}
}

// TestMoveToANodeThatCannotPrepare: what the target cannot do for an attempt with a dump ends neither it nor its dump,
// with which another node goes on. The same holds for its own node.
func TestMoveToANodeThatCannotPrepare(t *testing.T) {
	digest := fmt.Sprintf("sha256:%x", sha256.Sum256([]byte("an image")))
	withImage := func(w *droverv1.WantedAttempt) {
		w.Spec.Image = &droverv1.ImageRef{Kind: "oci-archive", Digest: digest}
	}
	noImport := func(n *testNode) {
		n.engine.Inject(fake.Fault{Verb: fake.Import, Err: errors.New("no space left on device")})
	}
	for name, c := range map[string]struct {
		harm func(t *testing.T, target *testNode)
		heal func(target *testNode)
		note string
		own  bool // the node that has the dump is the target
	}{
		"the image cannot be unpacked": {func(_ *testing.T, b *testNode) { noImport(b) }, func(b *testNode) { b.engine.Heal() }, "get image: no space left", false},
		"nor on its own node": {func(t *testing.T, a *testNode) {
			if err := a.engine.Driver().Remove(t.Context(), digest); err != nil {
				t.Fatal(err)
			}
			noImport(a)
			a.engine.Inject(fake.Fault{Verb: fake.Restore, Nth: 1, Err: fault.New(fault.NotFound, "no image")})
		}, func(a *testNode) { a.engine.Heal() }, "get image: no space left", true},
		"its user may run nothing there": {func(t *testing.T, b *testNode) {
			if b.config.AllowRoot = false; os.Geteuid() != 0 {
				t.Skip("not proved here: that a node without -allow-root refuses a task that moves to it; only root asks for it")
			}
			b.stopDaemon()
			b.start()
		}, nil, "make folder: tenant", false},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := twoNodes(t)
			for _, n := range []*testNode{a, b} {
				n.blobs[digest] = []byte("an image")
			}
			w := startAndCheckpoint(t, a, withImage)
			target, m := b, with(movedTo(w, a), withImage)
			if c.own {
				target, m = a, w
			}
			c.harm(t, target)
			target.put(m)
			if c.own {
				target.requestLevel(m, levelRunning)
			}
			s := target.awaitRefusal(m, levelRunning)
			if s.GetLevel() != levelCheckpointed || s.GetPhase() != running || !strings.Contains(s.GetLevelNote(), c.note) {
				t.Errorf("%s at %s: %q", s.GetPhase(), s.GetLevel(), s.GetLevelNote())
			}
			if !pathExists(filepath.Join(a.config.Data, "images", idOf(w), "1", "dump.json")) || a.get(w).GetLevel() != levelCheckpointed {
				t.Errorf("the dump is gone: %v", a.get(w))
			}
			if c.heal == nil {
				return
			}
			c.heal(target)
			target.requestLevel(m, levelCheckpointed)
			poll(t, "no refusal", func() bool { return target.get(m).GetTargetRefused() == 0 })
			target.requestLevel(m, levelRunning)
			target.awaitLevel(m, levelRunning)
			target.awaitCounting(m)
		})
	}
}

// A node whose certificate was stolen must not fill the disks of the others.
func TestDumpsHaveASize(t *testing.T) {
	d := &daemon{cfg: Config{Data: t.TempDir(), Info: &droverv1.NodeInfo{}}}
	fetched := t.TempDir()
	f, err := os.Create(filepath.Join(fetched, "pages-1.img"))
	if err != nil {
		t.Fatal(err)
	}
	var disk unix.Statfs_t
	if err := unix.Statfs(d.cfg.Data, &disk); err != nil {
		t.Fatal(err)
	}
	tooMuch := int64(disk.Bavail)*disk.Bsize + 64<<30 // more than is free here, whatever is removed meanwhile
	if err := errors.Join(f.Truncate(tooMuch), f.Close()); err != nil {
		t.Fatal(err)
	}
	holes := []dump.File{{Bytes: math.MaxInt64, Ranges: []dump.Range{{From: 0, To: 1 << 20}}}, {Bytes: 1 << 40, HardLink: "task/x"}}
	if err := d.checkDumpSize(&dump.Manifest{Files: holes}, &droverv1.TaskSpec{Demand: &droverv1.Resources{}}); err != nil {
		t.Errorf("holes: %v", err)
	}
	for _, c := range []struct {
		files   []dump.File
		memory  int64
		fetched string // by an earlier try
		want    error
	}{
		{[]dump.File{{Bytes: 64 << 20}, {Bytes: 1 << 20}}, 64 << 20, "", nil},
		{[]dump.File{{Bytes: 1 << 30}, {Bytes: 1 << 30}}, 64 << 20, "", fault.Exhausted},
		{[]dump.File{{Bytes: math.MaxInt64}, {Bytes: math.MaxInt64}, {Bytes: 2}}, 64 << 20, "", fault.Exhausted},
		{[]dump.File{{Bytes: tooMuch}, {Bytes: 1 << 20}}, tooMuch, "", fault.Exhausted},
		{[]dump.File{{Bytes: tooMuch}, {Bytes: 1 << 20}}, tooMuch, fetched, nil},
		{[]dump.File{{Bytes: tooMuch}, {Bytes: 1 << 20}}, 64 << 20, fetched, fault.Exhausted},
	} {
		spec := &droverv1.TaskSpec{Demand: &droverv1.Resources{Memory: c.memory}, Disk: 1 << 20}
		for i := range c.files {
			c.files[i].SHA256 = "of all of it"
		}
		if err := d.checkDumpSize(&dump.Manifest{Files: c.files}, spec, filepath.Join(fetched, "none"), c.fetched); !errors.Is(err, c.want) {
			t.Errorf("%v: %v", c.files, err)
		}
	}
}

// usedKernel counts a usage of its own for each attempt.
type usedKernel struct {
	*levelKernel
	used *droverv1.Usage
}

func (k *usedKernel) Usage(id string) (*droverv1.Usage, *droverv1.Resources, OOMKills, error) {
	_, occupied, kills, err := k.levelKernel.Usage(id)
	return proto.CloneOf(k.used), occupied, kills, err
}

// TestMoveKeepsUsage: what an attempt used before a move counts after it, also if the daemon that has the dump was
// started again in between.
func TestMoveKeepsUsage(t *testing.T) {
	first := &droverv1.Usage{CpuMs: 1000, MemoryPeak: 9 << 20, ReadBytes: 100, WriteBytes: 200, CpuThrottledMs: 30}
	second := &droverv1.Usage{CpuMs: 10, MemoryPeak: 1 << 20, ReadBytes: 1, WriteBytes: 2, CpuThrottledMs: 3}
	both := &droverv1.Usage{CpuMs: 1010, MemoryPeak: 9 << 20, ReadBytes: 101, WriteBytes: 202, CpuThrottledMs: 33}
	a, b := twoNodes(t)
	for n, used := range map[*testNode]*droverv1.Usage{a: first, b: second} {
		n.stopDaemon()
		n.config.Enforcer, n.config.SampleEvery = &usedKernel{n.config.Enforcer.(*levelKernel), used}, 5*time.Millisecond
		n.start()
	}
	w := startAndCheckpoint(t, a)
	a.stopDaemon()
	a.config.Driver = a.engine.Driver()
	a.mu.Lock()
	clear(a.seen)
	a.mu.Unlock()
	a.start()
	poll(t, "the usage after a restart", func() bool { return proto.Equal(a.get(w).GetUsage(), first) })
	m := movedTo(w, a)
	b.engine.Inject(fake.Fault{Verb: fake.Restore, Err: fault.New(fault.Unavailable, "not now")})
	b.put(m)
	poll(t, "a restore", func() bool { return b.engine.Calls(fake.Restore) > 0 })
	b.stopDaemon() // before it came to a restore, after the next two lines
	b.changeRecord(m, func(r *store.Record) { r.PriorUsage = store.PriorUsage{} })
	if err := b.config.Enforcer.Remove(t.Context(), idOf(m)); err != nil {
		t.Fatal(err)
	}
	b.engine.Heal()
	b.config.Driver = b.engine.Driver()
	b.start()
	b.awaitLevel(m, levelRunning)
	poll(t, "the sum of both nodes", func() bool { return proto.Equal(b.get(m).GetUsage(), both) })
	b.requestLevel(m, levelCheckpointed) // and here its cgroup counts on
	b.awaitLevel(m, levelCheckpointed)
	b.requestLevel(m, levelRunning)
	b.awaitLevel(m, levelRunning)
	b.awaitCounting(m)
	if got := b.get(m).GetUsage(); !proto.Equal(got, both) {
		t.Errorf("after another checkpoint: %v", got)
	}
}

// TestMoveFromANodeWhoseEngineHangs: a daemon that was started again serves its dumps before its engine answers.
func TestMoveFromANodeWhoseEngineHangs(t *testing.T) {
	a, b := twoNodes(t)
	w := startAndCheckpoint(t, a)
	a.stopDaemon()
	d := &hangingDriver{Driver: a.engine.Driver(), release: make(chan struct{})}
	d.hang.Store(true)
	defer close(d.release)
	a.config.Driver, a.config.adoptLimit = d, 50*time.Millisecond
	a.start()
	m := movedTo(w, a)
	b.put(m)
	poll(t, "the task on the other node", func() bool {
		s := b.get(m)
		if s.GetTargetRefused() != 0 {
			t.Fatal(s.GetLevelNote())
		}
		return s.GetPhase() == running && s.GetLevel() == levelRunning
	})
	b.awaitCounting(m)
}

// TestMoveOutlastsARestartOfItsSource: the daemon that has the dump is away for longer than the first tries take.
func TestMoveOutlastsARestartOfItsSource(t *testing.T) {
	a, b := twoNodes(t)
	w := startAndCheckpoint(t, a)
	a.stopDaemon()
	m := movedTo(w, a)
	b.put(m)
	poll(t, "as many tries as of other errors, or a refusal", func() bool {
		n := 0
		for _, s := range b.get(m).GetLevelSteps() {
			if s.GetStep() == task.FetchDump.String() && s.GetError() != "" {
				n++
			}
		}
		return n >= maxFetchDumpTries || b.get(m).GetTargetRefused() != 0
	})
	if s := b.get(m); s.GetTargetRefused() != 0 {
		t.Fatalf("refused: %q", s.GetLevelNote())
	}
	a.config.Driver = a.engine.Driver()
	if a.start(); a.address != m.GetResumeFrom() {
		t.Skip("not proved here: that a move goes on when its source is back; the path of the temporary folder is too long for its socket")
	}
	b.awaitLevel(m, levelRunning)
	b.awaitCounting(m)
}

// A daemon that dies during a move completes it after a restart.
func TestMoveAcrossRestart(t *testing.T) {
	a, b := twoNodes(t)
	w := startAndCheckpoint(t, a)
	b.engine.Inject(fake.Fault{Verb: fake.Restore, Nth: 1, Err: fault.New(fault.Unavailable, "not now")})
	m := movedTo(w, a)
	b.put(m)
	poll(t, "the dump on the second node", func() bool { return b.engine.Calls(fake.Restore) > 0 })
	b.stopDaemon()
	b.config.Driver = b.engine.Driver()
	b.start()
	b.awaitLevel(m, levelRunning)
	b.awaitCounting(m)
}

// TestMovedAttemptsBringTheSameProgram moves two attempts to a node that has not the program with which they were
// started: each fetches it for itself.
func TestMovedAttemptsBringTheSameProgram(t *testing.T) {
	a, b := twoNodes(t)
	first := startAndCheckpoint(t, a)
	second := with(groupTask(1, "count"), func(w *droverv1.WantedAttempt) { w.Spec.ShuffleToken = "secret" })
	a.put(second)
	a.await(t, second, running)
	a.awaitCounting(second)
	a.requestLevel(second, levelCheckpointed)
	a.awaitLevel(second, levelCheckpointed)
	programs, err := filepath.Glob(filepath.Join(b.config.Data, "harness", "*"))
	if err != nil || len(programs) == 0 {
		t.Fatalf("%v, %v", programs, err)
	}
	for _, p := range programs {
		if err := os.RemoveAll(p); err != nil {
			t.Fatal(err)
		}
	}
	moves := []*droverv1.WantedAttempt{movedTo(first, a), with(groupTask(1, "count"), func(n *droverv1.WantedAttempt) {
		n.Key.Run, n.Spec.ShuffleToken = second.GetKey().GetRun()+1, "secret"
		n.ResumeFrom, n.ResumeRun = a.address, second.GetKey().GetRun()
	})}
	for _, m := range moves {
		b.put(m)
	}
	for _, m := range moves {
		for _, s := range b.awaitLevel(m, levelRunning).GetLevelSteps() {
			if s.GetError() != "" {
				t.Errorf("%s: %s", s.GetStep(), s.GetError())
			}
		}
	}
	if left, err := filepath.Glob(filepath.Join(b.config.Data, "harness", "*.*")); err != nil || len(left) > 0 {
		t.Errorf("%v are left, %v", left, err)
	}
}

// TestInstallFetched: the second of two attempts leaves the program of the first as it is.
func TestInstallFetched(t *testing.T) {
	dir := t.TempDir()
	program := filepath.Join(dir, "ab")
	for _, name := range []string{"first", "second"} {
		fetched := program + ".of-" + name
		if err := os.Mkdir(fetched, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(fetched, "drover"), []byte(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := installFetched(fetched, program); err != nil {
			t.Fatal(err)
		}
		if pathExists(fetched) {
			t.Errorf("%s is left", fetched)
		}
	}
	if b, err := os.ReadFile(filepath.Join(program, "drover")); err != nil || string(b) != "first" {
		t.Errorf("the program is that of the %s, %v", b, err)
	}
}

// A daemon that has just started has not yet found what an earlier one left: it denies no dump, without which the task
// would begin anew.
func TestAStartingDaemonDeniesNoDump(t *testing.T) {
	table := newAttemptTable(store.Identity{}, 1)
	h := newDumpSource(table)
	defer h.close()
	if _, err := h.Dump("1.0.0.1.1"); !errors.Is(err, fault.Unavailable) {
		t.Errorf("while the daemon starts: %v", err)
	}
	table.setAdopted()
	if _, err := h.Dump("1.0.0.1.1"); !errors.Is(err, fault.NotFound) {
		t.Errorf("afterwards: %v", err)
	}
}

// TestManifestOfALargeDump: the building of a manifest does not end with the request that began it, and is not
// remembered for ever.
func TestManifestOfALargeDump(t *testing.T) {
	dir := t.TempDir()
	dirs := map[dump.Root]string{dump.Image: filepath.Join(dir, "image"), dump.Folder: filepath.Join(dir, "folder"), dump.Harness: filepath.Join(dir, "harness")}
	for _, d := range dirs {
		if err := os.Mkdir(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		h := newDumpSource(newAttemptTable(store.Identity{}, 1))
		defer h.close()
		left, leave := context.WithCancel(t.Context())
		leave()
		served := &servableDump{Manifest: dump.Manifest{RanNS: 7}}
		if _, err := h.manifest(left, dump.Version, "a", served, dirs); err != nil && !errors.Is(err, fault.Unavailable) {
			t.Errorf("a request that was too short: %v", err)
		}
		m, err := h.manifest(t.Context(), dump.Version, "a", served, dirs)
		if err != nil || m.RanNS != 7 {
			t.Fatalf("%+v, %v", m, err)
		}
		if again, err := h.manifest(t.Context(), dump.Version, "a", served, dirs); err != nil || again != m {
			t.Errorf("it was built twice: %v", err)
		}
		if err := errors.Join(os.WriteFile(filepath.Join(dirs[dump.Harness], "large"), nil, 0o600), os.Truncate(filepath.Join(dirs[dump.Harness], "large"), 1<<43)); err != nil {
			t.Fatal(err)
		}
		l, err := h.startBuild(dump.Version, "b", served, dirs)
		if err != nil {
			t.Fatal(err)
		}
		h.drop("b")
		if <-l.built; !errors.Is(l.err, context.Canceled) {
			t.Errorf("the attempt has no dump any more, and its manifest: %v", l.err)
		}
		time.Sleep(fetchDumpLimit + time.Second) // of the bubble
		h.mu.Lock()
		defer h.mu.Unlock()
		if len(h.manifests) > 0 {
			t.Error("it is remembered for ever")
		}
	})
}
