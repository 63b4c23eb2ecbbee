package run

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/drover-run/drover/integration/internal/cache"
)

// stopLimit limits the end of a command after a signal; then everything is killed.
const stopLimit = 15 * time.Second

// exitTestbedFailed is the exit code if the test bed itself failed, not its command.
const exitTestbedFailed = 125

// Run starts a test bed, waits for its end and returns the exit code of the command. It must be
// called from the main goroutine of a program whose main begins with Stage. SIGINT, SIGTERM and
// SIGHUP end the command, then the test bed.
func Run(c *Config, root cache.Dir) (int, error) {
	runtime.LockOSThread() // the parent death signal is sent when the thread that created the child ends
	defer runtime.UnlockOSThread()
	if err := dieWithGoRun(); err != nil {
		return exitTestbedFailed, err
	}
	dir, lock, err := makeRunDir(root)
	if err != nil {
		return exitTestbedFailed, err
	}
	defer lock.Close()
	defer os.RemoveAll(dir)
	c.Dir, c.LogDir = dir, root.Path("log")
	stage, attributes := "init", namespaces()
	if c.Host {
		stage, attributes = "inner", &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	}
	env, err := c.env(stage)
	if err != nil {
		return exitTestbedFailed, err
	}
	self, err := os.Executable()
	if err != nil {
		return exitTestbedFailed, fmt.Errorf("testbed: %w", err)
	}
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer signal.Stop(signals)
	cmd := exec.Command(self)
	cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.Env = os.Stdin, os.Stdout, os.Stderr, env
	cmd.SysProcAttr = attributes
	if err := cmd.Start(); err != nil {
		return exitTestbedFailed, fmt.Errorf("testbed: making network, process and mount namespaces (needs root or user namespaces): %w", err)
	}
	err = waitForwarding(cmd, signals)
	saveLogs(dir, c.LogDir)
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0, nil
	case errors.As(err, &exit) && exit.ExitCode() >= 0:
		return exit.ExitCode(), nil
	default:
		return exitTestbedFailed, fmt.Errorf("testbed: %w", err)
	}
}

// namespaces requests private namespaces; a user who is not root gets them inside a user namespace.
func namespaces() *syscall.SysProcAttr {
	a := &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWPID | syscall.CLONE_NEWNS,
		Pdeathsig:  syscall.SIGKILL,
	}
	if os.Geteuid() != 0 {
		a.Cloneflags |= syscall.CLONE_NEWUSER
		a.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}}
		a.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}}
	}
	return a
}

// dieWithGoRun makes this process end with `go run`, which does not pass SIGKILL to its program.
func dieWithGoRun() error {
	self, err := os.Executable()
	if err != nil || !strings.Contains(self, "/go-build") {
		return nil
	}
	parent := os.Getppid()
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(syscall.SIGTERM), 0, 0, 0); err != nil {
		return fmt.Errorf("testbed: parent death signal: %w", err)
	}
	if os.Getppid() != parent {
		return errors.New("testbed: go run has ended")
	}
	return nil
}

// waitForwarding waits for the end of the namespace and forwards signals; it kills the namespace
// after stopLimit. The first Ctrl-C on a terminal is left to the command, which receives it too.
func waitForwarding(cmd *exec.Cmd, signals <-chan os.Signal) error {
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	var limit <-chan time.Time
	asked := false
	for {
		select {
		case err := <-done:
			return err
		case s := <-signals:
			if s == syscall.SIGINT && !asked && inForeground() {
				asked = true
				continue
			}
			if limit == nil {
				limit = time.After(stopLimit)
			}
			cmd.Process.Signal(syscall.SIGTERM)
		case <-limit:
			cmd.Process.Kill()
		}
	}
}

// inForeground reports whether this process is in the foreground group of its terminal, so that
// Ctrl-C there also reaches its children.
func inForeground() bool {
	tty, err := os.Open("/dev/tty")
	if err != nil {
		return false
	}
	defer tty.Close()
	group, err := unix.IoctlGetInt(int(tty.Fd()), unix.TIOCGPGRP)
	return err == nil && group == syscall.Getpgrp()
}

// longestSocket is the longest path of a Unix socket.
const longestSocket = 107

// makeRunDir makes and locks the run's folder and removes the folders of killed runs.
func makeRunDir(root cache.Dir) (string, *os.File, error) {
	sweep, err := root.Lock("runs", time.Minute) // no other process sweeps between our mkdir and our lock
	if err != nil {
		return "", nil, err
	}
	defer sweep.Close()
	runs := root.Path("run")
	if err := os.MkdirAll(runs, 0o755); err != nil {
		return "", nil, fmt.Errorf("testbed: %w", err)
	}
	old, err := filepath.Glob(filepath.Join(runs, "*"))
	if err != nil {
		return "", nil, err
	}
	for _, d := range old {
		cache.RemoveUnused(d)
	}
	dir, err := os.MkdirTemp(runs, "")
	if err != nil {
		return "", nil, fmt.Errorf("testbed: %w", err)
	}
	if len(dir)+len("/control") > longestSocket {
		os.Remove(dir)
		return "", nil, fmt.Errorf("testbed: the path %s is too long for a socket: set %s to a shorter folder", dir, cache.EnvDir)
	}
	f, err := os.Open(dir)
	if err == nil {
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_SH)
	}
	if err != nil {
		return "", nil, fmt.Errorf("testbed: %w", err)
	}
	return dir, f, nil
}

// saveLogs replaces the saved logs of the previous run with this run's. Errors are ignored, since
// the logs only help to debug a failure.
func saveLogs(dir, to string) {
	os.RemoveAll(to)
	if os.MkdirAll(to, 0o755) != nil {
		return
	}
	for _, pattern := range []string{"*.log", "*.console"} {
		logs, _ := filepath.Glob(filepath.Join(dir, pattern))
		for _, l := range logs {
			copyFile(filepath.Join(to, filepath.Base(l)), l)
		}
	}
}

func copyFile(to, from string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.Create(to)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

// Stage must be called first in main. In the processes that Run starts, it does their work and
// exits; elsewhere it returns.
func Stage() {
	switch os.Getenv(envStage) {
	case "":
	case "init":
		os.Exit(initMain())
	case "inner":
		os.Exit(innerMain(context.Background()))
	default:
		fmt.Fprintf(os.Stderr, "testbed: unknown stage %q in %s\n", os.Getenv(envStage), envStage)
		os.Exit(exitTestbedFailed)
	}
}
