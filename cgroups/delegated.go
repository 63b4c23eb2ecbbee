package cgroups

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/drover-run/drover/internal/fault"
)

// TasksUnit is the systemd unit whose cgroup is delegated to the tasks.
const TasksUnit = "drover-tasks.service"

// holderName is the leaf of a delegated base in which the unit's own process
// stays: a cgroup with processes of its own cannot enable controllers for its
// children.
const holderName = "holder"

// isUnit reports whether base is the cgroup of a systemd unit. systemd is the only writer of the
// cgroups above a unit, so Prepare does not change them.
func isUnit(base string) bool {
	return strings.HasSuffix(base, ".service") || strings.HasSuffix(base, ".scope")
}

// prepareStart returns the cgroup at which Prepare begins and the names of the cgroups that it
// creates below. For a unit it returns the unit's cgroup, which must exist.
func (r *Root) prepareStart() (string, []string, error) {
	if !isUnit(r.base) {
		return "/", strings.Split(strings.TrimPrefix(r.base+"/tasks", "/"), "/"), nil
	}
	_, err := r.fs.read(r.hostPath(r.base, "cgroup.controllers"))
	if errors.Is(err, fs.ErrNotExist) {
		unit := path.Base(r.base)
		return "", nil, fault.New(fault.Unavailable, "cgroups: %s does not exist: start its unit first (systemctl start %s), or name another base with -cgroup", r.hostPath(r.base), unit)
	}
	if err != nil {
		return "", nil, fmt.Errorf("cgroups: %w", err)
	}
	return r.base, []string{"tasks"}, nil
}

// OwnCgroup returns the cgroup of this process below the mount of cgroup2.
func OwnCgroup() (string, error) {
	b, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return "", err
	}
	return unifiedCgroup(string(b))
}

// unifiedCgroup finds the line of the unified hierarchy in the text of
// /proc/PID/cgroup.
func unifiedCgroup(text string) (string, error) {
	for line := range strings.Lines(text) {
		if p, ok := strings.CutPrefix(strings.TrimSpace(line), "0::"); ok {
			return p, nil
		}
	}
	return "", fault.New(fault.Unsupported, "cgroups: this process is in no cgroup2 hierarchy: boot with systemd.unified_cgroup_hierarchy=1")
}

// Hold moves this process, the main process of a unit with Delegate=yes, into a leaf of the unit's
// cgroup, so that controllers can be enabled for the tasks beside it. It is safe to repeat. The
// unit and its tasks live as long as this process.
func Hold() error {
	own, err := OwnCgroup()
	if err != nil {
		return err
	}
	r, err := New(Config{Base: strings.TrimSuffix(own, "/"+holderName)})
	if err != nil {
		return err
	}
	return r.hold(os.Getpid())
}

func (r *Root) hold(pid int) error {
	if !isUnit(r.base) {
		return fault.New(fault.Invalid, "cgroups: this process is in %s, which is no unit's cgroup: it is the main process of %s and of use there only", r.base, TasksUnit)
	}
	leaf := r.hostPath(r.base, holderName)
	err := r.fs.mkdir(leaf)
	if errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM) || errors.Is(err, unix.EROFS) {
		return fault.New(fault.Denied, "cgroups: %s: %w: the unit needs Delegate=yes", leaf, err)
	}
	if err != nil {
		return fmt.Errorf("cgroups: %w", err)
	}
	if err := r.fs.write(r.hostPath(r.base, holderName, "cgroup.procs"), fmt.Sprint(pid)); err != nil {
		return fmt.Errorf("cgroups: %w", err)
	}
	return r.Prepare()
}
