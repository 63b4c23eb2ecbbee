package cgroups

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/drover-run/drover/internal/cgroupkill"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/internal/sleep"
)

// Leaf is the closed set of cgroups of a Group that hold processes.
type Leaf int

// The leaves.
const (
	Container Leaf = iota + 1 // the container's processes
	Helpers                   // helper processes of the attempt
	Whole                     // the group itself, which has its own processes only in System
)

// String names the leaf.
func (l Leaf) String() string {
	switch l {
	case Container:
		return "container"
	case Helpers:
		return "helpers"
	case Whole:
		return "whole"
	default:
		return "invalid leaf"
	}
}

func (l Leaf) dir() string {
	switch l {
	case Container:
		return "container"
	case Helpers:
		return "helpers"
	case Whole:
		return "."
	default:
		panic("cgroups: " + l.String())
	}
}

const (
	removeLimit = 10 * time.Second // for killed processes to disappear
	maxDepth    = 16               // of cgroups that a container made below its leaf
)

// Group is the cgroup of one attempt, or the cgroup that Root.System returns.
type Group struct {
	r    *Root
	name string
	path string // below the mount
}

// Name returns the attempt's name.
func (g *Group) Name() string { return g.name }

// LeafPath returns the leaf's path below the cgroup mount, the form that
// runtime.Spec.Cgroup takes.
func (g *Group) LeafPath(l Leaf) string { return path.Join(g.path, l.dir()) }

// Dir returns the group's folder on the host.
func (g *Group) Dir() string { return g.filePath() }

// Update writes new limits and reads them back.
func (g *Group) Update(l Limits) error {
	if err := l.validate(); err != nil {
		return fmt.Errorf("cgroup of %s: %w", g.name, err)
	}
	had, err := g.diskLimits()
	if err != nil {
		return err
	}
	var devices []Device
	for _, d := range had {
		devices = append(devices, d.Device)
	}
	for _, p := range l.Pairs(devices) {
		if err := g.r.fs.write(g.filePath(p.File), p.Value); err != nil {
			return fmt.Errorf("cgroup of %s: %s of %q: %w", g.name, p.File, p.Value, g.notFound(err))
		}
	}
	got, err := g.Limits()
	if err != nil {
		return err
	}
	if !got.Equal(l) {
		return fault.New(fault.Conflict, "cgroup of %s: wrote %s, the kernel holds %s", g.name, l, got)
	}
	return nil
}

// Limits reads the limits that the kernel holds.
func (g *Group) Limits() (Limits, error) {
	l, err := parseLimits(func(file string) (string, error) { return g.r.fs.read(g.filePath(file)) })
	if err != nil {
		return Limits{}, fmt.Errorf("limits of %s: %w", g.name, g.notFound(err))
	}
	return l, nil
}

func (g *Group) diskLimits() ([]DiskLimit, error) {
	text, err := g.r.fs.read(g.filePath("io.max"))
	if err != nil {
		return nil, fmt.Errorf("limits of %s: %w", g.name, g.notFound(err))
	}
	return parseIOMax(text)
}

// writeAndVerify writes one file and checks that it reads back as value.
func (g *Group) writeAndVerify(file, value string) error {
	if err := g.r.fs.write(g.filePath(file), value); err != nil {
		return fmt.Errorf("cgroup of %s: %w", g.name, g.notFound(err))
	}
	got, err := g.r.fs.read(g.filePath(file))
	if err != nil {
		return fmt.Errorf("cgroup of %s: %w", g.name, g.notFound(err))
	}
	if got = strings.TrimSpace(got); got != value {
		return fault.New(fault.Conflict, "cgroup of %s: wrote %q to %s, the kernel holds %q", g.name, value, file, got)
	}
	return nil
}

// AddProcess moves a process with all its threads into a leaf.
func (g *Group) AddProcess(l Leaf, pid int) error {
	if err := g.r.fs.write(g.filePath(l.dir(), "cgroup.procs"), strconv.Itoa(pid)); err != nil {
		return fmt.Errorf("cgroup of %s: process %d into %s: %w", g.name, pid, l, g.notFound(err))
	}
	return nil
}

// OpenLeaf opens the leaf's folder for syscall.SysProcAttr.CgroupFD: a process
// started with it is in the leaf from the start. The caller closes it.
func (g *Group) OpenLeaf(l Leaf) (*os.File, error) {
	f, err := os.Open(g.filePath(l.dir()))
	if err != nil {
		return nil, g.notFound(err)
	}
	return f, nil
}

// Processes lists the process IDs directly in a leaf.
func (g *Group) Processes(l Leaf) ([]int, error) {
	text, err := g.r.fs.read(g.filePath(l.dir(), "cgroup.procs"))
	if err != nil {
		return nil, fmt.Errorf("cgroup of %s: %w", g.name, g.notFound(err))
	}
	var pids []int
	for _, f := range strings.Fields(text) {
		pid, err := strconv.Atoi(f)
		if err != nil {
			return nil, fault.New(fault.Corrupt, "cgroup of %s: cgroup.procs has %q", g.name, f)
		}
		pids = append(pids, pid)
	}
	return pids, nil
}

// Kill sends SIGKILL to every process of a leaf or of the whole group at once, including frozen
// ones. It also lifts the CPU limit of a whole group: the work of exiting, such as freeing memory,
// is not the task's, and would take a hundred times as long at a hundredth of a processor. On a
// kernel without cgroup.kill, Kill signals each process. It is not an error if the group does not
// exist.
func (g *Group) Kill(l Leaf) error {
	err := g.r.fs.write(g.filePath(l.dir(), "cgroup.kill"), "1")
	if errors.Is(err, fs.ErrNotExist) {
		err = cgroupkill.Signal(g.filePath(l.dir()))
	}
	if l == Whole && err == nil {
		_, _, err = g.liftCPULimit()
	}
	if err = g.notFound(err); errors.Is(err, fault.NotFound) {
		return nil
	}
	return err
}

// liftCPULimit sets cpu.max to a limit that never throttles, unless there is no limit. It returns
// the old value, and whether that was a limit.
func (g *Group) liftCPULimit() (old string, limited bool, err error) {
	old, err = g.r.fs.read(g.filePath("cpu.max"))
	if err != nil {
		return "", false, err
	}
	old = strings.TrimSpace(old)
	lifted, limited := unthrottledCPUMax(old)
	if !limited {
		return old, false, nil
	}
	return old, true, g.r.fs.write(g.filePath("cpu.max"), lifted)
}

// Remove removes the group with its leaves and all cgroups that a container made below them, once
// the group has no process. It kills no process. It waits until the context ends, at most ten
// seconds. It is safe to repeat.
func (g *Group) Remove(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, removeLimit)
	defer cancel()
	for wait := time.Millisecond; ; wait = min(2*wait, 50*time.Millisecond) {
		text, err := g.r.fs.read(g.filePath("cgroup.events"))
		if err = g.notFound(err); errors.Is(err, fault.NotFound) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("cgroup of %s: %w", g.name, err)
		}
		if populated, err := eventEquals(text, "populated", "1"); err != nil {
			return fmt.Errorf("cgroup of %s: %w", g.name, err)
		} else if !populated {
			err := g.removeTree(g.path, 0)
			if err == nil || !errors.Is(err, unix.EBUSY) {
				return err
			}
		}
		if !sleep.For(ctx, wait) {
			return fault.New(fault.Unavailable, "cgroup of %s: not removed: it still has processes: %w", g.name, ctx.Err())
		}
	}
}

func (g *Group) removeTree(at string, depth int) error {
	if depth > maxDepth {
		return fault.New(fault.Exhausted, "cgroup of %s: more than %d levels deep", g.name, maxDepth)
	}
	names, err := g.r.fs.childGroups(g.r.hostPath(at))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, n := range names {
		if err := g.removeTree(path.Join(at, n), depth+1); err != nil {
			return err
		}
	}
	return g.r.fs.rmdir(g.r.hostPath(at))
}

func (g *Group) filePath(elem ...string) string {
	return filepath.Join(append([]string{g.r.mount, g.path}, elem...)...)
}

// notFound turns the absence of a file into fault.NotFound of the group and
// leaves other errors unchanged.
func (g *Group) notFound(err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) {
		return fault.New(fault.NotFound, "cgroup of %s: %w", g.name, err)
	}
	return err
}

// eventEquals reports whether key has this value in a file of "key value" lines.
func eventEquals(text, key, value string) (bool, error) {
	for _, line := range strings.Split(text, "\n") {
		if k, v, ok := strings.Cut(line, " "); ok && k == key {
			return v == value, nil
		}
	}
	return false, fault.New(fault.Corrupt, "no %q in %q", key, text)
}
