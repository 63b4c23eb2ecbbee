package watchdog

import (
	"bytes"
	"context"
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
	"github.com/drover-run/drover/internal/linesum"
)

// SinceBoot is a clock that continues while the machine is suspended.
func SinceBoot() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		panic("watchdog: the machine has no boot-time clock: " + err.Error())
	}
	return time.Duration(ts.Nano())
}

// state is the content of the file, a line of JSON with a checksum.
type state struct {
	UntilNS     int64    `json:"until_ns"`     // end of the lease, on the clock since boot
	FreezeFiles []string `json:"freeze_files"` // of running exclusive tasks, sorted
	Frozen      bool     `json:"frozen"`       // a watchdog has frozen them

	damaged bool // the file could not be read: the rest is zero
}

const maxFileBytes = 4 << 20 // bytes

// withLockedState opens the file, or makes it, and calls f with its content while
// it is locked.
func withLockedState(path string, f func(file *os.File, n state) error) error {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer file.Close() // releases the lock
	if err := flock(file, unix.LOCK_EX); err != nil {
		return fmt.Errorf("lock %s: %w", path, err)
	}
	b, err := io.ReadAll(io.LimitReader(file, maxFileBytes))
	if err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	line, _, _ := bytes.Cut(b, []byte("\n")) // an interrupted writeState may leave old bytes after the line
	var n state
	if len(b) > 0 && linesum.Unmarshal(line, &n) != nil {
		n = state{damaged: true}
	}
	return f(file, n)
}

// writeState replaces the content of the file with one write.
func writeState(file *os.File, n state) error {
	text, err := linesum.Marshal(n)
	if err != nil {
		return err
	}
	if _, err := file.WriteAt(text, 0); err != nil {
		return err
	}
	return file.Truncate(int64(len(text)))
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
	Start func(context.Context) error // starts a watchdog that outlives this process (VerbStart)

	mu    sync.Mutex
	until time.Duration // end of the lease as last renewed
	files []string      // listed by this client since FreezeLeftovers, sorted
}

// update calls f with the content of the file while it is locked. What f returns replaces the list
// of this client. If the file was damaged, f gets this client's list, and the next write repairs
// the file. Thawing a task that no watchdog has frozen does no harm.
func (c *Client) update(f func(file *os.File, n state) ([]string, error)) error {
	return withLockedState(c.Path, func(file *os.File, n state) error {
		c.mu.Lock()
		defer c.mu.Unlock()
		if n.damaged || len(n.FreezeFiles) < len(c.files) {
			n = state{UntilNS: int64(c.until), FreezeFiles: slices.Clone(c.files), Frozen: true}
		}
		listed, err := f(file, n)
		if err == nil {
			c.files = slices.Clone(listed)
		}
		return err
	})
}

// FreezeLeftovers freezes the tasks that an earlier daemon listed, and unlists them: this daemon
// has no lease yet, and may end, or wait for the engine, before it has adopted those tasks.
func (c *Client) FreezeLeftovers() error {
	return c.update(func(f *os.File, n state) ([]string, error) {
		if err := writeFreezeFiles(n.FreezeFiles, "1"); err != nil {
			return nil, err
		}
		return nil, writeState(f, state{})
	})
}

// startLimit is how long a new watchdog may take to lock its slot.
const startLimit = 10 * time.Second

// Add lists the cgroup.freeze file of a task that is about to run, and ensures
// that a watchdog is running. It is safe to repeat.
func (c *Client) Add(ctx context.Context, file string) error {
	err := c.update(func(f *os.File, n state) ([]string, error) {
		if slices.Contains(n.FreezeFiles, file) {
			return n.FreezeFiles, nil
		}
		n.FreezeFiles = append(n.FreezeFiles, file)
		slices.Sort(n.FreezeFiles)
		n.UntilNS = max(n.UntilNS, int64(c.until))
		return n.FreezeFiles, writeState(f, n)
	})
	if err != nil {
		return err
	}
	return c.EnsureRunning(ctx)
}

// listsAny reports whether this client has listed a task.
func (c *Client) listsAny() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.files) > 0
}

// EnsureRunning starts a watchdog unless one is running or no task is listed, and waits for it.
func (c *Client) EnsureRunning(ctx context.Context) error {
	if running, err := IsRunning(c.Path); running || err != nil || !c.listsAny() {
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
		if running, err := IsRunning(c.Path); running || err != nil || !c.listsAny() { // with an empty list it has ended
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fault.New(fault.Unavailable, "the watchdog of exclusive tasks was started but is not running: %w", ctx.Err())
		}
	}
}

// Remove unlists a task that is frozen or gone. It reports whether the task was listed.
func (c *Client) Remove(file string) (listed bool, err error) {
	return c.remove(file, func() error { return nil })
}

// Abandon freezes a task that must never run again, and unlists it, so that no later
// renewal thaws it. It does nothing to a task that is not listed.
func (c *Client) Abandon(file string) error {
	_, err := c.remove(file, func() error { return writeFreezeFiles([]string{file}, "1") })
	return err
}

// remove unlists a task after first has succeeded.
func (c *Client) remove(file string, first func() error) (listed bool, err error) {
	err = c.update(func(f *os.File, n state) ([]string, error) {
		i, ok := slices.BinarySearch(n.FreezeFiles, file)
		if listed = ok; !ok {
			return n.FreezeFiles, nil
		}
		if err := first(); err != nil {
			return n.FreezeFiles, err
		}
		n.FreezeFiles = slices.Delete(n.FreezeFiles, i, i+1)
		return n.FreezeFiles, writeState(f, n)
	})
	return listed, err
}

// Renew extends the time until which listed tasks may run, and thaws those that a
// watchdog has frozen. It waits for no process. It reports whether tasks are listed: all
// watchdogs may have been killed, and EnsureRunning starts them again.
func (c *Client) Renew(until time.Duration) (listed bool, err error) {
	c.mu.Lock()
	c.until = max(c.until, until)
	c.mu.Unlock()
	err = c.update(func(f *os.File, n state) ([]string, error) {
		if listed = len(n.FreezeFiles) > 0; !listed && !n.Frozen {
			return nil, nil // no task needs it; Add writes the time later
		}
		fired := n.Frozen
		n.UntilNS, n.Frozen = max(n.UntilNS, int64(until)), false
		if err := writeState(f, n); err != nil || !fired {
			return n.FreezeFiles, err
		}
		err := writeFreezeFiles(n.FreezeFiles, "0")
		if err != nil { // the next renewal thaws the rest
			n.Frozen = true
			err = errors.Join(err, writeState(f, n))
		}
		return n.FreezeFiles, err
	})
	return listed, err
}
