// Package execerror distinguishes commands that can never start from starts that failed for a
// momentary reason.
package execerror

import (
	"errors"
	"io/fs"

	"golang.org/x/sys/unix"

	"github.com/drover-run/drover/internal/fault"
)

// permanent lists the errors that a command's own words and files cause: errors of execve(2) and
// chdir(2), and fault.Invalid for a program that was not found. It must not list momentary errors:
// a job whose command cannot run fails at once, and all others are tried again.
var permanent = []error{
	fault.Invalid, fs.ErrNotExist, fs.ErrPermission, // ENOENT, EACCES and EPERM too
	unix.ENOTDIR, unix.EISDIR, unix.ELOOP, unix.ENAMETOOLONG, unix.E2BIG,
	unix.ENOEXEC, unix.ELIBBAD, // not a program, or not one of this machine
	unix.EINVAL, // an argument with a zero byte, or a program with two interpreters
}

// IsPermanent reports whether a program that was not found or not started would fail to start at
// the next try too. Other errors are momentary: a machine lacks memory or processes, another
// process still writes the file, or a disk is full or fails.
func IsPermanent(err error) bool {
	for _, p := range permanent {
		if errors.Is(err, p) {
			return true
		}
	}
	return false
}
