package client

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	pw "google.golang.org/protobuf/encoding/protowire"
	"pgregory.net/rapid"

	"github.com/drover-run/drover/hdfs"
	"github.com/drover-run/drover/hdfs/internal/namenode"
	"github.com/drover-run/drover/hdfs/internal/wire"
)

const blockBytes = 100

// fakeNameNode is a NameNode with one file, each of whose blocks has one replica.
type fakeNameNode struct {
	length, id uint64
	missing    map[uint64]bool // blocks without replicas
	hidden     uint64          // bytes by which locations report a shorter file than the status
	encrypted  bool            // it demands encrypted data transfer
	requests   []string        // ranges, as offset+length
}

func (o *fakeNameNode) Call(_ context.Context, method string, request []byte) ([]byte, error) {
	switch method {
	case "getServerDefaults":
		return wire.Message(nil).Bytes(1, wire.Message(nil).Uint(1, blockBytes).Uint(2, 512).Uint(4, 1).Bool(6, o.encrypted)), nil
	case "getFileInfo":
		return wire.Message(nil).Bytes(1, wire.Message(nil).Uint(1, 2).Uint(3, o.length).Uint(11, blockBytes).Uint(13, o.id)), nil
	case "getBlockLocations":
	default:
		return nil, fmt.Errorf("called %s", method)
	}
	var offset, length uint64
	err := wire.Each(request, func(f wire.Field) error {
		switch f.Number {
		case 2:
			return f.SetUint(&offset)
		case 3:
			return f.SetUint(&length)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	o.requests = append(o.requests, fmt.Sprintf("%d+%d", offset, length))
	m := wire.Message(nil).Uint(1, o.length-o.hidden)
	for i := offset / blockBytes; i*blockBytes < min(offset+length, o.length); i++ {
		block := namenode.ExtendedBlock{Pool: "BP", ID: o.id*1000 + i, Length: int64(min(blockBytes, o.length-i*blockBytes))}
		b := wire.Message(nil).Bytes(1, block.Encode()).Uint(2, i*blockBytes)
		if !o.missing[i] {
			id := wire.Message(nil).String(1, fmt.Sprintf("10.0.0.%d", i%3+1)).Uint(4, 9866)
			b = b.Bytes(3, wire.Message(nil).Bytes(1, id).String(8, "/r"))
		}
		m = m.Bytes(2, b)
	}
	return pw.AppendBytes(pw.AppendTag(nil, 1, pw.BytesType), m), nil
}

func newCallerClient(t *testing.T, caller namenode.Caller, options Options) *Client {
	t.Helper()
	options.NameNodes, options.User = []string{"nowhere:1"}, "test"
	c, err := New(options)
	if err != nil {
		t.Fatal(err)
	}
	c.caller = caller
	return c
}

// getLocations requests a range and returns the offsets of the blocks.
func getLocations(t *testing.T, c *Client, offset, length int64) []int64 {
	t.Helper()
	layout, err := c.Locations(t.Context(), "/file", offset, length)
	if err != nil {
		t.Fatal(err)
	}
	offsets := []int64{}
	for _, b := range layout.Blocks {
		offsets = append(offsets, b.OffsetBytes)
	}
	return offsets
}

func wantRequests(t *testing.T, o *fakeNameNode, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, o.requests); diff != "" {
		t.Errorf("requests (-want +got):\n%s", diff)
	}
	o.requests = nil
}

func TestLocationsAreRequestedInRanges(t *testing.T) {
	o := &fakeNameNode{length: 1050, id: 1}
	c := newCallerClient(t, o, Options{blocksPerCall: 4, CacheBlocks: -1})
	if got := getLocations(t, c, 0, -1); len(got) != 11 {
		t.Errorf("blocks at %v", got)
	}
	wantRequests(t, o, "0+400", "400+400", "800+250")
}

func TestOnlyUncachedBlocksAreRequested(t *testing.T) {
	o := &fakeNameNode{length: 1000, id: 1}
	c := newCallerClient(t, o, Options{})
	getLocations(t, c, 250, 100) // blocks 2 and 3
	getLocations(t, c, 600, 1)   // block 6
	wantRequests(t, o, "250+100", "600+1")
	if diff := cmp.Diff([]int64{200, 300}, getLocations(t, c, 299, 2)); diff != "" {
		t.Error(diff)
	}
	wantRequests(t, o)
	if diff := cmp.Diff([]int64{0, 100, 200, 300, 400, 500, 600, 700, 800, 900}, getLocations(t, c, 0, -1)); diff != "" {
		t.Error(diff)
	}
	wantRequests(t, o, "0+200", "400+200", "700+300")
	c.ForgetDataNode("10.0.0.2") // blocks 1, 4 and 7
	getLocations(t, c, 0, -1)
	wantRequests(t, o, "100+100", "400+100", "700+100")
	c.Forget("/file")
	getLocations(t, c, 0, -1)
	wantRequests(t, o, "0+1000")
}

func TestReplacedFileIsRequestedAgain(t *testing.T) {
	o := &fakeNameNode{length: 300, id: 1}
	c := newCallerClient(t, o, Options{})
	getLocations(t, c, 0, -1)
	o.id = 2
	layout, err := c.Locations(t.Context(), "/file", 0, -1)
	if err != nil || layout.Blocks[0].ID != 2000 {
		t.Errorf("%+v %v", layout, err)
	}
	wantRequests(t, o, "0+300", "0+300")
}

func TestFileChangedBetweenRequests(t *testing.T) {
	o := &fakeNameNode{length: 300, id: 1, hidden: 100}
	c := newCallerClient(t, o, Options{})
	if _, err := c.Locations(t.Context(), "/file", 0, -1); !errors.Is(err, hdfs.ErrChanged) {
		t.Errorf("%v", err)
	}
	wantRequests(t, o, "0+300", "0+300") // retried once
}

// DataNodes that demand encryption close each connection, so a reader would only find missing
// blocks.
func TestEncryptedTransferIsRefused(t *testing.T) {
	c := newCallerClient(t, &fakeNameNode{length: 300, id: 1, encrypted: true}, Options{})
	_, located := c.Locations(t.Context(), "/file", 0, -1)
	_, opened := c.Open(t.Context(), "/file", 0, -1)
	_, created := c.Create(t.Context(), "/file", hdfs.CreateOptions{})
	for _, err := range []error{located, opened, created} {
		if !errors.Is(err, hdfs.ErrUnsupported) || !strings.Contains(err.Error(), "dfs.encrypt.data.transfer") {
			t.Errorf("%v", err)
		}
	}
}

func TestCachedLocationsExpire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := &fakeNameNode{length: 300, id: 1}
		c := newCallerClient(t, o, Options{cacheAge: time.Minute})
		getLocations(t, c, 100, 100)
		time.Sleep(40 * time.Second) // synctest time
		getLocations(t, c, 0, -1)
		wantRequests(t, o, "100+100", "0+100", "200+100")
		time.Sleep(40 * time.Second)
		getLocations(t, c, 0, -1)
		wantRequests(t, o, "100+100")
	})
}

// The locations of files that nobody requests any more are dropped when another file is cached.
func TestExpiredLocationsAreDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLocationCache(1000, time.Minute)
		put := func(name string) {
			block := namenode.LocatedBlock{Block: namenode.ExtendedBlock{Length: blockBytes}, Replicas: []hdfs.Replica{{IP: "10.0.0.1"}}}
			l.put(hdfs.Info{Path: name, LengthBytes: blockBytes}, []namenode.LocatedBlock{block})
		}
		put("/a")
		put("/b")
		time.Sleep(40 * time.Second) // synctest time
		put("/b")
		put("/c")
		time.Sleep(40 * time.Second)
		l.freshBlocks(hdfs.Info{Path: "/b", LengthBytes: blockBytes}, 0, blockBytes)
		put("/d")
		if got := slices.Sorted(maps.Keys(l.files)); !slices.Equal(got, []string{"/b", "/c", "/d"}) || l.blockCount != 3 {
			t.Errorf("%v and %d blocks are kept", got, l.blockCount)
		}
		time.Sleep(2 * time.Minute)
		put("/e")
		if got := slices.Sorted(maps.Keys(l.files)); !slices.Equal(got, []string{"/e"}) || l.blockCount != 1 {
			t.Errorf("later %v and %d blocks are kept", got, l.blockCount)
		}
	})
}

func TestMissingBlocksAreNotCached(t *testing.T) {
	o := &fakeNameNode{length: 500, id: 1, missing: map[uint64]bool{2: true}}
	c := newCallerClient(t, o, Options{})
	for range 2 {
		layout, err := c.Locations(t.Context(), "/file", 0, -1)
		var missing *hdfs.BlockMissingError
		if err != nil || !errors.As(layout.Err(), &missing) || missing.BlockID != 1002 || missing.OffsetBytes != 200 {
			t.Errorf("%v, %v", err, layout.Err())
		}
	}
	wantRequests(t, o, "0+500", "200+100")
	o.missing = nil
	getLocations(t, c, 0, -1)
	getLocations(t, c, 0, -1)
	wantRequests(t, o, "200+100")
}

// For any sequence of requests and events the result equals that of a client
// without a cache, and the cache stays within its limit.
func TestCacheMatchesNameNode(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		limit := rapid.IntRange(1, 30).Draw(rt, "limit")
		o := &fakeNameNode{length: rapid.Uint64Range(0, 2500).Draw(rt, "length"), id: 1, missing: map[uint64]bool{}}
		cached := newCallerClient(t, o, Options{CacheBlocks: limit, blocksPerCall: rapid.IntRange(1, 10).Draw(rt, "per call")})
		plain := newCallerClient(t, o, Options{CacheBlocks: -1})
		for range rapid.IntRange(1, 20).Draw(rt, "steps") {
			switch rapid.IntRange(0, 6).Draw(rt, "what") {
			case 0:
				o.id, o.length = o.id+1, rapid.Uint64Range(0, 2500).Draw(rt, "length")
			case 1:
				cached.ForgetDataNode(fmt.Sprintf("10.0.0.%d", rapid.IntRange(1, 3).Draw(rt, "node")))
			case 2:
				// The client notices lost replicas only by a new request.
				block := rapid.Uint64Range(0, 24).Draw(rt, "lost")
				o.missing[block] = true
				cached.ForgetDataNode(fmt.Sprintf("10.0.0.%d", block%3+1))
			}
			offset := rapid.Int64Range(0, 2600).Draw(rt, "offset")
			length := rapid.Int64Range(-1, 2600).Draw(rt, "length of range")
			got, err := cached.Locations(t.Context(), "/file", offset, length)
			if err != nil {
				rt.Fatal(err)
			}
			want, err := plain.Locations(t.Context(), "/file", offset, length)
			if err != nil {
				rt.Fatal(err)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				rt.Fatalf("(-want +got):\n%s", diff)
			}
			if cached.cache.blockCount > limit {
				rt.Fatalf("%d blocks remembered, limit %d", cached.cache.blockCount, limit)
			}
			count := 0
			for _, element := range cached.cache.files {
				count += len(element.Value.(*cachedFile).blocks)
			}
			if count != cached.cache.blockCount {
				rt.Fatalf("%d blocks remembered, %d counted", count, cached.cache.blockCount)
			}
		}
	})
}

func TestReplicasAreTriedInOrder(t *testing.T) {
	replica := func(n int, rack string) hdfs.Replica {
		return hdfs.Replica{IP: fmt.Sprintf("10.0.0.%d", n), Host: fmt.Sprintf("Node%d", n), Port: 9866, Rack: rack}
	}
	given := []hdfs.Replica{replica(1, "/far"), replica(2, "/near"), replica(3, "/far"), replica(4, "/near")}
	for _, c := range []struct {
		claim         string
		local, failed []string
		rack          string
		want          string
	}{
		{claim: "in the order of the NameNode", want: "1 2 3 4"},
		{claim: "the local one first", local: []string{"10.0.0.3"}, want: "3 1 2 4"},
		{claim: "by host name in any case", local: []string{"node4"}, want: "4 1 2 3"},
		{claim: "the rack second", local: []string{"10.0.0.3"}, rack: "/near", want: "3 2 4 1"},
		{claim: "what failed lately last", local: []string{"10.0.0.3"}, rack: "/near", failed: []string{"10.0.0.3:9866", "10.0.0.2:9866"}, want: "4 1 3 2"},
	} {
		client := newCallerClient(t, &fakeNameNode{}, Options{LocalAddresses: c.local, LocalRack: c.rack})
		for _, address := range c.failed {
			client.failedNodes.add(address, nil)
		}
		got := ""
		for _, r := range client.sortReplicas(given) {
			got += " " + r.IP[len("10.0.0."):]
		}
		if got[1:] != c.want {
			t.Errorf("%s: %s, want %s", c.claim, got[1:], c.want)
		}
	}
}

func TestFailedNodesExpire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFailedNodes()
		f.add("a:1", []byte("info"))
		f.add("a:1", nil) // a failed read, which is no reason to write to that node again
		f.add("c:1", nil)
		if !f.failedRecently("a:1") || f.failedRecently("b:1") || !f.failedRecently("c:1") {
			t.Error("wrong memory")
		}
		if got := f.ofPipelines(); len(got) != 1 || string(got["a:1"]) != "info" {
			t.Errorf("of pipelines %q", got)
		}
		time.Sleep(failedNodeTTL + time.Second) // synctest time
		if f.failedRecently("a:1") || len(f.ofPipelines()) > 0 {
			t.Error("remembered too long")
		}
		for i := range maxFailedNodes + 10 {
			f.add(fmt.Sprint(i), nil)
		}
		if len(f.nodes) > maxFailedNodes {
			t.Errorf("%d remembered", len(f.nodes))
		}
	})
}
