package simcluster

import (
	"math/rand/v2"
	"slices"
	"sync"
	"testing/synctest"
	"time"
)

// The faults of this file begin at a write of a node's store, which random instants almost never meet: a task has a few of them,
// each right before or after something that cannot be undone. They have a source of their own, as those of rare_test.go have.

// addNodeWrites adds one to one of four plans. None with an old copy of a coordinator's disk has it: see addHardware.
func (p *plan) addNodeWrites() {
	r := rand.New(rand.NewPCG(p.seed, 9))
	if r.IntN(4) > 0 || slices.ContainsFunc(p.faults, func(f plannedFault) bool { return f.kind == staleDisk }) {
		return
	}
	f := plannedFault{kind: []faultKind{cutPowerAtWrite, fillDiskAtWrite}[r.IntN(2)], n: 1 + r.IntN(2*maxWrites), length: between(r, 50*time.Millisecond, lease)}
	f.at = max(0, p.jobs[r.IntN(len(p.jobs))].at-10*time.Millisecond) // what places its first task comes then
	if r.IntN(2) == 0 {
		f.at = p.whileAJobRuns(r)
	}
	p.faults = append(p.faults, f)
}

// maxWrites is for how many writes such a fault waits at most: those of a task that begins and ends.
const maxWrites = 8

// writeTrigger waits for one of the next writes of the stores of all nodes.
type writeTrigger struct {
	mu    sync.Mutex
	left  int            // writes; 0: not armed
	reach func(*machine) // is told whose it is, before it is made
}

func (w *writeTrigger) arm(n int, reach func(*machine)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.left, w.reach = n, reach
}

// writing is told of each write before it.
func (w *writeTrigger) writing(m *machine) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.left == 0 {
		return
	}
	if w.left--; w.left == 0 {
		w.reach(m)
	}
}

// atNodeWrite cuts the power of the node that makes the n-th write from now on, at its instant or when a coordinator may have
// heard of what it stands for; or the disk of that node is full from that write on.
func (c *cluster) atNodeWrite(f plannedFault) {
	reached := make(chan *machine, 1)
	c.writes.arm(1+(f.n-1)/2, func(m *machine) {
		if f.kind == fillDiskAtWrite {
			m.full.Store(int64(1 + f.n%2))
		}
		reached <- m
	})
	limit := time.AfterFunc(4*lease, func() { c.writes.arm(0, nil); reached <- nil })
	m := <-reached
	limit.Stop()
	if m == nil {
		return
	}
	c.log("%s writes: %s", m.name, f)
	if f.kind == fillDiskAtWrite {
		time.Sleep(f.length)
		m.full.Store(0)
		c.log("end of: %s", f)
		return
	}
	if f.n%2 == 0 {
		time.Sleep(lease / 2500)
	}
	m.losePower()
	time.Sleep(f.length)
	c.log("end of: %s", f)
	m.restart()
}

// awaitQuiet waits until every other goroutine waits. The plan and what a user does both call it, perhaps at one instant, which
// synctest.Wait does not allow.
func (c *cluster) awaitQuiet() {
	c.quiet <- struct{}{}
	synctest.Wait()
	<-c.quiet
}
