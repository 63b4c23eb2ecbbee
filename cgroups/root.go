package cgroups

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/internal/names"
	"golang.org/x/sys/unix"
)

// Config locates the tree.
type Config struct {
	mount string // mount point of cgroup2; "" means Mount()
	Base  string // Drover's cgroup below the mount; "" means /drover
}

// Root is Drover's part of the machine's cgroups. All state is in the kernel. It
// is safe for concurrent use, but calls for one attempt must be serialised.
type Root struct {
	mount, base string
	fs          cgroupFS
}

// systemName is the cgroup below tasks; no attempt can have this name.
const systemName = "system"

// New opens the tree without changing it.
func New(c Config) (*Root, error) {
	if c.mount == "" {
		m, err := Mount()
		if err != nil {
			return nil, err
		}
		c.mount = m
	}
	return newRoot(c, kernelFS{})
}

func newRoot(c Config, k cgroupFS) (*Root, error) {
	if c.Base == "" {
		c.Base = "/drover"
	}
	if !path.IsAbs(c.Base) || path.Clean(c.Base) != c.Base || c.Base == "/" {
		return nil, fault.New(fault.Invalid, "cgroups: base %q is not a clean absolute path below the mount", c.Base)
	}
	if err := checkControllers(c.mount, k.read); err != nil {
		return nil, err
	}
	return &Root{mount: c.mount, base: c.Base, fs: k}, nil
}

// Prepare makes the tree down to tasks/system and enables the controllers on
// the way. It is safe to repeat.
func (r *Root) Prepare() error {
	at, names, err := r.prepareStart()
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := r.enableControllers(at); err != nil {
			return err
		}
		at = path.Join(at, name)
		if err := r.fs.mkdir(r.hostPath(at)); err != nil {
			return fmt.Errorf("cgroups: %w", err)
		}
	}
	if err := r.enableControllers(at); err != nil {
		return err
	}
	if err := r.fs.mkdir(r.hostPath(r.base, "tasks", systemName)); err != nil {
		return fmt.Errorf("cgroups: %w", err)
	}
	return r.checkSwapLimit()
}

// checkSwapLimit returns an error on a kernel without swap accounting. The swap limit could not be
// written there, and the missing file would be taken for a cgroup that has vanished.
func (r *Root) checkSwapLimit() error {
	file := r.hostPath(r.base, "tasks", systemName, "memory.swap.max")
	_, err := r.fs.read(file)
	if errors.Is(err, fs.ErrNotExist) {
		return fault.New(fault.Unsupported, "cgroups: this kernel does not limit swap (%s is missing): write swapaccount=1 on its command line, or use one with CONFIG_SWAP", file)
	}
	return err
}

// TasksSwap returns the bytes of all attempts' memory that are in swap; 0 before the first Prepare.
func (r *Root) TasksSwap() (int64, error) {
	text, err := r.fs.read(r.hostPath(r.base, "tasks", "memory.swap.current"))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("cgroups: %w", err)
	}
	return parseLimit(text)
}

// enableControllers enables the controllers for the children of cgroup at.
func (r *Root) enableControllers(at string) error {
	file := r.hostPath(at, "cgroup.subtree_control")
	text, err := r.fs.read(file)
	if err != nil {
		return fmt.Errorf("cgroups: %w", err)
	}
	have := strings.Fields(text)
	for _, c := range controllers {
		if slices.Contains(have, c) {
			continue
		}
		err := r.fs.write(file, "+"+c)
		switch {
		case errors.Is(err, unix.EBUSY):
			return fault.New(fault.Conflict, "cgroups: %s has processes of its own, so %s cannot be enabled for its children: choose a base without processes: %w", r.hostPath(at), c, err)
		case errors.Is(err, unix.ENOENT):
			return fault.New(fault.Unsupported, "cgroups: the %s controller is not available in %s: delegate it: %w", c, r.hostPath(at), err)
		case err != nil:
			return fmt.Errorf("cgroups: %w", err)
		}
	}
	return nil
}

// Create makes the attempt's cgroup with its limits and both leaves. It is safe
// to repeat, also with other limits and after a leaf was removed. Limits that do
// not read back are an error.
func (r *Root) Create(attempt string, l Limits) (*Group, error) {
	g, err := r.group(attempt)
	if err != nil {
		return nil, err
	}
	if err := l.validate(); err != nil {
		return nil, fmt.Errorf("cgroup of %s: %w", attempt, err)
	}
	if err := r.fs.mkdir(g.filePath()); err != nil {
		return nil, fmt.Errorf("cgroups: %w", err)
	}
	if err := g.Update(l); err != nil {
		return nil, err
	}
	if err := r.enableControllers(g.path); err != nil {
		return nil, err
	}
	for _, leaf := range []Leaf{Container, Helpers} {
		if err := r.fs.mkdir(g.filePath(leaf.dir())); err != nil {
			return nil, fmt.Errorf("cgroups: %w", err)
		}
	}
	return g, g.writeAndVerify(path.Join(Container.dir(), "memory.oom.group"), "1")
}

// Open returns the cgroup of an attempt, or fault.NotFound.
func (r *Root) Open(attempt string) (*Group, error) {
	g, err := r.group(attempt)
	if err != nil {
		return nil, err
	}
	if _, err := r.fs.read(g.filePath("cgroup.events")); err != nil {
		return nil, g.notFound(err)
	}
	return g, nil
}

// OpenUnchecked returns the cgroup of an attempt without checking that it
// exists; if it does not, the Group's methods return fault.NotFound.
func (r *Root) OpenUnchecked(attempt string) (*Group, error) { return r.group(attempt) }

// System returns the cgroup of work that is charged to no attempt. It has no
// leaves: its processes are in Whole.
func (r *Root) System() *Group {
	return &Group{r: r, name: systemName, path: path.Join(r.base, "tasks", systemName)}
}

// List returns the names of attempts that have a cgroup, sorted.
func (r *Root) List() ([]string, error) {
	names, err := r.fs.childGroups(r.hostPath(r.base, "tasks"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("cgroups: %w", err)
	}
	return slices.DeleteFunc(names, func(n string) bool { return n == systemName }), nil
}

func (r *Root) group(attempt string) (*Group, error) {
	if !names.Valid(attempt) || attempt == systemName {
		return nil, fault.New(fault.Invalid, "cgroups: attempt name %q: 1 to 128 of a-z A-Z 0-9 . _ -, beginning with a letter or digit, not %q", attempt, systemName)
	}
	return &Group{r: r, name: attempt, path: path.Join(r.base, "tasks", attempt)}, nil
}

// hostPath returns the host path of a file below the mount.
func (r *Root) hostPath(elem ...string) string {
	return filepath.Join(append([]string{r.mount}, elem...)...)
}
