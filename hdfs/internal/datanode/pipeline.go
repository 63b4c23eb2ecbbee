package datanode

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"sync"
	"time"

	pw "google.golang.org/protobuf/encoding/protowire"

	"github.com/drover-run/drover/hdfs"
	"github.com/drover-run/drover/hdfs/internal/namenode"
	"github.com/drover-run/drover/hdfs/internal/wire"
)

const (
	stagePipelineSetupCreate = 6
	checksumCRC32C           = 2

	// BytesPerChecksum is the checksum chunk size of written blocks, Hadoop's default.
	BytesPerChecksum = 512
	// PacketBytes is the data length of a full packet: a whole number of chunks.
	PacketBytes = 126 * BytesPerChecksum

	// maxInFlight bounds the packets sent but not acknowledged: 5 MiB.
	maxInFlight = 80

	// heartbeatSeqno marks packets that only keep an idle pipeline open.
	heartbeatSeqno = -1
)

// pipelineTimeout returns how long a pipeline may be silent. HDFS's DataNode waits 60 s for the
// next DataNode, plus 5 s for each DataNode behind that one, before it reports the next one as
// failed. A client that waits less blames the first DataNode for the failure of another.
func pipelineTimeout(nodes int) time.Duration {
	return time.Minute + time.Duration(nodes+1)*5*time.Second
}

// PipelineError is a failure of a write pipeline. BadNode is the address (ip:port)
// of the DataNode to blame, or empty if it is not known.
type PipelineError struct {
	Block   namenode.ExtendedBlock
	BadNode string
	Err     error
}

func (e *PipelineError) Error() string {
	if e.BadNode == "" {
		return fmt.Sprintf("write pipeline of block %d: %s", e.Block.ID, e.Err)
	}
	return fmt.Sprintf("write pipeline of block %d: DataNode %s: %s", e.Block.ID, e.BadNode, e.Err)
}

// Unwrap returns the cause and ErrUnavailable: the whole file may be written again.
func (e *PipelineError) Unwrap() []error { return []error{e.Err, hdfs.ErrUnavailable} }

// Pipeline sends one new block through its DataNodes. It is for one goroutine;
// Finish or Close ends it and its two goroutines.
type Pipeline struct {
	located namenode.LocatedBlock
	conn    *timedConn
	sync    bool

	writeMu sync.Mutex // one packet at a time: data or heartbeat
	buffer  []byte     // of one packet; guarded by writeMu

	offset         int64
	seqno          int64
	inFlight       chan int64    // sequence numbers sent and not acknowledged
	broken         chan struct{} // closed after ackErr is set
	ackErr         error
	stopHeartbeats chan struct{}
	running        sync.WaitGroup
	ended          bool
}

// OpenPipeline opens the pipeline of a new block. sync makes the DataNodes write the
// block to disk before they acknowledge its end.
func OpenPipeline(ctx context.Context, located namenode.LocatedBlock, sync bool, o Options) (*Pipeline, error) {
	first := located.Replicas[0].Addr()
	l, err := connect(ctx, "tcp", first, o)
	if err != nil {
		return nil, &PipelineError{located.Block, first, err}
	}
	l.timeout = pipelineTimeout(len(located.Replicas))
	r := bufio.NewReader(l)
	err = sendOp(l, opWriteBlock, writeRequest(located, o.ClientName))
	var response opResponse
	if err == nil {
		response, err = readOpResponse(r)
	}
	if err == nil {
		err = statusError(response.status, response.message)
	}
	if err != nil {
		l.Close()
		bad := response.firstBadLink
		if bad == "" {
			bad = first
		}
		return nil, &PipelineError{located.Block, bad, err}
	}
	p := &Pipeline{located: located, conn: l, sync: sync,
		inFlight: make(chan int64, maxInFlight), broken: make(chan struct{}), stopHeartbeats: make(chan struct{})}
	p.running.Go(func() { p.readAcks(r) })
	p.running.Go(func() { p.sendHeartbeats(o.IOTimeout / 2) })
	return p, nil
}

// writeRequest encodes OpWriteBlockProto.
func writeRequest(located namenode.LocatedBlock, clientName string) []byte {
	m := wire.Message(nil).Bytes(1, blockHeader(located.Block, located.Token, clientName))
	for _, node := range located.Nodes[1:] {
		m = m.Bytes(2, node)
	}
	m = m.Uint(4, stagePipelineSetupCreate).
		Uint(5, uint64(len(located.Nodes))).
		Uint(6, 0). // minBytesRcvd
		Uint(7, 0). // maxBytesRcvd
		Uint(8, 0). // latestGenerationStamp
		Bytes(9, wire.Message(nil).Uint(1, checksumCRC32C).Uint(2, BytesPerChecksum))
	if n := len(located.Nodes); len(located.StorageTypes) == n {
		m = m.Uint(11, located.StorageTypes[0])
		for _, kind := range located.StorageTypes[1:] {
			m = m.Uint(12, kind)
		}
	}
	if n := len(located.Nodes); len(located.StorageIDs) == n {
		m = m.String(16, located.StorageIDs[0])
		for _, id := range located.StorageIDs[1:] {
			m = m.String(17, id)
		}
	}
	return m
}

// Offset returns the number of bytes of the block sent so far.
func (p *Pipeline) Offset() int64 { return p.offset }

// Block returns the identity of the block with the length sent so far.
func (p *Pipeline) Block() namenode.ExtendedBlock {
	block := p.located.Block
	block.Length = p.offset
	return block
}

// Send sends one packet of at most PacketBytes. Every packet of a block but the last
// must be a whole number of chunks. Send blocks while maxInFlight packets are not
// acknowledged.
func (p *Pipeline) Send(data []byte) error {
	if len(data) == 0 || len(data) > PacketBytes || p.offset%BytesPerChecksum != 0 {
		panic(fmt.Sprintf("datanode: packet of %d bytes at %d", len(data), p.offset))
	}
	h := packetHeader{offset: p.offset, seqno: p.seqno}
	if err := p.sendPacket(h, data); err != nil {
		return err
	}
	p.offset += int64(len(data))
	return nil
}

func (p *Pipeline) sendPacket(h packetHeader, data []byte) error {
	select {
	case p.inFlight <- h.seqno:
	case <-p.broken:
		return p.ackErr
	}
	p.seqno++
	if err := p.writePacket(h, data); err != nil {
		// The last acknowledgement may name the node further down that failed.
		t := time.NewTimer(ackGrace)
		defer t.Stop()
		select {
		case <-p.broken:
			return p.ackErr
		case <-t.C:
			return p.pipelineError(p.located.Replicas[0].Addr(), err)
		}
	}
	return nil
}

// ackGrace bounds the wait for an acknowledgement after the connection failed.
const ackGrace = time.Second

func (p *Pipeline) writePacket(h packetHeader, data []byte) error {
	var checksums [4 * PacketBytes / BytesPerChecksum]byte
	n := 0
	for at := 0; at < len(data); at += BytesPerChecksum {
		chunk := data[at:min(at+BytesPerChecksum, len(data))]
		binary.BigEndian.PutUint32(checksums[n:], crc32.Checksum(chunk, castagnoli))
		n += 4
	}
	p.writeMu.Lock()
	defer p.writeMu.Unlock()
	p.buffer = appendPacket(p.buffer[:0], h, checksums[:n], data)
	_, err := p.conn.Write(p.buffer)
	return err
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func (p *Pipeline) pipelineError(node string, err error) error {
	return &PipelineError{p.located.Block, node, err}
}

// sendHeartbeats keeps an idle pipeline open.
func (p *Pipeline) sendHeartbeats(every time.Duration) {
	t := time.NewTicker(every)
	defer t.Stop()
	for {
		select {
		case <-t.C:
			if p.writePacket(packetHeader{seqno: heartbeatSeqno}, nil) != nil {
				return // the next packet meets the same error
			}
		case <-p.stopHeartbeats:
			return
		case <-p.broken:
			return
		}
	}
}

// readAcks reads the acknowledgements in the order of the packets.
func (p *Pipeline) readAcks(r *bufio.Reader) {
	for want := range p.inFlight {
		if err := p.readAck(r, want); err != nil {
			p.ackErr = err
			close(p.broken)
			p.conn.Close() // unblocks a sender that waits for the socket
			return
		}
	}
}

func (p *Pipeline) readAck(r *bufio.Reader, want int64) error {
	for {
		b, err := wire.ReadDelimited(r, maxResponse)
		if err != nil {
			return p.pipelineError(p.located.Replicas[0].Addr(), err)
		}
		seqno, replies, err := decodeAck(b)
		if err != nil {
			return p.pipelineError(p.located.Replicas[0].Addr(), err)
		}
		for i, reply := range replies {
			if reply == statusSuccess || reply == statusInProgress {
				continue
			}
			node := ""
			if i < len(p.located.Replicas) {
				node = p.located.Replicas[i].Addr()
			}
			return p.pipelineError(node, statusError(reply, "packet not stored"))
		}
		switch seqno {
		case heartbeatSeqno:
		case want:
			return nil
		default:
			return p.pipelineError("", fmt.Errorf("%w: acknowledgement of packet %d, not %d", hdfs.ErrProtocol, seqno, want))
		}
	}
}

// decodeAck decodes a PipelineAckProto.
func decodeAck(b []byte) (seqno int64, replies []uint64, err error) {
	seen := false
	err = wire.Each(b, func(f wire.Field) error {
		switch f.Number {
		case 1:
			seen = true
			seqno = pw.DecodeZigZag(f.Varint)
			return f.CheckType(pw.VarintType)
		case 2:
			values := f.Bytes
			if f.Type == pw.VarintType {
				values = pw.AppendVarint(nil, f.Varint)
			}
			for len(values) > 0 {
				v, n := pw.ConsumeVarint(values)
				if n < 0 || len(replies) == maxPipelineNodes {
					return wire.ErrMalformed
				}
				replies, values = append(replies, v), values[n:]
			}
		}
		return nil
	})
	if err == nil && !seen {
		err = errors.New("no sequence number")
	}
	if err != nil {
		return 0, nil, fmt.Errorf("%w: acknowledgement: %w", hdfs.ErrProtocol, err)
	}
	return seqno, replies, nil
}

// maxPipelineNodes exceeds dfs.replication.max.
const maxPipelineNodes = 1024

// Finish ends the block and waits until every DataNode has acknowledged it.
func (p *Pipeline) Finish() error {
	err := p.sendPacket(packetHeader{offset: p.offset, seqno: p.seqno, last: true, sync: p.sync}, nil)
	p.stop()
	if err == nil && p.ackErr != nil {
		err = p.ackErr
	}
	p.conn.Close()
	return err
}

// stop ends both goroutines: the reader after the last acknowledgement or its
// time-out.
func (p *Pipeline) stop() {
	if p.ended {
		return
	}
	p.ended = true
	close(p.inFlight)
	close(p.stopHeartbeats)
	p.running.Wait()
}

// Close abandons the block. After Finish it does nothing.
func (p *Pipeline) Close() {
	p.conn.Close()
	p.stop()
}
