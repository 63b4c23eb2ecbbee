package leash

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// How often the watch looks: often enough that it does not overlook the end of a
// lease, and when it is over, that nothing is let go.
const (
	lookEvery = time.Second
	lookSoon  = 100 * time.Millisecond
)

// Watch keeps watch over the file until no task is listed or ctx ends, and starts
// another watch by start whenever it is the only one: who kills one does not kill
// both. A third one for the same file ends at once. What cannot be frozen, or
// started, is tried again.
func Watch(ctx context.Context, path string, now func() time.Duration, start func(context.Context) error) error {
	alone, other, err := takeSlot(path, now)
	if alone == nil || err != nil {
		return err
	}
	defer alone.Close()
	for asked := (time.Time{}); ; {
		wait, err := look(path, now, alone)
		if wait == 0 && err == nil {
			return nil
		}
		if err != nil {
			wait = lookSoon
		}
		timer := time.NewTimer(wait)
		if time.Since(asked) >= lookEvery {
			asked = time.Now()
			err = errors.Join(err, keepOther(ctx, other, start))
		}
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return errors.Join(ctx.Err(), err)
		}
	}
}

// takeSlot gives the file of a slot that is free, locked, and the name of the
// other one; nil where both are taken.
func takeSlot(path string, now func() time.Duration) (alone *os.File, other string, err error) {
	for i := range watches {
		if alone, err = take(slot(path, i), now); alone != nil || err != nil {
			return alone, slot(path, watches-1-i), err
		}
	}
	return nil, "", nil
}

// take locks a slot and writes this process down in it; nil where another watch
// has it.
func take(name string, now func() time.Duration) (*os.File, error) {
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
		if errors.Is(err, unix.EWOULDBLOCK) { // by another watch, or by somebody who just asks whether there is one
			taken, err = held(name)
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

// keepOther starts another watch where the slot is free.
func keepOther(ctx context.Context, other string, start func(context.Context) error) error {
	if there, err := held(other); there || err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	return start(ctx)
}

// look freezes what is listed if its time is over, and gives how long to wait; 0
// when nothing is listed: the watch is over then, and says so while the list
// cannot change.
func look(path string, now func() time.Duration, alone *os.File) (wait time.Duration, err error) {
	err = locked(path, func(f *os.File, n note) error {
		if len(n.Freeze) == 0 {
			return flock(alone, unix.LOCK_UN)
		}
		left := time.Duration(n.UntilNS) - now()
		if left > 0 {
			wait = min(left, lookEvery)
			return nil
		}
		wait = lookSoon
		err := freeze(n.Freeze, "1")
		if n.Fired {
			return err
		}
		n.Fired = true
		return errors.Join(err, put(f, n))
	})
	return wait, err
}

// The helper program's verbs.
const (
	Verb      = "leash"       // with the file: starts a watch that outlives its parent, and ends
	VerbWatch = "leash-watch" // with the file: is the watch
)

// Main does one of the verbs; before is what leads to them on the command line.
func Main(before []string, verb, path string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	if verb == VerbWatch {
		spareFromOOM()
		return Watch(context.Background(), path, SinceBoot, StartBy(path, append([]string{self}, before...)...))
	}
	cmd := exec.Command(self, append(slices.Clone(before), VerbWatch, path)...)
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return err
	}
	return cmd.Process.Release()
}

// spareFromOOM has the kernel take another process when memory is short, where it
// lets this one choose.
func spareFromOOM() { _ = os.WriteFile("/proc/self/oom_score_adj", []byte("-1000"), 0) }

// StartBy gives what starts a watch of the file through a helper program.
func StartBy(path string, helper ...string) func(context.Context) error {
	return func(ctx context.Context) error {
		return exec.CommandContext(ctx, helper[0], append(slices.Clone(helper[1:]), Verb, path)...).Run()
	}
}
