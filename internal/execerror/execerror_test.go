package execerror

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/drover-run/drover/internal/fault"
)

func TestIsPermanent(t *testing.T) {
	for _, err := range []error{
		unix.ENOENT, unix.ENOTDIR, unix.EACCES, unix.EPERM, unix.ENOEXEC, unix.EISDIR, unix.ELOOP, unix.ENAMETOOLONG, unix.E2BIG,
		unix.ELIBBAD, unix.EINVAL, fs.ErrNotExist, fs.ErrPermission, fault.New(fault.Invalid, "not found"),
	} {
		if !IsPermanent(fmt.Errorf("exec: %w", err)) {
			t.Errorf("%v passes", err)
		}
	}
	for _, err := range []error{
		unix.EAGAIN, unix.ENOMEM, unix.EMFILE, unix.ENFILE, unix.ETXTBSY, unix.EIO, unix.ENOSPC, unix.EDQUOT, unix.ESTALE, unix.EINTR, unix.ETIMEDOUT,
		fault.New(fault.Unavailable, "away"), errors.New("a request with 0 files"), nil,
	} {
		if IsPermanent(err) {
			t.Errorf("%v does not pass", err)
		}
	}
}

// The kernel's errors for commands that cannot run are in the list.
func TestCommandsThatCannotRunArePermanent(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	if err := os.Symlink("loop", filepath.Join(dir, "loop")); err != nil {
		t.Fatal(err)
	}
	for name, path := range map[string]string{
		"no file":            filepath.Join(dir, "none"),
		"no program":         file("text", "no program", 0o755),
		"an empty file":      file("empty", "", 0o755),
		"not executable":     file("plain", "#!/bin/sh\n", 0o600),
		"a folder":           dir,
		"a file as a folder": filepath.Join(dir, "text", "x"),
		"no interpreter":     file("script", "#!/no/such/program\n", 0o755),
		"a link to itself":   filepath.Join(dir, "loop"),
		"a zero byte":        "a\x00b",
	} {
		if err := start(path); !IsPermanent(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// start tries to start a program, and returns the error.
func start(path string) error {
	p, err := os.StartProcess(path, []string{path}, &os.ProcAttr{})
	if err != nil {
		return err
	}
	_, err = p.Wait()
	return err
}
