package containerd

import (
	"os"
	goruntime "runtime"

	"golang.org/x/sys/unix"
)

// inNamespace runs f in a network namespace. It must be called in its own
// goroutine: the thread stays in that namespace, so it is never unlocked and ends
// with the goroutine.
func inNamespace(ns *os.File, f func() error) error {
	goruntime.LockOSThread()
	if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
		goruntime.UnlockOSThread()
		return os.NewSyscallError("setns", err)
	}
	return f()
}
