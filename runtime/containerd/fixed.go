package containerd

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// criu starts tar and gzip for each tmpfs of a container, at the dump and at the
// restore; with five of them that was a third of a dump of 100 MB. Most of them a task
// cannot change: /dev, /run, and the empty folders over masked paths. For criu these
// are external mounts: it does not dump them, and a restore mounts a folder of the
// host in their place, which nobody can write.

// Names of the folders of the host in criu's images.
const (
	standInDev   = "drover-dev"   // what runc makes in /dev
	standInEmpty = "drover-empty" // an empty folder
)

// writeProtect makes the mounts read-only that only root could write.
func writeProtect(all []specs.Mount) {
	for i, m := range all {
		if m.Type == "tmpfs" && (m.Destination == "/dev" || m.Destination == "/run") {
			all[i].Options = append(slices.Clone(m.Options), "ro")
		}
	}
}

// fixedMounts returns, for each mount of a container that nobody can have changed, the folder that
// replaces it at a restore. Mounts that cannot be read are left to criu.
func (c Config) fixedMounts(id string, pid int) map[string]string {
	process := filepath.Join(c.proc, strconv.Itoa(pid))
	b, err := os.ReadFile(filepath.Join(process, "mountinfo"))
	if err != nil {
		return nil
	}
	masked := c.linuxOf(id).MaskedPaths
	fixed := map[string]string{}
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if len(f) < 6 || !slices.Contains(strings.Split(f[5], ","), "ro") {
			continue
		}
		switch at := unescapeMount.Replace(f[4]); {
		case at == "/dev":
			fixed[at] = standInDev
		case at == "/run" || slices.Contains(masked, at):
			if inside, err := os.ReadDir(filepath.Join(process, "root", at)); err == nil && len(inside) == 0 {
				fixed[at] = standInEmpty
			} // a masked file is one of runc's external mounts already
		}
	}
	return fixed
}

// externalOptions returns criu's options for a dump without the fixed mounts.
func externalOptions(fixed map[string]string) string {
	var lines []string
	for at, name := range fixed {
		lines = append(lines, fmt.Sprintf("external mnt[%s]:%s\n", at, name))
	}
	slices.Sort(lines)
	return strings.Join(lines, "")
}

func (c criuFiles) standIn(name string) string { return filepath.Join(string(c), "."+name) } // no ID begins with a dot

// standIns returns criu's options that name the folders at a restore.
func (c criuFiles) standIns() string {
	return fmt.Sprintf("external mnt[%s]:%s\nexternal mnt[%s]:%s\n", standInDev, c.standIn(standInDev), standInEmpty, c.standIn(standInEmpty))
}

// devNodes are the devices that runc makes in /dev, with their numbers.
var devNodes = map[string][2]uint32{"null": {1, 3}, "zero": {1, 5}, "full": {1, 7}, "random": {1, 8}, "urandom": {1, 9}, "tty": {5, 0}}

// devLinks are the links that runc makes in /dev.
var devLinks = map[string]string{"fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2", "core": "/proc/kcore", "ptmx": "pts/ptmx"}

// makeStandIns mounts the folders unless they are. Each is a file system of its own that
// is read-only: for mounts of one file system criu 4.1.1 takes some flags from the folder
// and not from the dump, and no task may ever write what others see.
func (c criuFiles) makeStandIns() error {
	for name, fill := range map[string]func(dir string) error{standInEmpty: nil, standInDev: fillDev} {
		if err := makeStandIn(c.standIn(name), fill); err != nil {
			return fmt.Errorf("folder %s: %w", c.standIn(name), err)
		}
	}
	return nil
}

// makeStandIn mounts one of them. An interrupted one is not read-only yet.
func makeStandIn(dir string, fill func(dir string) error) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	own, err := isMountPoint(dir)
	if err != nil {
		return err
	}
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return os.NewSyscallError("statfs", err)
	}
	if own && st.Flags&unix.ST_RDONLY != 0 {
		return nil
	}
	const flags = unix.MS_NOSUID | unix.MS_NOEXEC
	if !own {
		if err := unix.Mount("tmpfs", dir, "tmpfs", flags, "mode=755,size=64k"); err != nil {
			return os.NewSyscallError("mount", err)
		}
	}
	if fill != nil {
		if err := fill(dir); err != nil {
			return err
		}
	}
	return os.NewSyscallError("mount", unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY|flags, ""))
}

// isMountPoint reports whether a folder is on another file system than the one that it is in.
func isMountPoint(dir string) (bool, error) {
	var in, above unix.Stat_t
	if err := errors.Join(unix.Lstat(dir, &in), unix.Lstat(filepath.Dir(dir), &above)); err != nil {
		return false, os.NewSyscallError("lstat", err)
	}
	return in.Dev != above.Dev, nil
}

// fillDev makes in a folder what runc makes in /dev.
func fillDev(dev string) error {
	for _, name := range []string{"pts", "shm", "mqueue"} {
		if err := os.MkdirAll(filepath.Join(dev, name), 0o755); err != nil {
			return err
		}
	}
	for name, n := range devNodes {
		file := filepath.Join(dev, name)
		err := unix.Mknod(file, unix.S_IFCHR|0o666, int(unix.Mkdev(n[0], n[1])))
		if err == nil || errors.Is(err, fs.ErrExist) {
			err = os.Chmod(file, 0o666) // Mknod heeds the umask
		}
		if err != nil {
			return fmt.Errorf("device %s: %w", name, err)
		}
	}
	for name, to := range devLinks {
		if err := os.Symlink(to, filepath.Join(dev, name)); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	return nil
}
