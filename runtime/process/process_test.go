package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	goruntime "runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/runtime"
	"github.com/drover-run/drover/runtime/runtimetest"
)

func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == counterMarker {
		count(os.Args[2])
	}
	runtimetest.Main()
	goleak.VerifyTestMain(m)
}

func newDriver(t *testing.T, cfg Config) *Driver {
	t.Helper()
	if cfg.StateDir == "" {
		cfg.StateDir = t.TempDir()
	}
	d, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

func specFor(t *testing.T, id string, args ...string) runtime.Spec {
	return runtime.Spec{ID: id, Args: append([]string{os.Args[0], runtimetest.Marker}, args...), Log: runtime.Log{Dir: t.TempDir()}}
}

func TestConformance(t *testing.T) {
	d := newDriver(t, Config{})
	runtimetest.Run(t, runtimetest.Subject{
		Connect: func(*testing.T) runtime.Driver { return d }, // tasks end with the daemon
		Spec:    specFor,
		Churn:   60,
		Leftovers: func(t *testing.T, id string) []string {
			left, err := filepath.Glob(filepath.Join(d.cfg.StateDir, "*"))
			if err != nil {
				t.Fatal(err)
			}
			return left
		},
	})
}

func TestImagesAreRefused(t *testing.T) {
	d := newDriver(t, Config{})
	for _, s := range []runtime.Spec{{ID: "a", Args: []string{"true"}, Image: "sha256:x"}, {ID: "a", Args: []string{"true"}, Rootfs: "/"}} {
		if err := d.Create(context.Background(), s); !errors.Is(err, fault.Unsupported) {
			t.Errorf("%v: %v, want fault.Unsupported", s, err)
		}
	}
}

func TestCommandsThatCannotRun(t *testing.T) {
	d := newDriver(t, Config{})
	ctx := context.Background()
	for i, s := range []runtime.Spec{
		{Args: []string{"no-such-command-at-all"}},
		{Args: []string{"/etc/passwd"}},
		{Args: []string{"/"}},
		{Args: []string{"true"}, Dir: "/no/such/folder"},
		{Args: []string{"sh"}, Env: []string{"PATH=/nowhere"}},
	} {
		s.ID = fmt.Sprint("c", i)
		if err := d.Create(ctx, s); err != nil {
			t.Fatal(err)
		}
		if err := d.Start(ctx, s.ID); !errors.Is(err, fault.Invalid) {
			t.Errorf("%v: %v, want fault.Invalid", s, err)
		}
		if all, _ := d.List(ctx); all[0].Phase != runtime.PhaseCreated {
			t.Errorf("%v: phase %s", s, all[0].Phase)
		}
		if err := d.Delete(ctx, s.ID); err != nil {
			t.Error(err)
		}
	}
}

// A command is looked up in the folder of its task, as in a container, not in the one in which the daemon was started.
func TestCommandsAreRelativeToTheFolder(t *testing.T) {
	folder, elsewhere := t.TempDir(), t.TempDir()
	t.Chdir(elsewhere)
	for name, mode := range map[string]os.FileMode{filepath.Join(folder, "here"): 0o700, filepath.Join(folder, "plain"): 0o600, filepath.Join(elsewhere, "there"): 0o700} {
		if err := os.WriteFile(name, []byte("#!/bin/sh\nexit 0\n"), mode); err != nil {
			t.Fatal(err)
		}
	}
	for name, text := range map[string]string{"noline": "exit 0\n", "lost": "#!/no/such/python\n", "windows": "#!/bin/sh\r\nexit 0\r\n"} {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	d := newDriver(t, Config{})
	for i, c := range []struct{ name, want string }{
		{"./here", ""},
		{"../" + filepath.Base(folder) + "/here", ""},
		{"./there", "no such file or directory: add it as a file of the stage"},
		{"./plain", `it is not executable: chmod +x`},
		{"here", `is not in $PATH, but in the task's folder: write "./here"`},
		{"there", `add it as a file of the stage and write "./there"`},
		{"./noline", "neither a program for this machine nor a script whose first line names an interpreter"},
		{"./lost", `the interpreter of its first line "#!/no/such/python" is not there`},
		{"./windows", `its first line "#!/bin/sh" ends with a carriage return`},
	} {
		id := fmt.Sprint("c", i)
		if err := d.Create(t.Context(), runtime.Spec{ID: id, Args: []string{c.name}, Dir: folder, Log: runtime.Log{Dir: t.TempDir()}}); err != nil {
			t.Fatal(err)
		}
		err := d.Start(t.Context(), id)
		switch {
		case c.want == "" && err != nil:
			t.Errorf("%s: %v", c.name, err)
		case c.want != "" && (!errors.Is(err, fault.Invalid) || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%s: %v, want one with %q", c.name, err, c.want)
		}
	}
}

// A start that fails because of the moment is none of the job's mistakes: it is tried again.
func TestStartsThatFailForAMoment(t *testing.T) {
	for name, cause := range map[string]func(t *testing.T, s *runtime.Spec) (end func()){
		"a program that is still written": func(t *testing.T, s *runtime.Spec) func() {
			s.Args = []string{"./prog"}
			prog := filepath.Join(s.Dir, "prog")
			if err := os.WriteFile(prog, []byte("#!/bin/sh\nexit 0\n"), 0o700); err != nil {
				t.Fatal(err)
			}
			f, err := os.OpenFile(prog, os.O_WRONLY, 0)
			if err != nil {
				t.Fatal(err)
			}
			return func() { f.Close() }
		},
		"a folder for the logs that cannot be made": func(t *testing.T, s *runtime.Spec) func() {
			inTheWay := filepath.Join(s.Dir, "file")
			if err := os.WriteFile(inTheWay, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			s.Args, s.Log.Dir = []string{"true"}, filepath.Join(inTheWay, "logs")
			return func() { os.Remove(inTheWay) }
		},
	} {
		t.Run(name, func(t *testing.T) {
			d, s := newDriver(t, Config{}), runtime.Spec{ID: "a", Dir: t.TempDir(), Log: runtime.Log{Dir: t.TempDir()}}
			end := cause(t, &s)
			if err := d.Create(t.Context(), s); err != nil {
				t.Fatal(err)
			}
			if err := d.Start(t.Context(), s.ID); !errors.Is(err, fault.Unavailable) || errors.Is(err, fault.Invalid) {
				t.Errorf("%v, want fault.Unavailable", err)
			}
			end()
			if st := runToEnd(t, d, s); st.ExitCode != 0 {
				t.Errorf("afterwards it ended with %d", st.ExitCode)
			}
		})
	}
}

func TestLogsAreRotated(t *testing.T) {
	d := newDriver(t, Config{})
	s := specFor(t, "flood", "flood", "4096")
	s.Log.MaxBytes, s.Log.MaxFiles = 8<<10, 2
	runToEnd(t, d, s)
	all, err := filepath.Glob(filepath.Join(s.Log.Dir, "stdout.log*"))
	if err != nil || len(all) != 3 { // two and their mark
		t.Errorf("files %v, %v", all, err)
	}
	if b, err := os.ReadFile(filepath.Join(s.Log.Dir, "stdout.log")); err != nil || !strings.HasSuffix(string(b), fmt.Sprintf("%015d\n", 4095)) {
		t.Errorf("the log does not end with the last line: %v", err)
	}
}

func runToEnd(t *testing.T, d *Driver, s runtime.Spec) runtime.Status {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := errors.Join(d.Create(ctx, s), d.Start(ctx, s.ID)); err != nil {
		t.Fatal(err)
	}
	st, err := d.Wait(ctx, s.ID)
	if err != nil {
		t.Fatal(err)
	}
	return st
}

func TestNewKillsOrphans(t *testing.T) {
	dir := t.TempDir()
	orphan := exec.Command(os.Args[0], runtimetest.Marker, "stubborn")
	orphan.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	innocent := exec.Command(os.Args[0], runtimetest.Marker, "stubborn")
	innocent.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	for _, c := range []*exec.Cmd{orphan, innocent} {
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		defer func() { c.Process.Kill(); c.Wait() }()
	}
	if err := writeRecord(dir, "orphan", bootID(), orphan.Process.Pid); err != nil {
		t.Fatal(err)
	}
	// A record of a process whose PID was reused, and a truncated one.
	stale := fmt.Sprintf(`{"pid":%d,"start":"1","boot":%q}`, innocent.Process.Pid, bootID())
	for name, text := range map[string]string{"stale": stale, "cut": stale[:9]} {
		if err := os.WriteFile(filepath.Join(dir, name+recordSuffix), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	newDriver(t, Config{StateDir: dir})
	if err := orphan.Wait(); err == nil || exitCode(orphan.ProcessState) != 137 {
		t.Errorf("the orphan ended with %v", err)
	}
	if err := innocent.Process.Signal(syscall.Signal(0)); err != nil {
		t.Errorf("the innocent process: %v", err)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "*")); len(left) > 0 {
		t.Errorf("notes left: %v", left)
	}
}

func TestCloseKillsAll(t *testing.T) {
	d, err := New(Config{StateDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	s := specFor(t, "a", "child")
	if err := errors.Join(d.Create(ctx, s), d.Start(ctx, "a")); err != nil {
		t.Fatal(err)
	}
	d.Close()
	if all, err := d.List(ctx); err != nil || all[0].Phase != runtime.PhaseStopped || all[0].ExitCode != 137 {
		t.Errorf("%+v, %v", all, err)
	}
}

// Close ends also what is being started while it is called, and Delete waits for the start.
func TestEndDuringStarts(t *testing.T) {
	ctx := t.Context()
	for name, end := range map[string]func(d *Driver, id string) error{
		"close":  func(d *Driver, _ string) error { return d.Close() },
		"delete": func(d *Driver, id string) error { return d.Delete(ctx, id) },
	} {
		t.Run(name, func(t *testing.T) {
			d := newDriver(t, Config{})
			var wg sync.WaitGroup
			for i := range 16 {
				s := specFor(t, fmt.Sprint("t", i), "stubborn")
				if err := d.Create(ctx, s); err != nil {
					t.Fatal(err)
				}
				wg.Go(func() { _ = d.Start(ctx, s.ID) }) // refused if it comes too late
				wg.Go(func() {
					if err := end(d, s.ID); err != nil {
						t.Error(err)
					}
				})
			}
			wg.Wait()
			all, err := d.List(ctx)
			if err != nil {
				t.Fatal(err)
			}
			for _, st := range all {
				if st.Phase == runtime.PhaseRunning {
					t.Errorf("%s runs on as %d", st.ID, st.PID)
				}
			}
		})
	}
}

// Delete of a container that is being started either comes first, and there is nothing to start, or kills what runs.
func TestDeleteLeavesNothingThatStarts(t *testing.T) {
	d := newDriver(t, Config{})
	var others sync.WaitGroup
	quiet := make(chan struct{})
	for range 4 { // who waits long for a mutex gets it as soon as it is unlocked, so that Start can come between two steps of Delete
		others.Go(func() {
			for {
				select {
				case <-quiet:
					return
				default:
					d.mu.Lock()
					time.Sleep(20 * time.Microsecond)
					d.mu.Unlock()
				}
			}
		})
	}
	for range 40 {
		s := runtime.Spec{ID: "a", Args: []string{"sleep", "600"}}
		if err := d.Create(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		var both sync.WaitGroup
		both.Go(func() { _ = d.Start(t.Context(), s.ID) }) // refused if it comes too late
		both.Go(func() {
			if err := d.Delete(t.Context(), s.ID); err != nil {
				t.Error(err)
			}
		})
		both.Wait()
	}
	close(quiet)
	others.Wait()
	ended := make(chan struct{})
	go func() { d.wg.Wait(); close(ended) }()
	select {
	case <-ended:
	case <-time.After(10 * time.Second):
		t.Fatal("a process runs on that no container has")
	}
}

func TestSwitchUser(t *testing.T) {
	if os.Geteuid() != 0 {
		if _, err := New(Config{StateDir: t.TempDir(), SwitchUser: true}); !errors.Is(err, fault.Unsupported) {
			t.Errorf("without root: %v, want fault.Unsupported", err)
		}
		return
	}
	d := newDriver(t, Config{SwitchUser: true})
	s := runtime.Spec{ID: "a", Args: []string{"id", "-u"}, UID: 65534, GID: 65534, Log: runtime.Log{Dir: t.TempDir()}}
	runToEnd(t, d, s)
	if b, err := os.ReadFile(filepath.Join(s.Log.Dir, "stdout.log")); err != nil || string(b) != "65534\n" {
		t.Errorf("it ran as %q, %v", b, err)
	}
}

func BenchmarkTrue(b *testing.B) {
	d, err := New(Config{StateDir: b.TempDir()})
	if err != nil {
		b.Fatal(err)
	}
	defer d.Close()
	ctx := context.Background()
	for i := 0; b.Loop(); i++ {
		s := runtime.Spec{ID: fmt.Sprint("t", i), Args: []string{"true"}}
		if err := errors.Join(d.Create(ctx, s), d.Start(ctx, s.ID)); err != nil {
			b.Fatal(err)
		}
		if _, err := d.Wait(ctx, s.ID); err != nil {
			b.Fatal(err)
		}
		if err := d.Delete(ctx, s.ID); err != nil {
			b.Fatal(err)
		}
	}
}

func TestParseStat(t *testing.T) {
	for text, want := range map[string]struct {
		state   byte
		session int
	}{
		"12 (sh) S 1 12 12 0 -1 4194304":          {'S', 12},
		"12 (a b) R 3 (x) T 1 12 77 0 -1 4194304": {'T', 77},
		"12 (stopped) t 1 12 5 0":                 {'t', 5},
		"":                                        {0, 0},
		"12 (half) S 1":                           {0, 0},
		"12 (no number) S 1 12 x 0 -1 4194304 1 2": {0, 0},
	} {
		if state, session := parseStat(text); state != want.state && session != 0 || session != want.session {
			t.Errorf("%q gives %c, %d; want %c, %d", text, state, session, want.state, want.session)
		}
	}
}

// Without a cgroup the driver says what a command and the processes that it waited
// for have used: its own memory, though this process has more.
func TestUseOfACommand(t *testing.T) {
	ballast := make([]byte, 200<<20)
	for i := 0; i < len(ballast); i += 4096 {
		ballast[i] = 1
	}
	defer goruntime.KeepAlive(ballast)
	d, ctx := newDriver(t, Config{}), t.Context()
	s := runtime.Spec{ID: "a", Args: []string{"sh", "-c", "(i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done); exit 3"}}
	if err := errors.Join(d.Create(ctx, s), d.Start(ctx, "a")); err != nil {
		t.Fatal(err)
	}
	st, err := d.Wait(ctx, "a")
	if err != nil || st.ExitCode != 3 || st.CPU <= 0 || st.PeakMemory < 64<<10 || st.PeakMemory > 64<<20 {
		t.Errorf("%+v %v", st, err)
	}
}

// TestNothingStartsInAnEndingTask: between the end of a task and that of a process outside its group
// that holds its output, the task's PID is free. What was started then outlived the task, and a
// signal could reach others.
func TestNothingStartsInAnEndingTask(t *testing.T) {
	d := newDriver(t, Config{})
	ctx, dir := t.Context(), t.TempDir()
	s := runtime.Spec{ID: "a", Dir: dir, Log: runtime.Log{Dir: t.TempDir()}, Args: []string{"sh", "-c", "setsid sh -c 'echo $$ >holder.new; mv holder.new holder; exec sleep 600' & while [ ! -e holder ]; do sleep 0.01; done"}}
	if err := errors.Join(d.Create(ctx, s), d.Start(ctx, s.ID)); err != nil {
		t.Fatal(err)
	}
	pid := onlyStatus(t, d).PID
	for end := time.Now().Add(10 * time.Second); !errors.Is(syscall.Kill(pid, 0), syscall.ESRCH); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the task does not end")
		}
	}
	b, err := os.ReadFile(filepath.Join(dir, "holder"))
	if err != nil {
		t.Fatal(err)
	}
	holder, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = syscall.Kill(holder, syscall.SIGKILL) }()
	if phase := onlyStatus(t, d).Phase; phase != runtime.PhaseRunning {
		t.Skipf("not proved here: the task is %s before it could be looked at", phase)
	}
	within, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if _, err := d.Exec(within, s.ID, runtime.ExecSpec{Args: []string{"sleep", "600"}}); !errors.Is(err, fault.Conflict) {
		t.Errorf("exec: %v, want fault.Conflict", err)
	}
	if err := d.Freeze(within, s.ID); !errors.Is(err, fault.Conflict) {
		t.Errorf("freeze: %v, want fault.Conflict", err)
	}
	if st, err := d.Wait(within, s.ID); err != nil || st.ExitCode != 0 {
		t.Errorf("it ended as %+v, %v", st, err)
	}
}

func onlyStatus(t *testing.T, d *Driver) runtime.Status {
	t.Helper()
	all, err := d.List(t.Context())
	if err != nil || len(all) != 1 {
		t.Fatalf("%v, %v", all, err)
	}
	return all[0]
}
