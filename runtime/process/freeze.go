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

// Bounds of a freeze by signals.
const (
	freezeRounds = 50 // looks at the session until all of it stands still
	freezePause  = 2 * time.Millisecond
)

// Freeze implements runtime.Freezer with SIGSTOP to every process of the
// container's session, again and again until all of them stand still, since one
// may fork while it is looked at. A process that made a session of its own is
// not reached: for that the node needs a cgroup.
func (d *Driver) Freeze(ctx context.Context, id string) error {
	for range freezeRounds {
		still, err := d.signalSession(id, syscall.SIGSTOP)
		if err != nil || still {
			return err
		}
		t := time.NewTimer(freezePause)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			_, err := d.signalSession(id, syscall.SIGCONT)
			return errors.Join(ctx.Err(), err)
		}
	}
	_, err := d.signalSession(id, syscall.SIGCONT)
	return errors.Join(fault.New(fault.Unavailable, "task %s: its processes do not stand still after SIGSTOP; it runs on", id), err)
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
// session that are not in the state which it brings about, and tells whether
// all stood still before.
func (d *Driver) signalSession(id string, sig syscall.Signal) (still bool, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	b, err := d.findLocked(id)
	if err != nil {
		return false, err
	}
	if b.phase != runtime.PhaseRunning {
		return false, fault.New(fault.Conflict, "container %s is %s: only a running one can be frozen", id, b.phase)
	}
	all, err := session(b.pid)
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

// member is a process of a session.
type member struct {
	pid     int
	stopped bool // or dead
}

// session lists the processes of a session. O(processes of the machine).
func session(leader int) ([]member, error) {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	var all []member
	for _, n := range names {
		pid, err := strconv.Atoi(n)
		if err != nil {
			continue
		}
		b, err := os.ReadFile("/proc/" + n + "/stat")
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
			continue // it ended
		}
		if err != nil {
			return nil, err
		}
		if state, sid := parseStat(string(b)); sid == leader {
			all = append(all, member{pid, strings.ContainsRune("TtZX", rune(state))})
		}
	}
	return all, nil
}

// parseStat reads the state and the session of /proc/<pid>/stat: the name
// before them may hold anything, so the last parenthesis counts. 0 where there
// is none.
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
