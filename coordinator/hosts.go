package coordinator

import (
	"context"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/coordinator/facts"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/jobspec"
	"github.com/drover-run/drover/mapreduce"
	"github.com/drover-run/drover/scheduler"
)

// Limits of asking for block locations.
const (
	locatePage    = 10_000           // blocks of one answer
	locateAtOnce  = 4                // pages asked at once, of different nodes
	maxBlocks     = 4_000_000        // of one job's input
	maxStash      = 256              // submissions between their splits and their accept
	refreshLimit  = 5 * time.Minute  // of asking again for one job
	refreshAtOnce = 2                // jobs asked again at a time
	refreshEvery  = 10 * time.Minute // so long does a NameNode take to give up a silent DataNode
	doubtEvery    = 30 * time.Second // at most so often is a job asked again whose reads fail
)

// hostBook knows where the input of live jobs lies. It is no fact: it is asked
// again after a restart, when a node is lost, when a map task cannot read its
// input, and from time to time while maps wait, since a DataNode may be lost
// whose machine is well.
type hostBook struct {
	mu    sync.Mutex
	jobs  map[uint64]*jobHosts
	stash map[string]*jobHosts // by shuffle token, until the job has a number
	order []string             // tokens, oldest first
	fresh []uint64             // jobs with new locations, for the loop
	stale map[uint64]bool      // jobs to ask again
	news  chan struct{}        // one token: fresh is not empty
	ask   chan struct{}        // one token: stale is not empty
}

// jobHosts has, for each split, the addresses and racks that hold some of it,
// best first.
type jobHosts struct {
	splits []splitHosts
	asked  time.Time // set by hostBook
}

type splitHosts struct{ hosts, racks []string }

func newHostBook() *hostBook {
	return &hostBook{jobs: map[uint64]*jobHosts{}, stash: map[string]*jobHosts{}, stale: map[uint64]bool{},
		news: make(chan struct{}, 1), ask: make(chan struct{}, 1)}
}

// put keeps the locations of a job that is about to be accepted.
func (b *hostBook) put(token string, h *jobHosts) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.order) >= maxStash {
		delete(b.stash, b.order[0])
		b.order = b.order[1:]
	}
	b.stash[token] = h
	b.order = append(b.order, token)
}

// of gives the nodes that hold each split of a job; nil while that is not
// known, and then it is asked.
func (b *hostBook) of(f *facts.Facts, job uint64) [][]scheduler.NodeID {
	j := f.Job(job)
	if j == nil || j.MapStage() < 0 {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	h := b.jobs[job]
	if s := b.stash[j.Token]; h == nil && s != nil {
		h = s
		b.jobs[job] = s
		delete(b.stash, j.Token)
		b.order = slices.DeleteFunc(b.order, func(t string) bool { return t == j.Token })
	}
	if h == nil {
		b.staleLocked(job)
		return nil
	}
	return h.nodes(f)
}

// nodes gives the nodes that hold each split.
func (h *jobHosts) nodes(f *facts.Facts) [][]scheduler.NodeID {
	if h == nil {
		return nil
	}
	at := addresses(f)
	out := make([][]scheduler.NodeID, len(h.splits))
	for i := range h.splits {
		for _, host := range h.splits[i].hosts {
			if n, ok := at.find(host); ok && !slices.Contains(out[i], n) {
				out[i] = append(out[i], n)
			}
		}
	}
	return out
}

func (b *hostBook) staleLocked(job uint64) {
	b.stale[job] = true
	select {
	case b.ask <- struct{}{}:
	default:
	}
}

// refresh has the locations of all live jobs with maps to place asked again,
// if they were asked before that instant.
func (b *hostBook) refresh(f *facts.Facts, before time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, id := range f.JobIDs() {
		j := f.Job(id)
		if m := j.MapStage(); m >= 0 && !j.HasEnded() && j.Stages[m].Pending > 0 {
			if h := b.jobs[id]; h == nil || h.asked.Before(before) {
				b.staleLocked(id)
			}
		}
	}
}

// doubt has the locations of a job asked again of which a map task could not
// read its input, unless that was just done.
func (b *hostBook) doubt(job uint64, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if h := b.jobs[job]; h != nil && now.Sub(h.asked) >= doubtEvery {
		h.asked = now // all who fail meanwhile mean the same
		b.staleLocked(job)
	}
}

func (b *hostBook) takeStale() []uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	var out []uint64
	for id := range b.stale {
		out = append(out, id)
	}
	clear(b.stale)
	slices.Sort(out)
	return out
}

func (b *hostBook) set(job uint64, h *jobHosts, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if old := b.jobs[job]; old != nil {
		h.asked = old.asked
	}
	if now.After(h.asked) {
		h.asked = now
	}
	b.jobs[job] = h
	b.fresh = append(b.fresh, job)
	select {
	case b.news <- struct{}{}:
	default:
	}
}

func (b *hostBook) takeNews() []uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := b.fresh
	b.fresh = nil
	return out
}

func (b *hostBook) drop(job uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.jobs, job)
	delete(b.stale, job)
}

// addressBook finds the node on whose machine a DataNode is. An address with
// a port wins over one that only names the machine.
type addressBook struct{ exact, host map[string]scheduler.NodeID }

func addresses(f *facts.Facts) addressBook {
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

// located is the input of a job as the nodes reported it.
type located struct {
	splits []*droverv1.FactSplit
	hosts  *jobHosts
	files  int32
	bytes  int64
}

// locate asks node daemons for the blocks of in and makes splits of them.
// Large inputs are asked in pages of several nodes at once. NotFound: nothing
// is there; Unavailable: no node answered before ctx ended.
func (c *core) locate(ctx context.Context, in *jobspec.Input, user string, refresh bool, progress func(string)) (*located, error) {
	first, err := c.locatePart(ctx, in, user, 0, refresh, progress)
	if err != nil {
		return nil, err
	}
	blocks := first.GetBlocks()
	for next := first.GetNextBlock(); next > 0; {
		var more []*droverv1.FileBlock
		if more, next, err = c.locateMore(ctx, in, user, next, refresh, progress); err != nil {
			return nil, err
		}
		if blocks = append(blocks, more...); len(blocks) > maxBlocks {
			return nil, fault.New(fault.Exhausted, "the input has more than %d blocks: name fewer files, or pack small ones into large ones", maxBlocks)
		}
	}
	if first.GetTotalFiles() == 0 && len(blocks) == 0 {
		return nil, fault.New(fault.NotFound, "input %s: nothing is there", strings.Join(in.Paths, ", "))
	}
	out, err := plan(blocks, in.Combine)
	if err != nil {
		return nil, err
	}
	out.files, out.bytes = first.GetTotalFiles(), first.GetTotalBytes()
	return out, nil
}

// locateMore asks for the next pages at once and gives the number to go on
// from, 0 at the end.
func (c *core) locateMore(ctx context.Context, in *jobspec.Input, user string, from int32, refresh bool, progress func(string)) ([]*droverv1.FileBlock, int32, error) {
	var parts [locateAtOnce]*droverv1.LocateAnswer
	g, ctx := errgroup.WithContext(ctx)
	for i := range parts {
		g.Go(func() (err error) {
			parts[i], err = c.locatePart(ctx, in, user, from+int32(i*locatePage), refresh, progress)
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
	return out, parts[locateAtOnce-1].GetNextBlock(), nil
}

func (c *core) locatePart(ctx context.Context, in *jobspec.Input, user string, from int32, refresh bool, progress func(string)) (*droverv1.LocateAnswer, error) {
	o := &droverv1.Order{User: user, What: &droverv1.Order_Locate{Locate: &droverv1.LocateOrder{Paths: in.Paths, FirstBlock: from, MaxBlocks: locatePage, Refresh: refresh}}}
	a, err := c.orders.ask(ctx, o, scheme(in.Paths[0]), 0, progress)
	if err != nil {
		return nil, err
	}
	if a.GetLocate() == nil {
		return nil, fault.New(fault.Corrupt, "a node answered a question for blocks with nothing")
	}
	return a.GetLocate(), nil
}

// plan makes splits of blocks and keeps where they lie.
func plan(blocks []*droverv1.FileBlock, combine int64) (*located, error) {
	in, length := make([]mapreduce.FileBlock, len(blocks)), map[string]int64{}
	for i, b := range blocks {
		in[i] = mapreduce.FileBlock{Path: b.GetUri(), Offset: b.GetOffset(), Length: b.GetLength(), Hosts: b.GetHosts(), Racks: b.GetRacks()}
		length[b.GetUri()] = b.GetFileLength()
	}
	splits, err := mapreduce.Plan(in, combine)
	if err != nil {
		return nil, fault.New(fault.Invalid, "%w", err)
	}
	if len(splits) > jobspec.MaxTasks {
		return nil, fault.New(fault.Exhausted, "the input has %d splits, at most %d are allowed: set combine in the input to pack small files", len(splits), jobspec.MaxTasks)
	}
	out := &located{hosts: &jobHosts{}}
	for i := range splits {
		s := &droverv1.FactSplit{}
		for _, p := range splits[i].Pieces {
			s.Pieces = append(s.Pieces, &droverv1.SplitPiece{Uri: p.Path, Offset: p.Offset, Length: p.Length, FileLength: length[p.Path]})
		}
		out.splits = append(out.splits, s)
		out.hosts.splits = append(out.hosts.splits, splitHosts{splits[i].Hosts, splits[i].Racks})
	}
	return out, nil
}

// relocate asks again where the input of stale jobs lies, until ctx ends.
func (c *core) relocate(ctx context.Context) error {
	t := time.NewTicker(refreshEvery)
	defer t.Stop()
	for {
		select {
		case <-c.hosts.ask:
		case <-t.C:
			if c.leading.Load() {
				c.view(func(f *facts.Facts) { c.hosts.refresh(f, c.now().Add(-refreshEvery)) })
			}
			continue
		case <-ctx.Done():
			return nil
		}
		var g errgroup.Group
		g.SetLimit(refreshAtOnce)
		for _, id := range c.hosts.takeStale() {
			g.Go(func() error {
				c.relocateJob(ctx, id)
				return nil
			})
		}
		_ = g.Wait() // its functions give no error
	}
}

// relocateJob asks for one job. Where the files are no more as they were at
// submission, nothing is known of their places; the tasks find out.
func (c *core) relocateJob(ctx context.Context, id uint64) {
	var in *jobspec.Input
	var user string
	var want []*droverv1.FactSplit
	c.view(func(f *facts.Facts) {
		if j := f.Job(id); j != nil && !j.HasEnded() && j.MapStage() >= 0 {
			in, user, want = j.Spec.Input, hdfsUser(f, j.Spec), j.Stages[j.MapStage()].Splits
		}
	})
	if in == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, refreshLimit)
	defer cancel()
	got, err := c.locate(ctx, in, user, true, nil)
	switch {
	case err != nil:
		if ctx.Err() == nil {
			c.log.Warn("block locations are not known", "job", id, "err", err)
		}
	case !samePieces(got.splits, want):
		c.log.Warn("the input changed after submission: its places are not used", "job", id)
	default:
		c.hosts.set(id, got.hosts, c.now())
	}
}

func samePieces(a, b []*droverv1.FactSplit) bool {
	return slices.EqualFunc(a, b, func(x, y *droverv1.FactSplit) bool {
		return slices.EqualFunc(x.GetPieces(), y.GetPieces(), func(p, q *droverv1.SplitPiece) bool {
			return p.GetUri() == q.GetUri() && p.GetOffset() == q.GetOffset() && p.GetLength() == q.GetLength()
		})
	})
}

// split gives the addresses and racks that hold a split, as the file system
// named them; nothing where they are not known.
func (b *hostBook) split(job uint64, i int32) (hosts, racks []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if h := b.jobs[job]; h != nil && int(i) < len(h.splits) {
		return h.splits[i].hosts, h.splits[i].racks
	}
	return nil, nil
}

// names gives, for each split of a job, the names of the nodes that hold it.
func (b *hostBook) names(f *facts.Facts, job uint64) [][]string {
	b.mu.Lock()
	h := b.jobs[job]
	b.mu.Unlock()
	if h == nil {
		return nil
	}
	at := addresses(f)
	out := make([][]string, len(h.splits))
	for i := range h.splits {
		for _, host := range h.splits[i].hosts {
			if n, ok := at.find(host); ok {
				out[i] = append(out[i], f.Node(int32(n)+1).Info.GetName())
			}
		}
	}
	return out
}
