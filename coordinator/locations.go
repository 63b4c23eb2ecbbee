package coordinator

import (
	"maps"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/drover-run/drover/coordinator/facts"
	"github.com/drover-run/drover/scheduler"
)

// Limits of locating blocks.
const (
	blocksPerPage       = 10_000           // in one response
	pagesAtOnce         = 4                // pages requested in parallel, from different nodes
	maxBlocks           = 4_000_000        // of one job's input
	maxPendingLocations = 256              // submissions that are not accepted yet
	refreshLimit        = 5 * time.Minute  // of locating one job's input again
	refreshAtOnce       = 2                // jobs located again in parallel
	refreshEvery        = 10 * time.Minute // how long a NameNode takes to give up a silent DataNode
	readFailurePause    = 30 * time.Second // between two lookups for a job whose reads fail
)

// locationCache caches where the inputs of live jobs are located. Locations are
// not facts: they are looked up again after a restart, when a node is lost,
// when a map task cannot read its input, and periodically while maps are
// pending, because a DataNode may fail on a healthy machine.
type locationCache struct {
	mu            sync.Mutex
	jobs          map[uint64]*jobHosts
	pending       map[string]*jobHosts // by shuffle token, until the job has a number
	pendingTokens []string             // tokens, oldest first
	changed       []uint64             // jobs with new locations, for the loop
	stale         map[uint64]bool      // jobs to look up again
	changedCh     chan struct{}        // one token: changed is not empty
	staleCh       chan struct{}        // one token: stale is not empty
}

// jobHosts holds, for each split, the addresses and racks of the hosts that
// store part of it, best first.
type jobHosts struct {
	splits      []splitHosts
	requestedAt time.Time // maintained by locationCache
}

// splitHosts is where a split is located. bytes holds the bytes on each host, or
// is nil if each holds all of the split.
type splitHosts struct {
	hosts, racks []string
	bytes        []int64
}

func newLocationCache() *locationCache {
	return &locationCache{jobs: map[uint64]*jobHosts{}, pending: map[string]*jobHosts{}, stale: map[uint64]bool{},
		changedCh: make(chan struct{}, 1), staleCh: make(chan struct{}, 1)}
}

// addPending stores the locations of a job that is about to be accepted.
func (c *locationCache) addPending(token string, h *jobHosts) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.pendingTokens) >= maxPendingLocations {
		delete(c.pending, c.pendingTokens[0])
		c.pendingTokens = c.pendingTokens[1:]
	}
	c.pending[token] = h
	c.pendingTokens = append(c.pendingTokens, token)
}

// resolve returns the nodes that store each split of a job, also while they are
// pending under its token; nil if that is unknown. It changes nothing.
func (c *locationCache) resolve(f *facts.Facts, job uint64) []splitNodes {
	j := f.Job(job)
	if j == nil || j.MapStage() < 0 {
		return nil
	}
	c.mu.Lock()
	h := c.jobs[job]
	if h == nil {
		h = c.pending[j.Token]
	}
	c.mu.Unlock()
	return h.nodes(f)
}

// resolveForLeader is resolve for the leader's projection. Only the leader has missing locations
// looked up.
func (c *locationCache) resolveForLeader(f *facts.Facts, job uint64) []splitNodes {
	c.adoptOrRequest(f, job)
	return c.resolve(f, job)
}

// adoptOrRequest moves the locations that are pending under a job's token to the job. If there are
// none, it marks the job stale, so that they are looked up.
func (c *locationCache) adoptOrRequest(f *facts.Facts, job uint64) {
	j := f.Job(job)
	if j == nil || j.MapStage() < 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.jobs[job] != nil {
		return
	}
	h := c.pending[j.Token]
	if h == nil {
		c.markStaleLocked(job)
		return
	}
	c.jobs[job] = h
	delete(c.pending, j.Token)
	c.pendingTokens = slices.DeleteFunc(c.pendingTokens, func(t string) bool { return t == j.Token })
}

// splitNodes is the location of a split: the nodes that store some of it, the fullest first, and
// the bytes on each, or nil if each stores all of it.
type splitNodes struct {
	nodes []scheduler.NodeID
	local []int64
}

// nodes returns the nodes that store each split.
func (h *jobHosts) nodes(f *facts.Facts) []splitNodes {
	if h == nil {
		return nil
	}
	book := newAddressBook(f)
	out := make([]splitNodes, len(h.splits))
	for i := range h.splits {
		out[i] = h.splits[i].onNodes(book)
	}
	return out
}

// onNodes returns the location of a split as nodes. A node with two DataNodes counts with the
// fuller one, because a task reads only one of two replicas of a block.
func (s *splitHosts) onNodes(book addressBook) (out splitNodes) {
	for k, host := range s.hosts {
		n, ok := book.find(host)
		if !ok || slices.Contains(out.nodes, n) {
			continue
		}
		out.nodes = append(out.nodes, n)
		if s.bytes != nil {
			out.local = append(out.local, s.bytes[k])
		}
	}
	return out
}

func (c *locationCache) markStaleLocked(job uint64) {
	c.stale[job] = true
	select {
	case c.staleCh <- struct{}{}:
	default:
	}
}

// markStaleBefore marks the live jobs with pending maps as stale if they were
// last looked up before that time.
func (c *locationCache) markStaleBefore(f *facts.Facts, before time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, id := range f.JobIDs() {
		j := f.Job(id)
		if m := j.MapStage(); m >= 0 && !j.HasEnded() && j.Stages[m].Pending > 0 {
			if h := c.jobs[id]; h == nil || h.requestedAt.Before(before) {
				c.markStaleLocked(id)
			}
		}
	}
}

// reportReadFailure marks a job as stale because a map task could not read its
// input, at most once per readFailurePause.
func (c *locationCache) reportReadFailure(job uint64, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if h := c.jobs[job]; h != nil && now.Sub(h.requestedAt) >= readFailurePause {
		h.requestedAt = now // later failures have the same cause
		c.markStaleLocked(job)
	}
}

func (c *locationCache) takeStale() []uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []uint64
	for id := range c.stale {
		out = append(out, id)
	}
	clear(c.stale)
	slices.Sort(out)
	return out
}

// store stores where a job's input was found, unless the job is forgotten: nothing would drop its
// locations. It is called under the facts' lock.
func (c *locationCache) store(f *facts.Facts, job uint64, h *jobHosts, now time.Time) {
	if f.Job(job) == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if old := c.jobs[job]; old != nil {
		h.requestedAt = old.requestedAt
	}
	if now.After(h.requestedAt) {
		h.requestedAt = now
	}
	c.jobs[job] = h
	c.changed = append(c.changed, job)
	select {
	case c.changedCh <- struct{}{}:
	default:
	}
}

func (c *locationCache) takeChanged() []uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := c.changed
	c.changed = nil
	return out
}

func (c *locationCache) drop(job uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.jobs, job)
	delete(c.stale, job)
}

// dropForgotten drops the locations of jobs that are no longer in the facts. It is for a reset of
// the journal, which names no forgotten jobs. It is called under the facts' lock.
func (c *locationCache) dropForgotten(f *facts.Facts) {
	c.mu.Lock()
	defer c.mu.Unlock()
	forgotten := func(id uint64) bool { return f.Job(id) == nil }
	maps.DeleteFunc(c.jobs, func(id uint64, _ *jobHosts) bool { return forgotten(id) })
	maps.DeleteFunc(c.stale, func(id uint64, _ bool) bool { return forgotten(id) })
}

// addressBook maps DataNode addresses to the nodes on the same machine. A match
// with the port wins over a match of the host alone.
type addressBook struct{ exact, host map[string]scheduler.NodeID }

func newAddressBook(f *facts.Facts) addressBook {
	b := addressBook{map[string]scheduler.NodeID{}, map[string]scheduler.NodeID{}}
	for _, n := range f.Nodes() {
		for _, a := range n.Info.GetStorageAddresses() {
			b.exact[a] = nodeID(n.ID)
			b.host[hostOnly(a)] = nodeID(n.ID)
		}
	}
	return b
}

func hostOnly(a string) string {
	if h, _, err := net.SplitHostPort(a); err == nil {
		return h
	}
	return a
}

func (b addressBook) find(a string) (scheduler.NodeID, bool) {
	if n, ok := b.exact[a]; ok {
		return n, true
	}
	n, ok := b.host[hostOnly(a)]
	return n, ok
}

// splitHosts returns the addresses and racks that store a split, as named by
// the file system; nil if unknown.
func (c *locationCache) splitHosts(job uint64, i int32) (hosts, racks []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if h := c.jobs[job]; h != nil && int(i) < len(h.splits) {
		return h.splits[i].hosts, h.splits[i].racks
	}
	return nil, nil
}

// storedOn returns, for each split of a job, where it is located: the names of the
// nodes, and the bytes on each, or nil if each stores all of it.
func (c *locationCache) storedOn(f *facts.Facts, job uint64) (names [][]string, bytes [][]int64) {
	c.mu.Lock()
	h := c.jobs[job]
	c.mu.Unlock()
	for _, at := range h.nodes(f) {
		var of []string
		for _, n := range at.nodes {
			of = append(of, f.Node(int32(n)+1).Info.GetName())
		}
		names, bytes = append(names, of), append(bytes, at.local)
	}
	return names, bytes
}
