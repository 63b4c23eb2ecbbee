package watchdog

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Intervals between checks: before the end of the lease, and after it or after
// an error.
const (
	checkInterval = time.Second
	retryInterval = 100 * time.Millisecond
)

// run watches the file until no task is listed or ctx ends, and calls start
// whenever the other watchdog process is not running. A third process for the
// same file ends at once. Failed freezes and starts are retried.
func run(ctx context.Context, path string, now func() time.Duration, start func(context.Context) error) error {
	alone, other, err := claimFreeSlot(path, now)
	if alone == nil || err != nil {
		return err
	}
	defer alone.Close()
	for asked := (time.Time{}); ; {
		wait, err := freezeIfExpired(path, now, alone)
		if wait == 0 && err == nil || err != nil && isRemoved(path) {
			return nil
		}
		if err != nil {
			wait = retryInterval
		}
		timer := time.NewTimer(wait)
		if time.Since(asked) >= checkInterval {
			asked = time.Now()
			err = errors.Join(err, ensurePeer(ctx, other, start))
		}
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return errors.Join(ctx.Err(), err)
		}
	}
}

// isRemoved reports whether the folder of the file is gone, and with it the list, because the node
// was removed from the machine.
func isRemoved(path string) bool {
	_, err := os.Stat(filepath.Dir(path))
	return errors.Is(err, fs.ErrNotExist)
}

// claimFreeSlot returns the locked file of a free slot and the name of the other
// slot; a nil file if both are taken.
func claimFreeSlot(path string, now func() time.Duration) (alone *os.File, other string, err error) {
	for i := range processCount {
		if alone, err = claimSlot(slotPath(path, i), now); alone != nil || err != nil {
			return alone, slotPath(path, processCount-1-i), err
		}
	}
	return nil, "", nil
}

// claimSlot locks a slot and writes this process's ID into it; nil if another
// watchdog holds it.
func claimSlot(name string, now func() time.Duration) (*os.File, error) {
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	for end := now() + startLimit; ; {
		err := flock(f, unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			break
		}
		taken := false
		if errors.Is(err, unix.EWOULDBLOCK) { // by another watchdog, or by a caller of isSlotTaken
			taken, err = isSlotTaken(name)
		}
		if taken || err != nil || now() > end {
			return nil, errors.Join(err, f.Close())
		}
	}
	_, err = f.WriteAt(fmt.Appendf(nil, "%-10d\n", os.Getpid()), 0)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// ensurePeer starts another watchdog if its slot is free.
func ensurePeer(ctx context.Context, other string, start func(context.Context) error) error {
	if running, err := isSlotTaken(other); running || err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	return start(ctx)
}

// freezeIfExpired freezes the listed tasks if the lease has expired, and returns
// how long to wait. If no task is listed it returns 0 and releases the slot while
// the list is still locked: this watchdog must end.
func freezeIfExpired(path string, now func() time.Duration, alone *os.File) (wait time.Duration, err error) {
	err = withLockedState(path, func(f *os.File, n state) error {
		if n.damaged { // until the daemon's next renewal
			wait = retryInterval
			return nil
		}
		if len(n.FreezeFiles) == 0 {
			return flock(alone, unix.LOCK_UN)
		}
		left := time.Duration(n.UntilNS) - now()
		if left > 0 {
			wait = min(left, checkInterval)
			return nil
		}
		wait = retryInterval
		err := writeFreezeFiles(n.FreezeFiles, "1")
		if n.Frozen {
			return err
		}
		n.Frozen = true
		return errors.Join(err, writeState(f, n))
	})
	return wait, err
}

// Verbs of the helper program.
const (
	VerbStart = "watchdog-start" // with the file: starts a watchdog that outlives its parent, and ends
	VerbRun   = "watchdog-run"   // with the file: runs the watchdog
)

// Main runs one of the verbs; before are the arguments that precede the verb on
// the command line.
func Main(before []string, verb, path string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	if verb == VerbRun {
		avoidOOMKill()
		return run(context.Background(), path, SinceBoot, Starter(path, append([]string{self}, before...)...))
	}
	runtime.LockOSThread() // the watchdog inherits the priority of the thread that starts it
	precedeOthers()
	cmd := exec.Command(self, append(slices.Clone(before), VerbRun, path)...)
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return err
	}
	return cmd.Process.Release()
}

// avoidOOMKill asks the kernel to kill other processes when memory is short, if
// this process has the right to.
func avoidOOMKill() { _ = os.WriteFile("/proc/self/oom_score_adj", []byte("-1000"), 0) }

// precedeOthers gives the calling thread, and the processes it starts, real-time priority, if it
// has the right to. When a machine that was paused as a whole continues, all programs and daemons
// compete for the processors: the watchdog must freeze the listed tasks before one of them runs.
// Threads of equal priority take turns (SCHED_RR): with SCHED_FIFO, a thread that spins until
// another thread of its process runs would keep its processor for ever.
func precedeOthers() {
	_ = unix.SchedSetAttr(0, &unix.SchedAttr{Policy: unix.SCHED_RR, Priority: 1}, 0)
}

// Starter returns a function that starts a watchdog of the file through the
// helper program.
func Starter(path string, helper ...string) func(context.Context) error {
	return func(ctx context.Context) error {
		return exec.CommandContext(ctx, helper[0], append(slices.Clone(helper[1:]), VerbStart, path)...).Run()
	}
}
