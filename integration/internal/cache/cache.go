package cache

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// EnvDir is the environment variable with the path of the cache folder; the default is .cache at
// the root of the repository.
const EnvDir = "DROVER_CACHE"

// LockLimit is how long Get waits for another process that builds the same entry.
const LockLimit = 20 * time.Minute

// Dir is a cache folder.
type Dir string

// Open returns the cache folder and creates it if needed: the one in DROVER_CACHE, else .cache
// under root.
func Open(root string) (Dir, error) {
	d := os.Getenv(EnvDir)
	if d == "" {
		if root == "" {
			return "", fmt.Errorf("no cache folder: not inside the drover repository and %s is not set", EnvDir)
		}
		d = filepath.Join(root, ".cache")
	}
	d, err := filepath.Abs(d)
	if err != nil {
		return "", fmt.Errorf("cache folder: %w", err)
	}
	if err := os.MkdirAll(d, 0o755); err != nil {
		return "", fmt.Errorf("cache folder (%s sets another): %w", EnvDir, err)
	}
	return Dir(d), nil
}

// RepoRoot returns the root of this repository if the working directory is in it, else "".
func RepoRoot() string {
	d, err := os.Getwd()
	if err != nil {
		return ""
	}
	for ; ; d = filepath.Dir(d) {
		b, err := os.ReadFile(filepath.Join(d, "go.mod"))
		if err == nil && strings.HasPrefix(string(b), "module github.com/drover-run/drover\n") {
			return d
		}
		if d == filepath.Dir(d) {
			return ""
		}
	}
}

// Path joins elements to the folder's path.
func (d Dir) Path(elem ...string) string {
	return filepath.Join(append([]string{string(d)}, elem...)...)
}

// Entry is a complete, immutable folder of the cache, locked against removal until Close.
type Entry struct {
	Path string
	lock *os.File
}

// Close releases the entry; it may then be removed as an old generation.
func (e *Entry) Close() error { return e.lock.Close() }

// File returns the path of a file in the entry.
func (e *Entry) File(name string) string { return filepath.Join(e.Path, name) }

// Get returns the entry name-key, which must be closed after use. If it does not exist, build makes
// it in an empty folder while no other process builds an entry of that name. Older generations that
// are not in use are then removed.
func (d Dir) Get(name string, key Key, build func(dir string) error) (*Entry, error) {
	path := d.Path(name + "-" + string(key))
	if e, err := openEntry(path); err == nil {
		return e, nil
	}
	lock, err := d.Lock(name, LockLimit)
	if err != nil {
		return nil, err
	}
	defer lock.Close()
	if e, err := openEntry(path); err == nil { // another process made it while this one waited
		return e, nil
	}
	part := path + ".part"
	if err := os.RemoveAll(part); err != nil {
		return nil, fmt.Errorf("cache: remains of an interrupted build of %s: %w", name, err)
	}
	if err := os.MkdirAll(part, 0o755); err != nil {
		return nil, fmt.Errorf("cache: %w", err)
	}
	if err := build(part); err != nil {
		return nil, errors.Join(fmt.Errorf("building %s: %w", name, err), os.RemoveAll(part))
	}
	if err := os.Rename(part, path); err != nil {
		return nil, fmt.Errorf("cache: %w", err)
	}
	d.removeOld(name, path)
	return openEntry(path)
}

// has reports whether the entry exists.
func (d Dir) has(name string, key Key) bool {
	_, err := os.Stat(d.Path(name + "-" + string(key)))
	return err == nil
}

// openEntry locks an existing entry with a shared lock on its folder.
func openEntry(path string) (*Entry, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_SH|syscall.LOCK_NB); err != nil {
		f.Close()
		return nil, fmt.Errorf("%s is being removed: %w", path, err)
	}
	if _, err := os.Stat(path); err != nil { // removed between open and lock
		f.Close()
		return nil, err
	}
	return &Entry{Path: path, lock: f}, nil
}

// removeOld removes the other generations of a name that are not in use. A failure only leaves a
// folder behind.
func (d Dir) removeOld(name, keep string) {
	old, err := filepath.Glob(d.Path(name + "-*"))
	if err != nil {
		return
	}
	for _, p := range old {
		key, _, _ := strings.Cut(strings.TrimPrefix(filepath.Base(p), name+"-"), ".")
		if p != keep && len(key) == keyLen && !strings.Contains(key, "-") {
			RemoveUnused(p)
		}
	}
}

// RemoveUnused removes a folder unless it is locked and reports whether it did.
func RemoveUnused(path string) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	if syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) != nil {
		return false
	}
	return os.RemoveAll(path) == nil
}

// Lock takes the cache's lock of a name, waiting at most limit. The lock is released when the file
// is closed or the process ends.
func (d Dir) Lock(name string, limit time.Duration) (*os.File, error) {
	f, err := os.OpenFile(d.Path("lock."+name), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("cache: %w", err)
	}
	for end := time.Now().Add(limit); ; time.Sleep(50 * time.Millisecond) {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return f, nil
		}
		if time.Now().After(end) {
			f.Close()
			return nil, fmt.Errorf("cache: another process has had %s locked for over %v (find it with: fuser %s)", f.Name(), limit, f.Name())
		}
	}
}

// Key is a hash of everything from which an entry is made.
type Key string

const keyLen = 12

// KeyOf hashes the parts, each with its length, so that different lists have different keys.
func KeyOf(parts ...string) Key {
	h := sha256.New()
	for _, p := range parts {
		fmt.Fprintf(h, "%d:", len(p))
		io.WriteString(h, p)
	}
	return Key(hex.EncodeToString(h.Sum(nil))[:keyLen])
}

// SourcesOf returns the names and contents of all files of a file system that keep accepts (nil:
// all), in the order of their names, as parts for KeyOf.
func SourcesOf(fsys fs.FS, keep func(path string) bool) ([]string, error) {
	var parts []string
	err := fs.WalkDir(fsys, ".", func(p string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() || (keep != nil && !keep(p)) {
			return err
		}
		b, err := fs.ReadFile(fsys, p)
		parts = append(parts, p, string(b))
		return err
	})
	return parts, err
}
