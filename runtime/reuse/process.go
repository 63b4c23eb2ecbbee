package reuse

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// processState is what a process of the same user may change of process 1, and what a command
// would inherit.
type processState struct {
	limits  string // resource limits
	threads string // priorities and processors, the same for all its threads
}

// readProcessState reads the state of a process.
func readProcessState(pid int) (processState, error) {
	var s processState
	dir := filepath.Join("/proc", fmt.Sprint(pid))
	limits, err := os.ReadFile(filepath.Join(dir, "limits"))
	if err != nil {
		return s, err
	}
	s.limits = string(limits)
	threads, err := os.ReadDir(filepath.Join(dir, "task"))
	if err != nil {
		return s, err
	}
	for _, t := range threads {
		one, err := readThread(filepath.Join(dir, "task", t.Name()), t.Name())
		if os.IsNotExist(err) {
			continue
		}
		if err != nil {
			return s, err
		}
		if s.threads == "" {
			s.threads = one
		}
		if s.threads != one {
			return s, fmt.Errorf("threads of its first process differ: %s and %s", s.threads, one)
		}
	}
	return s, nil
}

// readThread describes a thread's priorities and processors.
func readThread(dir, tid string) (string, error) {
	stat, err := os.ReadFile(filepath.Join(dir, "stat"))
	if err != nil {
		return "", err
	}
	// The fields follow the name, which is in parentheses: the state is field 3.
	f := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	if len(f) < 39 {
		return "", fmt.Errorf("%s: %d fields", dir, len(f))
	}
	status, err := os.ReadFile(filepath.Join(dir, "status"))
	if err != nil {
		return "", err
	}
	cpus := ""
	for line := range strings.Lines(string(status)) {
		if v, ok := strings.CutPrefix(line, "Cpus_allowed:"); ok {
			cpus = strings.TrimSpace(v)
		}
	}
	var id int
	if _, err := fmt.Sscan(tid, &id); err != nil {
		return "", err
	}
	const who = 1 // IOPRIO_WHO_PROCESS
	io, _, errno := unix.Syscall(unix.SYS_IOPRIO_GET, who, uintptr(id), 0)
	if errno == unix.ESRCH {
		return "", os.ErrNotExist
	}
	if errno != 0 {
		return "", os.NewSyscallError("ioprio_get", errno)
	}
	return fmt.Sprintf("priority %s nice %s realtime %s policy %s processors %s I/O %d", f[15], f[16], f[37], f[38], cpus, io), nil
}

// compare returns an error that says what has changed.
func (s processState) compare(now processState) error {
	if s.limits != now.limits {
		return fmt.Errorf("the resource limits of its first process have changed")
	}
	if s.threads != now.threads {
		return fmt.Errorf("its first process had %s and has %s", s.threads, now.threads)
	}
	return nil
}
