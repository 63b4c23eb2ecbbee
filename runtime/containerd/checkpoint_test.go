package containerd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/drover-run/drover/cgroups"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/internal/sleep"
	"github.com/drover-run/drover/runtime"
)

func TestManifestProvesAWholeDump(t *testing.T) {
	ctx := context.Background()
	for _, c := range []struct {
		name   string
		damage func(dir string) error
	}{
		{"nothing is damaged", nil},
		{"a file is cut", func(d string) error { return os.Truncate(filepath.Join(d, "image/pages-1.img"), 999) }},
		{"a byte differs", func(d string) error {
			return os.WriteFile(filepath.Join(d, "image/pages-1.img"), append(make([]byte, 999), 1), 0o600)
		}},
		{"a file is missing", func(d string) error { return os.Remove(filepath.Join(d, "image/core-1.img")) }},
		{"there is no manifest", func(d string) error { return os.Remove(filepath.Join(d, manifestName)) }},
		{"the manifest is cut", func(d string) error { return os.Truncate(filepath.Join(d, manifestName), 20) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			if err := os.Mkdir(filepath.Join(dir, imageDir), 0o700); err != nil {
				t.Fatal(err)
			}
			for name, size := range map[string]int{"pages-1.img": 1000, "core-1.img": 10} {
				if err := os.WriteFile(filepath.Join(dir, imageDir, name), make([]byte, size), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if err := writeManifest(ctx, dir, "c-1", newFollower(dir)); err != nil {
				t.Fatal(err)
			}
			if c.damage != nil {
				if err := c.damage(dir); err != nil {
					t.Fatal(err)
				}
			}
			m, err := readManifest(dir)
			if err == nil {
				err = errors.Join(m.checkSizes(dir), m.verify(ctx, dir))
			}
			if c.damage == nil && (err != nil || m.ID != "c-1") || c.damage != nil && !errors.Is(err, fault.Corrupt) {
				t.Errorf("got %v", err)
			}
		})
	}
}

// A dump whose manifest finds the disk full is whole: it is proven when there is room. What the disk did not take of the
// dump itself is lost.
func TestManifestWaitsForAFullDisk(t *testing.T) {
	dir := t.TempDir()
	image, unsaved := filepath.Join(dir, imageDir), filepath.Join(dir, manifestName+".new")
	if err := os.Mkdir(image, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(image, "core-1.img"), []byte("abc"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/dev/full", unsaved); err != nil {
		t.Fatal(err)
	}
	err := writeManifest(t.Context(), dir, "c-1", newFollower(dir))
	if !errors.Is(err, unix.ENOSPC) || !errors.Is(err, fault.Unavailable) {
		t.Errorf("on a full disk: %v, want fault.Unavailable", err)
	}
	if err := os.Remove(unsaved); err != nil {
		t.Fatal(err)
	}
	if err := writeManifest(t.Context(), dir, "c-1", newFollower(dir)); err != nil {
		t.Fatal(err)
	}
	if m, err := readManifest(dir); err != nil || m.ID != "c-1" || len(m.Files) != 1 {
		t.Errorf("%+v, %v", m, err)
	}
	if err := os.RemoveAll(image); err != nil {
		t.Fatal(err)
	}
	if err := writeManifest(t.Context(), dir, "c-1", newFollower(dir)); err == nil || errors.Is(err, fault.Unavailable) {
		t.Errorf("without the dump's files: %v", err)
	}
}

// A dump of an earlier version is verified by the sums in its manifest.
func TestManifestsOfEarlierVersionsAreRead(t *testing.T) {
	for name, old := range map[string]string{
		"version 1": `{"version":1,"id":"c-1","files":[{"name":"core-1.img","bytes":3,"sha256":"ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"}]}`,
		"version 2": `{"version":2,"id":"c-1","files":[{"name":"core-1.img","bytes":3,"crc32c":"364b3fb7"}]}`,
	} {
		for text, whole := range map[string]bool{"abc": true, "abd": false} {
			dir := t.TempDir()
			if err := errors.Join(os.Mkdir(filepath.Join(dir, imageDir), 0o700), os.WriteFile(filepath.Join(dir, manifestName), []byte(old), 0o600),
				os.WriteFile(filepath.Join(dir, imageDir, "core-1.img"), []byte(text), 0o600)); err != nil {
				t.Fatal(err)
			}
			m, err := readManifest(dir)
			if err == nil {
				err = m.verify(t.Context(), dir)
			}
			if whole && err != nil || !whole && !errors.Is(err, fault.Corrupt) {
				t.Errorf("%s, %q: %v", name, text, err)
			}
		}
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, manifestName), []byte(`{"version":5,"id":"c-1"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := readManifest(dir); !errors.Is(err, fault.Unsupported) {
		t.Errorf("a version to come: %v", err)
	}
}

// A container is dumped and restored three times in a row, continues counting, and
// keeps its limits.
func TestCheckpointChain(t *testing.T) {
	b := newTestbed(t)
	d := b.connect(t)
	ctx, cancel := context.WithTimeout(context.Background(), 10*verbLimit)
	defer cancel()
	s := b.spec(t, d, "chain", "sleep")
	s.Args = []string{"prog", countMarker}
	s.Env = []string{"GODEBUG=multipathtcp=0"}
	if err := errors.Join(d.Create(ctx, s), d.Start(ctx, s.ID)); err != nil {
		t.Fatal(err)
	}
	defer d.Delete(context.WithoutCancel(ctx), s.ID)
	log := filepath.Join(s.Log.Dir, "stdout.log")
	reached := func(n int) {
		t.Helper()
		want := countLine(n)
		for end := time.Now().Add(verbLimit); ; sleep.For(ctx, 20*time.Millisecond) {
			text, _ := os.ReadFile(log)
			if strings.Contains(string(text), want) {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("it never counted to %d; log:\n%.300s", n, text)
			}
		}
	}
	reached(20)
	for round := 1; round <= 3; round++ {
		dir := filepath.Join(b.data, "dump", string(rune('a'+round)))
		old := s
		g, err := b.groups.Open(s.ID)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := g.Freeze(ctx); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		if err := d.Checkpoint(ctx, s.ID, dir); err != nil {
			t.Fatal(err)
		}
		took := time.Since(start)
		if err := d.Checkpoint(ctx, s.ID, dir); err != nil {
			t.Errorf("Checkpoint again: %v", err)
		}
		if left := b.leftovers(t, d, s.ID); len(left) > 0 {
			t.Errorf("left after the dump: %v", left)
		}
		if round == 2 { // as after a move: another container name and cgroup
			s = b.spec(t, d, "chain-moved", "sleep")
			s.Args, s.Env, s.Log, s.Mounts, s.Hostname = old.Args, old.Env, old.Log, old.Mounts, old.Hostname
			defer d.Delete(context.WithoutCancel(ctx), s.ID)
			if g, err = b.groups.Open(s.ID); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := b.groups.Create(s.ID, b.limits()); err != nil { // the leaf disappeared with the container
			t.Fatal(err)
		}
		before, err := os.ReadFile(log)
		if err != nil {
			t.Fatal(err)
		}
		if round == 1 {
			b.checkRefusesDamaged(t, d, s, dir)
		}
		start = time.Now()
		if err := d.RestoreStopped(ctx, s, dir); err != nil {
			t.Fatal(err)
		}
		b.checkStopped(t, d, g, log, before)
		if err := d.Continue(ctx, s.ID); err != nil {
			t.Fatal(err)
		}
		t.Logf("round %d: dumped in %s, restored in %s, after %d lines", round, took, time.Since(start), strings.Count(string(before), "\n"))
		if err := d.Restore(ctx, s, dir); err != nil {
			t.Errorf("Restore again: %v", err)
		}
		reached(strings.Count(string(before), "\n") + 20)
		if got, err := g.Limits(); err != nil || !got.Equal(b.limits()) {
			t.Errorf("limits after the restore: %s, %v", got, err)
		}
		if pids, err := g.Processes(cgroups.Container); err != nil || len(pids) == 0 {
			t.Errorf("the restored processes are not in the leaf: %v, %v", pids, err)
		} else if routes, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/fib_trie", pids[0])); err != nil || !strings.Contains(string(routes), "127.0.0.1") {
			t.Errorf("the loopback interface is down after the restore: %v", err)
		}
		if left := b.leftovers(t, d, old.ID); old.ID != s.ID && len(left) > 0 {
			t.Errorf("restored under another name, and of the old one there is %v", left)
		}
		if err := os.RemoveAll(dir); err != nil { // later dumps must not depend on it
			t.Fatal(err)
		}
	}
	if err := d.Kill(ctx, s.ID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if st, err := d.Wait(ctx, s.ID); err != nil || st.ExitCode != 137 {
		t.Errorf("%+v, %v", st, err)
	}
	text, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	for i, line := range strings.Split(strings.TrimSuffix(string(text), "\n"), "\n") {
		if line+"\n" != countLine(i) {
			t.Fatalf("line %d of the log is %q", i, line)
		}
	}
	if err := d.Delete(ctx, s.ID); err != nil {
		t.Error(err)
	}
	if left := b.leftovers(t, d, s.ID); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// checkRefusesDamaged changes one byte of a dump's memory, checks that Restore
// refuses it and leaves nothing, and changes the byte back.
func (b *testbed) checkRefusesDamaged(t *testing.T, d *Driver, s runtime.Spec, dir string) {
	t.Helper()
	f, err := os.OpenFile(filepath.Join(dir, imageDir, "pages-1.img"), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	one := make([]byte, 1)
	flip := func() {
		if _, err := f.ReadAt(one, st.Size()/2); err != nil {
			t.Fatal(err)
		}
		one[0] ^= 0x10
		if _, err := f.WriteAt(one, st.Size()/2); err != nil {
			t.Fatal(err)
		}
	}
	flip()
	if err := d.Restore(t.Context(), s, dir); !errors.Is(err, fault.Corrupt) || !strings.Contains(err.Error(), "pages-1.img: xxh64") {
		t.Errorf("a dump with a changed byte: %v, want fault.Corrupt with the file and its sum", err)
	}
	if all, err := d.List(t.Context()); err != nil || len(all) > 0 {
		t.Errorf("left by a restore that was refused: %+v, %v", all, err)
	}
	flip()
}

// If the disk becomes full during a dump, the task continues unharmed, and the error
// is one that allows a retry.
// checkStopped checks that every process of a restored container is stopped and
// that it has written nothing since its dump.
func (b *testbed) checkStopped(t *testing.T, d *Driver, g *cgroups.Group, log string, before []byte) {
	t.Helper()
	pids, err := g.Processes(cgroups.Container)
	if err != nil || len(pids) == 0 {
		t.Fatalf("processes %v, %v", pids, err)
	}
	for _, pid := range pids {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil || !strings.Contains(string(stat), ") T ") {
			t.Errorf("process %d after RestoreStopped: %q, %v", pid, stat, err)
		}
	}
	if now, err := os.ReadFile(log); err != nil || string(now) != string(before) {
		t.Errorf("it wrote %d bytes before Continue, %v", len(now)-len(before), err)
	}
}

func TestCheckpointOnAFullDiskLeavesTheTaskUnharmed(t *testing.T) {
	b := newTestbed(t)
	d := b.connect(t)
	ctx, cancel := context.WithTimeout(context.Background(), 5*verbLimit)
	defer cancel()
	small := filepath.Join(b.data, "small")
	if err := os.Mkdir(small, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", small, "tmpfs", 0, "size=1m"); err != nil {
		t.Fatal(err)
	}
	defer unix.Unmount(small, unix.MNT_DETACH)
	s := b.spec(t, d, "full-disk", "sleep")
	s.Args, s.Env = []string{"prog", countMarker}, []string{"GODEBUG=multipathtcp=0"}
	if err := errors.Join(d.Create(ctx, s), d.Start(ctx, s.ID)); err != nil {
		t.Fatal(err)
	}
	defer d.Delete(context.WithoutCancel(ctx), s.ID)
	log := filepath.Join(s.Log.Dir, "stdout.log")
	lines := func() int {
		text, err := os.ReadFile(log)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
		return strings.Count(string(text), "\n")
	}
	counts := func() {
		t.Helper()
		for from, end := lines(), time.Now().Add(verbLimit); lines() < from+5; sleep.For(ctx, 20*time.Millisecond) {
			if time.Now().After(end) {
				t.Fatal("it does not count on")
			}
		}
	}
	counts()
	g, err := b.groups.Open(s.ID)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := g.Freeze(ctx); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(small, "dump")
	err = d.Checkpoint(ctx, s.ID, dir)
	t.Log(err)
	if !errors.Is(err, fault.Exhausted) {
		t.Errorf("got %v, want fault.Exhausted", err)
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the dump folder is there: %v", err)
	}
	if err := g.Thaw(ctx); err != nil {
		t.Fatal(err)
	}
	counts()
	if err := unix.Mount("", small, "", unix.MS_REMOUNT, "size=64m"); err != nil {
		t.Fatal(err)
	}
	if _, err := g.Freeze(ctx); err != nil {
		t.Fatal(err)
	}
	if err := d.Checkpoint(ctx, s.ID, dir); err != nil {
		t.Errorf("with room: %v", err)
	}
	if left := b.leftovers(t, d, s.ID); len(left) > 0 {
		t.Errorf("left after the dump: %v", left)
	}
}

func TestDumpErrorClass(t *testing.T) {
	for said, want := range map[string]error{
		": criu: (00.07) Error (criu/page-xfer.c:276): page-xfer: Unable to spice data: No space left on device": fault.Exhausted,
		": criu: Error (criu/image.c:1): Can't write img: Disk quota exceeded":                                   fault.Exhausted,
		": criu: Error (criu/sk-tcp.c:1): Connected TCP socket, consider using --tcp-established":                fault.Unsupported,
		": criu: (10.01) Error (criu/seize.c:640): Unseizable non-zombie 3642 found, state D, err -1/4":          fault.Conflict,
		": criu: (10.00) Error (criu/seize.c:1051): Timeout reached. Try to interrupt: 0":                        fault.Conflict,
		": criu: (00.10) Error (compel/src/lib/infect.c:330): Can't seize task 77":                               fault.Conflict,
		"": fault.Unsupported,
	} {
		if got := dumpErrorClass(said); got != want {
			t.Errorf("%q: %v, want %v", said, got, want)
		}
	}
}

func TestProcessOutsideItsCgroupIsDetected(t *testing.T) {
	cfg := fakeMachine(t)
	for name, c := range map[string]struct {
		text, want string
		ok         bool
	}{
		"where it belongs":            {"0::/drover/tasks/1.0.0.1.2/container\n", "/drover/tasks/1.0.0.1.2/container", true},
		"in the cgroup of its dump":   {"0::/drover/tasks/1.0.0.1.1/container\n", "/drover/tasks/1.0.0.1.2/container", false},
		"one of which that is a part": {"0::/drover/tasks/1.0.0.1.23/container\n", "/drover/tasks/1.0.0.1.2", false},
		"beside cgroups v1":           {"4:cpu:/a\n0::/a/c\n", "/a/c", true},
		"where nothing was asked for": {"", "", true},
	} {
		t.Run(name, func(t *testing.T) {
			put(t, filepath.Join(cfg.proc, "7/cgroup"), c.text)
			if err := cfg.checkCgroup(7, c.want); (err == nil) != c.ok {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestFailedDumpLeavesTaskRunning(t *testing.T) {
	b := newTestbed(t)
	d := b.connect(t)
	ctx, cancel := context.WithTimeout(context.Background(), 5*verbLimit)
	defer cancel()
	s := b.spec(t, d, "no-dump", "sleep")
	s.Args = []string{"prog", countMarker, "socket"}
	if err := errors.Join(d.Create(ctx, s), d.Start(ctx, s.ID)); err != nil {
		t.Fatal(err)
	}
	defer d.Delete(context.WithoutCancel(ctx), s.ID)
	dir := filepath.Join(b.data, "dump")
	for end := time.Now().Add(verbLimit); ; sleep.For(ctx, 20*time.Millisecond) {
		if text, _ := os.ReadFile(filepath.Join(s.Log.Dir, "stdout.log")); strings.Contains(string(text), countLine(3)) {
			break
		}
		if time.Now().After(end) {
			t.Fatal("it does not count")
		}
	}
	err := d.Checkpoint(ctx, s.ID, dir)
	if !errors.Is(err, fault.Unsupported) || !strings.Contains(err.Error(), "criu: ") {
		t.Errorf("got %v, want fault.Unsupported with criu's reason", err)
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the dump folder is there: %v", err)
	}
	if all, err := d.List(ctx); err != nil || !isRunning(all, s.ID) {
		t.Errorf("it does not run on: %+v, %v", all, err)
	}
	if err := d.Restore(ctx, runtime.Spec{ID: "x"}, dir); !errors.Is(err, fault.Corrupt) {
		t.Errorf("Restore without a dump: %v", err)
	}
}

// Where the shim's answer to a dump is lost, as when containerd is restarted, criu may have ended the
// container with a complete dump: it is kept for the next try. What criu refuses is removed.
func TestFailedDumpIsKeptOnlyIfTheAnswerIsLost(t *testing.T) {
	ended, end := context.WithCancel(t.Context())
	end()
	for name, c := range map[string]struct {
		ctx   context.Context
		err   error
		log   string // its last line
		class error
		kept  bool
	}{
		"containerd restarted":                        {t.Context(), status.Error(codes.Unavailable, "error reading from server: EOF"), "as it is", fault.Unavailable, true},
		"the shim hung up":                            {t.Context(), status.Error(codes.Unknown, "ttrpc: closed"), "as it is", fault.Unavailable, true},
		"the daemon stops":                            {ended, status.Error(codes.Canceled, "context canceled"), "as it is", context.Canceled, true},
		"criu refused":                                {t.Context(), status.Error(codes.Unknown, "criu failed: type NOTIFY errno 0"), "as it is", fault.Unsupported, false},
		"the log is cut short":                        {t.Context(), nil, "as it is", nil, true}, // as by a full disk: the shim's success is a proof
		"the log says success":                        {t.Context(), status.Error(codes.Unknown, "runc: cannot delete"), dumpedLine, nil, true},
		"an answer is lost, and the log says success": {t.Context(), status.Error(codes.Unavailable, "error reading from server: EOF"), dumpedLine, nil, true},
	} {
		dir := filepath.Join(t.TempDir(), "dump")
		put(t, filepath.Join(dir, workDir, dumpLog), "(00.1) "+c.log+"\n")
		if err := dumpError(c.ctx, "1.0.0.1.1", dir, c.err); !errors.Is(err, c.class) {
			t.Errorf("%s: %v, want %v", name, err, c.class)
		}
		if _, err := os.Lstat(dir); (err == nil) != c.kept {
			t.Errorf("%s: what there is of the dump: %v", name, err)
		}
	}
}

// TestDumpOfAnEarlierBootIsUnproven: after a loss of power the end of criu's log proves nothing, for what it had
// written was not synced.
func TestDumpOfAnEarlierBootIsUnproven(t *testing.T) {
	d := &Driver{cfg: fakeMachine(t)}
	boot := filepath.Join(d.cfg.proc, "sys/kernel/random/boot_id")
	put(t, boot, "one\n")
	c := &containerDump{d, "a", t.TempDir()}
	put(t, filepath.Join(c.dir, workDir, dumpLog), "(00.1) "+dumpedLine+"\n")
	if !c.isOfThisBoot() {
		t.Error("a dump that an earlier version has begun is refused")
	}
	put(t, filepath.Join(c.dir, workDir, bootFile), "one\n")
	if !c.isOfThisBoot() {
		t.Error("a dump of this boot is refused")
	}
	put(t, boot, "two\n")
	if c.isOfThisBoot() {
		t.Error("a dump of an earlier boot is taken for complete")
	}
	put(t, filepath.Join(c.dir, workDir, bootFile), "") // as a file may be after a loss of power
	if c.isOfThisBoot() {
		t.Error("a dump that has lost its boot is taken for complete")
	}
}
