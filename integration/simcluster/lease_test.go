package simcluster

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// A daemon whose engine does not answer did not know whether the container of a task
// runs, and waited for the engine before it froze the task of an exclusive stage at
// the end of its lease. Another attempt ran elsewhere at the same time.
func TestExclusiveTaskIsFrozenWhileItsEngineIsDown(t *testing.T) {
	dir := memoryFolder(t)
	synctest.Test(t, func(t *testing.T) {
		c := newExclusive(t, dir, 3*lease)
		time.Sleep(time.Second)
		m := c.machine("n1")
		if len(c.world.exclusiveOn(m)) == 0 {
			m = c.machine("n2")
		}
		m.engine.Down(true)
		time.Sleep(time.Second) // its daemon asks for the container
		c.net.isolate(m.name, c.parties()...)
		time.Sleep(2 * lease)
		runs := 0
		for _, m := range c.machines {
			runs += len(c.world.exclusiveOn(m))
		}
		if runs != 2 {
			t.Errorf("%d attempts, want a frozen one and one elsewhere", runs)
		}
		c.net.mend("")
		m.engine.Down(false)
		c.awaitEnd()
		c.closeAndJudge()
	})
}

// newExclusive returns a cluster of a coordinator and two nodes that has accepted a job whose exclusive task runs
// for so long. A test that fails prints what happened.
func newExclusive(t *testing.T, dir string, runs time.Duration) *cluster {
	c := newCluster(t, 1, dir)
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(c.trace.String())
		}
	})
	c.addServers(1)
	c.addMachine("n1")
	c.addMachine("n2")
	time.Sleep(time.Second)
	j := smallJob("j")
	j.spec.Stages[0].Exclusive, j.spec.Stages[0].Command = true, command(runs, 0, true, 0)
	c.accept(j)
	return c
}

// closeAndJudge ends the cluster and reports the properties that did not hold.
func (c *cluster) closeAndJudge() {
	c.close()
	for _, b := range c.bad {
		c.t.Error(b)
	}
}

// An attempt of an exclusive task that acts after a newer one is seen, also where it begins only then.
func TestOlderAttemptsMustNotAct(t *testing.T) {
	for acts, want := range map[string]int{
		"7.0.0.1.1 7.0.0.1.1 7.0.0.2.1 7.0.0.2.1": 0,
		"7.0.0.1.1 7.0.0.2.1 7.0.0.1.1":           1,
		"7.0.0.2.1 7.0.0.1.1":                     1, // it begins late
		"7.0.0.2.1 7.0.0.1.1 7.0.0.2.1":           1,
		"7.0.0.9.1 7.0.0.10.1 7.0.0.10.2":         0,
		"7.0.0.1.2 7.0.0.1.1":                     1,
		"7.0.0.2.1 7.0.1.1.1":                     0, // of another task
	} {
		c := newCluster(t, 1, t.TempDir())
		for _, id := range strings.Fields(acts) {
			c.world.act(id, false)
		}
		if len(c.bad) != want {
			t.Errorf("%s: %d violations, want %d: %q", acts, len(c.bad), want, c.bad)
		}
	}
}
