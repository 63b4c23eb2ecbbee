package reuse

import (
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// The first thread of the process is the only one that must not enter a container: it never ends.
func TestTheFirstThreadEntersNoContainer(t *testing.T) {
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 200 {
				if err := onThreadThatEnds(func() error {
					if unix.Gettid() == unix.Getpid() {
						t.Error("it runs on the first thread of the process")
					}
					return nil
				}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
}
