// Package filesystem determines the kind of a folder's file system: an fsync on tmpfs, for example,
// waits for no disk.
package filesystem

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Tmpfs is the kind of file systems in memory.
const Tmpfs = "tmpfs"

var kinds = map[int64]string{
	unix.TMPFS_MAGIC: Tmpfs, unix.RAMFS_MAGIC: Tmpfs,
	unix.EXT4_SUPER_MAGIC: "ext4", unix.XFS_SUPER_MAGIC: "xfs", unix.BTRFS_SUPER_MAGIC: "btrfs", unix.OVERLAYFS_SUPER_MAGIC: "overlay", unix.NFS_SUPER_MAGIC: "nfs",
}

// Kind returns the kind of the file system of a folder, such as ext4, or the number of a kind that
// it does not know.
func Kind(dir string) (string, error) {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return "", fmt.Errorf("file system of %s: %w", dir, err)
	}
	magic := int64(s.Type)
	if kind, ok := kinds[magic]; ok {
		return kind, nil
	}
	return fmt.Sprintf("%#x", uint32(magic)), nil
}
