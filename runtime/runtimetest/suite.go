package runtimetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/runtime"
)

// Subject describes one driver to the suite.
type Subject struct {
	// Connect returns a new connection to the test's engine, as a restarted daemon
	// would make it.
	Connect func(t *testing.T) runtime.Driver
	// Spec returns a Spec that runs Program with the arguments. Its Log.Dir is a
	// new folder; everything else depends on the driver.
	Spec func(t *testing.T, id string, args ...string) runtime.Spec
	// Leftovers describes what a container with that ID left on the machine;
	// empty after Delete. May be nil.
	Leftovers func(t *testing.T, id string) []string
	// StopEngine and StartEngine kill and start the engine; containers survive.
	// Nil if a driver has no separate engine.
	StopEngine, StartEngine func(t *testing.T)
	// SlowStart makes the next Start take about that long. Nil: the engine's own
	// duration is used.
	SlowStart func(t *testing.T, d time.Duration)
	// Shared returns how many containers were made for Specs with a Reuse key, and how many
	// of these are left; the Specs then have one. Nil: they have none.
	Shared func() (opened, left int)
	// Limit is how long one method may take.
	Limit time.Duration
	// Churn is the number of containers in "many containers leave nothing";
	// DROVER_SOAK=1 makes it 1,000.
	Churn int
	// LogDelay is how long after an exit the last bytes may take to reach the log.
	LogDelay time.Duration
}

type suite struct {
	Subject
	t   *testing.T
	d   runtime.Driver
	ctx context.Context
}

// Run runs the suite.
func Run(t *testing.T, s Subject) {
	if s.Limit == 0 {
		s.Limit = 10 * time.Second
	}
	if s.LogDelay == 0 {
		s.LogDelay = 5 * time.Second
	}
	for _, c := range []struct {
		name string
		run  func(*suite)
	}{
		{"an exit code comes back and Delete leaves nothing", exitCode},
		{"both streams go to their files", streams},
		{"the environment of the Spec is there", environment},
		{"every verb is safe to repeat", repeats},
		{"a Create with another Spec is refused", otherSpec},
		{"a bad Spec is refused by name", badSpecs},
		{"verbs on what is not there", absent},
		{"a killed container says which signal", killed},
		{"a handled signal lets the program choose its end", trapped},
		{"Kill reaches children of the first process", children},
		{"Wait ends with its context", waitLimit},
		{"Delete ends a running container and its Wait", deleteRunning},
		{"a created container can be deleted unstarted", deleteCreated},
		{"a new connection finds the containers again", adoption},
		{"an engine that dies is not an exit", engineDies},
		{"a start that is cut short can be tried again", cutShort},
		{"a prepared container waits for Start", prepared},
		{"Exec runs beside the first process", execs},
		{"several containers at once", many},
		{"many containers leave nothing", churn},
		{"one after another they share a container", usedAgain},
		{"what shares a container cannot be dumped", sharedCheckpoint},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(context.Background(), 20*s.Limit)
			defer cancel()
			c.run(&suite{Subject: s, t: t, d: s.Connect(t), ctx: ctx})
		})
	}
}

// verb calls f within the limit of one method.
func (s *suite) verb(what string, f func(ctx context.Context) error) error {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.ctx, s.Limit)
	defer cancel()
	err := f(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		s.t.Fatalf("%s took longer than %s", what, s.Limit)
	}
	return err
}

func (s *suite) must(what string, err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatalf("%s: %v", what, err)
	}
}

func (s *suite) create(spec runtime.Spec) {
	s.t.Helper()
	s.must("create", s.verb("create", func(ctx context.Context) error { return s.d.Create(ctx, spec) }))
	s.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), s.Limit)
		defer cancel()
		if err := s.d.Delete(ctx, spec.ID); err != nil {
			s.t.Errorf("clean up %s: %v", spec.ID, err)
		}
	})
}

func (s *suite) start(id string) {
	s.t.Helper()
	s.must("start", s.verb("start", func(ctx context.Context) error { return s.d.Start(ctx, id) }))
}

func (s *suite) kill(id string, sig syscall.Signal) {
	s.t.Helper()
	s.must("kill", s.verb("kill", func(ctx context.Context) error { return s.d.Kill(ctx, id, sig) }))
}

func (s *suite) wait(id string) runtime.Status {
	s.t.Helper()
	var st runtime.Status
	s.must("wait", s.verb("wait", func(ctx context.Context) (err error) { st, err = s.d.Wait(ctx, id); return }))
	if st.Phase != runtime.PhaseStopped {
		s.t.Fatalf("wait gave phase %s", st.Phase)
	}
	return st
}

func (s *suite) delete(id string) {
	s.t.Helper()
	s.must("delete", s.verb("delete", func(ctx context.Context) error { return s.d.Delete(ctx, id) }))
	if _, ok := s.find(id); ok {
		s.t.Errorf("%s is listed after Delete", id)
	}
	if s.Leftovers != nil {
		if left := s.Leftovers(s.t, id); len(left) > 0 {
			s.t.Errorf("left behind by %s:\n%s", id, strings.Join(left, "\n"))
		}
	}
}

func (s *suite) find(id string) (runtime.Status, bool) {
	s.t.Helper()
	var all []runtime.Status
	s.must("list", s.verb("list", func(ctx context.Context) (err error) { all, err = s.d.List(ctx); return }))
	if !slices.IsSortedFunc(all, func(a, b runtime.Status) int { return strings.Compare(a.ID, b.ID) }) {
		s.t.Errorf("List is not in order of ID: %v", all)
	}
	i := slices.IndexFunc(all, func(x runtime.Status) bool { return x.ID == id })
	if i < 0 {
		return runtime.Status{}, false
	}
	return all[i], true
}

// phase checks the phase of a container. An engine may not know it for a moment: containerd
// gives a shim 2 s to answer, which a busy machine exceeds.
func (s *suite) phase(id string, want runtime.Phase) runtime.Status {
	s.t.Helper()
	var st runtime.Status
	var ok bool
	poll(s.Limit, func() bool { st, ok = s.find(id); return !ok || st.Phase != runtime.PhaseUnknown })
	if !ok || st.Phase != want {
		s.t.Fatalf("List has %s as %v (found %v), want %s", id, st.Phase, ok, want)
	}
	return st
}

// awaitLog waits until the stream's log contains want.
func (s *suite) awaitLog(spec runtime.Spec, file, want string) {
	s.t.Helper()
	name := filepath.Join(spec.Log.Dir, file)
	var got []byte
	if !poll(s.LogDelay, func() bool { got, _ = os.ReadFile(name); return strings.Contains(string(got), want) }) {
		s.t.Fatalf("%s has %q, want %q in it", file, got, want)
	}
}

// poll calls cond until it returns true or the limit has passed.
func poll(limit time.Duration, cond func() bool) bool {
	end := time.NewTimer(limit)
	defer end.Stop()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-tick.C:
		case <-end.C:
			return cond()
		}
	}
	return true
}

func exitCode(s *suite) {
	for _, code := range []int{0, 3, 255} {
		id := fmt.Sprintf("exit-%d", code)
		s.create(s.Spec(s.t, id, "exit", fmt.Sprint(code)))
		s.phase(id, runtime.PhaseCreated)
		s.start(id)
		st := s.wait(id)
		if st.ExitCode != code || st.Started.IsZero() || st.Exited.Before(st.Started) {
			s.t.Errorf("exit %d gave %+v", code, st)
		}
		if st.PID != 0 {
			s.t.Errorf("a stopped container has PID %d", st.PID)
		}
		s.phase(id, runtime.PhaseStopped)
		s.delete(id)
	}
}

func streams(s *suite) {
	spec := s.Spec(s.t, "streams", "echo", "to out", "to err", "4")
	s.create(spec)
	s.start(spec.ID)
	if st := s.wait(spec.ID); st.ExitCode != 4 {
		s.t.Errorf("exit code %d, want 4", st.ExitCode)
	}
	s.awaitLog(spec, "stdout.log", "to out\n")
	s.awaitLog(spec, "stderr.log", "to err\n")
	s.delete(spec.ID)
	s.awaitLog(spec, "stdout.log", "to out\n") // logs survive Delete
}

func environment(s *suite) {
	spec := s.Spec(s.t, "env", "env", "DROVER_TEST")
	spec.Env = append(spec.Env, "DROVER_TEST=a b=c")
	s.create(spec)
	s.start(spec.ID)
	s.wait(spec.ID)
	s.awaitLog(spec, "stdout.log", "a b=c\n")
	s.delete(spec.ID)
}

func repeats(s *suite) {
	spec := s.Spec(s.t, "repeats", "sleep")
	spec.Labels = map[string]string{"job": "j-1", "run": "7"}
	s.create(spec)
	s.create(spec)
	s.start(spec.ID)
	s.start(spec.ID)
	s.create(spec)
	s.awaitLog(spec, "stdout.log", "ready\n")
	st := s.phase(spec.ID, runtime.PhaseRunning)
	if st.PID == 0 {
		s.t.Error("a running container has PID 0")
	}
	if d := cmp.Diff(spec.Labels, st.Labels); d != "" {
		s.t.Errorf("labels (-want +got):\n%s", d)
	}
	s.kill(spec.ID, syscall.SIGKILL)
	s.wait(spec.ID)
	s.kill(spec.ID, syscall.SIGKILL)
	s.start(spec.ID)
	s.phase(spec.ID, runtime.PhaseStopped)
	s.wait(spec.ID)
	s.delete(spec.ID)
	s.delete(spec.ID)
}

func otherSpec(s *suite) {
	spec := s.Spec(s.t, "other", "exit", "0")
	s.create(spec)
	spec.Env = append(slices.Clone(spec.Env), "NEW=1")
	err := s.verb("create", func(ctx context.Context) error { return s.d.Create(ctx, spec) })
	if !errors.Is(err, fault.Exists) {
		s.t.Errorf("got %v, want fault.Exists", err)
	}
	s.delete(spec.ID)
}

func badSpecs(s *suite) {
	for _, c := range []struct {
		name string
		edit func(*runtime.Spec)
	}{
		{"an ID with a slash", func(p *runtime.Spec) { p.ID = "a/b" }},
		{"no command", func(p *runtime.Spec) { p.Args = nil }},
		{"a relative mount", func(p *runtime.Spec) { p.Mounts = append(p.Mounts, runtime.Mount{Source: "x", Target: "/x"}) }},
		{"a variable without a name", func(p *runtime.Spec) { p.Env = []string{"=x"} }},
		{"an image and a rootfs", func(p *runtime.Spec) { p.Image, p.Rootfs = "sha256:1", "/x" }},
	} {
		spec := s.Spec(s.t, "bad", "exit", "0")
		c.edit(&spec)
		err := s.verb("create", func(ctx context.Context) error { return s.d.Create(ctx, spec) })
		if !errors.Is(err, fault.Invalid) {
			s.t.Errorf("%s: got %v, want fault.Invalid", c.name, err)
		}
	}
	if _, ok := s.find("bad"); ok {
		s.t.Error("a refused Spec left a container")
	}
}

func absent(s *suite) {
	if err := s.verb("start", func(ctx context.Context) error { return s.d.Start(ctx, "absent") }); !errors.Is(err, fault.NotFound) {
		s.t.Errorf("Start: got %v, want fault.NotFound", err)
	}
	err := s.verb("wait", func(ctx context.Context) error { _, err := s.d.Wait(ctx, "absent"); return err })
	if !errors.Is(err, fault.NotFound) {
		s.t.Errorf("Wait: got %v, want fault.NotFound", err)
	}
	s.kill("absent", syscall.SIGTERM)
	s.delete("absent")
}

func killed(s *suite) {
	for _, sig := range []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM} {
		spec := s.Spec(s.t, fmt.Sprintf("killed-%d", int(sig)), "sleep")
		s.create(spec)
		s.start(spec.ID)
		s.awaitLog(spec, "stdout.log", "ready\n")
		s.kill(spec.ID, sig)
		// The first process of a PID namespace has no default action for SIGTERM.
		if sig == syscall.SIGTERM && !s.awaitStopped(spec.ID) {
			s.kill(spec.ID, syscall.SIGKILL)
			sig = syscall.SIGKILL
		}
		if st := s.wait(spec.ID); st.ExitCode != 128+int(sig) && st.ExitCode != 2 { // a Go program exits with 2 on some signals
			s.t.Errorf("exit code %d after signal %d", st.ExitCode, int(sig))
		}
		s.delete(spec.ID)
	}
}

func (s *suite) awaitStopped(id string) bool {
	ctx, cancel := context.WithTimeout(s.ctx, s.Limit/5)
	defer cancel()
	_, err := s.d.Wait(ctx, id)
	return err == nil
}

func trapped(s *suite) {
	spec := s.Spec(s.t, "trapped", "trap")
	s.create(spec)
	s.start(spec.ID)
	s.awaitLog(spec, "stdout.log", "ready\n")
	s.kill(spec.ID, syscall.SIGTERM)
	if st := s.wait(spec.ID); st.ExitCode != 5 {
		s.t.Errorf("exit code %d, want 5", st.ExitCode)
	}
	s.awaitLog(spec, "stdout.log", "got 15\n")
	s.delete(spec.ID)
}

func children(s *suite) {
	spec := s.Spec(s.t, "children", "child")
	s.create(spec)
	s.start(spec.ID)
	s.awaitLog(spec, "stdout.log", "ready\n")
	s.kill(spec.ID, syscall.SIGTERM) // ignored by parent and child, fatal to the fake's program
	s.kill(spec.ID, syscall.SIGKILL)
	s.wait(spec.ID)
	s.delete(spec.ID)
}

func waitLimit(s *suite) {
	spec := s.Spec(s.t, "waits", "sleep")
	s.create(spec)
	s.start(spec.ID)
	ctx, cancel := context.WithTimeout(s.ctx, 50*time.Millisecond)
	defer cancel()
	if _, err := s.d.Wait(ctx, spec.ID); !errors.Is(err, context.DeadlineExceeded) {
		s.t.Errorf("got %v, want the context's error", err)
	}
	s.phase(spec.ID, runtime.PhaseRunning)
	s.delete(spec.ID)
}

func deleteRunning(s *suite) {
	spec := s.Spec(s.t, "del-run", "child")
	s.create(spec)
	s.start(spec.ID)
	s.awaitLog(spec, "stdout.log", "ready\n")
	waited := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(s.ctx, s.Limit)
		defer cancel()
		_, err := s.d.Wait(ctx, spec.ID)
		waited <- err
	}()
	s.delete(spec.ID)
	if err := <-waited; err != nil && !errors.Is(err, fault.NotFound) {
		s.t.Errorf("Wait across Delete: %v, want a status or fault.NotFound", err)
	}
}

func deleteCreated(s *suite) {
	spec := s.Spec(s.t, "del-new", "sleep")
	s.create(spec)
	s.kill(spec.ID, syscall.SIGKILL)
	s.phase(spec.ID, runtime.PhaseCreated)
	s.delete(spec.ID)
}

func adoption(s *suite) {
	spec := s.Spec(s.t, "adopted", "trap")
	spec.Labels = map[string]string{"attempt": "a-1"}
	s.create(spec)
	s.start(spec.ID)
	s.awaitLog(spec, "stdout.log", "ready\n")
	before := s.phase(spec.ID, runtime.PhaseRunning)
	s.d = s.Connect(s.t)
	after := s.phase(spec.ID, runtime.PhaseRunning)
	if before.PID != after.PID || !cmp.Equal(after.Labels, spec.Labels) {
		s.t.Errorf("before %+v, after %+v", before, after)
	}
	s.create(spec)
	s.start(spec.ID)
	s.kill(spec.ID, syscall.SIGTERM)
	if st := s.wait(spec.ID); st.ExitCode != 5 {
		s.t.Errorf("exit code %d, want 5", st.ExitCode)
	}
	s.d = s.Connect(s.t)
	if st := s.wait(spec.ID); st.ExitCode != 5 {
		s.t.Errorf("exit code %d found by the next connection, want 5", st.ExitCode)
	}
	s.delete(spec.ID)
}

func engineDies(s *suite) {
	if s.StopEngine == nil {
		s.t.Skip("not proved here: that tasks survive the death of the engine; this driver has none")
	}
	spec := s.Spec(s.t, "orphan", "trap")
	s.create(spec)
	s.start(spec.ID)
	s.awaitLog(spec, "stdout.log", "ready\n")
	pid := s.phase(spec.ID, runtime.PhaseRunning).PID
	waited := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(s.ctx, s.Limit)
		defer cancel()
		_, err := s.d.Wait(ctx, spec.ID)
		waited <- err
	}()
	s.StopEngine(s.t)
	if err := <-waited; !errors.Is(err, fault.Unavailable) {
		s.t.Errorf("Wait across the engine's death: %v, want fault.Unavailable", err)
	}
	if _, err := s.d.List(s.ctx); !errors.Is(err, fault.Unavailable) {
		s.t.Errorf("List without an engine: %v, want fault.Unavailable", err)
	}
	s.StartEngine(s.t)
	if st := s.phase(spec.ID, runtime.PhaseRunning); st.PID != pid {
		s.t.Errorf("PID %d after the engine came back, was %d", st.PID, pid)
	}
	s.kill(spec.ID, syscall.SIGTERM)
	if st := s.wait(spec.ID); st.ExitCode != 5 {
		s.t.Errorf("exit code %d, want 5", st.ExitCode)
	}
	s.awaitLog(spec, "stdout.log", "got 15\n")
	s.delete(spec.ID)
}

// cutShort ends the context of starts at several times, so that some end while
// the engine is working.
func cutShort(s *suite) {
	for i, part := range []time.Duration{2000, 600, 200, 60, 30, 15, 10} {
		spec := s.Spec(s.t, fmt.Sprintf("cut-%d", i), "sleep")
		s.create(spec)
		if s.SlowStart != nil {
			s.SlowStart(s.t, s.Limit)
		}
		ctx, cancel := context.WithTimeout(s.ctx, s.Limit/part)
		err := s.d.Start(ctx, spec.ID)
		cancel()
		if err != nil && !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, fault.Unavailable) {
			s.t.Errorf("a start that is cut short after %s: %v, want the context's error", s.Limit/part, err)
		}
		if err != nil {
			s.phase(spec.ID, runtime.PhaseCreated)
			if sw, ok := s.d.(runtime.Sweeper); ok {
				left, err := sw.Leftovers(s.ctx)
				s.must("leftovers", err)
				if len(left) > 0 {
					s.t.Errorf("cut short after %s it leaves %v", s.Limit/part, left)
				}
			}
		}
		s.start(spec.ID)
		s.awaitLog(spec, "stdout.log", "ready\n")
		s.phase(spec.ID, runtime.PhaseRunning)
		s.delete(spec.ID)
	}
}

func prepared(s *suite) {
	p, ok := s.d.(runtime.Preparer)
	if !ok {
		s.t.Skip("not proved here: that a prepared task starts, and is deleted unstarted; this driver starts in one step")
	}
	if err := s.verb("prepare", func(ctx context.Context) error { return p.Prepare(ctx, "absent") }); !errors.Is(err, fault.NotFound) {
		s.t.Errorf("Prepare of what is not there: %v, want fault.NotFound", err)
	}
	spec := s.Spec(s.t, "prepared", "exit", "6")
	s.create(spec)
	for range 2 {
		s.must("prepare", s.verb("prepare", func(ctx context.Context) error { return p.Prepare(ctx, spec.ID) }))
		s.phase(spec.ID, runtime.PhaseCreated)
	}
	s.start(spec.ID)
	if st := s.wait(spec.ID); st.ExitCode != 6 {
		s.t.Errorf("exit code %d, want 6", st.ExitCode)
	}
	s.delete(spec.ID)
	spec = s.Spec(s.t, "prepared-only", "sleep")
	s.create(spec)
	s.must("prepare", s.verb("prepare", func(ctx context.Context) error { return p.Prepare(ctx, spec.ID) }))
	s.delete(spec.ID)
}

func execs(s *suite) {
	x, ok := s.d.(runtime.Execer)
	if !ok {
		s.t.Skip("not proved here: that commands run inside a task; this driver has no Exec")
	}
	spec := s.Spec(s.t, "execs", "sleep")
	s.create(spec)
	run := func(ctx context.Context, e runtime.ExecSpec, args ...string) (int, error) {
		e.Args = s.Spec(s.t, "x", args...).Args
		return x.Exec(ctx, spec.ID, e)
	}
	if _, err := run(s.ctx, runtime.ExecSpec{}, "exit", "0"); !errors.Is(err, fault.Conflict) {
		s.t.Errorf("Exec before Start: %v, want fault.Conflict", err)
	}
	s.start(spec.ID)
	s.awaitLog(spec, "stdout.log", "ready\n")
	var out, errOut bytes.Buffer
	code, err := run(s.ctx, runtime.ExecSpec{Stdout: &out, Stderr: &errOut}, "echo", "x-out", "x-err", "9")
	if err != nil || code != 9 || out.String() != "x-out\n" || errOut.String() != "x-err\n" {
		s.t.Errorf("echo: code %d, error %v, stdout %q, stderr %q", code, err, &out, &errOut)
	}
	out.Reset()
	text := strings.Repeat("0123456789abcdef", 8192)
	code, err = run(s.ctx, runtime.ExecSpec{Stdin: strings.NewReader(text), Stdout: &out}, "cat")
	if err != nil || code != 0 || out.String() != text {
		s.t.Errorf("cat: code %d, error %v, %d bytes back of %d", code, err, out.Len(), len(text))
	}
	ctx, cancel := context.WithTimeout(s.ctx, s.Limit/10)
	defer cancel()
	if _, err = run(ctx, runtime.ExecSpec{}, "sleep"); !errors.Is(err, context.DeadlineExceeded) {
		s.t.Errorf("a cancelled Exec: %v, want the context's error", err)
	}
	s.phase(spec.ID, runtime.PhaseRunning)
	s.delete(spec.ID)
}

func many(s *suite) {
	s.runTogether(s.ctx, "many", 6)
}

// runTogether runs n containers concurrently and returns their IDs.
func (s *suite) runTogether(ctx context.Context, name string, n int) (ids []string) {
	errs := make(chan error, n)
	for i := range n {
		spec := s.Spec(s.t, fmt.Sprintf("%s-%d", name, i), "exit", fmt.Sprint(i+10))
		ids = append(ids, spec.ID)
		go func() { errs <- s.runOne(ctx, spec, i+10) }()
	}
	for range n {
		if err := <-errs; err != nil {
			s.t.Error(err)
		}
	}
	return ids
}

// churn runs many containers, four at a time.
func churn(s *suite) {
	n := s.Churn
	if os.Getenv("DROVER_SOAK") != "" {
		n = 1000
	}
	const width = 4
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(n+width)*s.Limit)
	defer cancel()
	var ids []string
	for i := 0; i < n && !s.t.Failed(); i += width {
		ids = append(ids, s.runTogether(ctx, fmt.Sprintf("churn-%d", i), width)...)
	}
	all, err := s.d.List(ctx)
	if err != nil || len(all) > 0 {
		s.t.Errorf("after %d containers List gives %v, %v", len(ids), all, err)
	}
	if s.Leftovers == nil {
		return
	}
	for _, id := range ids {
		if left := s.Leftovers(s.t, id); len(left) > 0 {
			s.t.Errorf("left behind by %s:\n%s", id, strings.Join(left, "\n"))
		}
	}
}

// runOne runs one container from Create to Delete.
func (s *suite) runOne(ctx context.Context, spec runtime.Spec, want int) error {
	ctx, cancel := context.WithTimeout(ctx, 6*s.Limit)
	defer cancel()
	if err := s.d.Create(ctx, spec); err != nil {
		return fmt.Errorf("create %s: %w", spec.ID, err)
	}
	if err := s.d.Start(ctx, spec.ID); err != nil {
		return fmt.Errorf("start %s: %w", spec.ID, err)
	}
	st, err := s.d.Wait(ctx, spec.ID)
	if err != nil || st.ExitCode != want {
		return fmt.Errorf("wait %s: code %d, want %d: %v", spec.ID, st.ExitCode, want, err)
	}
	if err := s.d.Delete(ctx, spec.ID); err != nil {
		return fmt.Errorf("delete %s: %w", spec.ID, err)
	}
	return nil
}
