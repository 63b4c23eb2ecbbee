package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/drover-run/drover/hdfs"
	"github.com/drover-run/drover/hdfs/internal/datanode"
	"github.com/drover-run/drover/hdfs/internal/namenode"
)

// Open implements hdfs.Source. When it returns, the file is known to exist and to
// be readable.
func (c *Client) Open(ctx context.Context, name string, offset, length int64) (io.ReadCloser, error) {
	name, err := cleanPath("open", name)
	if err != nil {
		return nil, err
	}
	status, err := c.statReadable(ctx, name)
	if err != nil {
		return nil, pathError("open", name, err)
	}
	from, to, err := hdfs.ClampRange(offset, length, status.Info.LengthBytes)
	if err != nil {
		return nil, pathError("open", name, err)
	}
	ctx, cancel := context.WithCancel(ctx)
	r := &reader{c: c, ctx: ctx, cancel: cancel, info: status.Info, pos: from, end: to, name: c.newClientName()}
	if err := r.fillWindow(); err != nil {
		cancel()
		return nil, pathError("open", name, err)
	}
	return r, nil
}

// reader reads the bytes [pos, end) of a file. It is for one goroutine.
type reader struct {
	c        *Client
	ctx      context.Context // ends with Close
	cancel   context.CancelFunc
	name     string // client name, for the DataNodes' logs
	info     hdfs.Info
	pos, end int64
	err      error // returned by all further reads

	blocks []namenode.LocatedBlock // blocks from pos on; a window of the file

	// State of the block at pos:
	stream       io.ReadCloser // a datanode.Reader, or a datanode.LocalReader if shortCircuit
	shortCircuit bool
	overTCP      bool         // the files of its local replica cannot be read
	replica      hdfs.Replica // that stream reads from
	streamBytes  int64        // bytes read from stream
	tried        map[string]bool
	causes       []error
	failingSince time.Time // when all replicas of the block had failed for the first time since its last byte was read
	retryPause   time.Duration
}

const (
	maxCauses     = 6
	minRetryPause = 200 * time.Millisecond
	maxRetryPause = 2 * time.Second
)

// Read implements io.Reader.
func (r *reader) Read(b []byte) (int, error) {
	if len(b) == 0 || r.err != nil {
		return 0, r.err
	}
	for r.pos < r.end {
		if r.ctx.Err() != nil { // even if bytes are ready
			r.endStream()
			r.err = pathError("read", r.info.Path, context.Cause(r.ctx))
			return 0, r.err
		}
		if r.stream == nil {
			if err := r.openStream(); err != nil {
				r.err = pathError("read", r.info.Path, err)
				return 0, r.err
			}
			continue
		}
		n, err := r.stream.Read(b)
		if n > 0 {
			r.pos += int64(n)
			r.streamBytes += int64(n)
			r.failingSince = time.Time{}
			return n, nil
		}
		if err == io.EOF { // end of the range in this block
			r.endStream()
			r.resetBlockState()
			continue
		}
		address := r.replica.Addr()
		r.endStream()
		if r.ctx.Err() != nil {
			r.err = pathError("read", r.info.Path, context.Cause(r.ctx))
			return 0, r.err
		}
		if !r.fallBack(err) {
			r.recordFailure(address, err)
		}
	}
	r.endStream()
	r.err = io.EOF
	return 0, r.err
}

// Close ends the reader.
func (r *reader) Close() error {
	r.endStream()
	if r.err == nil {
		r.err = pathError("read", r.info.Path, io.ErrClosedPipe)
	}
	r.cancel()
	return nil
}

func (r *reader) endStream() {
	if r.stream == nil {
		return
	}
	r.stream.Close()
	if r.streamBytes > 0 {
		r.c.options.Events.Read(ReadEvent{Replica: r.replica, Local: r.c.isLocal(r.replica), ShortCircuit: r.shortCircuit, Bytes: r.streamBytes})
	}
	r.stream, r.streamBytes = nil, 0
}

// resetBlockState clears the state of a block, before the next one.
func (r *reader) resetBlockState() {
	r.tried, r.causes, r.failingSince, r.retryPause, r.overTCP = nil, nil, time.Time{}, 0, false
}

// fillWindow loads the blocks from pos on.
func (r *reader) fillWindow() error {
	window := int64(r.c.options.blocksPerCall) * max(r.info.BlockSizeBytes, 1)
	found, err := r.c.locate(r.ctx, r.info, r.pos, min(r.end, r.pos+window))
	if err != nil {
		return err
	}
	r.blocks = found.blocks
	switch {
	case len(r.blocks) > 0 || r.pos >= r.end:
	case found.underConstruction:
		r.end = r.pos // all finished bytes have been read
	default: // an error, because Read would otherwise request them for ever
		return fmt.Errorf("%w: no block at byte %d", hdfs.ErrProtocol, r.pos)
	}
	return nil
}

// openStream opens a stream for the block at pos from the best replica not tried
// yet. If it returns nil with stream still nil, it must be called again.
func (r *reader) openStream() error {
	// 1. Find the block.
	for len(r.blocks) > 0 && r.blocks[0].Offset+r.blocks[0].Block.Length <= r.pos {
		r.blocks = r.blocks[1:]
	}
	if len(r.blocks) == 0 {
		return r.fillWindow()
	}
	block := &r.blocks[0]
	// 2. Choose a replica.
	replica, ok := r.chooseReplica(block)
	if !ok {
		return r.retryLocations(block)
	}
	// 3. Connect to it.
	err := r.connect(replica, datanode.ReadRequest{
		Block: block.Block, Token: block.Token,
		Offset: r.pos - block.Offset,
		Length: min(r.end, block.Offset+block.Block.Length) - r.pos,
	})
	if err != nil {
		if r.ctx.Err() != nil {
			return context.Cause(r.ctx)
		}
		r.recordFailure(replica.Addr(), err)
	}
	return nil
}

// connect opens a stream from a replica: its local files if that is possible, otherwise over TCP.
func (r *reader) connect(replica hdfs.Replica, request datanode.ReadRequest) error {
	o := r.c.dataOptions(r.name)
	if !r.overTCP && r.c.isLocal(replica) {
		local, err := r.c.local.open(r.ctx, replica, request, o)
		if err != nil && !r.fallBack(err) {
			return err
		}
		if local != nil {
			r.stream, r.shortCircuit, r.replica = local, true, replica
			return nil
		}
	}
	stream, err := datanode.OpenReader(r.ctx, replica.Addr(), request, o)
	if err != nil {
		return err
	}
	r.stream, r.shortCircuit, r.replica = stream, false, replica
	return nil
}

// fallBack reports whether the rest of the block is to be read over TCP, because an error concerns
// only the way to the local files.
func (r *reader) fallBack(err error) bool {
	failure := (*datanode.ShortCircuitError)(nil)
	if !errors.As(err, &failure) {
		return false
	}
	r.overTCP = true
	r.c.local.fail(failure)
	return true
}

// chooseReplica returns the best replica not yet tried for this block.
func (r *reader) chooseReplica(block *namenode.LocatedBlock) (hdfs.Replica, bool) {
	if block.Corrupt {
		return hdfs.Replica{}, false
	}
	for _, replica := range r.c.sortReplicas(block.Replicas) {
		if !r.tried[replica.Addr()] {
			return replica, true
		}
	}
	return hdfs.Replica{}, false
}

// sortReplicas sorts replicas: recently failed ones last; then local, rack-local,
// others; then in the NameNode's order.
func (c *Client) sortReplicas(replicas []hdfs.Replica) []hdfs.Replica {
	rank := func(replica hdfs.Replica) int {
		n := 2
		switch {
		case c.isLocal(replica):
			n = 0
		case c.options.LocalRack != "" && replica.Rack == c.options.LocalRack:
			n = 1
		}
		if c.failedNodes.failedRecently(replica.Addr()) {
			n += 3
		}
		return n
	}
	sorted := slices.Clone(replicas)
	slices.SortStableFunc(sorted, func(a, b hdfs.Replica) int { return cmp.Compare(rank(a), rank(b)) })
	return sorted
}

// recordFailure records that a replica could not serve the block at pos.
func (r *reader) recordFailure(address string, err error) {
	if r.tried == nil {
		r.tried = map[string]bool{}
	}
	r.tried[address] = true
	if len(r.causes) < maxCauses {
		r.causes = append(r.causes, fmt.Errorf("DataNode %s: %w", address, err))
	}
	r.c.failedNodes.add(address, nil)
	r.c.options.Events.ReplicaFailed(r.info.Path, r.blocks[0].Block.ID, address, err)
}

// retryLocations is called when all replicas of a block have failed. It waits and
// requests the locations again, or returns a BlockMissingError.
func (r *reader) retryLocations(block *namenode.LocatedBlock) error {
	if r.failingSince.IsZero() {
		r.failingSince, r.retryPause = time.Now(), minRetryPause
	}
	left := r.c.options.MissingWait - time.Since(r.failingSince)
	if left <= 0 {
		return &hdfs.BlockMissingError{Path: r.info.Path, BlockID: block.Block.ID, OffsetBytes: block.Offset,
			LengthBytes: block.Block.Length, Corrupt: block.Corrupt, Causes: r.causes}
	}
	r.c.options.Events.Waiting(hdfs.WaitNotice{Address: r.c.rpc.Addresses(),
		Reason: fmt.Sprintf("no DataNode serves block %d of %s", block.Block.ID, r.info.Path), Remaining: left})
	if err := hdfs.Sleep(r.ctx, min(r.retryPause, left)); err != nil {
		return err
	}
	r.retryPause = min(2*r.retryPause, maxRetryPause)

	r.c.Forget(r.info.Path)
	status, err := r.c.statReadable(r.ctx, r.info.Path)
	if err != nil {
		return err
	}
	if !status.Info.SameVersion(r.info) {
		return fmt.Errorf("%w: replaced or written to since it was opened", hdfs.ErrChanged)
	}
	r.tried, r.causes = nil, nil
	return r.fillWindow()
}

// failedNodes records the DataNodes that failed recently.
type failedNodes struct {
	mu    sync.Mutex
	nodes map[string]failedNode // by address
}

type failedNode struct {
	expires time.Time
	info    []byte // DatanodeInfoProto, if it failed in a pipeline
}

func newFailedNodes() *failedNodes { return &failedNodes{nodes: map[string]failedNode{}} }

// maxFailedNodes bounds failedNodes. At the limit expired entries are removed, or
// all if none has expired.
const maxFailedNodes = 10_000

// add records a failure. info is the DatanodeInfoProto of a node that failed in a pipeline,
// otherwise nil.
func (f *failedNodes) add(address string, info []byte) {
	now := time.Now()
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.nodes) >= maxFailedNodes {
		maps.DeleteFunc(f.nodes, func(_ string, node failedNode) bool { return node.expires.Before(now) })
		if len(f.nodes) >= maxFailedNodes {
			clear(f.nodes)
		}
	}
	if known := f.nodes[address]; info == nil && now.Before(known.expires) {
		info = known.info
	}
	f.nodes[address] = failedNode{now.Add(failedNodeTTL), info}
}

func (f *failedNodes) failedRecently(address string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return time.Now().Before(f.nodes[address].expires)
}

// ofPipelines returns the DatanodeInfoProto by address of the nodes that failed in pipelines
// recently.
func (f *failedNodes) ofPipelines() map[string][]byte {
	now, infos := time.Now(), map[string][]byte{}
	f.mu.Lock()
	defer f.mu.Unlock()
	for address, node := range f.nodes {
		if node.info != nil && now.Before(node.expires) {
			infos[address] = node.info
		}
	}
	return infos
}
