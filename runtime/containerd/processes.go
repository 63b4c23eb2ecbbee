package containerd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/internal/sleep"
	"github.com/drover-run/drover/runtime"
)

// blockedLimit is how long to wait for processes in uninterruptible sleep before a
// dump.
const blockedLimit = 20 * time.Second

// groupOf returns the processes in the cgroup of a process, as the host numbers
// them, and whether the kernel counts all of them as frozen.
func (c Config) groupOf(pid int) (pids []int, frozen bool, err error) {
	b, err := os.ReadFile(filepath.Join(c.proc, strconv.Itoa(pid), "cgroup"))
	if err != nil {
		return nil, false, err
	}
	for line := range strings.Lines(string(b)) {
		group, ok := strings.CutPrefix(strings.TrimSpace(line), "0::")
		if !ok {
			continue
		}
		events, err := os.ReadFile(filepath.Join(c.cgroupMount, group, "cgroup.events"))
		if err != nil {
			return nil, false, err
		}
		text, err := os.ReadFile(filepath.Join(c.cgroupMount, group, "cgroup.procs"))
		if err != nil {
			return nil, false, err
		}
		for f := range strings.FieldsSeq(string(text)) {
			n, err := strconv.Atoi(f)
			if err != nil {
				return nil, false, fault.New(fault.Corrupt, "cgroup.procs of %s has %q", group, f)
			}
			pids = append(pids, n)
		}
		return pids, slices.Contains(strings.Split(string(events), "\n"), "frozen 1"), nil
	}
	return nil, false, fault.New(fault.Corrupt, "process %d has no cgroup of version 2: %q", pid, b)
}

// awaitStoppable waits until no process of the container is in uninterruptible
// sleep (state D): criu cannot seize it. That is the ordinary state of a process
// that waits for its disk, or for pages from swap. Conflict: one still is. The kernel
// also counts a parent as frozen that waits for the exec of a child after vfork, in state
// D: if the child is frozen too, no wait helps, and the cause is runtime.ErrMustRun.
func (d *Driver) awaitStoppable(ctx context.Context, id string, pid int) error {
	defer runtime.StartPart(ctx, "wait for state D")()
	ctx, cancel := context.WithTimeout(ctx, blockedLimit)
	defer cancel()
	for pause := time.Millisecond; ; pause = min(2*pause, 100*time.Millisecond) {
		pids, frozen, err := d.cfg.groupOf(pid) // frozen before the states are read: what is in D then stays so
		if err != nil {
			return fmt.Errorf("checkpoint of container %s: %w", id, err)
		}
		i := slices.IndexFunc(pids, d.cfg.isBlocked)
		if i < 0 {
			return nil
		}
		if frozen {
			return fault.New(fault.Conflict, "checkpoint of container %s: process %d waits, frozen, for the exec of its child (state D), so it cannot be stopped now: %w", id, pids[i], runtime.ErrMustRun)
		}
		if !sleep.For(ctx, pause) {
			return fault.New(fault.Conflict, "checkpoint of container %s: process %d waits for a disk (state D) for longer than %s, so it cannot be stopped now", id, pids[i], blockedLimit)
		}
	}
}

// isBlocked reports whether some thread of a process is in uninterruptible sleep.
func (c Config) isBlocked(pid int) bool {
	tasks := filepath.Join(c.proc, strconv.Itoa(pid), "task")
	threads, err := os.ReadDir(tasks)
	if err != nil {
		return false // it has exited
	}
	for _, t := range threads {
		b, err := os.ReadFile(filepath.Join(tasks, t.Name(), "stat"))
		// The state follows the name, which is in parentheses and may contain any.
		if i := strings.LastIndexByte(string(b), ')'); err == nil && i >= 0 && strings.HasPrefix(string(b[i:]), ") D") {
			return true
		}
	}
	return false
}

// Continue implements runtime.StoppedRestorer. It sends CONT to every process of the container,
// children before parents, so that no parent sees a stopped child. First it checks that they are in
// the cgroup that has their limits, and sets their loopback interface up, which criu restores as
// down: a restore may have outlived the daemon that began it.
func (d *Driver) Continue(ctx context.Context, id string) error {
	p, err := d.firstProcess(ctx, id)
	if err != nil {
		return engineError(ctx, "continue", id, err)
	}
	pid := int(p.GetPid())
	pids, _, err := d.cfg.groupOf(pid)
	if err == nil {
		err = d.cfg.checkCgroup(pid, d.cfg.cgroupOf(id))
	}
	if err == nil {
		err = loopbackUp(pid)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil // it has exited
	}
	if err != nil {
		return fmt.Errorf("container %s does not continue: %w", id, err)
	}
	slices.SortFunc(pids, func(a, b int) int { return b - a })
	for _, pid := range pids {
		if e := unix.Kill(pid, unix.SIGCONT); e != nil && !errors.Is(e, unix.ESRCH) {
			err = errors.Join(err, fmt.Errorf("container %s: process %d does not continue: %w", id, pid, e))
		}
	}
	return err
}
