package reuse

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	goruntime "runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/drover-run/drover/internal/rotate"
	"github.com/drover-run/drover/runtime"
	"github.com/drover-run/drover/runtime/containerd"
	"github.com/drover-run/drover/runtime/containerd/logger"
	"github.com/drover-run/drover/runtime/reuse/taskinit"
	"github.com/drover-run/drover/runtime/runtimetest"
)

// The tests that use newBed need root, cgroup v2, containerd and a static test binary:
// DROVER_TEST_CONTAINERD=1, on the test bed.
const bedEnv = "DROVER_TEST_CONTAINERD"

// verbLimit is generous, since the machines of the test bed are emulated.
const verbLimit = 60 * time.Second

func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case logger.Verb:
			os.Exit(logger.Main(os.Args[2:]))
		case taskinit.Verb:
			os.Exit(taskinit.Main(os.Args[2:]))
		case connectMarker:
			os.Exit(connect(os.Args[2]))
		case leaveMarker:
			os.Exit(leave(os.Args[2:]))
		case lookMarker:
			os.Exit(look())
		}
	}
	runtimetest.Main()
	os.Exit(m.Run())
}

// bed is the environment of the tests with a real engine.
type bed struct {
	cfg    Config
	engine *containerd.Driver
	data   string
}

var image struct {
	sync.Once
	digest  string
	archive []byte
	err     error
}

func newBed(t *testing.T) *bed {
	t.Helper()
	if os.Getenv(bedEnv) == "" {
		t.Skip("not proved here: that tasks share containers of a real engine, and nothing else; set " + bedEnv + "=1 on a machine of the test bed")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	engine, err := containerd.New(containerd.Config{Namespace: "drover-reuse-test"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { engine.Close() })
	b := &bed{engine: engine, data: t.TempDir(), cfg: Config{
		Dir: t.TempDir(), Init: []string{self}, Logger: self, Mount: "/sys/fs/cgroup", Cgroup: "/drover-reuse-test/reused",
	}}
	for p := b.data; p != "/"; p = filepath.Dir(p) { // the task's user must reach it
		if st, err := os.Stat(p); err == nil && st.Mode()&0o001 == 0 {
			if err := os.Chmod(p, st.Mode()|0o001); err != nil {
				t.Fatal(err)
			}
		}
	}
	return b
}

// connect returns a new driver, as a restarted daemon makes it.
func (b *bed) connect(t *testing.T) *Driver {
	t.Helper()
	d, err := New(b.engine, b.cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 3*verbLimit)
		defer cancel()
		if err := d.CloseIdle(ctx, 0); err != nil {
			t.Error(err)
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
		all, err := b.engine.List(ctx)
		if err != nil || len(all) > 0 {
			t.Errorf("containers at the end: %v, %v", all, err)
		}
		if left, _ := os.ReadDir(filepath.Join(b.cfg.Mount, b.cfg.Cgroup)); len(dirs(left)) > 0 {
			t.Errorf("cgroups at the end: %v", dirs(left))
		}
	})
	return d
}

func dirs(all []os.DirEntry) (names []string) {
	for _, e := range all {
		if e.IsDir() {
			names = append(names, e.Name())
		}
	}
	return names
}

func (b *bed) imported(t *testing.T) string {
	t.Helper()
	image.Do(func() {
		var self []byte
		if self, image.err = os.ReadFile("/proc/self/exe"); image.err == nil {
			image.digest, image.archive, image.err = runtimetest.Archive(map[string][]byte{"bin/prog": self}, []string{"bin/prog"}, []string{"PATH=/bin", "FROM_IMAGE=yes"})
		}
	})
	if image.err != nil {
		t.Fatal(image.err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 3*verbLimit)
	defer cancel()
	if err := b.engine.Import(ctx, image.digest, bytes.NewReader(image.archive)); err != nil {
		t.Fatal(err)
	}
	return image.digest
}

// group makes the cgroup of a task and removes it at the end.
func (b *bed) group(t *testing.T, id string) string {
	t.Helper()
	group := "/drover-reuse-test/" + id + "/container"
	dir := filepath.Join(b.cfg.Mount, group)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, p := range []string{dir, filepath.Dir(dir)} {
			if err := os.Remove(p); err != nil && !os.IsNotExist(err) { // two Specs may have one ID
				t.Error(err)
			}
		}
	})
	return group
}

// spec describes a task with a folder of its own that shares containers of one stage.
func (b *bed) spec(t *testing.T, id string, args ...string) runtime.Spec {
	t.Helper()
	s := runtime.Spec{
		ID: id, Reuse: "stage", Image: b.imported(t), Args: append([]string{"prog"}, args...), UID: 1000, GID: 1000,
		Dir: "/task", Log: runtime.Log{Dir: t.TempDir()}, Hostname: "host-" + id,
	}
	for _, name := range []string{"task", "tmp"} {
		dir := filepath.Join(b.data, fmt.Sprintf("%s-%s-%d", id, name, time.Now().UnixNano()))
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(dir, 1000, 1000); err != nil {
			t.Fatal(err)
		}
		s.Mounts = append(s.Mounts, runtime.Mount{Source: dir, Target: "/" + name})
	}
	programs := filepath.Join(b.data, "programs") // as a node mounts its harness
	if err := os.MkdirAll(programs, 0o755); err != nil {
		t.Fatal(err)
	}
	s.Mounts = append(s.Mounts, runtime.Mount{Source: programs, Target: "/.drover", ReadOnly: true})
	if runtime.ValidID(id) {
		s.Cgroup = b.group(t, id)
	}
	return s
}

func TestConformance(t *testing.T) {
	b := newBed(t)
	d := b.connect(t)
	var caseOf *testing.T
	runtimetest.Run(t, runtimetest.Subject{
		Connect: func(now *testing.T) runtime.Driver {
			if caseOf != now { // a new case begins
				caseOf = now
				return d
			}
			if err := d.Close(); err != nil {
				t.Fatal(err)
			}
			d = b.connect(t)
			return d
		},
		Spec: func(t *testing.T, id string, args ...string) runtime.Spec {
			return b.spec(t, id, append([]string{runtimetest.Marker}, args...)...)
		},
		Leftovers: func(t *testing.T, id string) []string { return b.leftovers(id) },
		Shared:    func() (int, int) { return d.shared() },
		Churn:     4, Limit: verbLimit, LogDelay: verbLimit,
	})
}

// leftovers returns what is left of a task: its record, and processes in its cgroup.
func (b *bed) leftovers(id string) (left []string) {
	if _, err := os.Lstat(filepath.Join(b.cfg.tasksDir(), id+recordSuffix)); err == nil {
		left = append(left, "record")
	}
	if pids, err := b.cfg.processes("/drover-reuse-test/" + id + "/container"); err == nil && len(pids) > 0 {
		left = append(left, fmt.Sprintf("processes %v", pids))
	}
	return left
}

// runs runs a task to its end and returns what it wrote, and the container that it ran in.
func (b *bed) run(t *testing.T, d *Driver, s runtime.Spec) (code int, out, container string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 4*verbLimit)
	defer cancel()
	if err := d.Create(ctx, s); err != nil {
		t.Fatal(err)
	}
	if err := d.Start(ctx, s.ID); err != nil {
		t.Fatal(err)
	}
	st, err := d.Wait(ctx, s.ID)
	if err != nil {
		t.Fatal(err)
	}
	container = d.find(s.ID).rec.Container
	if err := d.Delete(ctx, s.ID); err != nil {
		t.Fatal(err)
	}
	if !rotate.Await(ctx, s.Log.Dir) {
		t.Fatal("the logs are not written")
	}
	for _, f := range []string{"stdout.log", "stderr.log"} {
		b, err := os.ReadFile(filepath.Join(s.Log.Dir, f))
		if err != nil {
			t.Fatal(err)
		}
		out += string(b)
	}
	return st.ExitCode, out, container
}

// TestSecondTaskUsesTheContainerAgain runs tasks one after another, and a failed one between.
func TestSecondTaskUsesTheContainerAgain(t *testing.T) {
	b := newBed(t)
	d := b.connect(t)
	var in []string
	for i, code := range []int{0, 0, 3, 0} {
		got, _, container := b.run(t, d, b.spec(t, fmt.Sprintf("again-%d", i), runtimetest.Marker, "exit", fmt.Sprint(code)))
		if got != code {
			t.Errorf("task %d: exit code %d, want %d", i, got, code)
		}
		in = append(in, container)
	}
	if in[0] != in[1] || in[1] != in[2] || in[2] == in[3] {
		t.Errorf("containers %v: want three tasks in one, and after the one that failed another", in)
	}
	other := b.spec(t, "other-stage", runtimetest.Marker, "exit", "0")
	other.Reuse = "another stage"
	if _, _, container := b.run(t, d, other); container == in[3] {
		t.Error("a task of another stage has the same container")
	}
}

// TestNextTaskFindsNothing has a first task leave what it can, in all ways that do not fail, and a second one look.
func TestNextTaskFindsNothing(t *testing.T) {
	b := newBed(t)
	d := b.connect(t)
	for _, c := range []struct {
		what string
		kept bool // the container is used again
		code int  // of the first task
	}{
		{what: "files", kept: true}, {what: "processes", kept: true}, {what: "sockets", kept: true}, {what: "signals", kept: true},
		{what: "mounts", kept: true}, {what: "descriptors", kept: true}, {what: "shm"}, {what: "semaphore"}, {what: "queue"}, {what: "limits"},
		{what: "processors", kept: goruntime.NumCPU() == 1}, {what: "priority"}, // with one processor nothing changes
		{what: "closed-connections"}, {what: "queued-signals", code: runtime.ExitLost},
	} {
		t.Run(c.what, func(t *testing.T) {
			code, out, first := b.run(t, d, b.spec(t, "leaves-"+c.what, leaveMarker, c.what))
			if code != c.code {
				t.Fatalf("the first task ends with %d: %s", code, out)
			}
			id := "looks-" + c.what
			code, out, second := b.run(t, d, b.spec(t, id, lookMarker))
			if want := wantLook("host-" + id); code != 0 || out != want {
				t.Errorf("the second task (code %d) sees\n%s\nwant\n%s", code, out, want)
			}
			if (first == second) != c.kept {
				t.Errorf("the second task runs in the same container: %v, want %v", first == second, c.kept)
			}
		})
	}
}

// TestTasksDoNotShareAtOnce runs two tasks at the same time.
func TestTasksDoNotShareAtOnce(t *testing.T) {
	b := newBed(t)
	d := b.connect(t)
	ctx, cancel := context.WithTimeout(context.Background(), 4*verbLimit)
	defer cancel()
	for _, id := range []string{"one", "two"} {
		if err := d.Create(ctx, b.spec(t, id, runtimetest.Marker, "sleep")); err != nil {
			t.Fatal(err)
		}
		if err := d.Start(ctx, id); err != nil {
			t.Fatal(err)
		}
	}
	if d.find("one").rec.Container == d.find("two").rec.Container {
		t.Error("two tasks run in one container")
	}
	for _, id := range []string{"one", "two"} {
		if err := d.Delete(ctx, id); err != nil {
			t.Error(err)
		}
	}
	if n := len(d.containers); n > 0 {
		t.Errorf("%d containers are left of killed tasks", n)
	}
}

// TestDaemonDies ends a driver while tasks run and while a container is idle.
func TestDaemonDies(t *testing.T) {
	b := newBed(t)
	d := b.connect(t)
	ctx, cancel := context.WithTimeout(context.Background(), 4*verbLimit)
	defer cancel()
	b.run(t, d, b.spec(t, "before", runtimetest.Marker, "exit", "0"))
	for _, id := range []string{"runs", "ends"} {
		s := b.spec(t, id, runtimetest.Marker, "trap")
		if err := d.Create(ctx, s); err != nil {
			t.Fatal(err)
		}
		if err := d.Start(ctx, id); err != nil {
			t.Fatal(err)
		}
		awaitText(t, filepath.Join(s.Log.Dir, "stdout.log"), "ready\n")
	}
	pid := d.find("ends").rec.PID
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	process, err := os.FindProcess(pid)
	if err != nil {
		t.Fatal(err)
	}
	if err := process.Signal(os.Interrupt); err != nil { // while there is no daemon
		t.Fatal(err)
	}
	d = b.connect(t)
	if st, err := d.Wait(ctx, "ends"); err != nil || st.ExitCode != 5 {
		t.Errorf("the task that ended without a daemon: %+v, %v", st, err)
	}
	if err := d.Kill(ctx, "runs", 15); err != nil {
		t.Fatal(err)
	}
	if st, err := d.Wait(ctx, "runs"); err != nil || st.ExitCode != 5 {
		t.Errorf("the task that outlived the daemon: %+v, %v", st, err)
	}
	for _, id := range []string{"runs", "ends"} {
		if err := d.Delete(ctx, id); err != nil {
			t.Error(err)
		}
	}
}

func awaitText(t *testing.T, file, want string) {
	t.Helper()
	for end := time.Now().Add(verbLimit); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if b, _ := os.ReadFile(file); strings.Contains(string(b), want) {
			return
		}
	}
	t.Fatalf("%s does not get %q", file, want)
}
