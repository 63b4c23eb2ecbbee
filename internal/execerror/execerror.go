// Package execerror separates commands that cannot run from starts that failed because of the moment.
package execerror

import (
	"errors"
	"io/fs"

	"golang.org/x/sys/unix"

	"github.com/drover-run/drover/internal/fault"
)

// permanent has what a command's own words and files lead to: what execve(2) and chdir(2) say of
// them, and fault.Invalid for a program that was not found. The list may not have what passes: a
// job whose command cannot run fails at once, and all others are tried again.
var permanent = []error{
	fault.Invalid, fs.ErrNotExist, fs.ErrPermission, // ENOENT, EACCES and EPERM too
	unix.ENOTDIR, unix.EISDIR, unix.ELOOP, unix.ENAMETOOLONG, unix.E2BIG,
	unix.ENOEXEC, unix.ELIBBAD, // not a program, or not one of this machine
	unix.EINVAL, // an argument with a zero byte, or a program with two interpreters
}

// IsPermanent reports whether a program that was not found or not started would fail to start at
// the next try too. Other errors pass: a machine without memory or processes, a file that somebody
// still writes, a disk that is full or that fails.
func IsPermanent(err error) bool {
	for _, p := range permanent {
		if errors.Is(err, p) {
			return true
		}
	}
	return false
}
