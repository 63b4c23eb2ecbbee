package bench

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// counts is what the nodes of one measurement have seen.
type counts struct {
	placed  atomic.Int64 // attempts received
	ended   atomic.Int64 // successes that the coordinator has acknowledged
	reports atomic.Int64
	lost    atomic.Int64 // sessions that ended before the measurement did
	mayLose atomic.Bool  // sessions may end from now on: the leader is killed
	pages   atomic.Int64 // main parts of pages received, with the data of their pictures

	mu       sync.Mutex
	first    map[uint64]time.Time // when a node received a job's first attempt
	byJob    map[uint64]int       // attempts received
	lastLoss error
}

func newCounts() *counts { return &counts{first: map[uint64]time.Time{}, byJob: map[uint64]int{}} }

func (c *counts) received(job uint64, at time.Time) {
	c.placed.Add(1)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.byJob[job]++
	if _, known := c.first[job]; !known {
		c.first[job] = at
	}
}

func (c *counts) hasReceived(job uint64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, ok := c.first[job]
	return ok
}

// attemptsOf returns how many attempts of a job nodes have received.
func (c *counts) attemptsOf(job uint64) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.byJob[job]
}

func (c *counts) reported(ended int) {
	c.reports.Add(1)
	c.ended.Add(int64(ended))
}

func (c *counts) sessionLost(node string, err error) { c.lose(fmt.Errorf("node %s: %w", node, err)) }

func (c *counts) pageLost(path string, err error) { c.lose(fmt.Errorf("page %s: %w", path, err)) }

func (c *counts) lose(why error) {
	if c.mayLose.Load() {
		return
	}
	c.lost.Add(1)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lastLoss = why
}

// err returns an error if a node or a page has lost its session: what was measured then is the
// recovery, not the work.
func (c *counts) err() error {
	if c.lost.Load() == 0 {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return fmt.Errorf("%d sessions of nodes or pages were lost during the measurement, the last one: %w", c.lost.Load(), c.lastLoss)
}

// receipts returns the times from the submission of each job to the receipt of its
// first attempt by a node, ascending.
func (c *counts) receipts(submitted map[uint64]time.Time) []time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	var took []time.Duration
	for job, at := range submitted {
		if got, ok := c.first[job]; ok {
			took = append(took, got.Sub(at))
		}
	}
	slices.Sort(took)
	return took
}
