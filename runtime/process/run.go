package process

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/drover-run/drover/internal/environ"
	"github.com/drover-run/drover/internal/execerror"
	"github.com/drover-run/drover/internal/exechint"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/internal/peakmem"
	"github.com/drover-run/drover/internal/rotate"
	"github.com/drover-run/drover/runtime"
)

// outputLimit bounds how long a process that left the task's group may hold the
// output open after the task has ended.
const outputLimit = 2 * time.Second

// Start implements runtime.Driver. Steps: mark the start, so that other calls of the container wait
// for it, and those of other containers do not; make the process; take it over.
func (d *Driver) Start(_ context.Context, id string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	b, err := d.findLocked(id)
	if err != nil {
		return err
	}
	if b.phase != runtime.PhaseCreated {
		return nil
	}
	if d.closed {
		return fault.New(fault.Unavailable, "process driver: it is closed")
	}
	b.starting = true
	d.mu.Unlock()
	started := time.Now()
	cmd, closeLogs, recordErr, err := d.startProcess(b.spec)
	d.mu.Lock()
	b.starting = false
	d.started.Broadcast()
	if err != nil {
		return err
	}
	b.phase, b.pid, b.started = runtime.PhaseRunning, cmd.Process.Pid, started
	d.wg.Go(func() { d.reap(b, cmd, closeLogs) })
	if recordErr != nil { // without a record it could outlive the daemon unnoticed
		return errors.Join(recordErr, b.signal(syscall.SIGKILL))
	}
	return nil
}

// startProcess makes the process of a container. Steps: open the logs; start it in its session, user
// and leaf; record it. It runs also if it could not be recorded.
func (d *Driver) startProcess(s runtime.Spec) (cmd *exec.Cmd, closeLogs func(), recordErr, err error) {
	cmd, release, err := d.prepareCommand(s, s.Args, nil, s.Dir)
	if err != nil {
		return nil, nil, nil, err
	}
	defer release()
	closeLogs = func() {}
	if s.Log.Dir != "" {
		if err := os.MkdirAll(s.Log.Dir, 0o750); err != nil {
			return nil, nil, nil, fault.New(fault.Unavailable, "task %s: logs: %w", s.ID, err)
		}
		out, errs := newLog(s.Log, "stdout.log"), newLog(s.Log, "stderr.log")
		cmd.Stdout, cmd.Stderr = out, errs
		closeLogs = func() { out.Close(); errs.Close() }
	}
	if err := cmd.Start(); err != nil {
		closeLogs()
		return nil, nil, nil, startError(cmd.Path, err)
	}
	return cmd, closeLogs, writeRecord(d.cfg.StateDir, s.ID, d.bootID, cmd.Process.Pid), nil
}

// newLog returns the log of one stream; its file is made when there is output.
func newLog(l runtime.Log, name string) *rotate.File {
	return rotate.New(filepath.Join(l.Dir, name), l.MaxBytes, l.MaxFiles)
}

// reap waits for the first process, kills the rest of its group while the PID is
// still taken, and publishes the end.
func (d *Driver) reap(b *container, cmd *exec.Cmd, closeLogs func()) {
	ended, sampled := make(chan struct{}), make(chan struct{})
	meter := peakmem.New(b.pid, ownPeak())
	go func() {
		defer close(sampled)
		meter.Run(ended)
	}()
	awaitExit(b.pid)
	close(ended)
	<-sampled
	d.mu.Lock()
	_ = b.signal(syscall.SIGKILL) // fails only for processes of other users
	b.reaped = true               // before Wait, which reaps it, and waits for those that hold its output
	d.mu.Unlock()
	_ = cmd.Wait() // its error is the exit code, read below
	closeLogs()
	removeRecord(d.cfg.StateDir, b.spec.ID)
	d.mu.Lock()
	defer d.mu.Unlock()
	b.exitCode, b.phase, b.exited = exitCode(cmd.ProcessState), runtime.PhaseStopped, time.Now()
	if u, ok := cmd.ProcessState.SysUsage().(*syscall.Rusage); ok {
		b.cpu, b.peak = cmd.ProcessState.UserTime()+cmd.ProcessState.SystemTime(), meter.Peak(u.Maxrss<<10)
	}
	b.closeDone()
}

// ownPeak returns the peak memory of this process in bytes, which its child processes inherit.
func ownPeak() int64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return math.MaxInt64 // so that no peak is believed that may be inherited
	}
	return u.Maxrss << 10
}

// awaitExit returns when the process has exited, without reaping it.
func awaitExit(pid int) {
	if !awaitByPoll(pid) {
		awaitByWait(pid)
	}
}

// awaitByWait takes a thread for as long as the process runs.
func awaitByWait(pid int) {
	for {
		err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			return
		}
	}
}

// awaitByPoll waits as awaitExit does, but together with all other files of the daemon, not in a
// thread of its own. It returns false at once if the kernel (before 5.10) cannot do that.
func awaitByPoll(pid int) bool {
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		return false
	}
	f := os.NewFile(uintptr(fd), "pidfd")
	defer f.Close()
	raw, err := f.SyscallConn()
	if err != nil {
		return false
	}
	exited := false
	err = raw.Read(func(fd uintptr) bool {
		p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(p, 0)
		exited = err == nil && n == 1
		return exited
	})
	return err == nil && exited
}

// exitCode returns the exit code as wait(2) reports it, 128+signal for a killed process.
func exitCode(s *os.ProcessState) int {
	ws, ok := s.Sys().(syscall.WaitStatus)
	if ok && ws.Signaled() {
		return 128 + int(ws.Signal())
	}
	return s.ExitCode()
}

// prepareCommand prepares a process of the container; release frees resources
// that only its start needs.
func (d *Driver) prepareCommand(s runtime.Spec, args, env []string, dir string) (*exec.Cmd, func(), error) {
	all := environment(s.Env, env)
	if dir == "" {
		dir = "/"
	}
	path, err := lookPath(args[0], dir, all)
	if err != nil {
		return nil, nil, startError("", err)
	}
	cmd := &exec.Cmd{Path: path, Args: args, Env: all, Dir: dir, WaitDelay: outputLimit}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if d.cfg.SwitchUser {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: s.UID, Gid: s.GID}
	}
	release := func() {}
	if d.cfg.cgroupMount != "" && s.Cgroup != "" {
		leaf, err := os.Open(filepath.Join(d.cfg.cgroupMount, s.Cgroup))
		if err != nil {
			return nil, nil, fault.New(fault.NotFound, "task %s: %w: make its cgroup first", s.ID, err)
		}
		cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, int(leaf.Fd())
		release = func() { leaf.Close() }
	}
	return cmd, release, nil
}

// environment joins the daemon's PATH with the lists; later ones win.
func environment(lists ...[]string) []string {
	return environ.Merge(append([][]string{{"PATH=" + os.Getenv("PATH")}}, lists...)...)
}

// lookPath finds a command in the task's PATH, not in the daemon's. One with a slash
// is relative to the task's folder dir, as in a container.
func lookPath(name, dir string, env []string) (string, error) {
	inFolder := filepath.Join(dir, name)
	if strings.Contains(name, "/") {
		if filepath.IsAbs(name) {
			inFolder = name
		}
		return inFolder, checkExecutable(inFolder)
	}
	var path string
	for _, kv := range env {
		if v, ok := strings.CutPrefix(kv, "PATH="); ok {
			path = v
		}
	}
	for _, dir := range filepath.SplitList(path) {
		if at := filepath.Join(dir, name); filepath.IsAbs(dir) && checkExecutable(at) == nil {
			return at, nil
		}
	}
	if st, err := os.Stat(inFolder); err == nil && st.Mode().IsRegular() {
		return "", fault.New(fault.Invalid, "%q is not in $PATH, but in the task's folder: write %q", name, "./"+name)
	}
	return "", fault.New(fault.Invalid, "%w: install it on the nodes or in the image, or add it as a file of the stage and write %q", &exec.Error{Name: name, Err: exec.ErrNotFound}, "./"+name)
}

func checkExecutable(path string) error {
	st, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%w: add it as a file of the stage, or use an image that has it", err)
	case err != nil:
		return err
	case st.IsDir():
		return &fs.PathError{Op: "exec", Path: path, Err: unix.EISDIR}
	case st.Mode()&0o111 == 0:
		return fmt.Errorf("%w: it is not executable: chmod +x the file before the job is submitted, or write mode = \"0755\" in its file block",
			&fs.PathError{Op: "exec", Path: path, Err: fs.ErrPermission})
	default:
		return nil
	}
}

// startError distinguishes a command that cannot run from a start that the moment prevents. path is the program's
// file, empty if none was found.
func startError(path string, err error) error {
	if execerror.IsPermanent(err) {
		if hint := exechint.Of(path, err); hint != "" {
			err = fmt.Errorf("%w: %s", err, hint)
		}
		return fault.New(fault.Invalid, "its command cannot run: %w", err)
	}
	return fault.New(fault.Unavailable, "cannot start a process: %w", err)
}

// Exec implements runtime.Execer.
func (d *Driver) Exec(ctx context.Context, id string, x runtime.ExecSpec) (int, error) {
	if len(x.Args) == 0 {
		return 0, fault.New(fault.Invalid, "exec in %s: no command", id)
	}
	d.mu.Lock()
	b, err := d.findLocked(id)
	if err == nil && !b.runs() {
		err = fault.New(fault.Conflict, "container %s is %s: exec needs a running one", id, b.state())
	}
	if err != nil {
		d.mu.Unlock()
		return 0, err
	}
	dir := x.Dir
	if dir == "" {
		dir = b.spec.Dir
	}
	cmd, release, err := d.prepareCommand(b.spec, x.Args, x.Env, dir)
	if err == nil {
		cmd.Stdin, cmd.Stdout, cmd.Stderr = x.Stdin, x.Stdout, x.Stderr
		err = cmd.Start()
		release()
		if err != nil {
			err = startError(cmd.Path, err)
		}
	}
	if err != nil {
		d.mu.Unlock()
		return 0, err
	}
	pgid := cmd.Process.Pid
	b.execs[pgid] = true
	d.mu.Unlock()
	stop := context.AfterFunc(ctx, func() { d.killExec(b, pgid) })
	awaitExit(pgid)
	stop()
	d.killExec(b, pgid)
	d.mu.Lock()
	delete(b.execs, pgid) // before it is reaped and its PID can be reused
	d.mu.Unlock()
	_ = cmd.Wait() // its error is the exit code
	if ctx.Err() != nil {
		return 0, ctx.Err()
	}
	return exitCode(cmd.ProcessState), nil
}

// killExec kills a process group of Exec unless it has ended.
func (d *Driver) killExec(b *container, pgid int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if b.execs[pgid] {
		_ = signalGroup(pgid, syscall.SIGKILL)
	}
}
