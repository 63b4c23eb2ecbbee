package client

import (
	"context"
	"errors"
	"fmt"
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

// oneFile is a NameNode with one file, whose blocks each have one replica.
type oneFile struct {
	length, id uint64
	lost       map[uint64]bool // blocks without replicas
	hidden     uint64          // bytes that locations say less than the status
	asked      []string        // ranges, as offset+length
}

func (o *oneFile) Call(_ context.Context, method string, request []byte) ([]byte, error) {
	switch method {
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
	o.asked = append(o.asked, fmt.Sprintf("%d+%d", offset, length))
	m := wire.Message(nil).Uint(1, o.length-o.hidden)
	for i := offset / blockBytes; i*blockBytes < min(offset+length, o.length); i++ {
		block := namenode.ExtendedBlock{Pool: "BP", ID: o.id*1000 + i, Length: int64(min(blockBytes, o.length-i*blockBytes))}
		b := wire.Message(nil).Bytes(1, block.Encode()).Uint(2, i*blockBytes)
		if !o.lost[i] {
			id := wire.Message(nil).String(1, fmt.Sprintf("10.0.0.%d", i%3+1)).Uint(4, 9866)
			b = b.Bytes(3, wire.Message(nil).Bytes(1, id).String(8, "/r"))
		}
		m = m.Bytes(2, b)
	}
	return pw.AppendBytes(pw.AppendTag(nil, 1, pw.BytesType), m), nil
}

func withCaller(t *testing.T, caller namenode.Caller, options Options) *Client {
	t.Helper()
	options.NameNodes, options.User = []string{"nowhere:1"}, "test"
	c, err := New(options)
	if err != nil {
		t.Fatal(err)
	}
	c.caller = caller
	return c
}

// ask asks for a range and gives the offsets of the blocks that came.
func ask(t *testing.T, c *Client, offset, length int64) []int64 {
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

func wantAsked(t *testing.T, o *oneFile, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, o.asked); diff != "" {
		t.Errorf("asked (-want +got):\n%s", diff)
	}
	o.asked = nil
}

func TestLocationsAreAskedInRanges(t *testing.T) {
	o := &oneFile{length: 1050, id: 1}
	c := withCaller(t, o, Options{BlocksPerCall: 4, CacheBlocks: -1})
	if got := ask(t, c, 0, -1); len(got) != 11 {
		t.Errorf("blocks at %v", got)
	}
	wantAsked(t, o, "0+400", "400+400", "800+250")
}

func TestOnlyWhatIsNotRememberedIsAsked(t *testing.T) {
	o := &oneFile{length: 1000, id: 1}
	c := withCaller(t, o, Options{})
	ask(t, c, 250, 100) // blocks 2 and 3
	ask(t, c, 600, 1)   // block 6
	wantAsked(t, o, "250+100", "600+1")
	if diff := cmp.Diff([]int64{200, 300}, ask(t, c, 299, 2)); diff != "" {
		t.Error(diff)
	}
	wantAsked(t, o)
	if diff := cmp.Diff([]int64{0, 100, 200, 300, 400, 500, 600, 700, 800, 900}, ask(t, c, 0, -1)); diff != "" {
		t.Error(diff)
	}
	wantAsked(t, o, "0+200", "400+200", "700+300")
	c.DataNodeLost("10.0.0.2") // blocks 1, 4 and 7
	ask(t, c, 0, -1)
	wantAsked(t, o, "100+100", "400+100", "700+100")
	c.Forget("/file")
	ask(t, c, 0, -1)
	wantAsked(t, o, "0+1000")
}

func TestReplacedFileIsAskedAgain(t *testing.T) {
	o := &oneFile{length: 300, id: 1}
	c := withCaller(t, o, Options{})
	ask(t, c, 0, -1)
	o.id = 2
	layout, err := c.Locations(t.Context(), "/file", 0, -1)
	if err != nil || layout.Blocks[0].ID != 2000 {
		t.Errorf("%+v %v", layout, err)
	}
	wantAsked(t, o, "0+300", "0+300")
}

func TestFileThatChangesBetweenTheRequests(t *testing.T) {
	o := &oneFile{length: 300, id: 1, hidden: 100}
	c := withCaller(t, o, Options{})
	if _, err := c.Locations(t.Context(), "/file", 0, -1); !errors.Is(err, hdfs.ErrChanged) {
		t.Errorf("%v", err)
	}
	wantAsked(t, o, "0+300", "0+300") // looked twice
}

func TestLocationsAreBelievedForAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := &oneFile{length: 300, id: 1}
		c := withCaller(t, o, Options{CacheAge: time.Minute})
		ask(t, c, 100, 100)
		time.Sleep(40 * time.Second) // of the test's own clock
		ask(t, c, 0, -1)
		wantAsked(t, o, "100+100", "0+100", "200+100")
		time.Sleep(40 * time.Second)
		ask(t, c, 0, -1)
		wantAsked(t, o, "100+100")
	})
}

func TestLostBlocksAreNotRemembered(t *testing.T) {
	o := &oneFile{length: 500, id: 1, lost: map[uint64]bool{2: true}}
	c := withCaller(t, o, Options{})
	for range 2 {
		layout, err := c.Locations(t.Context(), "/file", 0, -1)
		var missing *hdfs.BlockMissingError
		if err != nil || !errors.As(layout.Err(), &missing) || missing.BlockID != 1002 || missing.OffsetBytes != 200 {
			t.Errorf("%v, %v", err, layout.Err())
		}
	}
	wantAsked(t, o, "0+500", "200+100")
	o.lost = nil
	ask(t, c, 0, -1)
	ask(t, c, 0, -1)
	wantAsked(t, o, "200+100")
}

// Whatever is asked in whatever order, with whatever happening between, the
// answer is that of a client that remembers nothing, and memory keeps its
// limit.
func TestCacheAnswersAsTheNameNodeWould(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		limit := rapid.IntRange(1, 30).Draw(rt, "limit")
		o := &oneFile{length: rapid.Uint64Range(0, 2500).Draw(rt, "length"), id: 1, lost: map[uint64]bool{}}
		cached := withCaller(t, o, Options{CacheBlocks: limit, BlocksPerCall: rapid.IntRange(1, 10).Draw(rt, "per call")})
		plain := withCaller(t, o, Options{CacheBlocks: -1})
		for range rapid.IntRange(1, 20).Draw(rt, "steps") {
			switch rapid.IntRange(0, 6).Draw(rt, "what") {
			case 0:
				o.id, o.length = o.id+1, rapid.Uint64Range(0, 2500).Draw(rt, "length")
			case 1:
				cached.DataNodeLost(fmt.Sprintf("10.0.0.%d", rapid.IntRange(1, 3).Draw(rt, "node")))
			case 2:
				// A loss is noticed only by asking again.
				block := rapid.Uint64Range(0, 24).Draw(rt, "lost")
				o.lost[block] = true
				cached.DataNodeLost(fmt.Sprintf("10.0.0.%d", block%3+1))
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
			if cached.cache.blocks > limit {
				rt.Fatalf("%d blocks remembered, limit %d", cached.cache.blocks, limit)
			}
			count := 0
			for _, element := range cached.cache.files {
				count += len(element.Value.(*cachedFile).blocks)
			}
			if count != cached.cache.blocks {
				rt.Fatalf("%d blocks remembered, %d counted", count, cached.cache.blocks)
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
		{claim: "as the NameNode says", want: "1 2 3 4"},
		{claim: "the local one first", local: []string{"10.0.0.3"}, want: "3 1 2 4"},
		{claim: "by host name in any case", local: []string{"node4"}, want: "4 1 2 3"},
		{claim: "the rack second", local: []string{"10.0.0.3"}, rack: "/near", want: "3 2 4 1"},
		{claim: "what failed lately last", local: []string{"10.0.0.3"}, rack: "/near", failed: []string{"10.0.0.3:9866", "10.0.0.2:9866"}, want: "4 1 3 2"},
	} {
		client := withCaller(t, &oneFile{}, Options{LocalAddresses: c.local, LocalRack: c.rack})
		for _, address := range c.failed {
			client.failed.add(address)
		}
		got := ""
		for _, r := range client.order(given) {
			got += " " + r.IP[len("10.0.0."):]
		}
		if got[1:] != c.want {
			t.Errorf("%s: %s, want %s", c.claim, got[1:], c.want)
		}
	}
}

func TestFailedNodesAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFailedNodes()
		f.add("a:1")
		if !f.recently("a:1") || f.recently("b:1") {
			t.Error("wrong memory")
		}
		time.Sleep(failedMemory + time.Second) // of the test's own clock
		if f.recently("a:1") {
			t.Error("remembered too long")
		}
		for i := range maxFailedNodes + 10 {
			f.add(fmt.Sprint(i))
		}
		if len(f.until) > maxFailedNodes {
			t.Errorf("%d remembered", len(f.until))
		}
	})
}
