package datanode

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"

	"github.com/drover-run/drover/hdfs"
	"github.com/drover-run/drover/hdfs/internal/namenode"
	"github.com/drover-run/drover/hdfs/internal/wire"
)

// ReadRequest is a range of a block.
type ReadRequest struct {
	Block  namenode.ExtendedBlock
	Token  []byte
	Offset int64 // in the block
	Length int64 // at least 1; within the block
}

// Reader returns exactly the bytes of a ReadRequest, all verified, then io.EOF. It is
// for one goroutine.
type Reader struct {
	conn             *timedConn
	r                *bufio.Reader
	table            *crc32.Table // nil: the block has no checksums
	bytesPerChecksum int
	nextOffset       int64  // offset in the block of the next packet
	skip             int64  // bytes to drop before the first requested one
	remaining        int64  // requested bytes not yet returned
	packet           []byte // verified data not yet returned; a part of the buffer of r, or of large
	large            []byte // a packet that does not fit into the buffer of r
	err              error
}

// bufferBytes holds several packets; HDFS's own DataNode sends packets of 64 KiB. Packets are
// verified and returned in place, and one read of the connection takes all bytes that have arrived.
const bufferBytes = 512 << 10

// OpenReader requests a range from one DataNode. The caller closes the reader.
func OpenReader(ctx context.Context, address string, request ReadRequest, o Options) (*Reader, error) {
	l, err := connect(ctx, "tcp", address, o)
	if err != nil {
		return nil, err
	}
	r := &Reader{conn: l, r: bufio.NewReaderSize(l, bufferBytes), remaining: request.Length}
	if err := r.sendRequest(request, o.ClientName); err != nil {
		l.Close()
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return nil, err
	}
	return r, nil
}

// baseHeader encodes BaseHeaderProto.
func baseHeader(block namenode.ExtendedBlock, token []byte) wire.Message {
	base := wire.Message(nil).Bytes(1, block.Encode())
	if token != nil {
		base = base.Bytes(2, token)
	}
	return base
}

// blockHeader encodes ClientOperationHeaderProto.
func blockHeader(block namenode.ExtendedBlock, token []byte, clientName string) []byte {
	return wire.Message(nil).Bytes(1, baseHeader(block, token)).String(2, clientName)
}

func (r *Reader) sendRequest(request ReadRequest, clientName string) error {
	err := sendOp(r.conn, opReadBlock, wire.Message(nil).
		Bytes(1, blockHeader(request.Block, request.Token, clientName)).
		Uint(2, uint64(request.Offset)).
		Uint(3, uint64(request.Length)).
		Bool(4, true)) // sendChecksums
	if err != nil {
		return err
	}
	response, err := readOpResponse(r.r)
	if err != nil {
		return err
	}
	if err := statusError(response.status, response.message); err != nil {
		return err
	}
	return r.acceptResponse(response, request.Offset)
}

// acceptResponse validates the DataNode's description of the data that it will send.
func (r *Reader) acceptResponse(response opResponse, offset int64) error {
	table, err := checksumTable(response.checksumType)
	if err != nil {
		return err
	}
	if response.bytesPerChecksum <= 0 || response.bytesPerChecksum > maxPacket {
		return fmt.Errorf("%w: %d bytes per checksum", hdfs.ErrProtocol, response.bytesPerChecksum)
	}
	if response.chunkOffset > offset || offset-response.chunkOffset >= response.bytesPerChecksum {
		return fmt.Errorf("%w: chunk at %d for a read at %d", hdfs.ErrProtocol, response.chunkOffset, offset)
	}
	r.table = table
	r.bytesPerChecksum, r.nextOffset, r.skip = int(response.bytesPerChecksum), response.chunkOffset, offset-response.chunkOffset
	return nil
}

// checksumTable returns the table of a checksum type; nil for the type without checksums.
func checksumTable(kind uint64) (*crc32.Table, error) {
	switch kind {
	case 0:
		return nil, nil
	case 1:
		return crc32.IEEETable, nil
	case 2:
		return castagnoli, nil
	default:
		return nil, fmt.Errorf("%w: checksum type %d", hdfs.ErrUnsupported, kind)
	}
}

// Read implements io.Reader.
func (r *Reader) Read(b []byte) (int, error) {
	if r.err != nil {
		return 0, r.err
	}
	for len(r.packet) == 0 {
		if r.remaining == 0 {
			r.confirmChecksums()
			r.err = io.EOF
			return 0, r.err
		}
		if err := r.readPacket(); err != nil {
			if err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			r.err = err
			return 0, err
		}
	}
	n := copy(b, r.packet)
	r.packet = r.packet[n:]
	return n, nil
}

// readPacket reads and verifies one packet and keeps the requested part.
func (r *Reader) readPacket() error {
	h, err := readPacketHeader(r.r)
	if err != nil {
		return err
	}
	if h.last || h.dataBytes == 0 {
		return fmt.Errorf("%w: block ended %d bytes early", hdfs.ErrProtocol, r.remaining)
	}
	if h.offset != r.nextOffset {
		return fmt.Errorf("%w: packet at %d, not at %d", hdfs.ErrProtocol, h.offset, r.nextOffset)
	}
	chunks := (h.dataBytes + r.bytesPerChecksum - 1) / r.bytesPerChecksum
	if want := 4 * chunks; r.table != nil && h.checksumBytes != want || r.table == nil && h.checksumBytes != 0 {
		return fmt.Errorf("%w: %d bytes of checksums for %d chunks", hdfs.ErrProtocol, h.checksumBytes, chunks)
	}
	payload, err := r.take(h.checksumBytes + h.dataBytes)
	if err != nil {
		return err
	}
	data := payload[h.checksumBytes:]
	if err := r.verify(payload[:h.checksumBytes], data); err != nil {
		return err
	}
	r.nextOffset += int64(h.dataBytes)
	drop := min(r.skip, int64(len(data)))
	r.skip -= drop
	data = data[drop:]
	r.packet = data[:min(r.remaining, int64(len(data)))]
	r.remaining -= int64(len(r.packet))
	return nil
}

// take returns the next n bytes of the connection, valid until the next read of it.
func (r *Reader) take(n int) (b []byte, err error) {
	if n > r.r.Size() {
		if b, err = wire.ReadN(r.r, r.large, n); err == nil {
			r.large = b
		}
		return b, err
	}
	if b, err = r.r.Peek(n); err != nil {
		return nil, err
	}
	_, err = r.r.Discard(n) // does not change b
	return b, err
}

func (r *Reader) verify(checksums, data []byte) error {
	return verifyChunks(r.table, r.bytesPerChecksum, r.nextOffset, checksums, data)
}

// verifyChunks compares data, which begins at a chunk at offset at of the block, with its
// checksums. Without a table there is nothing to compare.
func verifyChunks(table *crc32.Table, bytesPerChecksum int, at int64, checksums, data []byte) error {
	if table == nil {
		return nil
	}
	for len(data) > 0 {
		n := min(bytesPerChecksum, len(data))
		if crc32.Checksum(data[:n], table) != binary.BigEndian.Uint32(checksums) {
			return fmt.Errorf("%w: bytes %d to %d of the block", errChecksum, at, at+int64(n))
		}
		at, checksums, data = at+int64(n), checksums[4:], data[n:]
	}
	return nil
}

// confirmChecksums tells the DataNode that all checksums matched, which saves it a
// warning. Nothing depends on its arrival.
func (r *Reader) confirmChecksums() {
	r.conn.Write(wire.Message(nil).Delimited(wire.Message(nil).Uint(1, statusChecksumOK)))
}

// Close ends the connection.
func (r *Reader) Close() error {
	if r.err == nil {
		r.err = io.ErrClosedPipe
	}
	return r.conn.Close()
}
