package main

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// lockedBuffer is a buffer that a process writes and a test reads.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// startDaemon starts `drover ARGS` as a process of its own and waits until it
// is ready. The test's end kills it.
func startDaemon(t *testing.T, args ...string) (*exec.Cmd, *lockedBuffer) {
	t.Helper()
	cmd, log := launch(t, "drover", args...)
	waitFor(t, "drover "+args[0]+" is ready", func() bool { return strings.Contains(log.String(), "ready: ") }, log.String)
	return cmd, log
}

// launch starts the test binary as one of the programs of TestMain, which ends with the test. The library of
// the command line has flags that all commands of a process share, so that what runs side by side has
// a process of its own.
func launch(t *testing.T, program string, args ...string) (*exec.Cmd, *lockedBuffer) {
	t.Helper()
	log := &lockedBuffer{}
	return launchTo(t, log, log, program, args...), log
}

// launchTo is launch with the output apart from what is said beside it.
func launchTo(t *testing.T, out, said *lockedBuffer, program string, args ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := &exec.Cmd{Path: self, Args: append([]string{program}, args...), Stdout: out, Stderr: said, Env: append(os.Environ(), "GORACE="+raceExitOption)}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have ended
		_ = cmd.Wait()
	})
	return cmd
}

// waitFor polls until yes, at most stepLimit.
func waitFor(t *testing.T, what string, yes func() bool, more func() string) {
	t.Helper()
	began := time.Now()
	for end := began.Add(stepLimit); time.Now().Before(end); time.Sleep(lookPause(began)) {
		if yes() {
			return
		}
	}
	t.Fatalf("not within %s: %s\n%s", stepLimit, what, more())
}

// droverOutput runs a command and returns what it printed and its error. A test that runs beside others takes
// processOutput.
func droverOutput(t *testing.T, args ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	app := newApp(strings.NewReader(""), &out, &out)
	err := app.RunContext(context.Background(), append([]string{"drover"}, args...))
	return out.String(), err
}

// processOutput runs a command in a process of its own and returns what it printed.
func processOutput(t *testing.T, args ...string) (string, error) {
	t.Helper()
	cmd, out := launch(t, "drover", args...)
	err := cmd.Wait()
	return out.String(), err
}

// TestStoppedCoordinatorLosesNoNode stops a coordinator's process for four
// leases, as a moved machine or a swap storm does. When it goes on, the nodes
// are there as before and the task keeps its attempt.
func TestStoppedCoordinatorLosesNoNode(t *testing.T) {
	t.Parallel()                           // it waits for most of its time
	dir, err := os.MkdirTemp("", "drover") // socket paths are short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	const lease = time.Second
	socket := filepath.Join(dir, "s")
	coord, log := startDaemon(t, "coordinator", "-data", filepath.Join(dir, "coordinator"), "-socket", socket, "-lease", lease.String())
	startProcessNode(t, filepath.Join(dir, "dev"), socket)
	job := filepath.Join(dir, "job.hcl")
	if err := os.WriteFile(job, []byte("job \"stand\" {\n  stage \"main\" { command = [\"sleep\", \"600\"] }\n}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	at := "unix://" + socket
	run := func(args ...string) string {
		out, err := processOutput(t, append([]string{"-address", at}, args...)...)
		if err != nil {
			t.Fatalf("drover %s: %v\n%s\n%s", strings.Join(args, " "), err, out, log)
		}
		return out
	}
	run("job", "run", "-detach", job)
	waitFor(t, "the task runs", func() bool { return strings.Contains(run("job", "status", "-json", "stand"), `"running": 1`) }, log.String)
	stops := 2
	if testing.Short() {
		stops = 1
	}
	for range stops {
		if err := coord.Process.Signal(syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		time.Sleep(4 * lease) // the fault itself: there is nothing to wait for in a stopped process
		if err := coord.Process.Signal(syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
		back := time.Now()
		waitFor(t, "it looked at the leases for one lease more", func() bool { run("status"); return time.Since(back) > lease }, log.String)
		events := run("events")
		if strings.Contains(events, "node.lost") || strings.Contains(events, "task.lost") {
			t.Fatalf("the node or its task was lost though only the coordinator had stopped:\n%s", events)
		}
	}
	if out := run("task", "status", "stand", "main/0"); !strings.Contains(out, "running") || strings.Contains(out, "attempt 2") {
		t.Fatalf("the task does not run on:\n%s", out)
	}
	run("job", "stop", "stand")
}
