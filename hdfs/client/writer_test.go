package client

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	pw "google.golang.org/protobuf/encoding/protowire"

	"github.com/drover-run/drover/hdfs"
	"github.com/drover-run/drover/hdfs/internal/namenode"
	"github.com/drover-run/drover/hdfs/internal/wire"
)

// pipelineNodes is a NameNode that places each block on at most three of the DataNodes 10.0.0.1 to
// 10.0.0.4. It also is these DataNodes, of which hung does not answer.
type pipelineNodes struct {
	hung     string           // its IP address; "" when all answer
	inBlock  bool             // hung hangs only when a block is being written
	excluded [][]string       // IP addresses, by request for a block
	pipeline []hdfs.Replica   // of the last block
	received map[int64][]byte // the content, by block
	blocks   int64
}

func (o *pipelineNodes) Call(_ context.Context, method string, request []byte) ([]byte, error) {
	switch method {
	case "getServerDefaults":
		return wire.Message(nil).Bytes(1, wire.Message(nil).Uint(1, 1<<20).Uint(2, 512).Uint(4, 3)), nil
	case "create", "getFileInfo":
		return wire.Message(nil).Bytes(1, wire.Message(nil).Uint(1, 2).Uint(13, 1)), nil
	case "complete", "delete":
		return wire.Message(nil).Bool(1, true), nil
	case "abandonBlock", "renewLease":
		return nil, nil
	case "addBlock":
		return o.addBlock(request)
	}
	return nil, fmt.Errorf("called %s", method)
}

func (o *pipelineNodes) addBlock(request []byte) ([]byte, error) {
	excluded := []string{}
	_ = wire.Each(request, func(f wire.Field) error {
		if f.Number != 4 {
			return nil
		}
		return wire.Each(f.Bytes, func(f wire.Field) error {
			return wire.Each(f.Bytes, func(f wire.Field) error {
				if f.Number == 1 {
					excluded = append(excluded, string(f.Bytes))
				}
				return nil
			})
		})
	})
	slices.Sort(excluded)
	o.excluded = append(o.excluded, excluded)
	o.blocks++
	o.pipeline = nil
	block := wire.Message(nil).Bytes(1, namenode.ExtendedBlock{Pool: "BP", ID: uint64(o.blocks)}.Encode())
	for i := range 4 {
		ip := fmt.Sprintf("10.0.0.%d", i+1)
		if slices.Contains(excluded, ip) || len(o.pipeline) == 3 {
			continue
		}
		o.pipeline = append(o.pipeline, hdfs.Replica{IP: ip, Port: 9866})
		block = block.Bytes(3, wire.Message(nil).Bytes(1, wire.Message(nil).String(1, ip).Uint(4, 9866)))
	}
	return wire.Message(nil).Bytes(1, block), nil
}

// dial connects to the first DataNode of the last block, which reports the hanging DataNode, as
// HDFS's own DataNode does.
func (o *pipelineNodes) dial(context.Context, string, string) (net.Conn, error) {
	near, far := net.Pipe()
	go o.serve(far)
	return near, nil
}

func (o *pipelineNodes) serve(conn net.Conn) {
	defer conn.Close()
	in := bufio.NewReader(conn)
	if _, err := io.ReadFull(in, make([]byte, 3)); err != nil {
		return
	}
	if _, err := wire.ReadDelimited(in, 1<<20); err != nil {
		return
	}
	bad := slices.IndexFunc(o.pipeline, func(r hdfs.Replica) bool { return r.IP == o.hung })
	gaveUp := time.Minute + time.Duration(len(o.pipeline)-1)*5*time.Second
	if bad > 0 && !o.inBlock {
		time.Sleep(gaveUp) // synctest time
		_, _ = conn.Write(wire.Message(nil).Delimited(wire.Message(nil).Uint(1, 1).String(2, o.pipeline[bad].Addr())))
		return
	}
	if _, err := conn.Write(wire.Message(nil).Delimited(wire.Message(nil).Uint(1, 0))); err != nil {
		return
	}
	for {
		seqno, data, last, err := readPacket(in)
		if err != nil {
			return
		}
		if seqno < 0 {
			continue
		}
		ack := wire.Message(nil).Sint(1, seqno)
		for i := range o.pipeline {
			status := uint64(0)
			if i == bad {
				status = 1
			}
			ack = ack.Uint(2, status)
		}
		if bad > 0 {
			time.AfterFunc(gaveUp, func() { _, _ = conn.Write(wire.Message(nil).Delimited(ack)) })
			_, _ = io.Copy(io.Discard, in)
			return
		}
		o.received[o.blocks] = append(o.received[o.blocks], data...)
		if _, err := conn.Write(wire.Message(nil).Delimited(ack)); err != nil || last {
			return
		}
	}
}

// readPacket reads one packet of a pipeline.
func readPacket(in io.Reader) (seqno int64, data []byte, last bool, err error) {
	head := make([]byte, 6)
	if _, err = io.ReadFull(in, head); err != nil {
		return
	}
	header, body := make([]byte, binary.BigEndian.Uint16(head[4:])), make([]byte, binary.BigEndian.Uint32(head)-4)
	if _, err = io.ReadFull(in, header); err != nil {
		return
	}
	if _, err = io.ReadFull(in, body); err != nil {
		return
	}
	length := 0
	err = wire.Each(header, func(f wire.Field) error {
		switch f.Number {
		case 2:
			seqno = int64(f.Varint)
		case 3:
			last = pw.DecodeBool(f.Varint)
		case 4:
			length = int(f.Varint)
		}
		return nil
	})
	return seqno, body[len(body)-length:], last, err
}

// When a DataNode hangs in the middle of a pipeline, the DataNode in front of it reports that after
// more than a minute. The writer must then exclude the hanging DataNode, not the healthy one that
// reports it.
func TestHungDataNodeIsLeftOut(t *testing.T) {
	for claim, inBlock := range map[string]bool{"when the pipeline is opened": false, "in the middle of a block": true} {
		synctest.Test(t, func(t *testing.T) {
			o := &pipelineNodes{hung: "10.0.0.2", inBlock: inBlock, received: map[int64][]byte{}}
			var blamed []string
			c := newCallerClient(t, o, Options{dial: o.dial, Events: Events{ReplicaFailed: func(_ string, _ uint64, address string, _ error) {
				blamed = append(blamed, address)
			}}})
			content := bytes.Repeat([]byte("0123456789"), 1000)
			open := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(content)), nil }
			retries := 0
			options := hdfs.UploadOptions{OnRetry: func(int, error) { retries++ }}
			if _, err := hdfs.Upload(t.Context(), c, "/file", options, open); err != nil {
				t.Errorf("%s: %v", claim, err)
			}
			if d := cmp.Diff([][]string{{}, {"10.0.0.2"}}, o.excluded); d != "" || inBlock != (retries == 1) {
				t.Errorf("%s: %d retries; excluded for each block (-want +got):\n%s", claim, retries, d)
			}
			if !slices.Equal(blamed, []string{"10.0.0.2:9866"}) || !bytes.Equal(o.received[2], content) {
				t.Errorf("%s: blamed %v, %d bytes arrived", claim, blamed, len(o.received[2]))
			}
		})
	}
}
