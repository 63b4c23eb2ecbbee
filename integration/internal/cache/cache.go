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

// EnvDir is the environment variable that names the cache folder; without it the folder is .cache at the root of
// the repository.
const EnvDir = "DROVER_CACHE"

// LockLimit is how long Open waits for another process that builds the same entry.
const LockLimit = 20 * time.Minute

// Dir is a cache folder.
type Dir string

// Open returns the cache folder, created if need be: the one that DROVER_CACHE names, else .cache under root.
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

// Path joins elements to the folder's path.
func (d Dir) Path(elem ...string) string {
	return filepath.Join(append([]string{string(d)}, elem...)...)
}

// Entry is a complete, immutable folder of the cache, held in use until Close.
type Entry struct {
	Path string
	use  *os.File
}

// Close gives the entry up; a later generation may then remove it.
func (e *Entry) Close() error { return e.use.Close() }

// File returns the path of a file in the entry.
func (e *Entry) File(name string) string { return filepath.Join(e.Path, name) }

// Get returns the entry name-key, which must be closed after use. If it does not exist, build makes it in an empty
// folder; no other process builds the same name meanwhile. Older generations that nobody holds are then removed.
func (d Dir) Get(name string, key Key, build func(dir string) error) (*Entry, error) {
	path := d.Path(name + "-" + string(key))
	if e, err := open(path); err == nil {
		return e, nil
	}
	lock, err := d.Lock(name, LockLimit)
	if err != nil {
		return nil, err
	}
	defer lock.Close()
	if e, err := open(path); err == nil { // another process made it while this one waited
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
	return open(path)
}

// Has tells whether the entry exists complete.
func (d Dir) Has(name string, key Key) bool {
	_, err := os.Stat(d.Path(name + "-" + string(key)))
	return err == nil
}

// open takes a complete entry into use with a shared lock on its folder.
func open(path string) (*Entry, error) {
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
	return &Entry{Path: path, use: f}, nil
}

// removeOld removes the other generations of a name, those in use excepted. Failure only leaves a folder behind.
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

// RemoveUnused removes a folder unless somebody holds a lock on it, and tells whether it did.
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

// Lock takes the cache's lock of that name and waits for it at most limit. Closing the file gives it back, as does
// the end of the process.
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
			return nil, fmt.Errorf("cache: another process has held %s for over %v (see who: fuser %s)", f.Name(), limit, f.Name())
		}
	}
}

// Key is a hash of all that an entry is made from.
type Key string

const keyLen = 12

// KeyOf hashes the parts, each with its length, so that no two lists of parts look alike.
func KeyOf(parts ...string) Key {
	h := sha256.New()
	for _, p := range parts {
		fmt.Fprintf(h, "%d:", len(p))
		io.WriteString(h, p)
	}
	return Key(hex.EncodeToString(h.Sum(nil))[:keyLen])
}

// SourcesOf returns names and contents of all files of a file system that keep accepts (nil: all), in the order of
// their names, as parts for KeyOf.
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
