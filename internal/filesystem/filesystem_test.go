package filesystem

import (
	"errors"
	"io/fs"
	"strings"
	"testing"
)

func TestKind(t *testing.T) {
	if kind, err := Kind(t.TempDir()); kind == "" || err != nil {
		t.Errorf("%q, %v", kind, err)
	}
	if kind, err := Kind("/proc"); !strings.HasPrefix(kind, "0x") || err != nil { // a kind without a name
		t.Errorf("of /proc: %q, %v", kind, err)
	}
	if kind, err := Kind("/dev/shm"); kind != Tmpfs && !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("of /dev/shm: %q, %v", kind, err)
	}
	if _, err := Kind(t.TempDir() + "/none"); err == nil {
		t.Error("a folder that is not there has a file system")
	}
}
