package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/drover-run/drover/integration/internal/cache"
	"github.com/drover-run/drover/integration/testbed"
)

// These tests start test beds with one machine each and check that nothing of them remains. They
// need root, the cache filled by `testbed build`, and DROVER_TESTBED_TESTS=1.
const envTestbedTests = "DROVER_TESTBED_TESTS"

const lifeLimit = 3 * time.Minute

// buildCommand compiles this program, because `go run` would not pass the tests' signals on.
func buildCommand(t *testing.T) string {
	t.Helper()
	if os.Getenv(envTestbedTests) == "" {
		t.Skipf("not proved here: that test beds start, stop and leave nothing behind; set %s=1 (root, after testbed build)", envTestbedTests)
	}
	if os.Getenv(testbed.EnvFile) != "" {
		t.Skip("not proved here: that test beds start, stop and leave nothing behind; this runs inside a test bed")
	}
	program := filepath.Join(t.TempDir(), "testbed")
	if out, err := exec.Command("go", "build", "-o", program, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return program
}

// startedTestbed is a started test bed.
type startedTestbed struct {
	cmd   *exec.Cmd
	lines *bufio.Scanner
	dir   string // the run's folder
}

// startTestbed starts a test bed whose command first prints the path of the test bed file.
func startTestbed(ctx context.Context, t *testing.T, program, script string) *startedTestbed {
	t.Helper()
	l := &startedTestbed{cmd: exec.CommandContext(ctx, program, "run", "-nodes", "1", "--", "sh", "-c", "echo $DROVER_TESTBED; "+script)}
	l.cmd.Stderr = os.Stderr
	l.cmd.Env = append(os.Environ(), "TESTBED="+program)
	out, err := l.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := l.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	l.lines = bufio.NewScanner(out)
	l.dir = filepath.Dir(l.readLine(t))
	return l
}

func (l *startedTestbed) readLine(t *testing.T) string {
	t.Helper()
	if !l.lines.Scan() {
		t.Fatalf("no output from the test bed's command: %v; %v", l.lines.Err(), l.cmd.Wait())
	}
	return l.lines.Text()
}

// processes lists the processes that work in the run's folder or name it or the marker in their
// command line or environment.
func (l *startedTestbed) processes(marker string) []string {
	var found []string
	all, _ := filepath.Glob("/proc/[0-9]*")
	for _, p := range all {
		cwd, _ := os.Readlink(p + "/cwd")
		args, _ := os.ReadFile(p + "/cmdline")
		env, _ := os.ReadFile(p + "/environ")
		if strings.HasPrefix(cwd, l.dir) || strings.Contains(string(args), l.dir) ||
			strings.Contains(string(args), marker) && !strings.HasSuffix(p, fmt.Sprint("/", os.Getpid())) ||
			strings.Contains(string(env), l.dir) {
			found = append(found, p+" "+strings.ReplaceAll(string(args), "\x00", " "))
		}
	}
	return found
}

func (l *startedTestbed) awaitNothingLeft(t *testing.T, marker string) {
	t.Helper()
	err := testbed.WaitFor(context.Background(), time.Minute, "all processes of the test bed to end", func(context.Context) error {
		if left := l.processes(marker); len(left) > 0 {
			return errors.New(strings.Join(left, "\n"))
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	for _, device := range []string{"testbed0", "tap1"} {
		if _, err := os.Stat("/sys/class/net/" + device); err == nil {
			t.Errorf("network device %s is left on the host", device)
		}
	}
	if mounts, err := os.ReadFile("/proc/self/mounts"); err != nil || strings.Contains(string(mounts), l.dir) {
		t.Errorf("a mount is left (%v)", err)
	}
}

func TestTestbedLeavesNothing(t *testing.T) {
	program := buildCommand(t)
	marker := fmt.Sprint(time.Now().UnixNano()) // a number that occurs only in this test's commands
	tests := map[string]struct {
		script     string
		signal     syscall.Signal // 0: none
		wantCode   int            // -1: killed
		wantFolder bool           // the run's folder remains for the next run to sweep
	}{
		"after its command, whose exit code it passes on": {
			script: "(sleep 9999; : " + marker + ") & exit 7", wantCode: 7},
		"after SIGTERM, which reaches the command": {
			script: "trap 'exit 5' TERM; echo ready; while :; do sleep 0.1; done; : " + marker, signal: syscall.SIGTERM, wantCode: 5},
		"after kill -9": {
			script: "echo ready; sleep 9999; : " + marker, signal: syscall.SIGKILL, wantCode: -1, wantFolder: true},
		"after its machine was killed": {
			script: "$TESTBED control kill-machine 1 && [ $($TESTBED control machine-state 1) = dead ] && exit 9; : " + marker, wantCode: 9},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(context.Background(), lifeLimit)
			defer cancel()
			l := startTestbed(ctx, t, program, tt.script)
			if tt.signal != 0 {
				if got := l.readLine(t); got != "ready" {
					t.Fatalf("the command said %q", got)
				}
				if len(l.processes(marker)) < 3 { // proves that the search works: testbed, QEMU, command
					t.Fatalf("only these processes found of a running test bed: %v", l.processes(marker))
				}
				if err := l.cmd.Process.Signal(tt.signal); err != nil {
					t.Fatal(err)
				}
			}
			l.cmd.Wait()
			if got := l.cmd.ProcessState.ExitCode(); got != tt.wantCode {
				t.Errorf("exit code %d, want %d", got, tt.wantCode)
			}
			l.awaitNothingLeft(t, marker)
			if _, err := os.Stat(l.dir); (err == nil) != tt.wantFolder {
				t.Errorf("the run's folder exists: %v, want %v", err == nil, tt.wantFolder)
			}
			if tt.wantFolder {
				c, err := cache.Open(cache.RepoRoot())
				if err != nil {
					t.Fatal(err)
				}
				if !strings.HasPrefix(l.dir, c.Path()) || !cache.RemoveUnused(l.dir) {
					t.Errorf("the folder %s of a killed run cannot be swept", l.dir)
				}
			}
		})
	}
}

func TestUpAndDown(t *testing.T) {
	program := buildCommand(t)
	c, err := cache.Open(cache.RepoRoot())
	if err != nil {
		t.Fatal(err)
	}
	if isUp(c) {
		t.Skip("not proved here: that a test bed stays up in the background until it is ended; another one is up in this cache")
	}
	ctx, cancel := context.WithTimeout(context.Background(), lifeLimit)
	defer cancel()
	run := func(want string, args ...string) {
		t.Helper()
		out, err := exec.CommandContext(ctx, program, args...).CombinedOutput()
		if err != nil || !strings.Contains(string(out), want) {
			t.Errorf("testbed %v: %v, no %q in:\n%s", args, err, want, out)
		}
	}
	run("n1  10.77.0.11", "up", "-nodes", "1")
	b, err := testbed.Open(upFile(c))
	if err != nil {
		t.Fatal(err)
	}
	l := &startedTestbed{dir: b.File.Dir}
	run("up already", "up", "-nodes", "1")
	run("running", "status")
	run("n1", "exec", "-node", "1", "--", "hostname")
	run("10.77.0.1/24", "enter", "--", "ip", "-br", "addr")
	run("the test bed is down", "down")
	run("no test bed is up", "down")
	l.awaitNothingLeft(t, l.dir)
	for _, gone := range []string{upFile(c), l.dir} {
		if _, err := os.Stat(gone); err == nil {
			t.Errorf("%s is left", gone)
		}
	}
}
