package node

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/drover-run/drover/jobspec"
)

// What must be free on the data disk of a node that takes new work, because attempts, logs and the
// node's state need space. On a small disk it is a fraction of the disk.
const (
	minFreeBytes  = 64 << 20
	minFreeInodes = 1000
	minFreePart   = 50 // a fiftieth
)

// diskProblem returns why the disk of a folder has too little free space for new work; "" if it has
// enough.
func diskProblem(dir string) string {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return fmt.Sprintf("the disk of %s does not answer: %v", dir, err)
	}
	return problemOf(dir, &st)
}

// problemOf is diskProblem for the result of statfs. File systems that make inodes as needed report
// none.
func problemOf(dir string, st *unix.Statfs_t) string {
	free, size := int64(st.Bavail)*st.Bsize, int64(st.Blocks)*st.Bsize
	switch {
	case st.Flags&unix.ST_RDONLY != 0:
		return fmt.Sprintf("the disk of %s is read-only: look for its errors in the kernel's log, and mount it again", dir)
	case size > 0 && free < min(minFreeBytes, size/minFreePart):
		return fmt.Sprintf("the disk of %s is full, %s are free: make room on it", dir, jobspec.FormatSize(free))
	case st.Files > 0 && int64(st.Ffree) < min(minFreeInodes, int64(st.Files)/minFreePart):
		return fmt.Sprintf("the disk of %s has %d inodes free: remove files from it", dir, st.Ffree)
	default:
		return ""
	}
}
