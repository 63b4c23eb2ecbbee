package datanode

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/drover-run/drover/hdfs"
	"github.com/drover-run/drover/hdfs/internal/namenode"
	"github.com/drover-run/drover/hdfs/internal/wire"
	"github.com/drover-run/drover/internal/fuzztest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// serveOnce returns options whose Dial connects to serve through a pipe.
func serveOnce(t *testing.T, serve func(net.Conn)) Options {
	done := make(chan struct{})
	t.Cleanup(func() { <-done })
	return Options{DialTimeout: time.Second, IOTimeout: 5 * time.Second, ClientName: "test",
		Dial: func(context.Context, string, string) (net.Conn, error) {
			near, far := net.Pipe()
			go func() {
				defer close(done)
				defer far.Close()
				serve(far)
			}()
			return near, nil
		}}
}

// readOp reads the header and message of an operation.
func readOp(c net.Conn) *bufio.Reader {
	r := bufio.NewReader(c)
	io.ReadFull(r, make([]byte, 3))
	wire.ReadDelimited(r, 1<<20)
	return r
}

// readResponse encodes the response to a read: chunks of 512 bytes, CRC32C.
func readResponse(chunkOffset int64) []byte {
	checksum := wire.Message(nil).Uint(1, 2).Uint(2, 512)
	return wire.Message(nil).Delimited(wire.Message(nil).Uint(1, 0).
		Bytes(4, wire.Message(nil).Bytes(1, checksum).Uint(2, uint64(chunkOffset))))
}

// packets encodes the bytes of a block, from a chunk boundary on, as packets.
func packets(block []byte, from, size int) []byte {
	var out []byte
	seqno := int64(0)
	for at := from; at < len(block); at += size {
		data := block[at:min(at+size, len(block))]
		var sums []byte
		for i := 0; i < len(data); i += 512 {
			sums = binary.BigEndian.AppendUint32(sums, crc32.Checksum(data[i:min(i+512, len(data))], castagnoli))
		}
		out = appendPacket(out, packetHeader{offset: int64(at), seqno: seqno}, sums, data)
		seqno++
	}
	return appendPacket(out, packetHeader{offset: int64(len(block)), seqno: seqno, last: true}, nil, nil)
}

func blockBytes(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i ^ i>>8)
	}
	return b
}

func read(t *testing.T, o Options, offset, length int64) ([]byte, error) {
	t.Helper()
	r, err := OpenReader(t.Context(), "dn:1", ReadRequest{Offset: offset, Length: length}, o)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return io.ReadAll(r)
}

func TestReaderReturnsExactRange(t *testing.T) {
	block := blockBytes(10_000)
	for _, c := range []struct{ offset, length int64 }{{0, 10_000}, {0, 1}, {511, 2}, {512, 512}, {700, 9_300}, {9_999, 1}} {
		chunk := c.offset / 512 * 512
		o := serveOnce(t, func(conn net.Conn) {
			readOp(conn)
			conn.Write(readResponse(chunk))
			conn.Write(packets(block, int(chunk), 2048))
			io.Copy(io.Discard, conn)
		})
		got, err := read(t, o, c.offset, c.length)
		if err != nil || !bytes.Equal(got, block[c.offset:c.offset+c.length]) {
			t.Errorf("%+v: %d bytes, %v", c, len(got), err)
		}
	}
}

func TestReaderRefusesCorruptData(t *testing.T) {
	block := blockBytes(4096)
	flipped := packets(block, 0, 2048)
	flipped[200] ^= 1 // within the data of the first packet
	gap := append(packets(block[:2048], 0, 2048)[:2048+16+6+25], packets(block, 3072, 512)...)
	for _, c := range []struct {
		claim  string
		answer []byte
		want   error
	}{
		{"a flipped bit", append(readResponse(0), flipped...), errChecksum},
		{"an end too early", append(readResponse(0), packets(block[:2048], 0, 2048)...), hdfs.ErrProtocol},
		{"a gap", append(readResponse(0), gap...), hdfs.ErrProtocol},
		{"a hang-up", append(readResponse(0), flipped[:100]...), io.ErrUnexpectedEOF},
		{"a chunk that starts too late", readResponse(512), hdfs.ErrProtocol},
		{"a refused token", wire.Message(nil).Delimited(wire.Message(nil).Uint(1, 5).String(5, "expired")), hdfs.ErrPermission},
		{"no status", wire.Message(nil).Delimited(nil), hdfs.ErrProtocol},
		{"a message over the limit", []byte{0xff, 0xff, 0xff, 0xff, 0x0f}, wire.ErrMalformed},
		{"a packet over the limit", append(readResponse(0), 0x7f, 0xff, 0xff, 0xff, 0, 1, 0), hdfs.ErrProtocol},
	} {
		o := serveOnce(t, func(conn net.Conn) {
			readOp(conn)
			conn.Write(c.answer)
		})
		if _, err := read(t, o, 0, 4096); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.claim, err, c.want)
		}
	}
}

func located(nodes int) namenode.LocatedBlock {
	b := namenode.LocatedBlock{Block: namenode.ExtendedBlock{Pool: "BP", ID: 7}}
	for i := range nodes {
		b.Replicas = append(b.Replicas, hdfs.Replica{IP: "10.0.0.1", Port: 9000 + i})
		b.Nodes = append(b.Nodes, []byte{})
	}
	return b
}

func ack(seqno int64, replies ...uint64) []byte {
	m := wire.Message(nil).Sint(1, seqno)
	for _, r := range replies {
		m = m.Uint(2, r)
	}
	return wire.Message(nil).Delimited(m)
}

// firstGivesUp is after how long HDFS's first DataNode of two reports that the second one does not
// answer.
const firstGivesUp = 65 * time.Second

var successResponse = wire.Message(nil).Delimited(wire.Message(nil).Uint(1, 0))

func TestPipelineNamesTheNodeThatFailed(t *testing.T) {
	secondIsBad := wire.Message(nil).Delimited(wire.Message(nil).Uint(1, 1).String(2, "10.0.0.1:9001"))
	for claim, c := range map[string]struct {
		openAfter time.Duration
		open      []byte // the response to the set-up
		ackAfter  time.Duration
		ack       []byte // the answer to the first packet
		hangs     bool   // the peer hangs where an answer is missing; otherwise it closes the connection
		badNode   string
	}{
		"the set-up fails further down":        {open: secondIsBad, badNode: "10.0.0.1:9001"},
		"the set-up fails at once":             {open: wire.Message(nil).Delimited(wire.Message(nil).Uint(1, 1)), badNode: "10.0.0.1:9000"},
		"the set-up hangs up":                  {badNode: "10.0.0.1:9000"},
		"the second node is not reached":       {openAfter: firstGivesUp, open: secondIsBad, badNode: "10.0.0.1:9001"},
		"the first node hangs in the set-up":   {hangs: true, badNode: "10.0.0.1:9000"},
		"the second node does not store":       {open: successResponse, ack: ack(0, 0, 1), badNode: "10.0.0.1:9001"},
		"the second node hangs":                {open: successResponse, ackAfter: firstGivesUp, ack: ack(0, 0, 1), badNode: "10.0.0.1:9001"},
		"the first node hangs":                 {open: successResponse, hangs: true, badNode: "10.0.0.1:9000"},
		"the first node hangs up":              {open: successResponse, badNode: "10.0.0.1:9000"},
		"an acknowledgement of something else": {open: successResponse, ack: ack(5, 0, 0), badNode: ""},
	} {
		synctest.Test(t, func(t *testing.T) {
			o := serveOnce(t, func(conn net.Conn) {
				r := readOp(conn)
				time.Sleep(c.openAfter) // synctest time
				if c.open != nil {
					conn.Write(c.open)
					if h, err := readPacketHeader(r); err == nil {
						io.CopyN(io.Discard, r, int64(h.dataBytes+h.checksumBytes))
					}
				}
				if c.ack != nil {
					answering := time.AfterFunc(c.ackAfter, func() { conn.Write(c.ack) })
					defer answering.Stop()
				}
				if c.hangs || c.ack != nil {
					io.Copy(io.Discard, r)
				}
			})
			p, err := OpenPipeline(t.Context(), located(2), false, o)
			if err == nil {
				err = p.Send(blockBytes(1000))
				if err == nil {
					err = p.Finish()
				}
				p.Close()
			}
			var failure *PipelineError
			if !errors.As(err, &failure) || failure.BadNode != c.badNode || !hdfs.Retryable(err) {
				t.Errorf("%s: %v, want a failure of %q", claim, err, c.badNode)
			}
		})
	}
}

func TestPipelineSendsAllData(t *testing.T) {
	want := blockBytes(3*PacketBytes + 777)
	var got []byte
	synced := false
	o := serveOnce(t, func(conn net.Conn) {
		r := readOp(conn)
		conn.Write(successResponse)
		for {
			h, err := readPacketHeader(r)
			if err != nil {
				return
			}
			payload := make([]byte, h.checksumBytes+h.dataBytes)
			io.ReadFull(r, payload)
			check := Reader{table: castagnoli, bytesPerChecksum: BytesPerChecksum}
			if h.offset != int64(len(got)) || check.verify(payload[:h.checksumBytes], payload[h.checksumBytes:]) != nil {
				return
			}
			got = append(got, payload[h.checksumBytes:]...)
			synced = h.sync
			// The acknowledgement of a heartbeat may arrive at any time.
			conn.Write(append(ack(heartbeatSeqno, 0), ack(h.seqno, 0)...))
			if h.last {
				return
			}
		}
	})
	p, err := OpenPipeline(t.Context(), located(1), true, o)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	for at := 0; at < len(want); at += PacketBytes {
		if err := p.Send(want[at:min(at+PacketBytes, len(want))]); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.Finish(); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) || !synced || p.Block().Length != int64(len(want)) {
		t.Errorf("%d bytes, synced %v, block %+v", len(got), synced, p.Block())
	}
}

func TestContextEndsATransfer(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	o := serveOnce(t, func(conn net.Conn) {
		readOp(conn)
		cancel() // and never answer
		io.Copy(io.Discard, conn)
	})
	if _, err := OpenReader(ctx, "dn:1", ReadRequest{Length: 1}, o); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}

// FuzzReader feeds arbitrary bytes as a DataNode's response: the reader returns
// correct bytes or an error.
func FuzzReader(f *testing.F) {
	block := blockBytes(3000)
	f.Add(append(readResponse(512), packets(block, 512, 1024)...))
	f.Add([]byte{})
	fuzztest.Run(f, func(t *testing.T, answer []byte) {
		r := &Reader{r: bufio.NewReader(bytes.NewReader(answer)), conn: &timedConn{Conn: discardConn{}}, remaining: 2000}
		response, err := readOpResponse(r.r)
		if err == nil {
			err = statusError(response.status, response.message)
		}
		if err == nil {
			err = r.acceptResponse(response, 600)
		}
		if err != nil {
			return
		}
		got, err := io.ReadAll(r)
		if err == nil && len(got) != 2000 {
			t.Errorf("%d bytes without an error", len(got))
		}
	})
}

func FuzzDecodeAck(f *testing.F) {
	f.Add([]byte(wire.Message(nil).Sint(1, 7).Uint(2, 0).Uint(2, 1)))
	fuzztest.Run(f, func(t *testing.T, b []byte) {
		if _, replies, err := decodeAck(b); err == nil && len(replies) > maxPipelineNodes || err != nil && !errors.Is(err, hdfs.ErrProtocol) {
			t.Errorf("%d replies, %v", len(replies), err)
		}
	})
}

// discardConn discards writes.
type discardConn struct{ net.Conn }

func (discardConn) Write(b []byte) (int, error)      { return len(b), nil }
func (discardConn) SetWriteDeadline(time.Time) error { return nil }
func (discardConn) Close() error                     { return nil }
