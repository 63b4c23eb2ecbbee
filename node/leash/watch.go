package leash

import (
	"context"
	"errors"
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

// Watch keeps watch over the file until no task is listed or ctx ends. A second
// one for the same file ends at once. What cannot be frozen is tried again.
func Watch(ctx context.Context, path string, now func() time.Duration) error {
	alone, err := os.OpenFile(path+".watch", os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer alone.Close()
	for end := now() + startLimit; ; {
		err := flock(alone, unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			break
		}
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return err
		}
		// Either another watch, or somebody who just asks whether there is one.
		if there, err := Watched(path); there || err != nil || now() > end {
			return err
		}
	}
	for {
		wait, err := look(path, now, alone)
		if wait == 0 && err == nil {
			return nil
		}
		if err != nil {
			wait = lookSoon
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return errors.Join(ctx.Err(), err)
		}
	}
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
	if verb == VerbWatch {
		return Watch(context.Background(), path, SinceBoot)
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.Command(self, append(slices.Clone(before), VerbWatch, path)...)
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return err
	}
	return cmd.Process.Release()
}

// StartBy gives what starts a watch of the file through a helper program.
func StartBy(path string, helper ...string) func(context.Context) error {
	return func(ctx context.Context) error {
		return exec.CommandContext(ctx, helper[0], append(slices.Clone(helper[1:]), Verb, path)...).Run()
	}
}
