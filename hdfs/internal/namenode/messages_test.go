package namenode

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/drover-run/drover/hdfs"
	"github.com/drover-run/drover/hdfs/internal/wire"
	"github.com/drover-run/drover/internal/fuzztest"
)

func newMessage() wire.Message { return nil }

// encodeDatanode encodes DatanodeInfoProto.
func encodeDatanode(ip, host, rack string, port uint64) []byte {
	return newMessage().Bytes(1, newMessage().String(1, ip).String(2, host).String(3, "uuid").Uint(4, port).Uint(5, 9864).Uint(6, 9867)).
		Uint(2, 1<<40).String(8, rack).Uint(10, 0)
}

// locatedBlock encodes LocatedBlockProto.
func locatedBlock(id, offset, length uint64, nodes ...[]byte) []byte {
	m := newMessage().Bytes(1, ExtendedBlock{Pool: "BP-1", ID: id, Generation: 1001, Length: int64(length)}.Encode()).Uint(2, offset)
	for _, n := range nodes {
		m = m.Bytes(3, n)
	}
	m = m.Bool(4, false).Bytes(5, newMessage().String(1, "").String(2, "").String(3, "").String(4, ""))
	m = m.Bytes(6, []byte{0, 0}) // isCached, packed
	for i := range nodes {
		m = m.Uint(7, 1).String(8, fmt.Sprint("DS-", i))
	}
	return m
}

func located(length uint64, growing bool, blocks ...[]byte) []byte {
	m := newMessage().Uint(1, length)
	for _, b := range blocks {
		m = m.Bytes(2, b)
	}
	return newMessage().Bytes(1, m.Bool(3, growing).Bool(5, !growing))
}

func fileStatus(kind uint64, name string, length uint64) []byte {
	return newMessage().Uint(1, kind).String(2, name).Uint(3, length).Bytes(4, newMessage().Uint(1, 0o640)).
		String(5, "alice").String(6, "staff").Uint(7, 1700000000123).Uint(8, 0).
		Uint(10, 3).Uint(11, 1<<27).Uint(13, 16387)
}

func TestDecodeBlockLocations(t *testing.T) {
	n1, n2 := encodeDatanode("10.0.0.1", "one", "/r1", 9866), encodeDatanode("10.0.0.2", "two", "/r2", 9866)
	got, err := decodeBlockLocations(located(300, false, locatedBlock(7, 0, 200, n1, n2), locatedBlock(8, 200, 100)))
	if err != nil {
		t.Fatal(err)
	}
	token := []byte(newMessage().String(1, "").String(2, "").String(3, "").String(4, ""))
	want := &BlockLocations{FileLength: 300, Blocks: []LocatedBlock{
		{Block: ExtendedBlock{"BP-1", 7, 1001, 200}, Token: token, Nodes: [][]byte{n1, n2},
			StorageTypes: []uint64{1, 1}, StorageIDs: []string{"DS-0", "DS-1"},
			Replicas: []hdfs.Replica{{IP: "10.0.0.1", Host: "one", Port: 9866, Rack: "/r1"}, {IP: "10.0.0.2", Host: "two", Port: 9866, Rack: "/r2"}}},
		{Block: ExtendedBlock{"BP-1", 8, 1001, 100}, Offset: 200, Token: token},
	}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestDecodeFileStatus(t *testing.T) {
	got, err := decodeFileStatus(fileStatus(typeFile, "name", 42))
	if err != nil {
		t.Fatal(err)
	}
	want := FileStatus{Name: "name", Info: hdfs.Info{LengthBytes: 42, ModTime: time.UnixMilli(1700000000123).UTC(), ID: 16387,
		Owner: "alice", Group: "staff", Perm: 0o640, Replication: 3, BlockSizeBytes: 1 << 27}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestUnreadableFilesAreReported(t *testing.T) {
	for number, want := range map[int]string{15: "it lies in an encryption zone", 17: "it is erasure-coded"} {
		s, err := decodeFileStatus(append(fileStatus(typeFile, "", 1), newMessage().Bytes(protowire.Number(number), nil)...))
		if err != nil || s.UnreadableReason != want {
			t.Errorf("field %d: %q %v", number, s.UnreadableReason, err)
		}
	}
}

func TestMalformedMessagesAreRefused(t *testing.T) {
	one := encodeDatanode("10.0.0.1", "one", "/r1", 9866)
	for claim, b := range map[string][]byte{
		"a block without an identity":  located(1, false, newMessage().Uint(2, 0)),
		"half an identity":             located(1, false, newMessage().Bytes(1, newMessage().Uint(2, 5))),
		"a negative length of a file":  newMessage().Bytes(1, newMessage().Uint(1, 1<<63)),
		"a block past the end of time": located(1, false, locatedBlock(1, 1<<62, 1<<62+1<<62-1, one)),
		"blocks out of order":          located(9, false, locatedBlock(1, 5, 4, one), locatedBlock(2, 0, 5, one)),
		"blocks that overlap":          located(9, false, locatedBlock(1, 0, 6, one), locatedBlock(2, 5, 4, one)),
		"a DataNode without a port":    located(1, false, locatedBlock(1, 0, 1, encodeDatanode("10.0.0.1", "one", "/r1", 0))),
		"a DataNode without address":   located(1, false, locatedBlock(1, 0, 1, encodeDatanode("", "one", "/r1", 9866))),
		"a port above 65535":           located(1, false, locatedBlock(1, 0, 1, encodeDatanode("10.0.0.1", "one", "/r1", 70000))),
		"bytes cut off":                located(1, false, locatedBlock(1, 0, 1, one))[:20],
		"a wrong wire type":            newMessage().Bytes(1, newMessage().String(1, "length")),
	} {
		if got, err := decodeBlockLocations(b); !errors.Is(err, hdfs.ErrProtocol) {
			t.Errorf("%s: %+v, %v", claim, got, err)
		}
	}
	if _, err := decodeFileStatus(fileStatus(9, "", 0)); !errors.Is(err, hdfs.ErrProtocol) {
		t.Errorf("an unknown file type: %v", err)
	}
	for claim, field := range map[string][]byte{
		"a block size above 2^50": newMessage().Uint(11, 1<<50+1),
		"a length above 2^60":     newMessage().Uint(3, 1<<60+1),
	} {
		if _, err := decodeFileStatus(append(fileStatus(typeFile, "", 0), field...)); !errors.Is(err, hdfs.ErrProtocol) {
			t.Errorf("%s: %v", claim, err)
		}
	}
	for _, name := range []string{".", "..", "a/b", "/", "a\x00", strings.Repeat("a", maxName+1)} {
		listing := newMessage().Bytes(1, newMessage().Bytes(1, fileStatus(typeFile, name, 1)).Uint(2, 0))
		if _, _, _, err := decodeListing(listing); !errors.Is(err, hdfs.ErrProtocol) {
			t.Errorf("an entry %.10q: %v", name, err)
		}
	}
	for _, name := range []string{"", "..a", "a.", strings.Repeat("a", maxName)} {
		listing := newMessage().Bytes(1, newMessage().Bytes(1, fileStatus(typeFile, name, 1<<60)).Uint(2, 0))
		if _, _, _, err := decodeListing(listing); err != nil {
			t.Errorf("an entry %.10q: %v", name, err)
		}
	}
	if s, err := decodeFileStatus(fileStatus(typeFile, "/a/full/name", 1)); err != nil || s.Name != "/a/full/name" {
		t.Errorf("a file by its full name: %v", err)
	}
	if _, err := decodeDefaults(nil); !errors.Is(err, hdfs.ErrProtocol) {
		t.Errorf("no defaults: %v", err)
	}
}

// cannedCaller returns a fixed response for each method.
type cannedCaller map[string][]byte

func (a cannedCaller) Call(_ context.Context, method string, _ []byte) ([]byte, error) {
	return a[method], nil
}

func TestEmptyResponsesMeanNotFound(t *testing.T) {
	ctx := t.Context()
	if _, err := GetFileInfo(ctx, cannedCaller{}, "/x"); !errors.Is(err, hdfs.ErrNotExist) {
		t.Errorf("getFileInfo: %v", err)
	}
	if _, _, err := GetListing(ctx, cannedCaller{}, "/x", ""); !errors.Is(err, hdfs.ErrNotExist) {
		t.Errorf("getListing: %v", err)
	}
	if _, err := GetBlockLocations(ctx, cannedCaller{}, "/x", 0, 1); !errors.Is(err, hdfs.ErrNotExist) {
		t.Errorf("getBlockLocations: %v", err)
	}
	if _, err := AddBlock(ctx, cannedCaller{}, Lease{}, nil, nil); !errors.Is(err, hdfs.ErrProtocol) {
		t.Errorf("addBlock: %v", err)
	}
	noNodes := cannedCaller{"addBlock": newMessage().Bytes(1, locatedBlock(1, 0, 0))}
	if _, err := AddBlock(ctx, noNodes, Lease{}, nil, nil); !errors.Is(err, hdfs.ErrUnavailable) {
		t.Errorf("addBlock without DataNodes: %v", err)
	}
}

func FuzzDecode(f *testing.F) {
	one := encodeDatanode("10.0.0.1", "one", "/r1", 9866)
	f.Add(located(300, false, locatedBlock(7, 0, 200, one, one), locatedBlock(8, 200, 100)))
	f.Add([]byte(newMessage().Bytes(1, newMessage().Bytes(1, fileStatus(typeFile, "a", 1)).Bytes(1, fileStatus(typeDir, "b", 0)).Uint(2, 3))))
	f.Add([]byte(newMessage().Bytes(1, newMessage().Uint(1, 1<<27).Uint(2, 512).Uint(4, 3))))
	fuzztest.Run(f, func(t *testing.T, b []byte) {
		check := func(err error) {
			if err != nil && !errors.Is(err, hdfs.ErrProtocol) && !errors.Is(err, hdfs.ErrNotExist) {
				t.Errorf("error without a class: %v", err)
			}
		}
		blocks, err := decodeBlockLocations(b)
		check(err)
		if err == nil && blocks != nil {
			end := int64(0)
			for _, block := range blocks.Blocks {
				if block.Offset < end || block.Block.Length < 0 || len(block.Nodes) != len(block.Replicas) {
					t.Errorf("accepted %+v", block)
				}
				end = block.Offset + block.Block.Length
			}
		}
		_, _, _, err = decodeListing(b)
		check(err)
		_, err = decodeSoleStatus("status", b)
		check(err)
		_, err = decodeDefaults(b)
		check(err)
		_, err = decodeBool("result", b)
		check(err)
	})
}

func BenchmarkDecodeBlockLocations(b *testing.B) {
	one, two := encodeDatanode("10.0.0.1", "one", "/r1", 9866), encodeDatanode("10.0.0.2", "two", "/r2", 9866)
	blocks := make([][]byte, 1000)
	for i := range blocks {
		blocks[i] = locatedBlock(uint64(i), uint64(i)<<20, 1<<20, one, two)
	}
	message := located(1000<<20, false, blocks...)
	b.SetBytes(int64(len(message)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := decodeBlockLocations(message); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/1000, "ns/block")
}
