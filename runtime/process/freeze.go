package process

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/runtime"
)

var _ runtime.Freezer = (*Driver)(nil)

// Limits of freezing by signals: some five seconds until all processes of the session are stopped.
// On a machine that is full of other work they get a processor late.
const (
	freezeRounds    = 60
	freezePause     = 2 * time.Millisecond // the first, which grows
	freezeMostPause = 100 * time.Millisecond
)

// Freeze implements runtime.Freezer. It sends SIGSTOP to every process of the
// container's session until all of their threads are stopped, since a process may
// fork meanwhile, and a thread that waits for a processor stops when it gets one. A
// process that started its own session is not reached: that takes a cgroup.
func (d *Driver) Freeze(ctx context.Context, id string) error {
	pause := freezePause
	for range freezeRounds {
		still, err := d.signalSession(id, syscall.SIGSTOP)
		if err != nil || still {
			return err
		}
		t := time.NewTimer(pause)
		pause = min(pause*5/4, freezeMostPause)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			_, err := d.signalSession(id, syscall.SIGCONT)
			return errors.Join(ctx.Err(), err)
		}
	}
	_, err := d.signalSession(id, syscall.SIGCONT)
	return errors.Join(fault.New(fault.Unavailable, "task %s: its processes do not stop after SIGSTOP; the task is running", id), err)
}

// Thaw implements runtime.Freezer with SIGCONT.
func (d *Driver) Thaw(_ context.Context, id string) error {
	_, err := d.signalSession(id, syscall.SIGCONT)
	return err
}

// Frozen implements runtime.Freezer.
func (d *Driver) Frozen(_ context.Context, id string) (bool, error) {
	return d.signalSession(id, 0)
}

// signalSession sends a signal (0: none) to the processes of the container's
// session, SIGSTOP only to those not yet stopped, and reports whether all were
// stopped before.
func (d *Driver) signalSession(id string, sig syscall.Signal) (still bool, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	b, err := d.findLocked(id)
	if err != nil {
		return false, err
	}
	if !b.runs() {
		return false, fault.New(fault.Conflict, "container %s is %s: only a running one can be frozen", id, b.state())
	}
	all, err := listSession(b.pid)
	if err != nil {
		return false, err
	}
	still = true
	var errs []error
	for _, p := range all {
		if !p.stopped {
			still = false
		}
		if sig == 0 || sig == syscall.SIGSTOP && p.stopped {
			continue
		}
		if err := syscall.Kill(p.pid, sig); err != nil && !errors.Is(err, syscall.ESRCH) {
			errs = append(errs, fmt.Errorf("signal %d to process %d: %w", int(sig), p.pid, err))
		}
	}
	return still, errors.Join(errs...)
}

// sessionProcess is a process of a session.
type sessionProcess struct {
	pid     int
	stopped bool // all of its threads, or it is dead
}

// listSession lists the processes of a session. O(processes of the machine).
func listSession(leader int) ([]sessionProcess, error) {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	var all []sessionProcess
	for _, n := range names {
		pid, err := strconv.Atoi(n)
		if err != nil {
			continue
		}
		b, err := os.ReadFile("/proc/" + n + "/stat")
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
			continue // it has exited
		}
		if err != nil {
			return nil, err
		}
		if state, sid := parseStat(string(b)); sid == leader {
			stopped := isStopped(state)
			if stopped {
				if stopped, err = areThreadsStopped(n); err != nil {
					return nil, err
				}
			}
			all = append(all, sessionProcess{pid, stopped})
		}
	}
	return all, nil
}

func isStopped(state byte) bool { return strings.ContainsRune("TtZX", rune(state)) }

// areThreadsStopped reports whether all threads of a process are stopped: the state of a process is
// that of its first thread alone. O(threads).
func areThreadsStopped(pid string) (bool, error) {
	threads, err := os.ReadDir("/proc/" + pid + "/task")
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
		return true, nil // it has exited
	}
	if err != nil {
		return false, err
	}
	for _, thread := range threads {
		b, err := os.ReadFile("/proc/" + pid + "/task/" + thread.Name() + "/stat")
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
			continue
		}
		if err != nil {
			return false, err
		}
		if state, _ := parseStat(string(b)); !isStopped(state) {
			return false, nil
		}
	}
	return true, nil
}

// parseStat parses state and session of /proc/<pid>/stat. The name before them may
// contain anything, so it searches the last parenthesis. It returns 0 for invalid
// content.
func parseStat(s string) (state byte, session int) {
	_, rest, ok := cutLast(s, ") ")
	f := strings.Fields(rest)
	if !ok || len(f) < 4 {
		return 0, 0
	}
	session, err := strconv.Atoi(f[3])
	if err != nil {
		return 0, 0
	}
	return f[0][0], session
}

func cutLast(s, sep string) (before, after string, ok bool) {
	if i := strings.LastIndex(s, sep); i >= 0 {
		return s[:i], s[i+len(sep):], true
	}
	return s, "", false
}
