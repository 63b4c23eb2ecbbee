package client

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"slices"
	"sort"
	"sync"
	"time"

	"github.com/drover-run/drover/hdfs"
	"github.com/drover-run/drover/hdfs/internal/namenode"
)

// Locations implements hdfs.Source. Cost: one request for the file's identity,
// and one for each BlocksPerCall blocks that are not remembered.
func (c *Client) Locations(ctx context.Context, name string, offset, length int64) (hdfs.Layout, error) {
	name, err := clean("locations", name)
	if err != nil {
		return hdfs.Layout{}, err
	}
	var layout hdfs.Layout
	// The file may be replaced between the two requests: look once more.
	for try := 0; ; try++ {
		layout, err = c.layout(ctx, name, offset, length)
		if err == nil || try == 1 || !errors.Is(err, hdfs.ErrChanged) {
			break
		}
	}
	if err != nil {
		return hdfs.Layout{}, fail("locations", name, err)
	}
	return layout, nil
}

func (c *Client) layout(ctx context.Context, name string, offset, length int64) (hdfs.Layout, error) {
	status, err := c.file(ctx, name)
	if err != nil {
		return hdfs.Layout{}, err
	}
	from, to, err := hdfs.CutRange(offset, length, status.Info.LengthBytes)
	if err != nil {
		return hdfs.Layout{}, err
	}
	found, err := c.locate(ctx, status.Info, from, to)
	if err != nil {
		return hdfs.Layout{}, err
	}
	layout := hdfs.Layout{Path: name, FileLengthBytes: status.Info.LengthBytes, UnderConstruction: found.growing,
		Blocks: make([]hdfs.Block, len(found.blocks))}
	for i, b := range found.blocks {
		layout.Blocks[i] = hdfs.Block{ID: b.Block.ID, OffsetBytes: b.Offset, LengthBytes: b.Block.Length,
			Replicas: slices.Clone(b.Replicas), Corrupt: b.Corrupt}
	}
	return layout, nil
}

// file is the status of something that has bytes which we can read.
func (c *Client) file(ctx context.Context, name string) (namenode.Status, error) {
	status, err := c.status(ctx, name)
	switch {
	case err != nil:
	case status.Info.Dir:
		err = hdfs.ErrIsDirectory
	case status.Unreadable != "":
		err = fmt.Errorf("%w: %s", hdfs.ErrUnsupported, status.Unreadable)
	}
	return status, err
}

// found is a run of blocks; they belong to the cache and are not changed.
type found struct {
	blocks  []namenode.LocatedBlock
	growing bool // the file is being written
}

// locate gives the blocks that overlap [from, to) of a file, remembered or
// asked, without gaps but for the unfinished end of a growing file.
func (c *Client) locate(ctx context.Context, info hdfs.Info, from, to int64) (found, error) {
	var out found
	step := int64(c.options.BlocksPerCall) * max(info.BlockSizeBytes, 1)
	for at := from; at < to; {
		// 1. What is remembered from here on, and where that ends.
		known, next := c.cache.run(info, at, to)
		if len(known) > 0 {
			last := known[len(known)-1]
			out.blocks, at = append(out.blocks, known...), last.Offset+last.Block.Length
			continue
		}
		// 2. Ask for what lies between.
		located, err := namenode.GetBlockLocations(ctx, c.caller, info.Path, at, min(next-at, step))
		if err != nil {
			return out, err
		}
		if located.Unreadable != "" {
			return out, fmt.Errorf("%w: %s", hdfs.ErrUnsupported, located.Unreadable)
		}
		if located.UnderConstruction {
			out.growing = true
			to = min(to, located.FileLength)
		} else if located.FileLength != info.LengthBytes {
			return out, fmt.Errorf("%w: %d bytes long, not %d", hdfs.ErrChanged, located.FileLength, info.LengthBytes)
		}
		if at >= to {
			break
		}
		// 3. It must go on where we are.
		end := at
		for _, b := range located.Blocks {
			if b.Offset > end || b.Offset+b.Block.Length <= end {
				return out, fmt.Errorf("%w: block %d at %d+%d does not go on at byte %d",
					hdfs.ErrProtocol, b.Block.ID, b.Offset, b.Block.Length, end)
			}
			out.blocks, end = append(out.blocks, b), b.Offset+b.Block.Length
			if end >= to {
				break
			}
		}
		if end == at {
			return out, fmt.Errorf("%w: no block at byte %d", hdfs.ErrChanged, at)
		}
		if !located.UnderConstruction {
			c.cache.put(info, located.Blocks)
		}
		at = end
	}
	return out, nil
}

// DataNodeLost forgets all locations on a DataNode (IP address or host name),
// so that they are asked again. Cost: O(remembered blocks).
func (c *Client) DataNodeLost(address string) { c.cache.lost(address) }

// Forget forgets the locations of a file.
func (c *Client) Forget(name string) { c.cache.drop(name) }

// locationCache remembers blocks by file, least recently used files go first.
type locationCache struct {
	limit int
	age   time.Duration

	mu     sync.Mutex
	blocks int // in all files
	files  map[string]*list.Element
	recent *list.List // of *cachedFile, most recently used first
}

type cachedFile struct {
	info   hdfs.Info
	blocks []cachedBlock // ascending offsets, no overlap
}

type cachedBlock struct {
	namenode.LocatedBlock
	at time.Time
}

func newLocationCache(limit int, age time.Duration) *locationCache {
	return &locationCache{limit: limit, age: age, files: map[string]*list.Element{}, recent: list.New()}
}

// fileLocked gives what is remembered of a file, unless it has changed since.
func (l *locationCache) fileLocked(info hdfs.Info) *cachedFile {
	element := l.files[info.Path]
	if element == nil {
		return nil
	}
	file := element.Value.(*cachedFile)
	if !file.info.Same(info) {
		l.removeLocked(element)
		return nil
	}
	l.recent.MoveToFront(element)
	return file
}

func (l *locationCache) removeLocked(element *list.Element) {
	file := element.Value.(*cachedFile)
	l.blocks -= len(file.blocks)
	delete(l.files, file.info.Path)
	l.recent.Remove(element)
}

// run gives the fresh blocks from at on without a gap up to to. If there is
// none at at, next is where the next fresh block begins, or to.
func (l *locationCache) run(info hdfs.Info, at, to int64) (known []namenode.LocatedBlock, next int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	file := l.fileLocked(info)
	if file == nil {
		return nil, to
	}
	oldest := time.Now().Add(-l.age)
	i := sort.Search(len(file.blocks), func(i int) bool {
		return file.blocks[i].Offset+file.blocks[i].Block.Length > at
	})
	for ; i < len(file.blocks) && at < to; i++ {
		b := &file.blocks[i]
		if b.at.Before(oldest) {
			if len(known) > 0 {
				break
			}
			continue // look for where the gap ends
		}
		if b.Offset > at {
			if len(known) == 0 {
				return nil, min(b.Offset, to)
			}
			break
		}
		known, at = append(known, b.LocatedBlock), b.Offset+b.Block.Length
	}
	return known, to
}

// put remembers blocks that can be read. What a NameNode knows of no replica
// of is not remembered.
func (l *locationCache) put(info hdfs.Info, fresh []namenode.LocatedBlock) {
	if l.limit < len(fresh) {
		return
	}
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	file := l.fileLocked(info)
	if file == nil {
		file = &cachedFile{info: info}
		l.files[info.Path] = l.recent.PushFront(file)
	}
	l.blocks -= len(file.blocks)
	file.blocks = merge(file.blocks, fresh, now)
	l.blocks += len(file.blocks)
	for l.blocks > l.limit {
		l.removeLocked(l.recent.Back())
	}
}

// merge replaces what overlaps fresh, which has no gaps, by it.
func merge(old []cachedBlock, fresh []namenode.LocatedBlock, now time.Time) []cachedBlock {
	if len(fresh) == 0 {
		return old
	}
	last := fresh[len(fresh)-1]
	start, end := fresh[0].Offset, last.Offset+last.Block.Length
	merged := make([]cachedBlock, 0, len(old)+len(fresh))
	for _, b := range old {
		if b.Offset+b.Block.Length <= start {
			merged = append(merged, b)
		}
	}
	for _, b := range fresh {
		if len(b.Replicas) > 0 && !b.Corrupt {
			merged = append(merged, cachedBlock{b, now})
		}
	}
	for _, b := range old {
		if b.Offset >= end {
			merged = append(merged, b)
		}
	}
	return merged
}

// drop forgets a path and all below it.
func (l *locationCache) drop(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for p, element := range l.files {
		if hdfs.Within(p, name) {
			l.removeLocked(element)
		}
	}
}

// lost forgets the blocks that have a replica at an address.
func (l *locationCache) lost(address string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, element := range l.files {
		file := element.Value.(*cachedFile)
		before := len(file.blocks)
		file.blocks = slices.DeleteFunc(file.blocks, func(b cachedBlock) bool {
			return slices.ContainsFunc(b.Replicas, func(r hdfs.Replica) bool { return r.IP == address || r.Host == address })
		})
		l.blocks -= before - len(file.blocks)
	}
}
