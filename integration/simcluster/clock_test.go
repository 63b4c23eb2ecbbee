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
				c := newCluster(t, 1, dir)
				defer func() {
					if t.Failed() {
						t.Log(c.trace.String())
					}
				}()
				c.addServers(1)
				c.addMachine("n1")
				c.addMachine("n2")
				time.Sleep(time.Second)
				j := smallJob("j")
				j.spec.Stages[0].Exclusive, j.spec.Stages[0].Command = true, command(6*lease, 0, true, 0)
				c.accept(j)
				for end := time.Now().Add(5 * lease); time.Now().Before(end); time.Sleep(lease / 10) { // in some moments a node reports, in others the leases are looked at
					c.servers[0].clock.Store(int64(by))
					time.Sleep(lease / 50)
					c.servers[0].clock.Store(0)
				}
				c.awaitEnd()
				if n := len(c.world.started); n != 1 {
					t.Errorf("%d attempts, want one", n)
				}
				c.close()
				for _, b := range c.bad {
					t.Error(b)
				}
			})
		})
	}
}
