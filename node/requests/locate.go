package requests

import (
	"context"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"
	"sync"
	"time"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/hdfs"
	"github.com/drover-run/drover/internal/fault"
)

// Limits of locate.
const (
	defaultPage   = 5000 // blocks in one response
	maxPage       = 20000
	maxListings   = 16
	maxListed     = maxInputFiles // files in all listings; the newest is kept however many it has
	maxListingAge = 2 * time.Minute
	pollMissing   = 500 * time.Millisecond
	defaultSlot   = int64(128) << 20 // for a file whose block size is unknown, in bytes
)

// inputFile is one input file. Its blocks are counted in slots of its block size:
// a block belongs to the slot in which it begins, so every node finds the same
// blocks under the same numbers without querying the earlier ones.
type inputFile struct {
	fs        hdfs.FS
	uri       hdfs.URI
	info      hdfs.Info
	slotBytes int64
}

func (f inputFile) slots() int {
	return int((f.info.LengthBytes + f.slotBytes - 1) / f.slotBytes)
}

// listing is the result of expanding the paths, kept from one page to the next.
type listing struct {
	madeAt time.Time
	files  []inputFile
	bytes  int64
	sum    uint64 // of what the slots are counted by; see sumOf
}

// sumOf returns a hash of the files, their lengths and slots, equal on all nodes and never 0. It
// identifies a listing: a page of another listing would skip blocks, or repeat some.
func sumOf(files []inputFile) uint64 {
	h := fnv.New64a()
	for _, f := range files {
		fmt.Fprintf(h, "%s\x00%d\x00%d\x00", f.uri, f.info.LengthBytes, f.slotBytes)
	}
	return max(1, h.Sum64())
}

type listings struct {
	mu    sync.Mutex
	byKey map[string]*listing
}

func (l *listings) get(key string) *listing {
	l.mu.Lock()
	defer l.mu.Unlock()
	if x := l.byKey[key]; x != nil && time.Since(x.madeAt) < maxListingAge {
		return x
	}
	return nil
}

// put keeps a listing. It removes listings that are too old, and the oldest while there are too
// many listings or files.
func (l *listings) put(key string, x *listing) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.byKey, key)
	files := len(x.files)
	for k, v := range l.byKey {
		if files += len(v.files); time.Since(v.madeAt) >= maxListingAge {
			files -= len(v.files)
			delete(l.byKey, k)
		}
	}
	for len(l.byKey) > 0 && (len(l.byKey) >= maxListings || files > maxListed) {
		oldest := ""
		for k, v := range l.byKey {
			if oldest == "" || v.madeAt.Before(l.byKey[oldest].madeAt) {
				oldest = k
			}
		}
		files -= len(l.byKey[oldest].files)
		delete(l.byKey, oldest)
	}
	l.byKey[key] = x
}

// drop drops a listing whose last page was requested.
func (l *listings) drop(key string, x *listing) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.byKey[key] == x {
		delete(l.byKey, key)
	}
}

// locate expands the paths and returns one page of their blocks.
func (d *Server) locate(ctx context.Context, o *droverv1.LocateRequest, user string) (*droverv1.LocateResponse, error) {
	key := fmt.Sprintf("%s\x00%t\x00%s", user, o.GetRecurse(), strings.Join(o.GetPaths(), "\x00"))
	l, want := d.listings.get(key), o.GetListing()
	if l == nil || o.GetFirstBlock() == 0 || o.GetRefresh() || want != 0 && l.sum != want {
		var err error
		if l, err = d.listInputs(ctx, o.GetPaths(), user, o.GetRecurse()); err != nil {
			return nil, err
		}
		d.listings.put(key, l)
	}
	if want != 0 && l.sum != want {
		return nil, fault.New(fault.Conflict, "the files of input %s changed while they were located: try again when none is added or removed", o.GetPaths()[0])
	}
	page := int(o.GetMaxBlocks())
	if page <= 0 {
		page = defaultPage
	}
	page = min(page, maxPage)
	answer := &droverv1.LocateResponse{TotalFiles: int32(len(l.files)), TotalBytes: l.bytes, Listing: l.sum}
	first, last, at := int(o.GetFirstBlock()), int(o.GetFirstBlock())+page, 0
	for _, f := range l.files {
		from, to := max(first, at)-at, min(last, at+f.slots())-at
		at += f.slots()
		if from >= to {
			continue
		}
		blocks, err := f.blocks(ctx, from, to, o.GetRefresh())
		if err != nil {
			return nil, err
		}
		answer.Blocks = append(answer.Blocks, blocks...)
	}
	if last < at {
		answer.NextBlock = int32(last)
	} else {
		d.listings.drop(key, l)
	}
	return answer, nil
}

// blocks returns the blocks that begin in the slots [from, to).
func (f inputFile) blocks(ctx context.Context, from, to int, refresh bool) ([]*droverv1.FileBlock, error) {
	layout, err := f.layout(ctx, from, to, refresh)
	if err != nil {
		return nil, err
	}
	if layout.FileLengthBytes != f.info.LengthBytes {
		return nil, fault.New(fault.Conflict, "input %s changed from %d to %d bytes while it was located: wait until it is written", f.uri, f.info.LengthBytes, layout.FileLengthBytes)
	}
	if layout.UnderConstruction && !refresh {
		return nil, fault.New(fault.Conflict, "input %s is still being written: wait until its writer has closed it", f.uri)
	}
	var blocks []*droverv1.FileBlock
	for _, b := range layout.Blocks {
		if s := int(b.OffsetBytes / f.slotBytes); s < from || s >= to {
			continue
		}
		fb := &droverv1.FileBlock{Uri: f.uri.String(), Offset: b.OffsetBytes, Length: b.LengthBytes, FileLength: f.info.LengthBytes}
		for _, r := range b.Replicas {
			if !slices.Contains(fb.Hosts, r.IP) {
				fb.Hosts, fb.Racks = append(fb.Hosts, r.IP), append(fb.Racks, r.Rack)
			}
		}
		blocks = append(blocks, fb)
	}
	return blocks, nil
}

// layout queries the locations of blocks. Missing blocks are queried again for a
// while, since a NameNode that has just started does not know all of them; with
// refresh they are returned at once as missing.
func (f inputFile) layout(ctx context.Context, from, to int, refresh bool) (hdfs.Layout, error) {
	cached, _ := f.fs.(hdfs.Forgetter)
	end := time.Now().Add(missingBlocksWait)
	for again := refresh; ; again = true {
		if again && cached != nil {
			cached.Forget(f.uri.Path)
		}
		layout, err := f.fs.Locations(ctx, f.uri.Path, int64(from)*f.slotBytes, int64(to-from)*f.slotBytes)
		if err != nil || layout.Err() == nil || refresh {
			return layout, readError(f.uri, err)
		}
		if time.Now().After(end) {
			return layout, fault.New(fault.Unavailable, "input %s: %w", f.uri, layout.Err())
		}
		if err := hdfs.Sleep(ctx, pollMissing); err != nil {
			return layout, err
		}
	}
}
