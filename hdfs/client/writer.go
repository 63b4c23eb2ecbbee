package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/drover-run/drover/hdfs"
	"github.com/drover-run/drover/hdfs/internal/datanode"
	"github.com/drover-run/drover/hdfs/internal/namenode"
	"github.com/drover-run/drover/hdfs/internal/rpc"
)

// Create implements hdfs.Sink.
func (c *Client) Create(ctx context.Context, name string, options hdfs.CreateOptions) (hdfs.Writer, error) {
	name, err := cleanPath("create", name)
	if err != nil {
		return nil, err
	}
	file, err := c.newFile(ctx, name, options)
	if err != nil {
		return nil, pathError("create", name, err)
	}
	status, err := namenode.Create(ctx, c.caller, file)
	if err != nil {
		return nil, pathError("create", name, err)
	}
	if status.UnreadableReason != "" {
		err := fmt.Errorf("%w: %s", hdfs.ErrUnsupported, status.UnreadableReason)
		_, deleted := namenode.Delete(ctx, c.caller, name)
		return nil, pathError("create", name, errors.Join(err, deleted))
	}
	c.cache.dropPath(name)
	ctx, cancel := context.WithCancel(ctx)
	w := &writer{c: c, ctx: ctx, cancel: cancel, sync: options.Sync, blockSize: file.BlockSize,
		lease:   namenode.Lease{Path: name, ClientName: file.ClientName, FileID: status.Info.ID},
		packet:  make([]byte, 0, datanode.PacketBytes),
		exclude: c.failedNodes.ofPipelines()}
	w.renewing.Go(w.renewLease)
	return w, nil
}

// newFile fills in the server's defaults and validates the result.
func (c *Client) newFile(ctx context.Context, name string, options hdfs.CreateOptions) (namenode.CreateRequest, error) {
	file := namenode.CreateRequest{Path: name, ClientName: c.newClientName(), Perm: filePerm, Overwrite: options.Overwrite,
		Replication: options.Replication, BlockSize: options.BlockSizeBytes}
	defaults, err := c.plainDefaults(ctx)
	if err != nil {
		return file, err
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

	packet    []byte                  // not sent yet
	pipeline  *datanode.Pipeline      // pipeline of the current block; nil between blocks
	located   namenode.LocatedBlock   // the block of the pipeline that was opened last
	lastBlock *namenode.ExtendedBlock // the previous, finished block
	exclude   map[string][]byte       // DataNodes that failed: address to DatanodeInfoProto
	err       error                   // returned by all further writes
	ended     bool                    // by Commit or Abort
}

var errWriterEnded = errors.New("writer already committed or aborted")

// renewLease renews the lease periodically until the writer ends.
func (w *writer) renewLease() {
	t := time.NewTicker(renewInterval)
	defer t.Stop()
	for {
		select {
		case <-t.C:
			// If the lease is lost, adding the next block fails.
			_ = namenode.RenewLease(w.ctx, w.c.caller, w.lease.ClientName)
		case <-w.ctx.Done():
			return
		}
	}
}

func (w *writer) setError(operation string, err error) error {
	if w.ctx.Err() != nil && !w.ended {
		err = context.Cause(w.ctx)
	}
	w.err = pathError(operation, w.lease.Path, err)
	return w.err
}

// Write implements io.Writer.
func (w *writer) Write(b []byte) (int, error) {
	if w.ended {
		return 0, pathError("write", w.lease.Path, errWriterEnded)
	}
	if w.err != nil {
		return 0, w.err
	}
	written := 0
	for written < len(b) {
		space := min(int64(cap(w.packet)), w.blockSize-w.blockOffset()) - int64(len(w.packet))
		n := min(space, int64(len(b)-written))
		w.packet = append(w.packet, b[written:written+int(n)]...)
		written += int(n)
		if n < space {
			break
		}
		if err := w.flush(); err != nil {
			return written, w.setError("write", err)
		}
	}
	return written, nil
}

// blockOffset returns the number of bytes of the current block already sent.
func (w *writer) blockOffset() int64 {
	if w.pipeline == nil {
		return 0
	}
	return w.pipeline.Offset()
}

// flush sends the packet, and finishes the block when it is full.
func (w *writer) flush() error {
	if len(w.packet) > 0 {
		if w.pipeline == nil {
			if err := w.startBlock(); err != nil {
				return err
			}
		}
		if err := w.pipeline.Send(w.packet); err != nil {
			return w.recordPipelineError(err)
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
		return w.recordPipelineError(err)
	}
	block := w.pipeline.Block()
	w.lastBlock, w.pipeline = &block, nil
	return nil
}

// recordPipelineError records the DataNode that a failed pipeline names. Later writers exclude it
// too, above all the writer of the same file when Upload writes it again.
func (w *writer) recordPipelineError(err error) error {
	if bad := (*datanode.PipelineError)(nil); errors.As(err, &bad) && bad.BadNode != "" {
		var info []byte
		if i := w.replicaAt(bad.BadNode); i >= 0 {
			info = w.located.Nodes[i]
		}
		w.c.failedNodes.add(bad.BadNode, info)
		w.c.options.Events.ReplicaFailed(w.lease.Path, bad.Block.ID, bad.BadNode, bad.Err)
	}
	return err
}

// replicaAt returns the index of the DataNode with an address in the pipeline, or -1.
func (w *writer) replicaAt(address string) int {
	return slices.IndexFunc(w.located.Replicas, func(r hdfs.Replica) bool { return r.Addr() == address })
}

// startBlock gets a block from the NameNode and opens its pipeline. A DataNode that
// fails is excluded and another block is requested, however long the failure took to
// show: each try excludes one node more. If too few nodes are left, all are tried
// again, until writeWait has passed.
func (w *writer) startBlock() error {
	var fewSince time.Time
	for pause := minRetryPause; ; {
		located, err := namenode.AddBlock(w.ctx, w.c.caller, w.lease, w.lastBlock, w.excludedNodes())
		if err == nil {
			excluded := len(w.exclude)
			err = w.openPipeline(located)
			if err == nil || w.ctx.Err() != nil || !hdfs.Retryable(err) || len(w.exclude) == excluded {
				return err
			}
			continue // without the node that just failed
		}
		if w.ctx.Err() != nil || !errors.Is(err, rpc.ErrTooFewNodes) {
			return err
		}
		if fewSince.IsZero() {
			fewSince = time.Now()
		}
		left := w.c.options.writeWait - time.Since(fewSince)
		if left <= 0 {
			return fmt.Errorf("no pipeline for a new block within %s: %w", w.c.options.writeWait, err)
		}
		clear(w.exclude)
		w.c.options.Events.Waiting(hdfs.WaitNotice{Address: w.c.rpc.Addresses(), Reason: "too few DataNodes", Remaining: left})
		if err := hdfs.Sleep(w.ctx, min(pause, left)); err != nil {
			return err
		}
		pause = min(2*pause, maxRetryPause)
	}
}

// openPipeline opens the pipeline of a block. On failure it abandons the block and
// excludes the DataNode to blame.
func (w *writer) openPipeline(located namenode.LocatedBlock) error {
	w.located = located
	pipeline, err := datanode.OpenPipeline(w.ctx, located, w.sync, w.c.dataOptions(w.lease.ClientName))
	if err == nil {
		w.pipeline = pipeline
		return nil
	}
	if w.ctx.Err() != nil {
		return err
	}
	w.recordPipelineError(err)
	// Exclude the node that the error names, otherwise the first one.
	blamed := 0
	if bad := (*datanode.PipelineError)(nil); errors.As(err, &bad) {
		blamed = max(0, w.replicaAt(bad.BadNode))
	}
	w.exclude[located.Replicas[blamed].Addr()] = located.Nodes[blamed]
	if abandoned := namenode.AbandonBlock(w.ctx, w.c.caller, w.lease, located.Block); abandoned != nil {
		return fmt.Errorf("abandon block %d: %w", located.Block.ID, abandoned)
	}
	return err
}

func (w *writer) excludedNodes() [][]byte {
	nodes := make([][]byte, 0, len(w.exclude))
	for _, node := range w.exclude {
		nodes = append(nodes, node)
	}
	return nodes
}

// Commit implements hdfs.Writer.
func (w *writer) Commit() error {
	if w.ended {
		return pathError("commit", w.lease.Path, errWriterEnded)
	}
	if w.err != nil {
		return w.err
	}
	if err := w.flush(); err != nil {
		return w.setError("commit", err)
	}
	if w.pipeline != nil {
		if err := w.endBlock(); err != nil {
			return w.setError("commit", err)
		}
	}
	if err := w.completeFile(); err != nil {
		return w.setError("commit", err)
	}
	w.stopRenewing()
	return nil
}

// completeFile waits until enough replicas of the last block have been reported to
// the NameNode.
func (w *writer) completeFile() error {
	start, pause := time.Now(), 20*time.Millisecond
	for {
		done, err := namenode.Complete(w.ctx, w.c.caller, w.lease, w.lastBlock)
		if err != nil || done {
			return err
		}
		left := w.c.options.writeWait - time.Since(start)
		if left <= 0 {
			return fmt.Errorf("%w: too few replicas of the last block were reported to the NameNode within %s",
				hdfs.ErrUnavailable, w.c.options.writeWait)
		}
		if err := hdfs.Sleep(w.ctx, min(pause, left)); err != nil {
			return err
		}
		pause = min(2*pause, maxRetryPause)
	}
}

// stopRenewing ends the goroutine that renews the lease.
func (w *writer) stopRenewing() {
	w.ended = true
	w.cancel()
	w.renewing.Wait()
}

// Abort implements hdfs.Writer. It removes the file only if it is still the file
// that this writer created.
func (w *writer) Abort() error {
	if w.ended {
		return nil
	}
	w.stopRenewing()
	if w.pipeline != nil {
		w.pipeline.Close()
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(w.ctx), abortTimeout)
	defer cancel()
	status, err := w.c.status(ctx, w.lease.Path)
	if errors.Is(err, hdfs.ErrNotExist) || err == nil && status.Info.ID != w.lease.FileID {
		return nil
	}
	if err == nil {
		_, err = namenode.Delete(ctx, w.c.caller, w.lease.Path)
	}
	if err != nil {
		return pathError("abort", w.lease.Path, err)
	}
	return nil
}

var _ io.Writer = (*writer)(nil)
