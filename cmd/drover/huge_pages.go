//go:build !race

package main

import (
	"os"
	"runtime/debug"
	"strings"

	"golang.org/x/sys/unix"
)

// maxHugePages is the most that adviseHugePages asks for, more than the heap of a coordinator of
// 100,000 nodes.
const maxHugePages = 4 << 30

// adviseHugePages lets the heap use huge pages where the kernel gives them on request ("madvise",
// Ubuntu's default; with "always", Debian's, that is not needed). A scheduler reads a few cache
// lines in each of very many pages: with pages of 4 KiB, most of these reads also wait for the
// translation of the address. GODEBUG=disablethp=1 prevents it.
//
// The advice is given for addresses that are then freed again. The heap always grows into the
// lowest free addresses, so it grows into these next; until then they use no memory. It must be
// called before the heap is large.
func adviseHugePages() {
	var info unix.Sysinfo_t
	if strings.Contains(os.Getenv("GODEBUG"), "disablethp=1") || unix.Sysinfo(&info) != nil {
		return
	}
	size := min(uint64(info.Totalram)*uint64(info.Unit)/8, maxHugePages)
	_ = unix.Madvise(make([]byte, size), unix.MADV_HUGEPAGE) // a kernel without huge pages refuses, and nothing is lost
	debug.FreeOSMemory()
}
