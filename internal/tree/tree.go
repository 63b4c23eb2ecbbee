// Package tree walks and removes folders that others filled. The depth and the length of paths do
// not matter: one folder is open at a time, and names are resolved against its descriptor. Links
// are never followed.
//
// The package is not for folders that an attacker changes at the same time: if a folder is moved
// while it is read, that is an error, and nothing outside the top folder is touched.
package tree

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/drover-run/drover/internal/fault"
)

// maxDepth bounds the levels that are remembered, about 100 bytes for each.
const maxDepth = 1 << 20

// Entry is one file or folder below the top folder. System calls use Dir and Name, not its path,
// because the path may be longer than the kernel accepts.
type Entry struct {
	Dir  int    // descriptor of its folder, open until the callback returns
	Name string // in Dir
	Stat unix.Stat_t

	folder []byte // path of its folder, valid until the callback returns
}

// PathBytes returns the length of Path in O(1).
func (e *Entry) PathBytes() int { return len(e.folder) + len(e.Name) }

// Path returns the path relative to the top folder. O(length): thousands of nested
// folders have long paths.
func (e *Entry) Path() string { return string(e.folder) + e.Name }

// IsDir reports whether the entry is a folder.
func (e *Entry) IsDir() bool { return e.Stat.Mode&unix.S_IFMT == unix.S_IFDIR }

// IsRegular reports whether the entry is a regular file.
func (e *Entry) IsRegular() bool { return e.Stat.Mode&unix.S_IFMT == unix.S_IFREG }

// level is a folder on the way from the top to the current one.
type level struct {
	dev, ino uint64
	prefix   int      // bytes of the path of this folder, with a slash at the end
	folders  []string // names of subfolders still to walk, last one first
}

// Walk calls f for everything below dir, folders before their content. Within a folder it visits
// files before folders, each in the order of names. Entries that disappear meanwhile are left out.
// Walk ends at the first error of f.
func Walk(ctx context.Context, dir string, f func(e *Entry) error) error {
	cur, err := openFolder(dir)
	if err != nil {
		return err
	}
	defer func() { cur.Close() }()
	top, err := enter(ctx, cur, nil, f)
	if err != nil {
		return err
	}
	stack := []level{top}
	var path []byte // of the current folder, with a slash at the end
	for {
		l := &stack[len(stack)-1]
		if n := len(l.folders); n > 0 {
			name := l.folders[n-1]
			l.folders = l.folders[:n-1]
			child, err := openDir(cur, name)
			if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENOTDIR) {
				continue // replaced meanwhile
			}
			if err != nil {
				return fmt.Errorf("%s below %s: %w", tail(string(path)+name), dir, err)
			}
			if len(stack) == maxDepth {
				child.Close()
				return fault.New(fault.Exhausted, "%s: folders are nested over %d levels deep", dir, maxDepth)
			}
			path = append(append(path, name...), '/')
			next, err := enter(ctx, child, path, f)
			if err != nil {
				child.Close()
				return err
			}
			if len(next.folders) == 0 { // most folders have no subfolders: return without opening the parent again
				child.Close()
				path = path[:l.prefix]
				continue
			}
			cur.Close()
			cur = child
			stack = append(stack, next)
			continue
		}
		stack = stack[:len(stack)-1]
		if len(stack) == 0 {
			return nil
		}
		parent, err := openParent(cur, stack[len(stack)-1])
		if err != nil {
			return fmt.Errorf("walk of %s: %w", dir, err)
		}
		cur.Close()
		cur, path = parent, path[:stack[len(stack)-1].prefix]
	}
}

// keptEntries is how many subfolders of one folder are kept with their Entry; the Entry of the
// others is read a second time, because a folder may have a million subfolders.
const keptEntries = 64

// enter calls f for the entries of an open folder.
func enter(ctx context.Context, d *os.File, path []byte, f func(e *Entry) error) (level, error) {
	l := level{prefix: len(path)}
	names, err := d.Readdirnames(-1)
	if err != nil {
		return l, err
	}
	slices.Sort(names)
	var kept []*Entry // entries of the first of l.folders
	fd := int(d.Fd())
	for _, name := range names {
		e, err := readEntry(ctx, fd, name, path)
		switch {
		case err != nil:
			return l, err
		case e == nil:
			continue
		case !e.IsDir():
			if err := f(e); err != nil {
				return l, err
			}
			continue
		}
		if len(kept) < keptEntries {
			kept = append(kept, e)
		}
		l.folders = append(l.folders, name)
	}
	if len(l.folders) == 0 {
		return l, nil
	}
	walk := l.folders[:0]
	for i, name := range l.folders {
		var e *Entry
		if i < len(kept) {
			e = kept[i]
		} else if e, err = readEntry(ctx, fd, name, path); err != nil {
			return l, err
		} else if e == nil || !e.IsDir() {
			continue // replaced meanwhile
		}
		if err := f(e); err != nil {
			return l, err
		}
		walk = append(walk, name)
	}
	slices.Reverse(walk)
	l.folders = walk
	at, err := levelOf(d)
	l.dev, l.ino = at.dev, at.ino
	return l, err
}

// readEntry reads one name of an open folder; nil if it has disappeared.
func readEntry(ctx context.Context, dir int, name string, path []byte) (*Entry, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	e := &Entry{Dir: dir, Name: name, folder: path}
	switch err := unix.Fstatat(dir, name, &e.Stat, unix.AT_SYMLINK_NOFOLLOW); {
	case errors.Is(err, unix.ENOENT):
		return nil, nil
	case err != nil:
		return nil, &fs.PathError{Op: "stat", Path: tail(e.Path()), Err: err}
	}
	return e, nil
}

// RemoveAll removes path and everything below it, as os.RemoveAll does, but with at most two open
// descriptors. It is not an error if path does not exist.
func RemoveAll(ctx context.Context, path string) error {
	parent, err := openFolder(filepath.Dir(path))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer parent.Close()
	return removeIn(ctx, parent, filepath.Base(path))
}

// RemoveBelow removes everything in a folder except one name ("" for none). If a link has replaced
// the folder, only the link is removed.
func RemoveBelow(ctx context.Context, dir, keep string) error {
	st, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	if !st.IsDir() {
		return os.Remove(dir)
	}
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return &fs.PathError{Op: "open", Path: dir, Err: err}
	}
	d := os.NewFile(uintptr(fd), dir)
	defer d.Close()
	names, err := d.Readdirnames(-1)
	if err != nil {
		return err
	}
	for _, name := range names {
		if name == keep {
			continue
		}
		if err := removeIn(ctx, d, name); err != nil {
			return err
		}
	}
	return nil
}

// batch is how many names are read at once. It should not be large, because a folder is read again
// from its start after each of its subfolders.
const batch = 128

// removeIn removes one name in an open folder. It descends into one folder at a time and returns by
// "..", which must be the folder from which it descended.
func removeIn(ctx context.Context, top *os.File, name string) error {
	gone, err := unlink(top, name)
	if gone || err != nil {
		return err
	}
	type step struct {
		level
		name string // of the folder that was entered from it
	}
	at, err := levelOf(top)
	if err != nil {
		return err
	}
	stack := []step{{at, name}}
	cur, err := openToEmpty(top, name)
	if err != nil {
		return err
	}
	defer func() { cur.Close() }()
	for {
		into, err := empty(ctx, cur)
		if err != nil {
			return err
		}
		if into != "" {
			if len(stack) == maxDepth {
				return fault.New(fault.Exhausted, "%s: folders are nested over %d levels deep", top.Name(), maxDepth)
			}
			at, err := levelOf(cur)
			if err != nil {
				return err
			}
			child, err := openToEmpty(cur, into)
			if err != nil {
				return err
			}
			stack = append(stack, step{at, into})
			cur.Close()
			cur = child
			continue
		}
		last := stack[len(stack)-1]
		parent, err := openParent(cur, last.level)
		if err != nil {
			return fmt.Errorf("remove %s in %s: %w", name, top.Name(), err)
		}
		cur.Close()
		cur = parent
		if err := unix.Unlinkat(int(cur.Fd()), last.name, unix.AT_REMOVEDIR); err != nil && !errors.Is(err, unix.ENOENT) {
			return &fs.PathError{Op: "rmdir", Path: tail(last.name), Err: err}
		}
		if stack = stack[:len(stack)-1]; len(stack) == 0 {
			return nil
		}
	}
}

// empty removes the entries that it can in an open folder. It returns the name of a subfolder that
// must be emptied first, "" if the folder is empty.
func empty(ctx context.Context, d *os.File) (into string, err error) {
	if _, err := d.Seek(0, io.SeekStart); err != nil {
		return "", err
	}
	for {
		if err := ctx.Err(); err != nil {
			return "", err
		}
		names, err := d.Readdirnames(batch)
		for _, name := range names {
			gone, err := unlink(d, name)
			if err != nil {
				return "", err
			}
			if !gone {
				return name, nil
			}
		}
		if errors.Is(err, io.EOF) {
			return "", nil
		}
		if err != nil {
			return "", err
		}
	}
}

// unlink removes a name in an open folder; false if it is a folder with content.
func unlink(d *os.File, name string) (gone bool, err error) {
	err = unix.Unlinkat(int(d.Fd()), name, 0)
	if errors.Is(err, unix.EISDIR) || errors.Is(err, unix.EPERM) { // EPERM: a folder, by POSIX
		err = unix.Unlinkat(int(d.Fd()), name, unix.AT_REMOVEDIR)
	}
	switch {
	case err == nil, errors.Is(err, unix.ENOENT):
		return true, nil
	case errors.Is(err, unix.ENOTEMPTY), errors.Is(err, unix.EEXIST):
		return false, nil
	default:
		return false, &fs.PathError{Op: "remove", Path: tail(name), Err: err}
	}
}

// openToEmpty opens a folder whose owner may have removed the permission to read it.
func openToEmpty(d *os.File, name string) (*os.File, error) {
	child, err := openDir(d, name)
	if errors.Is(err, fs.ErrPermission) {
		if e := unix.Fchmodat(int(d.Fd()), name, 0o700, unix.AT_SYMLINK_NOFOLLOW); e != nil {
			return nil, err
		}
		child, err = openDir(d, name)
	}
	if err == nil {
		err = makeWritable(child)
	}
	return child, err
}

// makeWritable gives an owner who is not root the right to remove entries.
func makeWritable(d *os.File) error {
	if os.Geteuid() == 0 {
		return nil
	}
	if err := d.Chmod(0o700); err != nil && !errors.Is(err, fs.ErrPermission) {
		return err
	}
	return nil
}

// openFolder opens a folder by its path. Unlike os.Open it does not ask the kernel first whether the
// folder can be polled, which takes five more calls.
func openFolder(path string) (*os.File, error) {
	for {
		fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		switch {
		case err == nil:
			return os.NewFile(uintptr(fd), path), nil
		case !errors.Is(err, unix.EINTR):
			return nil, &fs.PathError{Op: "open", Path: path, Err: err}
		}
	}
}

func openDir(d *os.File, name string) (*os.File, error) {
	fd, err := unix.Openat(int(d.Fd()), name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: tail(name), Err: err}
	}
	return os.NewFile(uintptr(fd), name), nil
}

// openParent opens the folder above d, which must be want.
func openParent(d *os.File, want level) (*os.File, error) {
	p, err := openDir(d, "..")
	if err != nil {
		return nil, err
	}
	got, err := levelOf(p)
	if err == nil && (got.dev != want.dev || got.ino != want.ino) {
		err = fault.New(fault.Unavailable, "a folder was moved meanwhile")
	}
	if err != nil {
		p.Close()
		return nil, err
	}
	return p, nil
}

func levelOf(d *os.File) (level, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(d.Fd()), &st); err != nil {
		return level{}, &fs.PathError{Op: "stat", Path: d.Name(), Err: err}
	}
	return level{dev: st.Dev, ino: st.Ino}, nil
}

// tail returns the end of a path for an error.
func tail(path string) string {
	const most = 200
	if len(path) <= most {
		return path
	}
	return "…" + strings.ToValidUTF8(path[len(path)-most:], "")
}
