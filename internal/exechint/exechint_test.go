package exechint

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func TestOf(t *testing.T) {
	notFound := &fs.PathError{Op: "fork/exec", Err: syscall.ENOENT}
	for name, c := range map[string]struct {
		text string // content of the program; empty: no file
		err  error
		want string // empty: no hint
	}{
		"no interpreter":     {"#!/no/such/python\nprint(1)\n", notFound, `the interpreter of its first line "#!/no/such/python" is not there`},
		"lines of Windows":   {"#!/bin/sh\r\necho\r\n", notFound, `its first line "#!/bin/sh" ends with a carriage return`},
		"no first line":      {"echo\n", fmt.Errorf("start: %w", syscall.ENOEXEC), "a script whose first line names an interpreter"},
		"no loader":          {"\x7fELF", notFound, "the dynamic loader that it needs is not there"},
		"no program":         {"", notFound, ""},
		"no right to run it": {"#!/bin/sh\n", syscall.EACCES, ""},
		"no working folder":  {"#!/bin/sh\n", &fs.PathError{Op: "chdir", Err: syscall.ENOENT}, ""},
		"another error":      {"#!/no/such/python\n", errors.New("away"), ""},
	} {
		prog := filepath.Join(t.TempDir(), "prog")
		if c.text != "" {
			if err := os.WriteFile(prog, []byte(c.text), 0o700); err != nil {
				t.Fatal(err)
			}
		}
		if got := Of(prog, c.err); (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s: %q, want one with %q", name, got, c.want)
		}
	}
	if got := Of(t.TempDir(), notFound); got != "" {
		t.Errorf("a folder: %q", got)
	}
}
