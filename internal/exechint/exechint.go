// Package exechint says what a user can do about a program that exists but could not be started. It
// imports only the standard library, because the harness, which must stay small, uses it too.
package exechint

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"syscall"
)

// Of returns what the user can do about a program that exists at path and could not be started
// because of err, empty if nothing is known. execve(2) reports a script without its interpreter,
// and a program without its dynamic loader, as a file that does not exist: a user would take the
// bare error for an error about the program itself.
func Of(path string, err error) string {
	switch {
	case errors.Is(err, syscall.ENOEXEC):
		return "it is neither a program for this machine nor a script whose first line names an interpreter, such as #!/bin/sh"
	case !errors.Is(err, fs.ErrNotExist):
		return ""
	}
	if p := (*fs.PathError)(nil); errors.As(err, &p) && p.Op == "chdir" {
		return "" // the working folder does not exist
	}
	if st, statErr := os.Stat(path); statErr != nil || !st.Mode().IsRegular() {
		return ""
	}
	interpreter, crlf := firstLine(path)
	switch {
	case crlf:
		return fmt.Sprintf("its first line %q ends with a carriage return, as in files of Windows: remove these with sed -i 's/\\r$//'", interpreter)
	case interpreter != "":
		return fmt.Sprintf("the interpreter of its first line %q is not there: use an image that has it", interpreter)
	default:
		return "the dynamic loader that it needs is not there: link it statically, or use an image that has it"
	}
}

// firstLine returns the first line of a script, empty if the file is no script, and whether the
// line ends with a carriage return.
func firstLine(path string) (line string, crlf bool) {
	f, err := os.Open(path)
	if err != nil {
		return "", false
	}
	defer f.Close()
	b := make([]byte, 128) // the kernel reads at most twice as much
	n, _ := io.ReadFull(f, b)
	line, _, _ = strings.Cut(string(b[:n]), "\n")
	if !strings.HasPrefix(line, "#!") {
		return "", false
	}
	return strings.TrimSuffix(line, "\r"), strings.HasSuffix(line, "\r")
}
