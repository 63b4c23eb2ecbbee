package watchdog

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/drover-run/drover/internal/fault"
)

// SinceBoot is a clock that includes the time in which the machine is suspended.
func SinceBoot() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		panic("watchdog: the machine has no boot-time clock: " + err.Error())
	}
	return time.Duration(ts.Nano())
}

// state is the content of the file, as JSON.
type state struct {
	UntilNS     int64    `json:"until_ns"`     // end of the lease, on the clock since boot
	FreezeFiles []string `json:"freeze_files"` // of running exclusive tasks, sorted
	Frozen      bool     `json:"frozen"`       // a watchdog has frozen them
}

const maxFileBytes = 4 << 20 // bytes

// withLockedState opens the file, or makes it, and calls f with its content while
// it is locked. Invalid content counts as an empty list with an expired lease.
func withLockedState(path string, f func(file *os.File, n state) error) error {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer file.Close() // releases the lock
	if err := flock(file, unix.LOCK_EX); err != nil {
		return fmt.Errorf("lock %s: %w", path, err)
	}
	var n state
	if json.NewDecoder(io.LimitReader(file, maxFileBytes)).Decode(&n) != nil { // a truncated writeState may leave old bytes after the value
		n = state{}
	}
	return f(file, n)
}

// writeState replaces the content of the file with one write.
func writeState(file *os.File, n state) error {
	text, err := json.Marshal(n)
	if err != nil {
		return err
	}
	if _, err := file.WriteAt(append(text, '\n'), 0); err != nil {
		return err
	}
	return file.Truncate(int64(len(text)) + 1)
}

func flock(f *os.File, how int) error {
	for {
		if err := unix.Flock(int(f.Fd()), how); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// processCount is the number of watchdog processes per file; each restarts the
// other.
const processCount = 2

// slotPath returns the file that watchdog process i locks while it runs and that
// contains its process ID.
func slotPath(path string, i int) string { return fmt.Sprintf("%s.%d", path, i) }

// IsRunning reports whether a watchdog process for the file is running.
func IsRunning(path string) (bool, error) {
	for i := range processCount {
		if running, err := isSlotTaken(slotPath(path, i)); running || err != nil {
			return running, err
		}
	}
	return false, nil
}

// isSlotTaken reports whether a watchdog process holds a slot.
func isSlotTaken(name string) (bool, error) {
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return false, err
	}
	defer f.Close()
	err = flock(f, unix.LOCK_SH|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return true, nil
	}
	return false, err
}

// writeFreezeFiles writes value to each file; files that are gone are skipped.
func writeFreezeFiles(files []string, value string) (err error) {
	for _, name := range files {
		fd, oerr := unix.Open(name, unix.O_WRONLY|unix.O_CLOEXEC, 0)
		if oerr == nil {
			_, oerr = unix.Write(fd, []byte(value))
			unix.Close(fd)
		}
		if oerr != nil && !errors.Is(oerr, fs.ErrNotExist) && !errors.Is(oerr, unix.ENODEV) {
			err = errors.Join(err, fmt.Errorf("%s to %s: %w", value, name, oerr))
		}
	}
	return err
}

// Client is the daemon's side. It is safe for concurrent use.
type Client struct {
	Path  string                      // of the file
	Start func(context.Context) error // starts a process that calls Run and outlives this one

	mu    sync.Mutex
	until time.Duration // end of the lease as last renewed
}

// Clear removes what an earlier daemon listed: this daemon has no lease yet and
// freezes all exclusive tasks itself.
func (c *Client) Clear() error {
	return withLockedState(c.Path, func(f *os.File, _ state) error { return writeState(f, state{}) })
}

// startLimit is how long a started watchdog may take to hold its slot.
const startLimit = 10 * time.Second

// Add lists the cgroup.freeze file of a task that is about to run, and ensures
// that a watchdog is running. It is safe to repeat.
func (c *Client) Add(ctx context.Context, file string) error {
	c.mu.Lock()
	until := int64(c.until)
	c.mu.Unlock()
	err := withLockedState(c.Path, func(f *os.File, n state) error {
		if slices.Contains(n.FreezeFiles, file) {
			return nil
		}
		n.FreezeFiles = append(n.FreezeFiles, file)
		slices.Sort(n.FreezeFiles)
		n.UntilNS = max(n.UntilNS, until)
		return writeState(f, n)
	})
	if err != nil {
		return err
	}
	return c.ensureRunning(ctx)
}

// ensureRunning starts a watchdog unless one is running.
func (c *Client) ensureRunning(ctx context.Context) error {
	if running, err := IsRunning(c.Path); running || err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	if err := c.Start(ctx); err != nil {
		return fault.New(fault.Unavailable, "start watchdog of exclusive tasks: %w", err)
	}
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		if running, err := IsRunning(c.Path); running || err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fault.New(fault.Unavailable, "the watchdog of exclusive tasks was started but is not running: %w", ctx.Err())
		}
	}
}

// Remove unlists a task that is frozen or gone.
func (c *Client) Remove(file string) error {
	return withLockedState(c.Path, func(f *os.File, n state) error {
		i, ok := slices.BinarySearch(n.FreezeFiles, file)
		if !ok {
			return nil
		}
		n.FreezeFiles = slices.Delete(n.FreezeFiles, i, i+1)
		return writeState(f, n)
	})
}

// Renew extends the time until which listed tasks may run, thaws those that a
// watchdog has frozen, and restarts the watchdogs if all were killed.
func (c *Client) Renew(ctx context.Context, until time.Duration) error {
	c.mu.Lock()
	c.until = max(c.until, until)
	c.mu.Unlock()
	listed := false
	err := withLockedState(c.Path, func(f *os.File, n state) error {
		if listed = len(n.FreezeFiles) > 0; !listed && !n.Frozen {
			return nil // no task needs it; Add writes the time later
		}
		fired := n.Frozen
		n.UntilNS, n.Frozen = max(n.UntilNS, int64(until)), false
		if err := writeState(f, n); err != nil || !fired {
			return err
		}
		return writeFreezeFiles(n.FreezeFiles, "0")
	})
	if err != nil || !listed {
		return err
	}
	return c.ensureRunning(ctx)
}
