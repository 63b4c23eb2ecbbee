package coordinator

import (
	"context"
	"errors"
	"log/slog"
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

// located is a job's input as nodes reported it.
type located struct {
	splits []*droverv1.FactSplit
	hosts  *jobHosts
}

// inputLocator has nodes look up where the blocks of inputs are.
type inputLocator struct {
	dispatcher *dispatcher
	locations  *locationCache
	leadership *leadership
	view       func(func(*facts.Facts))
	now        func() time.Time
	log        *slog.Logger
}

// maxLocateTries is how often an input is located if its files change during the lookup.
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

// locatedPage identifies the blocks that one request looks up.
type locatedPage struct {
	in      *jobspec.Input
	user    string
	from    int32  // block, counted over all files
	listing uint64 // LocateResponse.listing of the first page, 0 for any: another node may list other files
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

// checkBlocks refuses blocks that no file can have, and an input whose length overflows, for
// example of sparse files: the splits become facts, and State would refuse them.
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

// planSplits makes splits of blocks and remembers their hosts.
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

// relocateJob looks up the input of one job. If the files have changed since submission, the cached
// locations remain: the tasks will detect the change.
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
