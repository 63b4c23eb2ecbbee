package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/drover-run/drover/hdfs"
	"github.com/drover-run/drover/hdfs/internal/datanode"
	"github.com/drover-run/drover/hdfs/internal/namenode"
	"github.com/drover-run/drover/hdfs/internal/rpc"
)

// Create implements hdfs.Sink.
func (c *Client) Create(ctx context.Context, name string, options hdfs.CreateOptions) (hdfs.Writer, error) {
	name, err := clean("create", name)
	if err != nil {
		return nil, err
	}
	file, err := c.newFile(ctx, name, options)
	if err != nil {
		return nil, fail("create", name, err)
	}
	status, err := namenode.Create(ctx, c.caller, file)
	if err != nil {
		return nil, fail("create", name, err)
	}
	if status.Unreadable != "" {
		err := fmt.Errorf("%w: %s", hdfs.ErrUnsupported, status.Unreadable)
		_, deleted := namenode.Delete(ctx, c.caller, name)
		return nil, fail("create", name, errors.Join(err, deleted))
	}
	c.cache.drop(name)
	ctx, cancel := context.WithCancel(ctx)
	w := &writer{c: c, ctx: ctx, cancel: cancel, sync: options.Sync, blockSize: file.BlockSize,
		lease:   namenode.Lease{Path: name, ClientName: file.ClientName, FileID: status.Info.ID},
		packet:  make([]byte, 0, datanode.PacketBytes),
		exclude: map[string][]byte{}}
	w.renewing.Go(w.renew)
	return w, nil
}

// newFile completes the options with the server's defaults and checks them.
func (c *Client) newFile(ctx context.Context, name string, options hdfs.CreateOptions) (namenode.NewFile, error) {
	file := namenode.NewFile{Path: name, ClientName: c.clientName(), Perm: filePerm, Overwrite: options.Overwrite,
		Replication: options.Replication, BlockSize: options.BlockSizeBytes}
	defaults, err := c.serverDefaults(ctx)
	if err != nil {
		return file, err
	}
	if defaults.Encrypted {
		return file, fmt.Errorf("%w: the cluster demands encrypted data transfer (dfs.encrypt.data.transfer)", hdfs.ErrUnsupported)
	}
	setDefault(&file.Replication, defaults.Replication)
	setDefault(&file.BlockSize, defaults.BlockSize)
	if file.Replication < 0 || file.Replication > 512 {
		return file, fmt.Errorf("%w: %d replicas", hdfs.ErrInvalid, file.Replication)
	}
	if file.BlockSize < 0 || file.BlockSize%datanode.BytesPerChecksum != 0 {
		return file, fmt.Errorf("%w: block size %d is no multiple of %d", hdfs.ErrInvalid, file.BlockSize, datanode.BytesPerChecksum)
	}
	return file, nil
}

// writer writes one file, block after block.
type writer struct {
	c         *Client
	ctx       context.Context // ends with Commit or Abort
	cancel    context.CancelFunc
	lease     namenode.Lease
	blockSize int64
	sync      bool
	renewing  sync.WaitGroup

	packet   []byte                  // not sent yet
	pipeline *datanode.Pipeline      // of the current block; nil between blocks
	last     *namenode.ExtendedBlock // the block before, finished
	exclude  map[string][]byte       // DataNodes that failed: address to DatanodeInfoProto
	err      error                   // of all further writes
	ended    bool                    // by Commit or Abort
}

var errEnded = errors.New("writer was ended already")

// renew keeps the lease while the file is written.
func (w *writer) renew() {
	t := time.NewTicker(renewEvery)
	defer t.Stop()
	for {
		select {
		case <-t.C:
			// A failure shows when the next block is added: the lease then has
			// either been kept or is lost.
			_ = namenode.RenewLease(w.ctx, w.c.caller, w.lease.ClientName)
		case <-w.ctx.Done():
			return
		}
	}
}

func (w *writer) failed(operation string, err error) error {
	if w.ctx.Err() != nil && !w.ended {
		err = context.Cause(w.ctx)
	}
	w.err = fail(operation, w.lease.Path, err)
	return w.err
}

// Write implements io.Writer.
func (w *writer) Write(b []byte) (int, error) {
	if w.ended {
		return 0, fail("write", w.lease.Path, errEnded)
	}
	if w.err != nil {
		return 0, w.err
	}
	written := 0
	for written < len(b) {
		room := min(int64(cap(w.packet)), w.blockSize-w.inBlock()) - int64(len(w.packet))
		n := min(room, int64(len(b)-written))
		w.packet = append(w.packet, b[written:written+int(n)]...)
		written += int(n)
		if n < room {
			break
		}
		if err := w.flush(); err != nil {
			return written, w.failed("write", err)
		}
	}
	return written, nil
}

// inBlock is the number of bytes of the current block that were sent.
func (w *writer) inBlock() int64 {
	if w.pipeline == nil {
		return 0
	}
	return w.pipeline.Offset()
}

// flush sends the packet, and ends the block when it is full.
func (w *writer) flush() error {
	if len(w.packet) > 0 {
		if w.pipeline == nil {
			if err := w.startBlock(); err != nil {
				return err
			}
		}
		if err := w.pipeline.Send(w.packet); err != nil {
			return w.broken(err)
		}
		w.packet = w.packet[:0]
	}
	if w.pipeline != nil && w.pipeline.Offset() == w.blockSize {
		return w.endBlock()
	}
	return nil
}

func (w *writer) endBlock() error {
	if err := w.pipeline.Finish(); err != nil {
		return w.broken(err)
	}
	block := w.pipeline.Block()
	w.last, w.pipeline = &block, nil
	return nil
}

// broken reports a pipeline that failed in the middle of a block.
func (w *writer) broken(err error) error {
	if bad := (*datanode.PipelineError)(nil); errors.As(err, &bad) && bad.BadNode != "" {
		w.c.failed.add(bad.BadNode)
		w.c.options.Events.ReplicaFailed(w.lease.Path, bad.Block.ID, bad.BadNode, bad.Err)
	}
	return err
}

// startBlock gets a block from the NameNode and sets its pipeline up. A DataNode
// that fails is excluded and another block is asked for; when too few are left,
// all are tried again, until WriteWait has passed.
func (w *writer) startBlock() error {
	start, pause := time.Now(), minMissingPause
	for {
		located, err := namenode.AddBlock(w.ctx, w.c.caller, w.lease, w.last, w.excluded())
		if err == nil {
			err = w.openPipeline(located)
		}
		if err == nil {
			return nil
		}
		if w.ctx.Err() != nil || !hdfs.Retryable(err) {
			return err
		}
		left := w.c.options.WriteWait - time.Since(start)
		if left <= 0 {
			return fmt.Errorf("no pipeline for a new block within %s: %w", w.c.options.WriteWait, err)
		}
		if !errors.Is(err, rpc.ErrTooFewNodes) {
			continue // without the node that just failed
		}
		clear(w.exclude)
		w.c.options.Events.Waiting(hdfs.Waiting{Address: w.c.rpc.Addresses(), Reason: "too few DataNodes", Left: left})
		if err := hdfs.Sleep(w.ctx, min(pause, left)); err != nil {
			return err
		}
		pause = min(2*pause, maxMissingPause)
	}
}

// openPipeline sets a pipeline up, or gives the block back and excludes the
// node that is to blame.
func (w *writer) openPipeline(located namenode.LocatedBlock) error {
	pipeline, err := datanode.OpenPipeline(w.ctx, located, w.sync, w.c.dataOptions(w.lease.ClientName))
	if err == nil {
		w.pipeline = pipeline
		return nil
	}
	if w.ctx.Err() != nil {
		return err
	}
	w.broken(err)
	// A node is excluded by its message; where the blame fits none, the first.
	blamed := 0
	if bad := (*datanode.PipelineError)(nil); errors.As(err, &bad) {
		for i, replica := range located.Replicas {
			if replica.Addr() == bad.BadNode {
				blamed = i
			}
		}
	}
	w.exclude[located.Replicas[blamed].Addr()] = located.Nodes[blamed]
	if abandoned := namenode.AbandonBlock(w.ctx, w.c.caller, w.lease, located.Block); abandoned != nil {
		return fmt.Errorf("give back block %d: %w", located.Block.ID, abandoned)
	}
	return err
}

func (w *writer) excluded() [][]byte {
	nodes := make([][]byte, 0, len(w.exclude))
	for _, node := range w.exclude {
		nodes = append(nodes, node)
	}
	return nodes
}

// Commit implements hdfs.Writer.
func (w *writer) Commit() error {
	if w.ended {
		return fail("commit", w.lease.Path, errEnded)
	}
	if w.err != nil {
		return w.err
	}
	if err := w.flush(); err != nil {
		return w.failed("commit", err)
	}
	if w.pipeline != nil {
		if err := w.endBlock(); err != nil {
			return w.failed("commit", err)
		}
	}
	if err := w.complete(); err != nil {
		return w.failed("commit", err)
	}
	w.end()
	return nil
}

// complete waits until the NameNode has heard of enough replicas of the last
// block.
func (w *writer) complete() error {
	start, pause := time.Now(), 20*time.Millisecond
	for {
		done, err := namenode.Complete(w.ctx, w.c.caller, w.lease, w.last)
		if err != nil || done {
			return err
		}
		left := w.c.options.WriteWait - time.Since(start)
		if left <= 0 {
			return fmt.Errorf("%w: the NameNode heard of too few replicas of the last block within %s",
				hdfs.ErrUnavailable, w.c.options.WriteWait)
		}
		if err := hdfs.Sleep(w.ctx, min(pause, left)); err != nil {
			return err
		}
		pause = min(2*pause, maxMissingPause)
	}
}

// end stops the goroutine.
func (w *writer) end() {
	w.ended = true
	w.cancel()
	w.renewing.Wait()
}

// Abort implements hdfs.Writer. It removes the file only if it is still the one
// that this writer created.
func (w *writer) Abort() error {
	if w.ended {
		return nil
	}
	w.end()
	if w.pipeline != nil {
		w.pipeline.Close()
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(w.ctx), abortLimit)
	defer cancel()
	status, err := w.c.status(ctx, w.lease.Path)
	if errors.Is(err, hdfs.ErrNotExist) || err == nil && status.Info.ID != w.lease.FileID {
		return nil
	}
	if err == nil {
		_, err = namenode.Delete(ctx, w.c.caller, w.lease.Path)
	}
	if err != nil {
		return fail("abort", w.lease.Path, err)
	}
	return nil
}

var _ io.Writer = (*writer)(nil)
