package containerd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/drover-run/drover/cgroups"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/internal/sleep"
	"github.com/drover-run/drover/runtime"
	"github.com/drover-run/drover/runtime/runtimetest"
)

func (b *testbed) subject(t *testing.T, spec func(*testing.T, *Driver, string, ...string) runtime.Spec) runtimetest.Subject {
	d := b.connect(t)
	return runtimetest.Subject{
		Connect:     func(*testing.T) runtime.Driver { d = b.connect(t); return d }, // closed after the suite's clean-up
		Spec:        func(t *testing.T, id string, args ...string) runtime.Spec { return spec(t, d, id, args...) },
		Leftovers:   func(t *testing.T, id string) []string { return b.leftovers(t, d, id) },
		StopEngine:  b.stopEngine,
		StartEngine: func(t *testing.T) { b.startEngine(t, d) },
		Churn:       8,
		Limit:       verbLimit,
		LogDelay:    verbLimit,
	}
}

func TestConformanceWithImage(t *testing.T) {
	b := newTestbed(t)
	runtimetest.Run(t, b.subject(t, b.spec))
}

func TestConformanceWithRootFolder(t *testing.T) {
	b := newTestbed(t)
	root := filepath.Join(b.data, "root")
	self, err := os.ReadFile("/proc/self/exe")
	if err == nil {
		err = os.MkdirAll(filepath.Join(root, "bin"), 0o755)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(root, "bin/prog"), self, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	subject := b.subject(t, func(t *testing.T, d *Driver, id string, args ...string) runtime.Spec {
		s := b.spec(t, d, id, args...)
		s.Image, s.Rootfs, s.NeverDumped = "", root, true // by crun, where it is installed
		return s
	})
	subject.Churn = 4 // what a container leaves besides its root, the ones with an image have shown
	runtimetest.Run(t, subject)
	all, err := os.ReadDir(root)
	if err != nil || len(all) != 1 {
		t.Errorf("the root folder was written to: %v, %v", all, err)
	}
}

func TestImageLifetime(t *testing.T) {
	b := newTestbed(t)
	d := b.connect(t)
	ctx, cancel := context.WithTimeout(context.Background(), 5*verbLimit)
	defer cancel()
	text := bytes.Repeat([]byte("a line of text\n"), 1<<16)
	digest, tarball, err := runtimetest.Archive(map[string][]byte{"bin/x": text}, []string{"bin/x"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	// By name: leftovers of earlier tests may be collected at any time.
	snapshots := func() map[string]bool {
		all := map[string]bool{}
		err := d.c.SnapshotService(d.cfg.snapshotter).Walk(ctx, func(_ context.Context, i snapshotInfo) error { all[i.Name] = true; return nil })
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	content := func() map[string]bool {
		all := map[string]bool{}
		err := d.c.ContentStore().Walk(ctx, func(i contentInfo) error { all[i.Digest.String()] = true; return nil })
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	added := func(now, before map[string]bool) (names []string) {
		for name := range now {
			if !before[name] {
				names = append(names, name)
			}
		}
		return names
	}
	snaps, blobs := snapshots(), content()
	if err := d.Import(ctx, digest, bytes.NewReader(tarball[:len(tarball)/2])); !errors.Is(err, fault.Invalid) {
		t.Errorf("half an archive: %v, want fault.Invalid", err)
	}
	if ok, err := d.Has(ctx, digest); ok || err != nil {
		t.Errorf("Has after half an archive: %v, %v", ok, err)
	}
	for range 2 {
		if err := d.Import(ctx, digest, bytes.NewReader(tarball)); err != nil {
			t.Fatal(err)
		}
	}
	if ok, err := d.Has(ctx, digest); !ok || err != nil {
		t.Errorf("Has after Import: %v, %v", ok, err)
	}
	if all, err := d.ListImages(ctx); err != nil || !slices.ContainsFunc(all, func(i runtime.Image) bool { return i.Digest == digest && i.Bytes >= int64(len(text)) }) {
		t.Errorf("ListImages: %v, %v", all, err)
	}
	if s, c := added(snapshots(), snaps), added(content(), blobs); len(s) != 1 || len(c) == 0 {
		t.Errorf("Import added snapshots %v and content %v, want one and some", s, c)
	}
	for range 2 {
		if err := d.Remove(ctx, digest); err != nil {
			t.Fatal(err)
		}
	}
	if s, c := added(snapshots(), snaps), added(content(), blobs); len(s) > 0 || len(c) > 0 {
		t.Errorf("after Remove snapshots %v and content %v are left", s, c)
	}
	s := b.spec(t, d, "no-image", "exit", "0")
	s.Image = digest
	if err := d.Create(ctx, s); !errors.Is(err, fault.NotFound) {
		t.Errorf("Create without its image: %v, want fault.NotFound", err)
	}
}

// TestImageImportsThatEndedEarlyAreReleased has what is unpacked when a daemon ends, and what is unpacked by one that runs.
func TestImageImportsThatEndedEarlyAreReleased(t *testing.T) {
	b := newTestbed(t)
	earlier, d := b.connect(t), b.connect(t)
	ctx, cancel := context.WithTimeout(context.Background(), 3*verbLimit)
	defer cancel()
	layers := d.c.SnapshotService(d.cfg.snapshotter)
	unpack := func(d *Driver, name string) func() {
		held, done, err := d.imports.begin(ctx, "sha256:"+name)
		if err == nil {
			_, err = layers.Prepare(held, "extract-"+name, "")
		}
		if err != nil {
			t.Fatal(err)
		}
		return done
	}
	unpack(earlier, "interrupted")
	done := unpack(d, "under-way")
	if err := d.ReleaseImports(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := layers.Stat(ctx, "extract-interrupted"); !errdefs.IsNotFound(err) {
		t.Errorf("the layer of an interrupted import: %v, want it removed", err)
	}
	if _, err := layers.Stat(ctx, "extract-under-way"); err != nil {
		t.Errorf("the layer of an import under way: %v", err)
	}
	done()
	if err := d.ReleaseImports(ctx); err != nil {
		t.Fatal(err)
	}
	left, err := d.c.LeasesService().List(ctx, fmt.Sprintf("labels.%q", labelImport))
	if err != nil || len(left) > 0 {
		t.Errorf("leases are left: %v, %v", left, err)
	}
}

// TestRunAfterCrashInCreate begins with a snapshot without its container, as a crash in
// Delete can leave it, and then has a container without its snapshot, as one in Create can.
func TestRunAfterCrashInCreate(t *testing.T) {
	b := newTestbed(t)
	d := b.connect(t)
	ctx, cancel := context.WithTimeout(context.Background(), 5*verbLimit)
	defer cancel()
	s := b.spec(t, d, "crashed", "exit", "7")
	snaps := d.c.SnapshotService(d.cfg.snapshotter)
	if _, err := snaps.Prepare(ctx, s.ID, ""); err != nil { // empty: a container on it could not start
		t.Fatal(err)
	}
	if err := d.Create(ctx, s); err != nil {
		t.Fatal(err)
	}
	defer d.Delete(ctx, s.ID)
	if err := snaps.Remove(ctx, s.ID); err != nil {
		t.Fatal(err)
	}
	if err := d.Create(ctx, s); err != nil {
		t.Fatal(err)
	}
	d = b.connect(t) // with nothing in memory
	if err := d.Start(ctx, s.ID); err != nil {
		t.Fatal(err)
	}
	if st, err := d.Wait(ctx, s.ID); err != nil || st.ExitCode != 7 {
		t.Errorf("%+v, %v", st, err)
	}
	if err := d.Delete(ctx, s.ID); err != nil {
		t.Fatal(err)
	}
	if left := b.leftovers(t, d, s.ID); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

func TestConfinement(t *testing.T) {
	b := newTestbed(t)
	d := b.connect(t)
	ctx, cancel := context.WithTimeout(context.Background(), 5*verbLimit)
	defer cancel()
	s := b.spec(t, d, "confined", "exit", "0")
	task := filepath.Join(b.data, "task")
	if err := os.Mkdir(task, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(task, 1000, 1000); err != nil {
		t.Fatal(err)
	}
	other := filepath.Join(b.data, "other") // another tenant's
	if err := errors.Join(os.Mkdir(other, 0o700), os.Chown(other, 2000, 2000)); err != nil {
		t.Fatal(err)
	}
	s.Args = []string{"prog", confinedMarker}
	s.Mounts = []runtime.Mount{{Source: task, Target: "/task"}, {Source: other, Target: "/other"}, {Source: "/etc", Target: "/ro", ReadOnly: true}}
	s.Dir, s.Hostname = "/task", "host-of-task"
	s.Env = []string{"MINE=1"}
	if err := d.Create(ctx, s); err != nil {
		t.Fatal(err)
	}
	defer d.Delete(ctx, s.ID)
	if err := d.Start(ctx, s.ID); err != nil {
		t.Fatal(err)
	}
	st, err := d.Wait(ctx, s.ID)
	if err != nil || st.ExitCode != 0 {
		t.Errorf("%+v, %v", st, err)
	}
	got := ""
	for end := time.Now().Add(verbLimit); time.Now().Before(end) && !strings.Contains(got, "end\n"); sleep.For(ctx, 20*time.Millisecond) {
		text, _ := os.ReadFile(filepath.Join(s.Log.Dir, "stdout.log"))
		got = string(text)
	}
	want := strings.Join([]string{
		"uid 1000 gid 1000", "host host-of-task", "dir /task", "env yes 1",
		"interfaces lo", "NoNewPrivs: 1", "Seccomp: 2", "CapEff: 0000000000000000", "CapBnd: 0000000000000000",
		"write / refused", "write /ro refused", "write /task done", "write /tmp done", "write /dev refused", "write /dev/shm done", "write /run refused",
		"inside /run 0 done", "inside /proc/acpi 0 done", "inside /sys/firmware 0 done", "write /proc/sys/kernel/hostname refused",
		"mount refused", "read /other refused", "device refused", "kernel log refused", "module refused", "bpf refused", "become root refused",
		"namespace refused", "connect refused", "socket to the hypervisor refused", "processes 1", "trace the parent refused", "project of /task/new refused", "flags of /task refused", "cgroup 0::/", "pid 1", "oom_score_adj 500", "end", "",
	}, "\n")
	if got != want {
		t.Errorf("the task sees\n%s\nwant\n%s", got, want)
	}
}

func TestCommandsThatCannotRunAreInvalid(t *testing.T) {
	b := newTestbed(t)
	d := b.connect(t)
	ctx, cancel := context.WithTimeout(context.Background(), 10*verbLimit)
	defer cancel()
	files := filepath.Join(b.data, "commands")
	if err := errors.Join(os.Mkdir(files, 0o755), os.WriteFile(filepath.Join(files, "plain"), []byte("text\n"), 0o644)); err != nil {
		t.Fatal(err)
	}
	for _, crun := range []bool{false, true} { // where crun is not installed, runc twice
		for name, command := range map[string]string{"missing": "no-such-command", "missing-path": "/no/such", "folder": "/files", "not-executable": "/files/plain"} {
			t.Run(fmt.Sprintf("%s, crun %v", name, crun), func(t *testing.T) {
				s := b.spec(t, d, fmt.Sprintf("command-%s-%v", name, crun))
				s.Args, s.NeverDumped, s.Mounts = []string{command}, crun, []runtime.Mount{{Source: files, Target: "/files", ReadOnly: true}}
				if err := d.Create(ctx, s); err != nil {
					t.Fatal(err)
				}
				if err := d.Start(ctx, s.ID); !errors.Is(err, fault.Invalid) {
					t.Errorf("Start: %v, want fault.Invalid", err)
				}
				if err := d.Delete(ctx, s.ID); err != nil {
					t.Error(err)
				}
				if left := b.leftovers(t, d, s.ID); len(left) > 0 {
					t.Errorf("left: %v", left)
				}
			})
		}
	}
}

// startWith starts a container that is never dumped where crun is a script, and returns its Spec.
func (b *testbed) startWith(t *testing.T, ctx context.Context, d *Driver, id, script string) runtime.Spec {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "crun"), []byte("#!/bin/sh\n[ \"$1\" != --version ] || exec echo +SECCOMP\n"+script+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	s := b.spec(t, d, id, "sleep", "60")
	s.NeverDumped = true
	if err := errors.Join(d.Create(ctx, s), d.Start(ctx, s.ID)); err != nil {
		t.Fatal(err)
	}
	return s
}

// Where crun cannot start containers, runc starts this one and all later ones, and the operator is told once.
func TestRuncStartsWhatCrunCannot(t *testing.T) {
	b := newTestbed(t)
	d := b.connect(t)
	var warned []string
	d.runtimes.warnf = func(f string, a ...any) { warned = append(warned, fmt.Sprintf(f, a...)) }
	ctx, cancel := context.WithTimeout(context.Background(), 5*verbLimit)
	defer cancel()
	s := b.startWith(t, ctx, d, "broken-crun", "echo broken >&2; exit 1")
	if next := d.runtimes.choose(s); next != "" || len(warned) != 1 {
		t.Errorf("the next container is made by %q; warned of %q", next, warned)
	}
	box, err := d.c.ContainerService().Get(ctx, s.ID)
	if err != nil || !isRuncs(box) {
		t.Errorf("the container is made by %q, %v, want runc", box.Labels[labelRuntime], err)
	}
	if err := d.Delete(ctx, s.ID); err != nil {
		t.Error(err)
	}
	if left := b.leftovers(t, d, s.ID); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// A container that crun made, since nobody was to dump it, is not dumped.
func TestCheckpointOfACrunContainerIsUnsupported(t *testing.T) {
	b := newTestbed(t)
	d := b.connect(t)
	real, err := exec.LookPath("crun")
	if err != nil {
		t.Skipf("not proved here: that a container that crun made is not dumped. %v", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*verbLimit)
	defer cancel()
	s := b.startWith(t, ctx, d, "cruns", "exec "+real+" \"$@\"")
	if err := d.Checkpoint(ctx, s.ID, filepath.Join(b.data, "dump")); !errors.Is(err, fault.Unsupported) {
		t.Errorf("Checkpoint: %v, want fault.Unsupported", err)
	}
	if all, err := d.List(ctx); err != nil || !isRunning(all, s.ID) {
		t.Errorf("afterwards it does not run: %+v, %v", all, err)
	}
	if err := d.Delete(ctx, s.ID); err != nil {
		t.Error(err)
	}
}

// A program that starts processes without end meets its limit, and nothing of it is left.
func TestForkBombMeetsItsLimit(t *testing.T) {
	b := newTestbed(t)
	d := b.connect(t)
	ctx, cancel := context.WithTimeout(context.Background(), 5*verbLimit)
	defer cancel()
	most := int(b.limits().PIDs)
	s := b.spec(t, d, "forks", "exit", "0")
	s.Args = []string{"prog", hogMarker, "processes"}
	if err := d.Create(ctx, s); err != nil {
		t.Fatal(err)
	}
	defer d.Delete(ctx, s.ID)
	if err := d.Start(ctx, s.ID); err != nil {
		t.Fatal(err)
	}
	if st, err := d.Wait(ctx, s.ID); err != nil || st.ExitCode != 0 {
		t.Errorf("%+v, %v", st, err)
	}
	started := 0
	for end := time.Now().Add(verbLimit); time.Now().Before(end) && started == 0; sleep.For(ctx, 20*time.Millisecond) {
		text, _ := os.ReadFile(filepath.Join(s.Log.Dir, "stdout.log"))
		started, _ = strconv.Atoi(strings.TrimSpace(string(text)))
	}
	if started < 8 || started >= most {
		t.Errorf("%d processes were started, at most %d may be", started, most)
	}
	if err := d.Delete(ctx, s.ID); err != nil {
		t.Error(err)
	}
	if left := b.leftovers(t, d, s.ID); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

func TestOutOfMemoryIsSeen(t *testing.T) {
	b := newTestbed(t)
	d := b.connect(t)
	ctx, cancel := context.WithTimeout(context.Background(), 5*verbLimit)
	defer cancel()
	s := b.spec(t, d, "oom", "exit", "0")
	s.Args = []string{"prog", hogMarker, "memory", "200"}
	if err := d.Create(ctx, s); err != nil {
		t.Fatal(err)
	}
	defer d.Delete(ctx, s.ID)
	if err := d.Start(ctx, s.ID); err != nil {
		t.Fatal(err)
	}
	st, err := d.Wait(ctx, s.ID)
	if err != nil || st.ExitCode != 137 {
		t.Errorf("%+v, %v", st, err)
	}
	g, err := b.groups.Open(s.ID)
	if err != nil {
		t.Fatal(err)
	}
	stats, err := g.Stats()
	const over = 1 << 20 // the kernel gives dying processes the pages they need
	if err != nil || stats.OOMs == 0 || stats.OOMKills == 0 || stats.PeakBytes < 120<<20 || stats.PeakBytes > 128<<20+over {
		t.Errorf("%+v, %v", stats, err)
	}
	if got, err := g.Limits(); err != nil || !got.Equal(b.limits()) {
		t.Errorf("limits after the container: %s, %v", got, err)
	}
}

func TestRunUsesTheLeaf(t *testing.T) {
	b := newTestbed(t)
	d := b.connect(t)
	ctx, cancel := context.WithTimeout(context.Background(), 5*verbLimit)
	defer cancel()
	s := b.spec(t, d, "leaf", "child")
	if err := d.Create(ctx, s); err != nil {
		t.Fatal(err)
	}
	defer d.Delete(ctx, s.ID)
	if err := d.Start(ctx, s.ID); err != nil {
		t.Fatal(err)
	}
	g, err := b.groups.Open(s.ID)
	if err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(verbLimit); ; sleep.For(ctx, 20*time.Millisecond) {
		if pids, err := g.Processes(cgroups.Container); err == nil && len(pids) == 2 {
			break
		}
		if time.Now().After(end) {
			t.Fatal("the leaf does not have the two processes")
		}
	}
	shims := processes(func(args []string) bool { return isShimOf(args, s.ID) })
	if charged, err := b.groups.System().Processes(cgroups.Whole); err != nil || len(shims) != 1 || !slices.Contains(charged, shims[0]) {
		t.Errorf("shims %v are not among %v, system work, %v", shims, charged, err)
	}
	if _, err := g.Freeze(ctx); err != nil {
		t.Fatal(err)
	}
	if st, err := d.List(ctx); err != nil || len(st) != 1 || st[0].Phase != runtime.PhaseRunning {
		t.Errorf("a frozen container is listed as %+v, %v", st, err)
	}
	if err := g.Thaw(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := g.Freeze(ctx); err != nil {
		t.Fatal(err)
	}
	if err := d.Delete(ctx, s.ID); err != nil { // also works for a frozen one
		t.Fatal(err)
	}
	if left := b.leftovers(t, d, s.ID); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// TestRunEndsWhileFrozen kills a frozen container from outside, as the kernel does when it is
// out of memory, or a daemon that is killed between the kill and the thaw.
func TestRunEndsWhileFrozen(t *testing.T) {
	b := newTestbed(t)
	d := b.connect(t)
	ctx, cancel := context.WithTimeout(context.Background(), 5*verbLimit)
	defer cancel()
	s := b.spec(t, d, "frozen", "child")
	if err := d.Create(ctx, s); err != nil {
		t.Fatal(err)
	}
	defer d.Delete(ctx, s.ID)
	if err := d.Start(ctx, s.ID); err != nil {
		t.Fatal(err)
	}
	g, err := b.groups.Open(s.ID)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := g.Freeze(ctx); err != nil {
		t.Fatal(err)
	}
	if err := g.Kill(cgroups.Whole); err != nil {
		t.Fatal(err)
	}
	if st, err := d.Wait(ctx, s.ID); err != nil || st.ExitCode != 137 {
		t.Fatalf("%+v, %v", st, err)
	}
	if err := d.Delete(ctx, s.ID); err != nil {
		t.Fatal(err)
	}
	if left := b.leftovers(t, d, s.ID); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}
