package cluster

import (
	"fmt"
	"os/exec"
	"runtime"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// startWithSyncs starts a command of which each fsync and fdatasync takes as long as takes says, in nanoseconds, and waits for
// those before it, as on a slow disk. The kernel asks this process of each such call before it does it. So the file system may be
// any, and takes may change at any time, also for a call that waits. Writes that nobody syncs are as fast as ever.
func startWithSyncs(cmd *exec.Cmd, takes *atomic.Int64) error {
	started := make(chan error)
	go func() {
		// The filter is the thread's, and the command inherits it. The goroutine leaves the thread locked, which therefore
		// ends with it: nothing else of this process may run there.
		runtime.LockOSThread()
		listener, err := filterSyncs()
		if err == nil {
			if err = cmd.Start(); err == nil {
				go delaySyncs(listener, takes)
			} else {
				unix.Close(listener)
			}
		}
		started <- err
	}()
	return <-started
}

// filterSyncs has the kernel ask of each fsync and fdatasync of this thread and its children, through a file that is returned.
func filterSyncs() (listener int, err error) {
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS}, // the number of the call, with which what the kernel tells of it begins
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_FSYNC, Jt: 2},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_FDATASYNC, Jt: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_USER_NOTIF},
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil { // without it only root may have a filter
		return 0, fmt.Errorf("cluster: a filter of syncs: %w", err)
	}
	fd, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_NEW_LISTENER, uintptr(unsafe.Pointer(&program)))
	if errno != 0 {
		return 0, fmt.Errorf("cluster: a filter of syncs: %w", errno)
	}
	return int(fd), nil
}

// heldCall is the kernel's seccomp_notif.
type heldCall struct {
	id         uint64
	pid, flags uint32
	number     int32
	arch       uint32
	address    uint64
	arguments  [6]uint64
}

// callAnswer is the kernel's seccomp_notif_resp.
type callAnswer struct {
	id    uint64
	value int64
	errno int32
	flags uint32
}

// delayStep is how late a call notices that takes has become shorter.
const delayStep = 5 * time.Millisecond

// delaySyncs lets the calls that the kernel asks of go on, each after what takes says, until no process has the filter any more.
func delaySyncs(listener int, takes *atomic.Int64) {
	defer unix.Close(listener)
	for {
		ready := []unix.PollFd{{Fd: int32(listener), Events: unix.POLLIN}}
		if _, err := unix.Poll(ready, -1); err == unix.EINTR {
			continue
		} else if err != nil || ready[0].Revents&unix.POLLIN == 0 {
			return
		}
		var call heldCall
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(listener), unix.SECCOMP_IOCTL_NOTIF_RECV, uintptr(unsafe.Pointer(&call))); errno != 0 {
			continue // a signal took the thread out of its call: it calls again, or ends
		}
		for began := time.Now(); time.Since(began) < time.Duration(takes.Load()); {
			time.Sleep(delayStep)
		}
		answer := callAnswer{id: call.id, flags: unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE}
		// Likewise it fails only where the thread does not wait any more.
		_, _, _ = unix.Syscall(unix.SYS_IOCTL, uintptr(listener), unix.SECCOMP_IOCTL_NOTIF_SEND, uintptr(unsafe.Pointer(&answer)))
	}
}
