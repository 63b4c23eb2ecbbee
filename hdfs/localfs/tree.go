package localfs

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// tree is what differs between the machine's root and a jail. Names are clean
// and absolute.
type tree interface {
	stat(name string) (fs.FileInfo, error)
	open(name string, flag int, perm fs.FileMode) (*os.File, error)
	mkdirAll(name string) error
	remove(name string) error
	removeAll(name string) error
	close() error
}

type machine struct{}

func (machine) stat(name string) (fs.FileInfo, error) { return os.Stat(name) }
func (machine) open(name string, flag int, perm fs.FileMode) (*os.File, error) {
	return os.OpenFile(name, flag, perm)
}
func (machine) mkdirAll(name string) error  { return os.MkdirAll(name, 0o755) }
func (machine) remove(name string) error    { return os.Remove(name) }
func (machine) removeAll(name string) error { return os.RemoveAll(name) }
func (machine) close() error                { return nil }

type jail struct{ root *os.Root }

// below turns an absolute path into one relative to the root.
func below(name string) string {
	if name == "/" {
		return "."
	}
	return filepath.FromSlash(strings.TrimPrefix(name, "/"))
}

func (j jail) stat(name string) (fs.FileInfo, error) { return j.root.Stat(below(name)) }
func (j jail) open(name string, flag int, perm fs.FileMode) (*os.File, error) {
	return j.root.OpenFile(below(name), flag, perm)
}
func (j jail) mkdirAll(name string) error  { return j.root.MkdirAll(below(name), 0o755) }
func (j jail) remove(name string) error    { return j.root.Remove(below(name)) }
func (j jail) removeAll(name string) error { return j.root.RemoveAll(below(name)) }
func (j jail) close() error                { return j.root.Close() }
