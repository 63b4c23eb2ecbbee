package sortmerge

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"

	"github.com/drover-run/drover/mapreduce"
)

// liveHeap returns the bytes of the heap that are in use.
func liveHeap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC() // what the first moved out of a sync.Pool
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// writeSegments writes n segments of text, of so many records each.
func writeSegments(t testing.TB, dir string, n, records int, codec mapreduce.Codec) (segments []Segment) {
	t.Helper()
	for i := range n {
		path := filepath.Join(dir, fmt.Sprintf("%s-%d", codec, i))
		w := must[*segmentWriter](t)(createSegment(path, codec, 64<<10))
		for k := range records {
			var head [maxHeaderBytes]byte
			r := Record{Key: fmt.Appendf(nil, "key %08d", k), Value: fmt.Appendf(nil, "user %d looked at page %x", i*k%977, uint64(i+k)*0x9e3779b97f4a7c15)}
			if err := w.addRecord(append(append(head[:putHeader(head[:], r)], r.Key...), r.Value...)); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.endPart(); err != nil {
			t.Fatal(err)
		}
		segments = append(segments, Segment{Path: path, Index: *must[*mapreduce.Index](t)(w.close())})
	}
	return segments
}

// The constants that a merge and a map task count are not less than what the codec takes.
func TestMemoryOfCodecs(t *testing.T) {
	const n, buffer = 16, minBufferBytes
	segments := writeSegments(t, t.TempDir(), n, 20_000, mapreduce.CodecZstd)
	var free decoders
	var readers []*Reader
	before := liveHeap()
	for _, s := range segments {
		f := must[*os.File](t)(os.Open(s.Path))
		defer f.Close()
		r := must[*Reader](t)(newReader(s.Path, f, s.Index.Codec, s.Index.Parts[0], buffer, &free))
		for range 15_000 { // several windows
			must[bool](t)(r.Next())
		}
		readers = append(readers, r)
	}
	each := (liveHeap() - before) / n
	if each > decoderBytes {
		t.Errorf("a decoder takes %d bytes, %d are counted", each, decoderBytes)
	}
	for _, r := range readers {
		r.close()
	}
	if len(free.idle) != n {
		t.Errorf("%d of %d decoders came back", len(free.idle), n)
	}
	free.close()
	runtime.KeepAlive(segments)

	before = liveHeap()
	w := must[*segmentWriter](t)(createSegment(filepath.Join(t.TempDir(), "out"), mapreduce.CodecZstd, buffer))
	defer w.abort()
	for i := range 1 << 14 {
		if err := w.addRecord(fmt.Appendf(nil, "record %x of no given length", uint64(i)*0x9e3779b97f4a7c15)); err != nil {
			t.Fatal(err)
		}
	}
	took := liveHeap() - before
	if took > EncoderBytes {
		t.Errorf("an encoder takes %d bytes, %d are counted", took, EncoderBytes)
	}
	t.Logf("%d bytes for each decoder, %d for an encoder", each, took)
}

// Compressed segments are merged in the memory that plain ones are merged in, however many there
// are: fewer are open at once.
func TestMergeOfCompressedSegmentsFitsIntoMemory(t *testing.T) {
	const memory = 8 << 20
	for n, records := range map[int]int{64: 4000, 1000: 64} {
		var rows [2]int
		for i, codec := range []mapreduce.Codec{mapreduce.CodecNone, mapreduce.CodecZstd} {
			dir := t.TempDir()
			segments := writeSegments(t, dir, n, records, codec)
			g := ExternalMerge{Dir: dir, NamePrefix: "merge", FanIn: 32, Memory: memory}
			before := liveHeap()
			width := 1 // of the widest merge of compressed segments that may be open at once
			for width < n && g.fits(needsOf(segments[:width+1])) {
				width++
			}
			for _, open := range [][]Segment{segments[:width], must[[]Segment](t)(g.MergeToFanIn(segments))} {
				c := must[*Cursor](t)(g.Open(open))
				rows[i] = 0
				for r := must[*Record](t)(c.Next()); r != nil; r = must[*Record](t)(c.Next()) {
					if rows[i]++; rows[i]%50_000 == 40_000 {
						if took := liveHeap() - before; took > memory+memory/8 { // the lists of segments are not counted
							t.Errorf("%d %s segments, %d open: %d bytes of heap, %d allowed", n, codec, len(open), took, memory)
						}
					}
				}
				c.Close()
			}
			t.Logf("%d %s segments: at most %d open, %d merges", n, codec, width, g.Passes)
		}
		if rows[0] != rows[1] || rows[0] != n*records {
			t.Errorf("%d segments: %d plain records, %d compressed", n, rows[0], rows[1])
		}
	}
}

// A file from another node cannot make a reader allocate a large window.
func TestLargeWindowIsRefused(t *testing.T) {
	var b bytes.Buffer
	z := must[*zstd.Encoder](t)(zstd.NewWriter(&b, zstd.WithWindowSize(64<<20)))
	record := append([]byte{3, 2}, "abc"...) // never decoded
	for range 1 << 16 {
		must[int](t)(z.Write(record))
	}
	if err := z.Flush(); err != nil { // without it a frame that ends has a window of its size
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "hostile")
	if err := os.WriteFile(path, b.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	x := mapreduce.Index{Codec: mapreduce.CodecZstd, Parts: []mapreduce.PartitionRange{{
		Length: int64(b.Len()), RawLength: int64(len(record)) << 16, Records: 1 << 16, CRC32C: mapreduce.CRC32C(0, b.Bytes()),
	}}}
	err := readAll(path, &x)
	if !errors.Is(err, mapreduce.ErrCorrupt) || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "window") {
		t.Errorf("%v", err)
	}
}
