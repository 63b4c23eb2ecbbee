package quota

import (
	"errors"
	"fmt"
	"math/bits"
	"os"
	"slices"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// hasLargeInodes reports whether folders of the file system may have inode numbers that are no
// project numbers. xfs derives inode numbers from the disk's blocks, and spreads new folders over
// the whole disk, so that a small number of one folder says nothing about the next. Other file
// systems with project quotas have 32-bit inode numbers.
func hasLargeInodes(d *os.File) (bool, error) {
	var st unix.Stat_t
	var of unix.Statfs_t
	if err := errors.Join(unix.Fstat(int(d.Fd()), &st), unix.Fstatfs(int(d.Fd()), &of)); err != nil {
		return false, err
	}
	if st.Ino > maxProject || of.Type != unix.XFS_SUPER_MAGIC {
		return st.Ino > maxProject, nil
	}
	g, err := geometryOf(d)
	if err != nil || g.largestInode() <= maxProject {
		return false, err
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	return !hasInodes32(string(mounts), fmt.Sprintf("%d:%d", unix.Major(st.Dev), unix.Minor(st.Dev))), err
}

// hasInodes32 reports whether a device, "major:minor", is mounted with inode32, in the text of
// mountinfo (proc(5)).
func hasInodes32(mountinfo, device string) bool {
	for line := range strings.Lines(mountinfo) {
		before, after, ok := strings.Cut(line, " - ")
		f, kind := strings.Fields(before), strings.Fields(after)
		if ok && len(f) > 2 && f[2] == device && len(kind) > 2 && slices.Contains(strings.Split(kind[2], ","), "inode32") {
			return true
		}
	}
	return false
}

// ioctlGeometry is XFS_IOC_FSGEOMETRY_V1, of linux/xfs_fs.h.
const ioctlGeometry = 0x80705864

// xfsGeometry is the beginning of struct xfs_fsop_geom_v1.
type xfsGeometry struct {
	blockSize, _, groupBlocks, groups, _, _, inodeSize, _ uint32
	_                                                     [80]byte
}

func geometryOf(d *os.File) (g xfsGeometry, err error) {
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, d.Fd(), ioctlGeometry, uintptr(unsafe.Pointer(&g))); errno != 0 {
		return g, os.NewSyscallError("xfs geometry", errno)
	}
	return g, nil
}

// largestInode returns the largest inode number: the number of its allocation group, followed by
// its index in the group, in as many bits as the largest index takes.
func (g xfsGeometry) largestInode() uint64 {
	if g.inodeSize == 0 || g.groupBlocks == 0 || g.groups == 0 {
		return 0
	}
	perBlock := bits.Len32(g.blockSize/g.inodeSize) - 1
	place := bits.Len32(g.groupBlocks-1) + perBlock
	return uint64(g.groups-1)<<place | (uint64(g.groupBlocks)<<perBlock - 1)
}
