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

	"github.com/drover-run/drover/internal/fault"
)

// Leaf is the closed set of places for processes in a Group.
type Leaf int

// The leaves.
const (
	Container Leaf = iota + 1 // c: the container's processes
	Helpers                   // x: ours for the attempt
	Whole                     // the group itself, for System only
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
		return "c"
	case Helpers:
		return "x"
	case Whole:
		return "."
	default:
		panic("cgroups: " + l.String())
	}
}

const (
	removeLimit = 10 * time.Second // for processes that were killed to be gone
	maxDepth    = 16               // of cgroups that a container made below its leaf
)

// Group is the cgroup of one attempt, or System.
type Group struct {
	r    *Root
	name string
	path string // below the mount
}

// Name of the attempt.
func (g *Group) Name() string { return g.name }

// LeafPath gives the leaf below the cgroup mount, as runtime.Spec.Cgroup wants it.
func (g *Group) LeafPath(l Leaf) string { return path.Join(g.path, l.dir()) }

// Dir gives the group's folder on the host.
func (g *Group) Dir() string { return g.file() }

// Update puts other limits in force and reads them back.
func (g *Group) Update(l Limits) error {
	if err := l.Validate(); err != nil {
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
		if err := g.r.k.write(g.file(p.File), p.Value); err != nil {
			return fmt.Errorf("cgroup of %s: %s of %q: %w", g.name, p.File, p.Value, g.missing(err))
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

// Limits reads what the kernel holds.
func (g *Group) Limits() (Limits, error) {
	l, err := ParseLimits(func(file string) (string, error) { return g.r.k.read(g.file(file)) })
	if err != nil {
		return Limits{}, fmt.Errorf("limits of %s: %w", g.name, g.missing(err))
	}
	return l, nil
}

func (g *Group) diskLimits() ([]DiskLimit, error) {
	text, err := g.r.k.read(g.file("io.max"))
	if err != nil {
		return nil, fmt.Errorf("limits of %s: %w", g.name, g.missing(err))
	}
	return parseIOMax(text)
}

// writeBack writes one file and checks that it holds the value.
func (g *Group) writeBack(file, value string) error {
	if err := g.r.k.write(g.file(file), value); err != nil {
		return fmt.Errorf("cgroup of %s: %w", g.name, g.missing(err))
	}
	got, err := g.r.k.read(g.file(file))
	if err != nil {
		return fmt.Errorf("cgroup of %s: %w", g.name, g.missing(err))
	}
	if got = strings.TrimSpace(got); got != value {
		return fault.New(fault.Conflict, "cgroup of %s: wrote %q to %s, the kernel holds %q", g.name, value, file, got)
	}
	return nil
}

// Enter moves a process (with all its threads) into a leaf.
func (g *Group) Enter(l Leaf, pid int) error {
	if err := g.r.k.write(g.file(l.dir(), "cgroup.procs"), strconv.Itoa(pid)); err != nil {
		return fmt.Errorf("cgroup of %s: process %d into %s: %w", g.name, pid, l, g.missing(err))
	}
	return nil
}

// OpenLeaf opens the leaf's folder, for syscall.SysProcAttr.CgroupFD: a process
// started with it is never outside. The caller closes it.
func (g *Group) OpenLeaf(l Leaf) (*os.File, error) {
	f, err := os.Open(g.file(l.dir()))
	if err != nil {
		return nil, g.missing(err)
	}
	return f, nil
}

// Processes lists the process IDs in a leaf itself.
func (g *Group) Processes(l Leaf) ([]int, error) {
	text, err := g.r.k.read(g.file(l.dir(), "cgroup.procs"))
	if err != nil {
		return nil, fmt.Errorf("cgroup of %s: %w", g.name, g.missing(err))
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

// Kill sends SIGKILL to every process of the group, frozen ones too, at once.
// Without a group there is nothing to kill.
func (g *Group) Kill() error {
	err := g.r.k.write(g.file("cgroup.kill"), "1")
	if err = g.missing(err); errors.Is(err, fault.NotFound) {
		return nil
	}
	return err
}

// Remove takes the group away, leaves and all that a container made below
// them, once no process is in it; it kills none. It waits for that until the
// context ends, ten seconds at most. Safe to repeat.
func (g *Group) Remove(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, removeLimit)
	defer cancel()
	for wait := time.Millisecond; ; wait = min(2*wait, 50*time.Millisecond) {
		text, err := g.r.k.read(g.file("cgroup.events"))
		if err = g.missing(err); errors.Is(err, fault.NotFound) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("cgroup of %s: %w", g.name, err)
		}
		if populated, err := eventIs(text, "populated", "1"); err != nil {
			return fmt.Errorf("cgroup of %s: %w", g.name, err)
		} else if !populated {
			err := g.removeBelow(g.path, 0)
			if err == nil || !errors.Is(err, unix.EBUSY) {
				return err
			}
		}
		if !sleep(ctx, wait) {
			return fault.New(fault.Unavailable, "cgroup of %s: not removed: processes are still in it: %w", g.name, ctx.Err())
		}
	}
}

func (g *Group) removeBelow(at string, depth int) error {
	if depth > maxDepth {
		return fault.New(fault.Exhausted, "cgroup of %s: more than %d levels deep", g.name, maxDepth)
	}
	names, err := g.r.k.groups(g.r.file(at))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, n := range names {
		if err := g.removeBelow(path.Join(at, n), depth+1); err != nil {
			return err
		}
	}
	return g.r.k.rmdir(g.r.file(at))
}

func (g *Group) file(elem ...string) string {
	return filepath.Join(append([]string{g.r.mount, g.path}, elem...)...)
}

// missing turns the absence of a file into fault.NotFound of the group, and
// leaves other errors.
func (g *Group) missing(err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) {
		return fault.New(fault.NotFound, "cgroup of %s: %w", g.name, err)
	}
	return err
}

// eventIs reads one key of a file of "key value" lines.
func eventIs(text, key, value string) (bool, error) {
	for _, line := range strings.Split(text, "\n") {
		if k, v, ok := strings.Cut(line, " "); ok && k == key {
			return v == value, nil
		}
	}
	return false, fault.New(fault.Corrupt, "no %q in %q", key, text)
}

// sleep waits and tells whether the context still lives.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
