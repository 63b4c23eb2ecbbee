package datanode

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	pw "google.golang.org/protobuf/encoding/protowire"

	"github.com/drover-run/drover/hdfs"
	"github.com/drover-run/drover/hdfs/internal/wire"
)

const (
	transferVersion = 28
	opWriteBlock    = 80
	opReadBlock     = 81
	opRequestFiles  = 87 // REQUEST_SHORT_CIRCUIT_FDS

	maxResponse     = 1 << 20 // BlockOpResponseProto and PipelineAckProto
	maxPacketHeader = 1 << 10
	maxPacket       = 16 << 20 // as Hadoop's PacketReceiver
)

// Status values of datatransfer.proto that are used here.
const (
	statusSuccess     = 0
	statusChecksum    = 2
	statusAccessToken = 5
	statusChecksumOK  = 6
	statusUnsupported = 7
	statusInProgress  = 12
)

// errChecksum: the bytes do not match their checksum.
var errChecksum = errors.New("checksum mismatch")

// Options configures a transfer.
type Options struct {
	// Dial opens connections, of "tcp" and "unix"; required.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// DialTimeout bounds opening a connection, IOTimeout each wait for bytes of a read. A pipeline
	// sends a heartbeat twice in IOTimeout; how long it waits depends on the number of its
	// DataNodes.
	DialTimeout, IOTimeout time.Duration
	// ClientName is the lease holder of a write, and a name in the log of a read.
	ClientName string
}

// timedConn is a connection with a time-out for each operation that ends with its
// context.
type timedConn struct {
	net.Conn
	timeout time.Duration
	stop    func() bool
}

func connect(ctx context.Context, network, address string, o Options) (*timedConn, error) {
	dialCtx, cancel := context.WithTimeout(ctx, o.DialTimeout)
	defer cancel()
	conn, err := o.Dial(dialCtx, network, address)
	if err != nil {
		return nil, err
	}
	return &timedConn{Conn: conn, timeout: o.IOTimeout, stop: context.AfterFunc(ctx, func() { conn.Close() })}, nil
}

func (l *timedConn) Read(b []byte) (int, error) {
	l.SetReadDeadline(time.Now().Add(l.timeout))
	return l.Conn.Read(b)
}

func (l *timedConn) Write(b []byte) (int, error) {
	l.SetWriteDeadline(time.Now().Add(l.timeout))
	return l.Conn.Write(b)
}

func (l *timedConn) Close() error {
	l.stop()
	return l.Conn.Close()
}

// sendOp writes the header of an operation and its message.
func sendOp(w io.Writer, op byte, message []byte) error {
	b := wire.Message{0, transferVersion, op}.Delimited(message)
	_, err := w.Write(b)
	return err
}

// opResponse is BlockOpResponseProto.
type opResponse struct {
	status           uint64
	firstBadLink     string
	message          string
	checksumType     uint64
	bytesPerChecksum int64
	chunkOffset      int64
	fileVersion      uint64 // shortCircuitAccessVersion; 0: none
}

func readOpResponse(r *bufio.Reader) (response opResponse, err error) {
	b, err := wire.ReadDelimited(r, maxResponse)
	if err != nil {
		return response, err
	}
	return decodeOpResponse(b)
}

func decodeOpResponse(b []byte) (response opResponse, err error) {
	seen := false
	err = wire.Each(b, func(f wire.Field) error {
		switch f.Number {
		case 1:
			seen = true
			return f.SetUint(&response.status)
		case 2:
			return f.SetString(&response.firstBadLink)
		case 4: // ReadOpChecksumInfoProto
			return wire.Each(f.Bytes, func(f wire.Field) error {
				switch f.Number {
				case 1: // ChecksumProto
					return wire.Each(f.Bytes, func(f wire.Field) error {
						switch f.Number {
						case 1:
							return f.SetUint(&response.checksumType)
						case 2:
							return f.SetLength(&response.bytesPerChecksum)
						}
						return nil
					})
				case 2:
					return f.SetLength(&response.chunkOffset)
				}
				return nil
			})
		case 5:
			return f.SetString(&response.message)
		case 6:
			return f.SetUint(&response.fileVersion)
		}
		return nil
	})
	if err == nil && !seen {
		err = errors.New("no status")
	}
	if err != nil {
		return response, fmt.Errorf("%w: DataNode response: %w", hdfs.ErrProtocol, err)
	}
	return response, nil
}

// statusError converts a status to an error; nil for success.
func statusError(status uint64, message string) error {
	switch status {
	case statusSuccess:
		return nil
	case statusChecksum:
		return fmt.Errorf("%w: %s", errChecksum, message)
	case statusAccessToken:
		return fmt.Errorf("%w: block token refused: %s", hdfs.ErrPermission, message)
	default:
		return fmt.Errorf("DataNode answered status %d: %s", status, message)
	}
}

// packetHeader is PacketHeaderProto with the two lengths before it.
type packetHeader struct {
	offset        int64 // offset of the data in the block
	seqno         int64
	last          bool
	sync          bool // write the block to disk
	dataBytes     int  // bytes
	checksumBytes int  // bytes
}

// readPacketHeader reads and validates a packet up to its checksums.
func readPacketHeader(r io.Reader) (packetHeader, error) {
	var head [6]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return packetHeader{}, err
	}
	total, length := binary.BigEndian.Uint32(head[:]), int(binary.BigEndian.Uint16(head[4:]))
	if total < 4 || total > maxPacket || length > maxPacketHeader {
		return packetHeader{}, fmt.Errorf("%w: packet of %d bytes with a header of %d", hdfs.ErrProtocol, total, length)
	}
	b := make([]byte, length)
	if _, err := io.ReadFull(r, b); err != nil {
		return packetHeader{}, err
	}
	return decodePacketHeader(b, int(total)-4)
}

// decodePacketHeader decodes the header message; payload is the number of bytes of
// checksums and data that follow it.
func decodePacketHeader(b []byte, payload int) (h packetHeader, err error) {
	var data uint64
	err = wire.Each(b, func(f wire.Field) error {
		switch f.Number {
		case 1:
			h.offset = int64(f.Varint)
			return f.CheckType(pw.Fixed64Type)
		case 2:
			h.seqno = int64(f.Varint)
			return f.CheckType(pw.Fixed64Type)
		case 3:
			return f.SetBool(&h.last)
		case 4:
			data = f.Varint
			return f.CheckType(pw.Fixed32Type)
		case 5:
			return f.SetBool(&h.sync)
		}
		return nil
	})
	switch {
	case err != nil:
		return h, fmt.Errorf("%w: packet header: %w", hdfs.ErrProtocol, err)
	case h.offset < 0 || data > uint64(payload):
		return h, fmt.Errorf("%w: packet header: %d bytes of data at %d in a packet of %d", hdfs.ErrProtocol, data, h.offset, payload)
	}
	h.dataBytes, h.checksumBytes = int(data), payload-int(data)
	return h, nil
}

// appendPacket appends a packet to b.
func appendPacket(b []byte, h packetHeader, checksums, data []byte) []byte {
	header := wire.Message(nil).
		Fixed64(1, uint64(h.offset)).
		Fixed64(2, uint64(h.seqno)).
		Bool(3, h.last).
		Fixed32(4, uint32(len(data)))
	if h.sync {
		header = header.Bool(5, true)
	}
	b = binary.BigEndian.AppendUint32(b, uint32(4+len(checksums)+len(data)))
	b = binary.BigEndian.AppendUint16(b, uint16(len(header)))
	b = append(b, header...)
	b = append(b, checksums...)
	return append(b, data...)
}
