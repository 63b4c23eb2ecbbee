package localfs

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// fileTree abstracts the difference between the machine's root and a jail. Names
// are clean and absolute.
type fileTree interface {
	stat(name string) (fs.FileInfo, error)
	open(name string, flag int, perm fs.FileMode) (*os.File, error)
	mkdirAll(name string) error
	remove(name string) error
	removeAll(name string) error
	close() error
}

type hostTree struct{}

func (hostTree) stat(name string) (fs.FileInfo, error) { return os.Stat(name) }
func (hostTree) open(name string, flag int, perm fs.FileMode) (*os.File, error) {
	return os.OpenFile(name, flag, perm)
}
func (hostTree) mkdirAll(name string) error  { return os.MkdirAll(name, 0o755) }
func (hostTree) remove(name string) error    { return os.Remove(name) }
func (hostTree) removeAll(name string) error { return os.RemoveAll(name) }
func (hostTree) close() error                { return nil }

type jailTree struct{ root *os.Root }

// relativeName converts an absolute path to one relative to the root.
func relativeName(name string) string {
	if name == "/" {
		return "."
	}
	return filepath.FromSlash(strings.TrimPrefix(name, "/"))
}

func (j jailTree) stat(name string) (fs.FileInfo, error) { return j.root.Stat(relativeName(name)) }
func (j jailTree) open(name string, flag int, perm fs.FileMode) (*os.File, error) {
	return j.root.OpenFile(relativeName(name), flag, perm)
}
func (j jailTree) mkdirAll(name string) error  { return j.root.MkdirAll(relativeName(name), 0o755) }
func (j jailTree) remove(name string) error    { return j.root.Remove(relativeName(name)) }
func (j jailTree) removeAll(name string) error { return j.root.RemoveAll(relativeName(name)) }
func (j jailTree) close() error                { return j.root.Close() }
