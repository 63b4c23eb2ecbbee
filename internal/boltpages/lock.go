package boltpages

import (
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// LockShared takes the lock that a database holds on its file while it may write, so that a
// half-written transaction is not taken for damage. It returns false if a database has had the file
// open for all of limit. Closing the file releases the lock.
func LockShared(f *os.File, limit time.Duration) (locked bool, err error) {
	for end := time.Now().Add(limit); ; time.Sleep(20 * time.Millisecond) {
		err := unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB)
		switch {
		case err == nil:
			return true, nil
		case !errors.Is(err, unix.EWOULDBLOCK):
			return false, fmt.Errorf("lock %s: %w", f.Name(), err)
		case time.Now().After(end):
			return false, nil
		}
	}
}
