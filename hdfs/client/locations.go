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

// Locations implements hdfs.Source. Cost: one request for the file's identity, one an hour for the
// defaults, and one for each blocksPerCall blocks that are not cached.
func (c *Client) Locations(ctx context.Context, name string, offset, length int64) (hdfs.Layout, error) {
	name, err := cleanPath("locations", name)
	if err != nil {
		return hdfs.Layout{}, err
	}
	var layout hdfs.Layout
	// The file may be replaced between the two requests; retry once.
	for try := 0; ; try++ {
		layout, err = c.layout(ctx, name, offset, length)
		if err == nil || try == 1 || !errors.Is(err, hdfs.ErrChanged) {
			break
		}
	}
	if err != nil {
		return hdfs.Layout{}, pathError("locations", name, err)
	}
	return layout, nil
}

func (c *Client) layout(ctx context.Context, name string, offset, length int64) (hdfs.Layout, error) {
	status, err := c.statReadable(ctx, name)
	if err != nil {
		return hdfs.Layout{}, err
	}
	from, to, err := hdfs.ClampRange(offset, length, status.Info.LengthBytes)
	if err != nil {
		return hdfs.Layout{}, err
	}
	found, err := c.locate(ctx, status.Info, from, to)
	if err != nil {
		return hdfs.Layout{}, err
	}
	layout := hdfs.Layout{Path: name, FileLengthBytes: status.Info.LengthBytes, UnderConstruction: found.underConstruction,
		Blocks: make([]hdfs.Block, len(found.blocks))}
	for i, b := range found.blocks {
		layout.Blocks[i] = hdfs.Block{ID: b.Block.ID, OffsetBytes: b.Offset, LengthBytes: b.Block.Length,
			Replicas: slices.Clone(b.Replicas), Corrupt: b.Corrupt}
	}
	return layout, nil
}

// statReadable returns the status of a file that this client can read.
func (c *Client) statReadable(ctx context.Context, name string) (namenode.FileStatus, error) {
	if _, err := c.plainDefaults(ctx); err != nil {
		return namenode.FileStatus{}, err
	}
	status, err := c.status(ctx, name)
	switch {
	case err != nil:
	case status.Info.Dir:
		err = hdfs.ErrIsDirectory
	case status.UnreadableReason != "":
		err = fmt.Errorf("%w: %s", hdfs.ErrUnsupported, status.UnreadableReason)
	}
	return status, err
}

// blockRange holds consecutive blocks. They belong to the cache and must not be
// modified.
type blockRange struct {
	blocks            []namenode.LocatedBlock
	underConstruction bool // the file is being written
}

// locate returns the blocks that overlap [from, to) of a file, from the cache or
// from the NameNode, without gaps except at the unfinished end of a growing file.
func (c *Client) locate(ctx context.Context, info hdfs.Info, from, to int64) (blockRange, error) {
	var out blockRange
	step := int64(c.options.blocksPerCall) * max(info.BlockSizeBytes, 1)
	for at := from; at < to; {
		// 1. Take the cached blocks from here on, or find where the gap ends.
		known, next := c.cache.freshBlocks(info, at, to)
		if len(known) > 0 {
			last := known[len(known)-1]
			out.blocks, at = append(out.blocks, known...), last.Offset+last.Block.Length
			continue
		}
		// 2. Request the blocks of the gap.
		located, err := namenode.GetBlockLocations(ctx, c.caller, info.Path, at, min(next-at, step))
		if err != nil {
			return out, err
		}
		if located.UnreadableReason != "" {
			return out, fmt.Errorf("%w: %s", hdfs.ErrUnsupported, located.UnreadableReason)
		}
		if located.UnderConstruction {
			out.underConstruction = true
			to = min(to, located.FileLength)
		} else if located.FileLength != info.LengthBytes {
			return out, fmt.Errorf("%w: %d bytes long, not %d", hdfs.ErrChanged, located.FileLength, info.LengthBytes)
		}
		if at >= to {
			break
		}
		// 3. Check that they continue at this offset.
		end := at
		for _, b := range located.Blocks {
			if b.Offset > end || b.Offset+b.Block.Length <= end {
				return out, fmt.Errorf("%w: block %d at %d+%d does not continue at byte %d",
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

// ForgetDataNode drops all cached locations on a DataNode (IP address or host
// name). O(cached blocks).
func (c *Client) ForgetDataNode(address string) { c.cache.dropDataNode(address) }

// Forget implements hdfs.Forgetter.
func (c *Client) Forget(name string) { c.cache.dropFile(name) }

// locationCache caches block locations by file and evicts the least recently used
// file.
type locationCache struct {
	maxBlocks int
	maxAge    time.Duration

	mu         sync.Mutex
	blockCount int // in all files
	files      map[string]*list.Element
	lru        *list.List // of *cachedFile, most recently used first
}

type cachedFile struct {
	info   hdfs.Info
	blocks []cachedBlock // ascending offsets, no overlap
	usedAt time.Time     // none of the blocks is newer
}

type cachedBlock struct {
	namenode.LocatedBlock
	cachedAt time.Time
}

func newLocationCache(limit int, age time.Duration) *locationCache {
	return &locationCache{maxBlocks: limit, maxAge: age, files: map[string]*list.Element{}, lru: list.New()}
}

// fileLocked returns the cache entry of a file, unless the file has changed since.
func (l *locationCache) fileLocked(info hdfs.Info) *cachedFile {
	element := l.files[info.Path]
	if element == nil {
		return nil
	}
	file := element.Value.(*cachedFile)
	if !file.info.SameVersion(info) {
		l.removeLocked(element)
		return nil
	}
	l.lru.MoveToFront(element)
	file.usedAt = time.Now()
	return file
}

func (l *locationCache) removeLocked(element *list.Element) {
	file := element.Value.(*cachedFile)
	l.blockCount -= len(file.blocks)
	delete(l.files, file.info.Path)
	l.lru.Remove(element)
}

// freshBlocks returns the unexpired blocks from offset at, without a gap, up to to. If there is no
// unexpired block at that offset, next is the offset at which the next one begins, or to.
func (l *locationCache) freshBlocks(info hdfs.Info, at, to int64) (known []namenode.LocatedBlock, next int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	file := l.fileLocked(info)
	if file == nil {
		return nil, to
	}
	oldest := time.Now().Add(-l.maxAge)
	i := sort.Search(len(file.blocks), func(i int) bool {
		return file.blocks[i].Offset+file.blocks[i].Block.Length > at
	})
	for ; i < len(file.blocks) && at < to; i++ {
		b := &file.blocks[i]
		if b.cachedAt.Before(oldest) {
			if len(known) > 0 {
				break
			}
			continue // look for the end of the gap
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

// put caches the blocks that can be read, that is, have a replica and are not corrupt. It also drops
// the files that nobody used for maxAge, because all their blocks have expired.
func (l *locationCache) put(info hdfs.Info, fresh []namenode.LocatedBlock) {
	if l.maxBlocks < len(fresh) {
		return
	}
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	file := l.fileLocked(info)
	if file == nil {
		file = &cachedFile{info: info, usedAt: now}
		l.files[info.Path] = l.lru.PushFront(file)
	}
	l.blockCount -= len(file.blocks)
	file.blocks = mergeBlocks(file.blocks, fresh, now)
	l.blockCount += len(file.blocks)
	oldest := now.Add(-l.maxAge)
	for last := l.lru.Back(); last != nil; last = l.lru.Back() {
		if l.blockCount <= l.maxBlocks && !last.Value.(*cachedFile).usedAt.Before(oldest) {
			return
		}
		l.removeLocked(last)
	}
}

// mergeBlocks replaces the blocks of old that overlap fresh, which has no gaps.
func mergeBlocks(old []cachedBlock, fresh []namenode.LocatedBlock, now time.Time) []cachedBlock {
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

// dropFile drops one file.
func (l *locationCache) dropFile(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if element := l.files[name]; element != nil {
		l.removeLocked(element)
	}
}

// dropPath drops a path and everything below it. O(cached files).
func (l *locationCache) dropPath(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for p, element := range l.files {
		if hdfs.IsWithin(p, name) {
			l.removeLocked(element)
		}
	}
}

// dropDataNode drops the blocks with a replica at an address.
func (l *locationCache) dropDataNode(address string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, element := range l.files {
		file := element.Value.(*cachedFile)
		before := len(file.blocks)
		file.blocks = slices.DeleteFunc(file.blocks, func(b cachedBlock) bool {
			return slices.ContainsFunc(b.Replicas, func(r hdfs.Replica) bool { return r.IP == address || r.Host == address })
		})
		l.blockCount -= before - len(file.blocks)
	}
}
