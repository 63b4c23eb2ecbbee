package reuse

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/drover-run/drover/internal/cgroupkill"
	"github.com/drover-run/drover/internal/fault"
)

// Limits of a process 1 between tasks: it runs as the tenant and is charged to nobody.
var homeLimits = []struct{ file, value string }{{"memory.max", "67108864"}, {"memory.swap.max", "0"}, {"pids.max", "64"}, {"cpu.max", "25000 100000"}}

// group returns the folder of a cgroup.
func (c Config) group(path string) string { return filepath.Join(c.Mount, path) }

// limitHome limits process 1, as far as the controllers are there.
func (c Config) limitHome(home string) error {
	for _, l := range homeLimits {
		err := os.WriteFile(filepath.Join(c.group(home), l.file), []byte(l.value), 0)
		if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, fs.ErrPermission) {
			return err
		}
	}
	return nil
}

// move moves a process into a cgroup.
func (c Config) move(pid int, group string) error {
	return os.WriteFile(filepath.Join(c.group(group), "cgroup.procs"), []byte(strconv.Itoa(pid)), 0)
}

// processes returns the processes in a cgroup.
func (c Config) processes(group string) ([]int, error) {
	b, err := os.ReadFile(filepath.Join(c.group(group), "cgroup.procs"))
	if err != nil {
		return nil, err
	}
	var all []int
	for f := range strings.FieldsSeq(string(b)) {
		pid, err := strconv.Atoi(f)
		if err != nil {
			return nil, fault.New(fault.Corrupt, "cgroup.procs of %s has %q", group, f)
		}
		all = append(all, pid)
	}
	return all, nil
}

// signalGroup signals every process in a cgroup.
func (c Config) signalGroup(group string, sig syscall.Signal) error {
	pids, err := c.processes(group)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, pid := range pids {
		if e := unix.Kill(pid, sig); e != nil && !errors.Is(e, unix.ESRCH) {
			err = errors.Join(err, e)
		}
	}
	return err
}

// killGroup kills every process in a cgroup, frozen or not, and waits until it has none.
func (d *Driver) killGroup(ctx context.Context, group string) error {
	dir := d.cfg.group(group)
	for pause := time.Millisecond; ; pause = min(2*pause, 100*time.Millisecond) {
		if err := cgroupkill.Kill(dir); err != nil {
			return err
		}
		b, err := os.ReadFile(filepath.Join(dir, "cgroup.events"))
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		if strings.Contains(string(b), "populated 0") {
			return nil
		}
		t := time.NewTimer(pause)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return fault.New(fault.Unavailable, "processes of cgroup %s were killed but do not exit: %w", group, ctx.Err())
		}
	}
}

// isFrozen reports whether the processes of a cgroup are frozen, or are about to be.
func (c Config) isFrozen(group string) (bool, error) {
	b, err := os.ReadFile(filepath.Join(c.group(group), "cgroup.freeze"))
	return strings.TrimSpace(string(b)) == "1", err
}

// isAlone checks that process 1 is the only process of its cgroup. Everything else that could be in
// the container was born in a task's cgroup, which has been emptied.
func (c Config) isAlone(home string, pid int) error {
	all, err := c.processes(home)
	if err != nil {
		return err
	}
	if len(all) != 1 || all[0] != pid {
		return fmt.Errorf("its cgroup has processes %v", all)
	}
	return nil
}

// hostPID returns the process of a cgroup that has this ID in its container, or 0 if it has ended.
func (c Config) hostPID(group string, inside int) int {
	pids, err := c.processes(group)
	if err != nil {
		return 0
	}
	for _, pid := range pids {
		if ids := strings.Fields(statusField(pid, "NSpid")); len(ids) > 1 && ids[len(ids)-1] == strconv.Itoa(inside) {
			return pid
		}
	}
	return 0
}

// statusField returns a field of a process's status, "" if it has ended.
func statusField(pid int, name string) string {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(line, name+":"); ok {
			return strings.TrimSpace(v)
		}
	}
	return ""
}

// cgroupOf returns the cgroup of a process.
func cgroupOf(pid int) (string, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(b)) {
		if group, ok := strings.CutPrefix(strings.TrimSpace(line), "0::"); ok {
			return group, nil
		}
	}
	return "", fault.New(fault.Corrupt, "process %d has no cgroup of version 2: %q", pid, b)
}
