package datanode

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/drover-run/drover/hdfs"
)

// LocalReader returns exactly the bytes of a ReadRequest from the files of a replica on this
// machine, all verified, then io.EOF. It is for one goroutine. Errors of type ShortCircuitError say
// that the same DataNode is to be read over TCP; after any other the replica is unusable, as after
// an error of a Reader.
//
// A goroutine reads and verifies the next batch while the caller uses the one before: nothing can
// interrupt the read of a disk that hangs, so the caller must not be the one who waits in it.
type LocalReader struct {
	ctx     context.Context
	stop    context.CancelFunc
	timeout time.Duration
	full    chan batch    // closed after the last batch; has room for all buffers
	free    chan []byte   // has room for all buffers
	done    chan struct{} // closed when the files are closed
	buffer  []byte        // that holds data
	data    []byte        // verified data not yet returned
	err     error
}

// batch is verified data of a range, or why there is none.
type batch struct {
	buffer []byte // to be returned to LocalReader.free
	data   []byte // the requested part of buffer
	err    error
}

const (
	// batchBytes is how much is read and verified at once; also the most that one checksum may cover.
	// The buffers of a LocalReader are as large as that of a Reader; larger ones cost as much CPU.
	batchBytes = 256 << 10
	// batchBuffers is the number of buffers of a LocalReader: one is used, one is filled.
	batchBuffers = 2
	// closeWait bounds how long Close waits for a read of the disk.
	closeWait = time.Second
)

// OpenLocalReader requests the files of a replica from the DataNode behind a domain socket of this
// machine. The caller closes the reader.
func OpenLocalReader(ctx context.Context, socket string, request ReadRequest, o Options) (*LocalReader, error) {
	data, meta, err := requestFiles(ctx, socket, request, o)
	if err != nil {
		return nil, err
	}
	return newLocalReader(ctx, &blockFiles{data: data, meta: meta, blockBytes: request.Block.Length,
		next: request.Offset, end: request.Offset + request.Length}, o.IOTimeout), nil
}

// newLocalReader returns a reader of files, which it owns.
func newLocalReader(ctx context.Context, files *blockFiles, timeout time.Duration) *LocalReader {
	r := &LocalReader{timeout: timeout, full: make(chan batch, batchBuffers), free: make(chan []byte, batchBuffers), done: make(chan struct{})}
	r.ctx, r.stop = context.WithCancel(ctx)
	for range batchBuffers {
		r.free <- nil // allocated when used: a short range needs one
	}
	go r.fill(files)
	return r
}

// fill reads batches until the range ends, an error occurs or the reader is closed.
func (r *LocalReader) fill(files *blockFiles) {
	defer close(r.done)
	defer files.close()
	defer close(r.full)
	if err := files.readHeader(); err != nil {
		r.full <- batch{err: err}
		return
	}
	for files.next < files.end {
		select {
		case buffer := <-r.free:
			b := files.readBatch(buffer)
			r.full <- b
			if b.err != nil {
				return
			}
		case <-r.ctx.Done():
			return
		}
	}
}

// Read implements io.Reader.
func (r *LocalReader) Read(b []byte) (int, error) {
	if len(r.data) == 0 && r.err == nil {
		r.err = r.nextBatch()
	}
	if len(r.data) == 0 {
		return 0, r.err
	}
	n := copy(b, r.data)
	r.data = r.data[n:]
	return n, nil
}

// nextBatch waits for the next batch, for which it returns the buffer of the one before.
func (r *LocalReader) nextBatch() error {
	if r.buffer != nil {
		r.free <- r.buffer
		r.buffer = nil
	}
	limit := time.NewTimer(r.timeout)
	defer limit.Stop()
	select {
	case b, ok := <-r.full:
		if r.ctx.Err() != nil {
			return context.Cause(r.ctx)
		}
		if !ok {
			return io.EOF
		}
		r.buffer, r.data = b.buffer, b.data
		return b.err
	case <-r.ctx.Done():
		return context.Cause(r.ctx)
	case <-limit.C:
		return fmt.Errorf("read of the block's local files: %w", os.ErrDeadlineExceeded)
	}
}

// Close ends the reader. If the disk hangs, its files are closed when the disk answers.
func (r *LocalReader) Close() error {
	r.data, r.err = nil, io.ErrClosedPipe
	r.stop()
	limit := time.NewTimer(closeWait)
	defer limit.Stop()
	select {
	case <-r.done:
	case <-limit.C:
	}
	return nil
}

// blockFiles are the files of a replica, with the range of the block that is still to be read.
type blockFiles struct {
	data, meta *os.File
	blockBytes int64 // length of the block by the NameNode; bytes behind it are not read
	next, end  int64 // the range; offsets in the block
	header     metaHeader
	checksums  []byte // of a batch
}

func (f *blockFiles) close() {
	f.data.Close()
	f.meta.Close()
}

// readHeader reads what precedes the checksums and compares the length of the block file with that
// of the block.
func (f *blockFiles) readHeader() error {
	if err := f.checkLength(); err != nil {
		return err
	}
	var b [metaHeaderBytes]byte
	if err := readFullAt(f.meta, b[:], 0); err != nil {
		return err
	}
	header, err := decodeMetaHeader(b[:])
	if err != nil {
		return err
	}
	f.header = header
	// The descriptor is this reader's own, so this is for its reads alone: the kernel reads ahead twice
	// as far. An error changes nothing.
	_ = unix.Fadvise(int(f.data.Fd()), f.next, f.end-f.next, unix.FADV_SEQUENTIAL)
	return nil
}

// checkLength compares the length of the block file with that of the block. A longer file is being
// appended to, and then the checksum of the last chunk covers bytes behind the block.
func (f *blockFiles) checkLength() error {
	st, err := f.data.Stat()
	switch {
	case err != nil:
		return err
	case st.Size() < f.blockBytes:
		return fmt.Errorf("block file of %d bytes for a block of %d", st.Size(), f.blockBytes)
	case st.Size() > f.blockBytes:
		return &ShortCircuitError{Expected: true, Err: fmt.Errorf("%w: block file of %d bytes for a block of %d: it is being written", hdfs.ErrChanged, st.Size(), f.blockBytes)}
	}
	return nil
}

// readBatch reads and verifies as many chunks from next on as fit into a batch.
func (f *blockFiles) readBatch(buffer []byte) batch {
	// 1. Whole chunks, but for the last one of the block.
	chunk := int64(f.header.bytesPerChecksum)
	start := f.next / chunk * chunk
	end := min((f.end+chunk-1)/chunk*chunk, f.blockBytes, start+batchBytes/chunk*chunk)
	n := int(end - start)
	if cap(buffer) < n {
		buffer = make([]byte, n)
	}
	buffer = buffer[:n]
	if err := readFullAt(f.data, buffer, start); err != nil {
		return batch{err: err}
	}
	// 2. Their checksums.
	if f.header.table != nil {
		if err := f.verify(buffer, start); err != nil {
			return batch{err: err}
		}
	}
	// 3. The requested part.
	data := buffer[f.next-start : min(f.end, end)-start]
	f.next += int64(len(data))
	return batch{buffer: buffer, data: data}
}

func (f *blockFiles) verify(data []byte, at int64) error {
	chunk := f.header.bytesPerChecksum
	n := 4 * ((len(data) + chunk - 1) / chunk)
	if cap(f.checksums) < n {
		f.checksums = make([]byte, n)
	}
	checksums := f.checksums[:n]
	if err := readFullAt(f.meta, checksums, metaHeaderBytes+4*(at/int64(chunk))); err != nil {
		return err
	}
	err := verifyChunks(f.header.table, chunk, at, checksums, data)
	if err != nil && at+int64(len(data)) == f.blockBytes {
		if changed := f.checkLength(); changed != nil {
			return changed // an append has begun since the file was opened
		}
	}
	return err
}

// readFullAt fills b from an offset of a file.
func readFullAt(file *os.File, b []byte, offset int64) error {
	n, err := file.ReadAt(b, offset)
	if errors.Is(err, io.EOF) {
		err = fmt.Errorf("%s ends after byte %d, want %d bytes from byte %d: %w", file.Name(), offset+int64(n), len(b), offset, io.ErrUnexpectedEOF)
	}
	return err
}

// metaHeader is the header of a meta file (BlockMetadataHeader.java). Behind it are the checksums
// of all chunks, 4 bytes each.
type metaHeader struct {
	table            *crc32.Table // nil: the block has no checksums
	bytesPerChecksum int          // 1 to batchBytes
}

// metaHeaderBytes is the length of the header: version (2), checksum type (1), bytes per checksum (4).
const metaHeaderBytes = 7

// decodeMetaHeader decodes the header of a meta file. Its errors are of type ShortCircuitError where
// the DataNode may understand what this package does not.
func decodeMetaHeader(b []byte) (header metaHeader, err error) {
	if len(b) < metaHeaderBytes {
		return header, fmt.Errorf("%w: header of a meta file of %d bytes", hdfs.ErrProtocol, len(b))
	}
	if version := binary.BigEndian.Uint16(b); version != fileVersion {
		return header, &ShortCircuitError{Err: fmt.Errorf("%w: meta file of version %d", hdfs.ErrUnsupported, version)}
	}
	if header.table, err = checksumTable(uint64(b[2])); err != nil {
		return header, &ShortCircuitError{Err: err}
	}
	bytesPerChecksum := binary.BigEndian.Uint32(b[3:])
	switch {
	case bytesPerChecksum == 0 || bytesPerChecksum > maxPacket:
		return header, fmt.Errorf("%w: %d bytes per checksum in the meta file", hdfs.ErrProtocol, bytesPerChecksum)
	case bytesPerChecksum > batchBytes:
		return header, &ShortCircuitError{Err: fmt.Errorf("%w: %d bytes per checksum, and %d are the most", hdfs.ErrUnsupported, bytesPerChecksum, batchBytes)}
	}
	header.bytesPerChecksum = int(bytesPerChecksum)
	return header, nil
}
