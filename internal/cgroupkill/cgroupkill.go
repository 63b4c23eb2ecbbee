// Package cgroupkill kills all processes of a cgroup of version 2, even if the kernel (before 5.14,
// such as Debian 11's) has no cgroup.kill. It does not wait for their end: callers watch
// cgroup.events, and kill again the processes that were created meanwhile.
package cgroupkill

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// maxPasses bounds the passes over a cgroup whose processes fork as fast as they are killed.
const maxPasses = 100

// Kill sends SIGKILL to every process, including frozen ones, of the cgroup in folder dir and of
// the cgroups below it. It is not an error if there is no such cgroup.
func Kill(dir string) error {
	// Without O_CREATE, because the kernel answers O_CREATE with EACCES if the file does not exist.
	f, err := os.OpenFile(filepath.Join(dir, "cgroup.kill"), os.O_WRONLY, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return Signal(dir)
	}
	if err != nil {
		return err
	}
	_, err = f.WriteString("1")
	if err = errors.Join(err, f.Close()); isGone(err) {
		return nil
	}
	return err
}

// Signal does what Kill does, one process after the other. It repeats until a pass finds no new
// process, because the next pass finds the children of killed processes.
func Signal(dir string) error {
	seen := map[int]bool{}
	for range maxPasses {
		all, err := processesBelow(dir)
		if err != nil {
			return err
		}
		fresh := false
		for _, pid := range all {
			if seen[pid] {
				continue
			}
			fresh, seen[pid] = true, true
			if err := unix.Kill(pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
				return os.NewSyscallError("kill "+strconv.Itoa(pid), err)
			}
		}
		if !fresh {
			return nil
		}
	}
	return nil
}

// processesBelow lists the processes of a cgroup and of those below it.
func processesBelow(dir string) (all []int, err error) {
	err = filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if isGone(err) {
			return nil
		}
		if err != nil || !e.IsDir() {
			return err
		}
		text, err := os.ReadFile(filepath.Join(path, "cgroup.procs"))
		if isGone(err) || errors.Is(err, unix.EOPNOTSUPP) { // a threaded cgroup: its processes are listed above it
			return nil
		}
		for _, f := range strings.Fields(string(text)) {
			// 0 is a process of another PID namespace; to kill(2) it would be this process's own
			// group.
			if pid, err := strconv.Atoi(f); err == nil && pid > 0 {
				all = append(all, pid)
			}
		}
		return err
	})
	return all, err
}

// isGone reports whether an error means that there is no such cgroup.
func isGone(err error) bool { return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) }
