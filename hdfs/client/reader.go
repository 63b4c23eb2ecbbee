package client

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/drover-run/drover/hdfs"
	"github.com/drover-run/drover/hdfs/internal/datanode"
	"github.com/drover-run/drover/hdfs/internal/namenode"
)

// Open implements hdfs.Source. That the file exists and may be read is known
// when it returns.
func (c *Client) Open(ctx context.Context, name string, offset, length int64) (io.ReadCloser, error) {
	name, err := clean("open", name)
	if err != nil {
		return nil, err
	}
	status, err := c.file(ctx, name)
	if err != nil {
		return nil, fail("open", name, err)
	}
	from, to, err := hdfs.CutRange(offset, length, status.Info.LengthBytes)
	if err != nil {
		return nil, fail("open", name, err)
	}
	ctx, cancel := context.WithCancel(ctx)
	r := &reader{c: c, ctx: ctx, cancel: cancel, info: status.Info, at: from, to: to, name: c.clientName()}
	if err := r.locate(); err != nil {
		cancel()
		return nil, fail("open", name, err)
	}
	return r, nil
}

// reader gives the bytes [at, to) of a file. It is used by one goroutine.
type reader struct {
	c      *Client
	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	name   string // client name, for the DataNodes' logs
	info   hdfs.Info
	at, to int64
	err    error // of all further reads

	blocks []namenode.LocatedBlock // from at on; a window of the file

	// Of the block at at:
	stream  *datanode.Reader
	replica hdfs.Replica // that stream reads from
	read    int64        // bytes from stream
	tried   map[string]bool
	causes  []error
	since   time.Time // of its first failure in all replicas
	pause   time.Duration
}

const (
	maxCauses       = 6
	minMissingPause = 200 * time.Millisecond
	maxMissingPause = 2 * time.Second
)

// Read implements io.Reader.
func (r *reader) Read(b []byte) (int, error) {
	if len(b) == 0 || r.err != nil {
		return 0, r.err
	}
	for r.at < r.to {
		if r.ctx.Err() != nil { // also where bytes lie ready
			r.endStream()
			r.err = fail("read", r.info.Path, context.Cause(r.ctx))
			return 0, r.err
		}
		if r.stream == nil {
			if err := r.open(); err != nil {
				r.err = fail("read", r.info.Path, err)
				return 0, r.err
			}
			continue
		}
		n, err := r.stream.Read(b)
		if n > 0 {
			r.at += int64(n)
			r.read += int64(n)
			return n, nil
		}
		if err == io.EOF { // of the range in this block
			r.endStream()
			r.blockDone()
			continue
		}
		address := r.replica.Addr()
		r.endStream()
		if r.ctx.Err() != nil {
			r.err = fail("read", r.info.Path, context.Cause(r.ctx))
			return 0, r.err
		}
		r.failed(address, err)
	}
	r.endStream()
	r.err = io.EOF
	return 0, r.err
}

// Close ends the reader.
func (r *reader) Close() error {
	r.endStream()
	if r.err == nil {
		r.err = fail("read", r.info.Path, io.ErrClosedPipe)
	}
	r.cancel()
	return nil
}

func (r *reader) endStream() {
	if r.stream == nil {
		return
	}
	r.stream.Close()
	if r.read > 0 {
		r.c.options.Events.Read(r.info.Path, r.blocks[0].Block.ID, r.replica, r.c.isLocal(r.replica), r.read)
	}
	r.stream, r.read = nil, 0
}

// blockDone goes on to the next block.
func (r *reader) blockDone() {
	r.tried, r.causes, r.since, r.pause = nil, nil, time.Time{}, 0
}

// locate fills the window from at on.
func (r *reader) locate() error {
	window := int64(r.c.options.BlocksPerCall) * max(r.info.BlockSizeBytes, 1)
	found, err := r.c.locate(r.ctx, r.info, r.at, min(r.to, r.at+window))
	if err != nil {
		return err
	}
	r.blocks = found.blocks
	if len(r.blocks) == 0 && found.growing {
		r.to = r.at // all that its writer has finished is read
	}
	return nil
}

// open starts a stream of the block at at from the best replica not tried yet.
// It leaves stream nil where it should be called again.
func (r *reader) open() error {
	// 1. Find the block.
	for len(r.blocks) > 0 && r.blocks[0].Offset+r.blocks[0].Block.Length <= r.at {
		r.blocks = r.blocks[1:]
	}
	if len(r.blocks) == 0 {
		return r.locate()
	}
	block := &r.blocks[0]
	// 2. Choose a replica.
	replica, ok := r.choose(block)
	if !ok {
		return r.allFailed(block)
	}
	// 3. Ask it.
	address := replica.Addr()
	stream, err := datanode.OpenReader(r.ctx, address, datanode.ReadRequest{
		Block: block.Block, Token: block.Token,
		Offset: r.at - block.Offset,
		Length: min(r.to, block.Offset+block.Block.Length) - r.at,
	}, r.c.dataOptions(r.name))
	if err != nil {
		if r.ctx.Err() != nil {
			return context.Cause(r.ctx)
		}
		r.failed(address, err)
		return nil
	}
	r.stream, r.replica = stream, replica
	return nil
}

// choose gives the best replica that was not tried for this block.
func (r *reader) choose(block *namenode.LocatedBlock) (hdfs.Replica, bool) {
	if block.Corrupt {
		return hdfs.Replica{}, false
	}
	for _, replica := range r.c.order(block.Replicas) {
		if !r.tried[replica.Addr()] {
			return replica, true
		}
	}
	return hdfs.Replica{}, false
}

// order sorts replicas: those that failed lately last; then local, rack-local,
// others; then as the NameNode did.
func (c *Client) order(replicas []hdfs.Replica) []hdfs.Replica {
	rank := func(replica hdfs.Replica) int {
		n := 2
		switch {
		case c.isLocal(replica):
			n = 0
		case c.options.LocalRack != "" && replica.Rack == c.options.LocalRack:
			n = 1
		}
		if c.failed.recently(replica.Addr()) {
			n += 3
		}
		return n
	}
	sorted := slices.Clone(replicas)
	slices.SortStableFunc(sorted, func(a, b hdfs.Replica) int { return cmp.Compare(rank(a), rank(b)) })
	return sorted
}

// failed notes that a replica of the block at at could not serve it.
func (r *reader) failed(address string, err error) {
	if r.tried == nil {
		r.tried = map[string]bool{}
	}
	r.tried[address] = true
	if len(r.causes) < maxCauses {
		r.causes = append(r.causes, fmt.Errorf("DataNode %s: %w", address, err))
	}
	r.c.failed.add(address)
	r.c.options.Events.ReplicaFailed(r.info.Path, r.blocks[0].Block.ID, address, err)
}

// allFailed is called when no replica of a block is left to try. It waits and
// asks for the locations again, or gives up with a BlockMissingError.
func (r *reader) allFailed(block *namenode.LocatedBlock) error {
	if r.since.IsZero() {
		r.since, r.pause = time.Now(), minMissingPause
	}
	left := r.c.options.MissingWait - time.Since(r.since)
	if left <= 0 {
		return &hdfs.BlockMissingError{Path: r.info.Path, BlockID: block.Block.ID, OffsetBytes: block.Offset,
			LengthBytes: block.Block.Length, Corrupt: block.Corrupt, Causes: r.causes}
	}
	r.c.options.Events.Waiting(hdfs.Waiting{Address: r.c.rpc.Addresses(),
		Reason: fmt.Sprintf("no DataNode serves block %d of %s", block.Block.ID, r.info.Path), Left: left})
	if err := hdfs.Sleep(r.ctx, min(r.pause, left)); err != nil {
		return err
	}
	r.pause = min(2*r.pause, maxMissingPause)

	r.c.cache.drop(r.info.Path)
	status, err := r.c.file(r.ctx, r.info.Path)
	if err != nil {
		return err
	}
	if !status.Info.Same(r.info) {
		return fmt.Errorf("%w: replaced or written to since it was opened", hdfs.ErrChanged)
	}
	r.tried, r.causes = nil, nil
	return r.locate()
}

// failedNodes remembers DataNodes that failed lately.
type failedNodes struct {
	mu    sync.Mutex
	until map[string]time.Time
}

func newFailedNodes() *failedNodes { return &failedNodes{until: map[string]time.Time{}} }

// maxFailedNodes bounds the memory; above it the expired ones go, or all.
const maxFailedNodes = 10_000

func (f *failedNodes) add(address string) {
	now := time.Now()
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.until) >= maxFailedNodes {
		for node, until := range f.until {
			if until.Before(now) {
				delete(f.until, node)
			}
		}
		if len(f.until) >= maxFailedNodes {
			clear(f.until)
		}
	}
	f.until[address] = now.Add(failedMemory)
}

func (f *failedNodes) recently(address string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return time.Now().Before(f.until[address])
}
