package leash

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

// SinceBoot is a clock that also counts the time that the machine sleeps.
func SinceBoot() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		panic("leash: the machine has no clock since its start: " + err.Error())
	}
	return time.Duration(ts.Nano())
}

// note is what the file says, as JSON.
type note struct {
	UntilNS int64    `json:"until_ns"` // on the clock since boot
	Freeze  []string `json:"freeze"`   // cgroup.freeze of tasks that run, in order
	Fired   bool     `json:"fired"`    // the watch has frozen them
}

const fileMost = 4 << 20 // bytes

// locked opens the file, which is made where it is not there, and gives what it
// says while nobody else may change it. What is no note is an empty one that has
// run out.
func locked(path string, f func(file *os.File, n note) error) error {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer file.Close() // which unlocks it
	if err := flock(file, unix.LOCK_EX); err != nil {
		return fmt.Errorf("lock %s: %w", path, err)
	}
	var n note
	if json.NewDecoder(io.LimitReader(file, fileMost)).Decode(&n) != nil { // what comes after it is of a put that was cut short
		n = note{}
	}
	return f(file, n)
}

// put replaces what the file says by one write.
func put(file *os.File, n note) error {
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

// watches is how many there are of one file: each sees to it that the other one
// is there.
const watches = 2

// slot is the file that a watch holds while it lives, and that says its process.
func slot(path string, i int) string { return fmt.Sprintf("%s.watch%d", path, i) }

// Watched tells whether a watch of the file lives.
func Watched(path string) (bool, error) {
	for i := range watches {
		if there, err := held(slot(path, i)); there || err != nil {
			return there, err
		}
	}
	return false, nil
}

// held tells whether a watch holds a slot.
func held(name string) (bool, error) {
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

// freeze writes a value to each file; one that is gone needs none.
func freeze(files []string, value string) (err error) {
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

// Holder is the daemon's side. Its methods may be called from any goroutine.
type Holder struct {
	Path  string                      // of the file
	Start func(context.Context) error // starts a process that calls Watch and that outlives this one

	mu    sync.Mutex
	until time.Duration // as last renewed
}

// Clear forgets what an earlier daemon listed: this one has no lease yet, and has
// all exclusive tasks stand still itself.
func (h *Holder) Clear() error {
	return locked(h.Path, func(f *os.File, _ note) error { return put(f, note{}) })
}

// startLimit bounds how long a watch has to be there.
const startLimit = 10 * time.Second

// Add lists the cgroup.freeze file of a task that is about to run, and makes sure
// that a watch is there. Safe to repeat.
func (h *Holder) Add(ctx context.Context, file string) error {
	h.mu.Lock()
	until := int64(h.until)
	h.mu.Unlock()
	err := locked(h.Path, func(f *os.File, n note) error {
		if slices.Contains(n.Freeze, file) {
			return nil
		}
		n.Freeze = append(n.Freeze, file)
		slices.Sort(n.Freeze)
		n.UntilNS = max(n.UntilNS, until)
		return put(f, n)
	})
	if err != nil {
		return err
	}
	return h.ensure(ctx)
}

// ensure makes sure that a watch is there.
func (h *Holder) ensure(ctx context.Context) error {
	if there, err := Watched(h.Path); there || err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	if err := h.Start(ctx); err != nil {
		return fault.New(fault.Unavailable, "the watch over exclusive tasks: %w", err)
	}
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		if there, err := Watched(h.Path); there || err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fault.New(fault.Unavailable, "the watch over exclusive tasks was started and is not there: %w", ctx.Err())
		}
	}
}

// Remove takes a task off the list that stands still or is gone.
func (h *Holder) Remove(file string) error {
	return locked(h.Path, func(f *os.File, n note) error {
		i, ok := slices.BinarySearch(n.Freeze, file)
		if !ok {
			return nil
		}
		n.Freeze = slices.Delete(n.Freeze, i, i+1)
		return put(f, n)
	})
}

// Renew says until when the listed tasks may run, lets those go that the watch
// has frozen, and starts a watch where all were killed.
func (h *Holder) Renew(ctx context.Context, until time.Duration) error {
	h.mu.Lock()
	h.until = max(h.until, until)
	h.mu.Unlock()
	listed := false
	err := locked(h.Path, func(f *os.File, n note) error {
		if listed = len(n.Freeze) > 0; !listed && !n.Fired {
			return nil // nobody asks; Add says it then
		}
		fired := n.Fired
		n.UntilNS, n.Fired = max(n.UntilNS, int64(until)), false
		if err := put(f, n); err != nil || !fired {
			return err
		}
		return freeze(n.Freeze, "0")
	})
	if err != nil || !listed {
		return err
	}
	return h.ensure(ctx)
}
