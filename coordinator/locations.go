package coordinator

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"net"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/coordinator/facts"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/internal/plain"
	"github.com/drover-run/drover/jobspec"
	"github.com/drover-run/drover/mapreduce"
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

// resolveForLeader is resolve for the projection of the leader, which alone sees
// to it that each job is located.
func (c *locationCache) resolveForLeader(f *facts.Facts, job uint64) []splitNodes {
	c.adoptOrRequest(f, job)
	return c.resolve(f, job)
}

// adoptOrRequest makes the locations that are pending under a job's token those of
// the job. It marks the job stale if there are none either.
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

// splitNodes is where a split is located: the nodes that store some of it, most
// first, and the bytes on each, or nil if each stores all of it.
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

// onNodes returns where a split is located. A node with two DataNodes counts
// with the fuller one: of two replicas of a block it reads one.
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

// store stores where a job's input was found, unless the job is forgotten: then nothing would drop it. It is called under
// the facts' lock.
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

// dropForgotten drops the jobs that the facts do not have any more, where no change says which those are. It is called
// under the facts' lock.
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

// located is a job's input as nodes reported it.
type located struct {
	splits []*droverv1.FactSplit
	hosts  *jobHosts
}

// inputLocator asks nodes where the blocks of inputs are.
type inputLocator struct {
	dispatcher *dispatcher
	locations  *locationCache
	leadership *leadership
	view       func(func(*facts.Facts))
	now        func() time.Time
	log        *slog.Logger
}

// maxLocateTries is how often an input is located whose files change meanwhile.
const maxLocateTries = 3

// locateInput looks up the blocks of in through nodes and makes splits of them.
// Large inputs are requested in pages, from several nodes in parallel.
// NotFound: no such input; Unavailable: no node answered before ctx ended.
func (l *inputLocator) locateInput(ctx context.Context, in *jobspec.Input, user string, progress func(string)) (*located, error) {
	var blocks []*droverv1.FileBlock
	var err error
	for try := 1; try == 1 || try <= maxLocateTries && errors.Is(err, fault.Conflict); try++ {
		blocks, err = l.locateBlocks(ctx, in, user, false, progress)
	}
	if err != nil {
		return nil, err
	}
	return planSplits(blocks, in.CombineBytes)
}

// locatedPage is which blocks of an input are looked up.
type locatedPage struct {
	in      *jobspec.Input
	user    string
	from    int32  // block, counted over all files
	listing uint64 // LocateResponse.listing of the first page, 0 for any: other nodes may list other files
	refresh bool
}

// locateBlocks looks up the blocks of in through nodes.
func (l *inputLocator) locateBlocks(ctx context.Context, in *jobspec.Input, user string, refresh bool, progress func(string)) ([]*droverv1.FileBlock, error) {
	page := locatedPage{in: in, user: user, refresh: refresh}
	first, err := l.locatePage(ctx, page, progress)
	if err != nil {
		return nil, err
	}
	if !refresh { // then a block is found by its file, and one that is missing only counts as remote
		page.listing = first.GetListing()
	}
	blocks := first.GetBlocks()
	for page.from = first.GetNextBlock(); page.from > 0; {
		var more []*droverv1.FileBlock
		if more, page.from, err = l.locatePages(ctx, page, progress); err != nil {
			return nil, err
		}
		if blocks = append(blocks, more...); len(blocks) > maxBlocks {
			return nil, fault.New(fault.Exhausted, "the input has more than %d blocks: name fewer files, or pack small ones into large ones", maxBlocks)
		}
	}
	return blocks, checkBlocks(blocks)
}

// checkBlocks refuses blocks that no file has, and an input that is too long to be counted, as a sparse file can
// be: the splits become facts, and the scheduler's state refuses such ones.
func checkBlocks(blocks []*droverv1.FileBlock) error {
	left := int64(scheduler.MaxAmount)
	for _, b := range blocks {
		if min(b.GetOffset(), b.GetLength(), b.GetFileLength()) < 0 || b.GetOffset() > b.GetFileLength()-b.GetLength() {
			return fault.New(fault.Corrupt, "a node says that %s, of %d bytes, has a block of %d at %d", clipText(plain.Clean(b.GetUri()), maxLine), b.GetFileLength(), b.GetLength(), b.GetOffset())
		}
		if left -= b.GetLength(); left < 0 {
			return fault.New(fault.Exhausted, "the input has more than %s: name fewer files", jobspec.FormatSize(scheduler.MaxAmount))
		}
	}
	return nil
}

// locatePages requests the next pages in parallel and returns the block to
// continue from, 0 at the end.
func (l *inputLocator) locatePages(ctx context.Context, page locatedPage, progress func(string)) ([]*droverv1.FileBlock, int32, error) {
	var parts [pagesAtOnce]*droverv1.LocateResponse
	g, ctx := errgroup.WithContext(ctx)
	for i := range parts {
		p := page
		p.from += int32(i * blocksPerPage)
		g.Go(func() (err error) {
			parts[i], err = l.locatePage(ctx, p, progress)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, 0, err
	}
	var out []*droverv1.FileBlock
	for _, p := range parts {
		out = append(out, p.GetBlocks()...)
		if p.GetNextBlock() == 0 {
			return out, 0, nil
		}
	}
	return out, parts[pagesAtOnce-1].GetNextBlock(), nil
}

func (l *inputLocator) locatePage(ctx context.Context, p locatedPage, progress func(string)) (*droverv1.LocateResponse, error) {
	request := &droverv1.NodeRequest{User: p.user, Operation: &droverv1.NodeRequest_Locate{Locate: &droverv1.LocateRequest{Paths: p.in.Paths, FirstBlock: p.from, MaxBlocks: blocksPerPage, Refresh: p.refresh, Recurse: p.in.Recurse, Listing: p.listing}}}
	a, err := l.dispatcher.call(ctx, request, uriScheme(p.in.Paths[0]), progress)
	if err != nil {
		return nil, err
	}
	switch got := a.GetLocate(); {
	case got == nil:
		return nil, fault.New(fault.Corrupt, "a node answered a locate request without locations")
	case p.listing != 0 && got.GetListing() != 0 && got.GetListing() != p.listing: // 0: its node is of an earlier version
		return nil, fault.New(fault.Corrupt, "a node answered a locate request with blocks of other files")
	default:
		return got, nil
	}
}

// planSplits makes splits of blocks and records their hosts.
func planSplits(blocks []*droverv1.FileBlock, combine int64) (*located, error) {
	length := map[string]int64{}
	for _, b := range blocks {
		length[b.GetUri()] = b.GetFileLength()
	}
	splits, err := mapreduce.PlanSplits(plainBlocks(blocks), combine)
	if err != nil {
		return nil, fault.New(fault.Invalid, "%w", err)
	}
	if len(splits) > jobspec.MaxTasks {
		return nil, fault.New(fault.Exhausted, "the input has %d splits, at most %d are allowed: set combine in the input to pack small files", len(splits), jobspec.MaxTasks)
	}
	out := &located{hosts: hostsOf(splits)}
	for i := range splits {
		s := &droverv1.FactSplit{}
		for _, p := range splits[i].Pieces {
			s.Pieces = append(s.Pieces, &droverv1.SplitPiece{Uri: p.Path, Offset: p.Offset, Length: p.Length, FileLength: length[p.Path]})
		}
		out.splits = append(out.splits, s)
	}
	return out, nil
}

// relocateSplits returns where the splits of an accepted job are located now.
func relocateSplits(blocks []*droverv1.FileBlock, accepted []*droverv1.FactSplit) (*jobHosts, error) {
	splits := make([]mapreduce.Split, len(accepted))
	for i, s := range accepted {
		for _, p := range s.GetPieces() {
			splits[i].Pieces = append(splits[i].Pieces, mapreduce.Piece{Path: p.GetUri(), Offset: p.GetOffset(), Length: p.GetLength()})
		}
	}
	splits, err := mapreduce.Relocate(plainBlocks(blocks), splits)
	return hostsOf(splits), err
}

func plainBlocks(blocks []*droverv1.FileBlock) []mapreduce.FileBlock {
	out := make([]mapreduce.FileBlock, len(blocks))
	for i, b := range blocks {
		out[i] = mapreduce.FileBlock{Path: b.GetUri(), Offset: b.GetOffset(), Length: b.GetLength(), Hosts: b.GetHosts(), Racks: b.GetRacks()}
	}
	return out
}

func hostsOf(splits []mapreduce.Split) *jobHosts {
	h := &jobHosts{splits: make([]splitHosts, len(splits))}
	for i := range splits {
		h.splits[i] = splitHosts{hosts: splits[i].Hosts, racks: splits[i].Racks, bytes: splits[i].HostBytes}
	}
	return h
}

// relocateStale looks up the inputs of stale jobs again, until ctx ends.
func (l *inputLocator) relocateStale(ctx context.Context) error {
	t := time.NewTicker(refreshEvery)
	defer t.Stop()
	for {
		select {
		case <-l.locations.staleCh:
		case <-t.C:
			if l.leadership.leads() {
				l.view(func(f *facts.Facts) { l.locations.markStaleBefore(f, l.now().Add(-refreshEvery)) })
			}
			continue
		case <-ctx.Done():
			return nil
		}
		var g errgroup.Group
		g.SetLimit(refreshAtOnce)
		for _, id := range l.locations.takeStale() {
			g.Go(func() error {
				l.relocateJob(ctx, id)
				return nil
			})
		}
		_ = g.Wait() // its functions return nil
	}
}

// relocateJob looks up the input of one job. If the files have changed since
// submission, the cached locations remain; the tasks will detect the change.
func (l *inputLocator) relocateJob(ctx context.Context, id uint64) {
	var in *jobspec.Input
	var user string
	var want []*droverv1.FactSplit
	l.view(func(f *facts.Facts) {
		if j := f.Job(id); j != nil && !j.HasEnded() && j.MapStage() >= 0 {
			in, user, want = j.Spec.Input, hdfsUser(f, j.Spec), j.Stages[j.MapStage()].Splits
		}
	})
	if in == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, refreshLimit)
	defer cancel()
	blocks, err := l.locateBlocks(ctx, in, user, true, nil)
	if err != nil {
		if ctx.Err() == nil {
			l.log.Warn("cannot locate the input's blocks", "job", id, "err", err)
		}
		return
	}
	hosts, err := relocateSplits(blocks, want)
	if err != nil {
		l.log.Warn("the input changed after submission: its block locations are not used", "job", id, "err", err)
		return
	}
	l.view(func(f *facts.Facts) { l.locations.store(f, id, hosts, l.now()) })
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
