package cgroups

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/drover-run/drover/internal/fault"
	"golang.org/x/sys/unix"
)

// Config says where the tree is.
type Config struct {
	Mount string // of cgroup2; "" finds it (see Mount)
	Base  string // our cgroup below the mount; "" is /drover
}

// Root is our part of the machine's cgroups. It holds no state: everything is
// in the kernel. Safe for concurrent use; calls for one attempt must come one
// at a time.
type Root struct {
	mount, base string
	k           files
}

// systemName is the cgroup under tasks that no attempt can be called.
const systemName = "system"

var attemptForm = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9._-]{0,127}$`)

// New opens the tree without touching it.
func New(c Config) (*Root, error) {
	if c.Mount == "" {
		m, err := Mount()
		if err != nil {
			return nil, err
		}
		c.Mount = m
	}
	return newRoot(c, kernel{})
}

func newRoot(c Config, k files) (*Root, error) {
	if c.Base == "" {
		c.Base = "/drover"
	}
	if !path.IsAbs(c.Base) || path.Clean(c.Base) != c.Base || c.Base == "/" {
		return nil, fault.New(fault.Invalid, "cgroups: base %q is not a clean absolute path below the mount", c.Base)
	}
	if err := checkControllers(c.Mount, k.read); err != nil {
		return nil, err
	}
	return &Root{mount: c.Mount, base: c.Base, k: k}, nil
}

// Prepare makes the tree down to tasks/system and hands the controllers down to
// it. Safe to repeat.
func (r *Root) Prepare() error {
	at := "/"
	for _, name := range strings.Split(strings.TrimPrefix(r.base+"/tasks", "/"), "/") {
		if err := r.handDown(at); err != nil {
			return err
		}
		at = path.Join(at, name)
		if err := r.k.mkdir(r.file(at)); err != nil {
			return fmt.Errorf("cgroups: %w", err)
		}
	}
	if err := r.handDown(at); err != nil {
		return err
	}
	if err := r.k.mkdir(r.file(r.base, "tasks", systemName)); err != nil {
		return fmt.Errorf("cgroups: %w", err)
	}
	return nil
}

// handDown gives our controllers to the children of the cgroup at.
func (r *Root) handDown(at string) error {
	file := r.file(at, "cgroup.subtree_control")
	text, err := r.k.read(file)
	if err != nil {
		return fmt.Errorf("cgroups: %w", err)
	}
	have := strings.Fields(text)
	for _, c := range controllers {
		if slices.Contains(have, c) {
			continue
		}
		err := r.k.write(file, "+"+c)
		switch {
		case errors.Is(err, unix.EBUSY):
			return fault.New(fault.Conflict, "cgroups: %s holds processes itself, so it cannot hand %s down: choose a base without processes: %w", r.file(at), c, err)
		case errors.Is(err, unix.ENOENT):
			return fault.New(fault.Unsupported, "cgroups: the %s controller is not available in %s: delegate it: %w", c, r.file(at), err)
		case err != nil:
			return fmt.Errorf("cgroups: %w", err)
		}
	}
	return nil
}

// Create makes the attempt's cgroup with both leaves and its limits. Safe to
// repeat, also with other limits and after a leaf went away; limits that do not
// read back are an error.
func (r *Root) Create(attempt string, l Limits) (*Group, error) {
	g, err := r.group(attempt)
	if err != nil {
		return nil, err
	}
	if err := l.Validate(); err != nil {
		return nil, fmt.Errorf("cgroup of %s: %w", attempt, err)
	}
	if err := r.k.mkdir(g.file()); err != nil {
		return nil, fmt.Errorf("cgroups: %w", err)
	}
	if err := g.Update(l); err != nil {
		return nil, err
	}
	if err := r.handDown(g.path); err != nil {
		return nil, err
	}
	for _, leaf := range []Leaf{Container, Helpers} {
		if err := r.k.mkdir(g.file(leaf.dir())); err != nil {
			return nil, fmt.Errorf("cgroups: %w", err)
		}
	}
	return g, g.writeBack(path.Join(Container.dir(), "memory.oom.group"), "1")
}

// Open gives the cgroup of an attempt that has one, else fault.NotFound.
func (r *Root) Open(attempt string) (*Group, error) {
	g, err := r.group(attempt)
	if err != nil {
		return nil, err
	}
	if _, err := r.k.read(g.file("cgroup.events")); err != nil {
		return nil, g.missing(err)
	}
	return g, nil
}

// Named gives the cgroup of an attempt without looking whether it has one: where
// it has none, the verbs say so (fault.NotFound).
func (r *Root) Named(attempt string) (*Group, error) { return r.group(attempt) }

// System gives the cgroup of what is charged to no attempt. It has no leaves:
// its processes are in Whole.
func (r *Root) System() *Group {
	return &Group{r: r, name: systemName, path: path.Join(r.base, "tasks", systemName)}
}

// List gives the attempts that have a cgroup, in order.
func (r *Root) List() ([]string, error) {
	names, err := r.k.groups(r.file(r.base, "tasks"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("cgroups: %w", err)
	}
	return slices.DeleteFunc(names, func(n string) bool { return n == systemName }), nil
}

func (r *Root) group(attempt string) (*Group, error) {
	if !attemptForm.MatchString(attempt) || attempt == systemName {
		return nil, fault.New(fault.Invalid, "cgroups: attempt name %q: 1 to 128 of a-z A-Z 0-9 . _ -, beginning with a letter or digit, not %q", attempt, systemName)
	}
	return &Group{r: r, name: attempt, path: path.Join(r.base, "tasks", attempt)}, nil
}

// file gives the path on the host of something below the mount.
func (r *Root) file(elem ...string) string {
	return filepath.Join(append([]string{r.mount}, elem...)...)
}
