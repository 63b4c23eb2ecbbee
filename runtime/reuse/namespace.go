package reuse

import (
	"errors"
	"fmt"
	"os"
	goruntime "runtime"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/runtime"
)

const (
	shmPath    = "/dev/shm"
	shmOptions = "mode=1777,size=65536k" // as containerd makes it
)

// inContainer runs f in the mount, IPC and UTS namespaces of a process, with its root.
func inContainer(pid int, f func() error) error {
	return onThreadThatEnds(func() error {
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			return os.NewSyscallError("pidfd_open", err)
		}
		defer unix.Close(fd)
		if err := unix.Unshare(unix.CLONE_FS); err != nil {
			return os.NewSyscallError("unshare", err)
		}
		if err := unix.Setns(fd, unix.CLONE_NEWNS|unix.CLONE_NEWIPC|unix.CLONE_NEWUTS); err != nil {
			return os.NewSyscallError("setns", err)
		}
		return f()
	})
}

// onThreadThatEnds runs f on a thread that ends with its goroutine, since it is never unlocked. The
// first thread of a process does not end so: it would keep the namespaces of a container, and
// /proc/self shows what it has.
func onThreadThatEnds(f func() error) error {
	result := make(chan error, 1)
	go func() {
		goruntime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			result <- onThreadThatEnds(f) // not on this one, which this goroutine has until then
			goruntime.UnlockOSThread()
			return
		}
		result <- f()
	}()
	return <-result
}

// furnish mounts what a task may write, names its host, and returns the mounts of the container.
func (c *container) furnish(s runtime.Spec) (mounts string, err error) {
	var trees []*os.File
	var targets []string
	defer func() {
		for _, f := range trees {
			f.Close()
		}
	}()
	for _, m := range s.Mounts {
		if m.ReadOnly {
			continue
		}
		f, err := cloneFolder(m.Source)
		if err != nil {
			return "", fmt.Errorf("mount of %s: %w", m.Source, err)
		}
		trees, targets = append(trees, f), append(targets, m.Target)
	}
	err = inContainer(c.pid, func() error {
		for i, target := range targets {
			if err := replaceMount(target, trees[i]); err != nil {
				return err
			}
		}
		if err := unix.Unmount(shmPath, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
			return fmt.Errorf("unmount of %s: %w", shmPath, err)
		}
		if err := unix.Mount("shm", shmPath, "tmpfs", unix.MS_NOSUID|unix.MS_NOEXEC|unix.MS_NODEV, shmOptions); err != nil {
			return fmt.Errorf("mount on %s: %w", shmPath, err)
		}
		name := s.Hostname
		if name == "" {
			name = s.ID
		}
		if err := unix.Sethostname([]byte(name)); err != nil {
			return os.NewSyscallError("sethostname", err)
		}
		return nil
	})
	if err == nil {
		mounts, err = readMounts(c.pid)
	}
	if err == nil {
		err = checkMounted(mounts, append(targets, shmPath))
	}
	return mounts, err
}

// cloneFolder returns a mount of a folder of the host that is nowhere yet.
func cloneFolder(path string) (*os.File, error) {
	fd, err := unix.OpenTree(unix.AT_FDCWD, path, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_SYMLINK_NOFOLLOW)
	if err != nil {
		return nil, os.NewSyscallError("open_tree", err)
	}
	f := os.NewFile(uintptr(fd), path)
	attr := &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV, Propagation: unix.MS_PRIVATE}
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, attr); err != nil {
		f.Close()
		return nil, os.NewSyscallError("mount_setattr", err)
	}
	return f, nil
}

// replaceMount puts a mount in the place of another one.
func replaceMount(target string, tree *os.File) error {
	if err := unix.Unmount(target, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
		return fmt.Errorf("unmount of %s: %w", target, err)
	}
	if err := unix.MoveMount(int(tree.Fd()), "", unix.AT_FDCWD, target, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("mount on %s: %w", target, err)
	}
	return nil
}

// readMounts returns the mounts that a process has.
func readMounts(pid int) (string, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", pid))
	return string(b), err
}

// mountTargets returns the targets of what is mounted again, and of what is unmounted, in a
// container of tasks with such a Spec.
func mountTargets(s runtime.Spec) []string {
	all := []string{initTarget, socketTarget, shmPath}
	for _, m := range s.Mounts {
		if !m.ReadOnly {
			all = append(all, m.Target)
		}
	}
	return all
}

// checkNoLinks checks that every target is a mount point by that very name. The engine follows
// links of the image, but a mount must not be replaced through one.
func checkNoLinks(id, mountinfo string, targets []string) error {
	for _, target := range targets {
		found := false
		for line := range strings.Lines(mountinfo) {
			f := strings.Fields(line)
			found = found || len(f) > 4 && f[4] == target
		}
		if !found {
			return fault.New(fault.Invalid, "container %s: its image has a link at %s, or above it: a container that is used again cannot have it", id, target)
		}
	}
	return nil
}

// checkMounted reads back that each target is one mount, with nothing over it, that takes no
// devices and no set-user-ID programs.
func checkMounted(mountinfo string, targets []string) error {
	for _, target := range targets {
		n := 0
		for line := range strings.Lines(mountinfo) {
			if f := strings.Fields(line); len(f) > 5 && f[4] == target {
				if n++; !strings.Contains(f[5], "nosuid") || !strings.Contains(f[5], "nodev") {
					return fmt.Errorf("the mount on %s has options %s", target, f[5])
				}
			}
		}
		if n != 1 {
			return fmt.Errorf("%d mounts on %s", n, target)
		}
	}
	return nil
}

// checkIPC checks that the calling thread's namespace has no System V or POSIX object.
func checkIPC() error {
	for _, name := range []string{"msg", "sem", "shm"} {
		b, err := os.ReadFile("/proc/sysvipc/" + name)
		if errors.Is(err, os.ErrNotExist) {
			continue // a kernel without them
		}
		if err != nil {
			return err
		}
		if n := strings.Count(string(b), "\n"); n > 1 { // the first line is a heading
			return fmt.Errorf("it left %d System V objects (%s)", n-1, name)
		}
	}
	queues, err := os.ReadDir("/dev/mqueue")
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if len(queues) > 0 {
		return fmt.Errorf("it left %d message queues", len(queues))
	}
	return nil
}

// checkConnections checks that the network namespace of a process has no TCP socket, nor a
// connection that waits for its last packets (TIME_WAIT): for a minute the next task could not bind
// its address. The table of all sockets would say the same, but the kernel walks the machine's to
// print it. The host's network is not looked at.
func checkConnections(pid int) error {
	own, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		return err
	}
	of, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", pid))
	if err != nil || of == own {
		return err
	}
	for _, name := range []string{"sockstat", "sockstat6"} {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/%s", pid, name))
		if errors.Is(err, os.ErrNotExist) {
			continue // a kernel without it
		}
		if err != nil {
			return err
		}
		if left := leftTCP(string(b)); left != "" {
			return fmt.Errorf("it left TCP connections: %s", left)
		}
	}
	return nil
}

// leftTCP returns the line of a namespace's sockstat that has TCP sockets in use or connections in
// TIME_WAIT, "" if there is none.
func leftTCP(sockstat string) string {
	for line := range strings.Lines(sockstat) {
		f := strings.Fields(line)
		if len(f) == 0 || !strings.HasPrefix(f[0], "TCP") {
			continue
		}
		for i := 1; i+1 < len(f); i += 2 {
			if (f[i] == "inuse" || f[i] == "tw") && f[i+1] != "0" {
				return strings.TrimSpace(line)
			}
		}
	}
	return ""
}
