package client

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	pw "google.golang.org/protobuf/encoding/protowire"

	"github.com/drover-run/drover/hdfs"
	"github.com/drover-run/drover/hdfs/internal/wire"
)

// serveTenBytes is a DataNode that dies after ten bytes of each request.
func serveTenBytes(conn net.Conn) { serveBytes(conn, "0123456789") }

// serveBytes is a DataNode that answers each request with the content, whatever its offset, and dies.
func serveBytes(conn net.Conn, content string) {
	defer conn.Close()
	in := bufio.NewReader(conn)
	if _, err := io.ReadFull(in, make([]byte, 3)); err != nil {
		return
	}
	request, err := wire.ReadDelimited(in, 1<<20)
	if err != nil {
		return
	}
	var offset uint64
	_ = wire.Each(request, func(f wire.Field) error {
		if f.Number == 2 {
			return f.SetUint(&offset)
		}
		return nil
	})
	noChecksums := wire.Message(nil).Uint(1, 0).Uint(2, 1)
	out := wire.Message(nil).Delimited(wire.Message(nil).Uint(1, 0).Bytes(4, wire.Message(nil).Bytes(1, noChecksums).Uint(2, offset)))
	var header []byte
	header = pw.AppendFixed64(pw.AppendTag(header, 1, pw.Fixed64Type), offset)
	header = pw.AppendFixed64(pw.AppendTag(header, 2, pw.Fixed64Type), 0)
	header = pw.AppendVarint(pw.AppendTag(header, 3, pw.VarintType), 0)
	header = pw.AppendFixed32(pw.AppendTag(header, 4, pw.Fixed32Type), uint32(len(content)))
	out = binary.BigEndian.AppendUint32(out, uint32(4+len(content)))
	out = binary.BigEndian.AppendUint16(out, uint16(len(header)))
	out = append(append(out, header...), content...)
	_, _ = conn.Write(out)
}

// TestReaderWaitsAgainAfterProgress reads a block whose only DataNode fails again and again.
// MissingWait bounds the time without a byte, not the time since the first failure within the
// block.
func TestReaderWaitsAgainAfterProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCallerClient(t, &fakeNameNode{length: blockBytes, id: 1}, Options{MissingWait: time.Second,
			dial: func(context.Context, string, string) (net.Conn, error) {
				near, far := net.Pipe()
				go serveTenBytes(far)
				return near, nil
			}})
		r, err := c.Open(t.Context(), "/file", 0, -1)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		if b, err := io.ReadAll(r); err != nil || len(b) != blockBytes {
			t.Errorf("%d bytes, %v", len(b), err)
		}
	})
}

// TestWindowWithoutBlocksIsRefused: a reader that got no block would request it again for ever.
func TestWindowWithoutBlocksIsRefused(t *testing.T) {
	c := newCallerClient(t, &fakeNameNode{length: 100, id: 1}, Options{})
	for end, want := range map[int64]error{0: nil, 100: hdfs.ErrProtocol} {
		// The product of this block size and blocksPerCall is no positive number.
		r := &reader{c: c, ctx: t.Context(), info: hdfs.Info{Path: "/file", LengthBytes: 100, ID: 1, BlockSizeBytes: 1 << 62}, end: end}
		if err := r.fillWindow(); !errors.Is(err, want) {
			t.Errorf("up to byte %d: %v, want %v", end, err, want)
		}
	}
}
