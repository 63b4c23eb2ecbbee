package localfs

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// brokenTree fails to stat one file, like a network file system whose server has lost the file.
type brokenTree struct {
	hostTree
	name string
	err  error
}

func (b brokenTree) stat(name string) (fs.FileInfo, error) {
	if name == b.name {
		return nil, &fs.PathError{Op: "stat", Path: name, Err: b.err}
	}
	return b.hostTree.stat(name)
}

// TestListLeavesOutOnlyWhatIsGone: a file that cannot be read is an error; otherwise a job's input
// would lack it.
func TestListLeavesOutOnlyWhatIsGone(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"a", "b"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	f, err := New(Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, cause := range []error{syscall.ENOENT, syscall.EIO, syscall.ESTALE, syscall.EACCES} {
		f.tree = brokenTree{name: filepath.Join(dir, "b"), err: cause}
		all, err := f.List(t.Context(), dir)
		ok := errors.Is(err, cause)
		switch cause {
		case syscall.ENOENT:
			ok = err == nil && len(all) == 1
		case syscall.EACCES: // a hidden file is ignored
			ok = err == nil && len(all) == 2 && all[1].Unreadable != ""
		}
		if !ok {
			t.Errorf("%v: %v, %v", cause, all, err)
		}
	}
}
