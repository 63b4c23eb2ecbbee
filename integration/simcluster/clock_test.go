package simcluster

import (
	"testing"
	"testing/synctest"
	"time"
)

// A report that came while the coordinator's clock was behind for a moment counted as one of long ago as soon as
// the clock was right again: the node was lost at once, and an exclusive task had a second attempt while the
// first went on. Seed 3005 had a clock that was ten minutes behind for 106 ms.
func TestAMomentWithAnotherTimeEndsNoLease(t *testing.T) {
	for _, by := range clockSteps {
		t.Run(by.String(), func(t *testing.T) {
			dir := memoryFolder(t)
			synctest.Test(t, func(t *testing.T) {
				c := newExclusive(t, dir, 6*lease)
				for end := time.Now().Add(5 * lease); time.Now().Before(end); time.Sleep(lease / 10) { // in some moments a node reports, in others the leases are looked at
					c.servers[0].clock.Store(int64(by))
					time.Sleep(lease / 50)
					c.servers[0].clock.Store(0)
				}
				c.awaitEnd()
				if n := len(c.world.started); n != 1 {
					t.Errorf("%d attempts, want one", n)
				}
				c.closeAndJudge()
			})
		})
	}
}
