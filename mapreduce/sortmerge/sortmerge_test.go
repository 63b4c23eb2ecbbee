package sortmerge

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/drover-run/drover/internal/fuzztest"
	"github.com/drover-run/drover/mapreduce"
)

// row is a record that owns its bytes.
type row struct {
	Key, Value string
	NoValue    bool
}

func (r row) record() Record { return Record{[]byte(r.Key), []byte(r.Value), r.NoValue} }

func rowOf(r Record) row { return row{string(r.Key), string(r.Value), r.NoValue} }

// referenceSort is the obvious implementation: split by partition, stable sort
// by key.
func referenceSort(rows []row, parts int) [][]row {
	out := make([][]row, parts)
	for _, r := range rows {
		p := mapreduce.Partition([]byte(r.Key), parts)
		out[p] = append(out[p], r)
	}
	for _, p := range out {
		slices.SortStableFunc(p, func(a, b row) int { return cmp.Compare(a.Key, b.Key) })
	}
	return out
}

// drawRows draws keys of all the kinds that the sort treats differently: short,
// with trailing zeros, with long common prefixes, and many equal ones.
func drawRows(t *rapid.T, most int) []row {
	key := rapid.OneOf(
		rapid.StringMatching(`[a-c]{0,3}`),
		rapid.StringMatching(`(a|\x00){0,12}`),
		rapid.Map(rapid.StringMatching(`[xy]{0,3}`), func(s string) string { return "a long common start " + s }),
		rapid.Map(rapid.StringMatching(`[xy]{0,2}`), func(s string) string { return strings.Repeat("deep", 30) + s }),
		rapid.Map(rapid.SliceOfN(rapid.Byte(), 0, 10), func(b []byte) string { return string(b) }),
	)
	n := rapid.IntRange(0, most).Draw(t, "records")
	keys := rapid.SliceOfN(key, 1, 40).Draw(t, "keys")
	seed := rapid.Uint64().Draw(t, "seed")
	rows := make([]row, n)
	for i := range rows {
		seed = seed*6364136223846793005 + 1442695040888963407
		rows[i] = row{Key: keys[int(seed>>33)%len(keys)], Value: strconv.Itoa(i), NoValue: seed>>60 == 0}
		if rows[i].NoValue {
			rows[i].Value = ""
		}
	}
	return rows
}

type fataler interface {
	Helper()
	Fatal(...any)
}

func must[T any](t fataler) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func readParts(t fataler, path string, x *mapreduce.Index) [][]row {
	g := ExternalMerge{FanIn: 2, Memory: 1 << 16}
	c := must[*Cursor](t)(g.Open([]Segment{{Path: path, Index: *x}}))
	defer c.Close()
	var out [][]row
	for {
		m := must[*merger](t)(c.nextPart())
		if m == nil {
			return out
		}
		var rows []row
		for must[bool](t)(m.next()) {
			rows = append(rows, rowOf(*m.record()))
		}
		out = append(out, rows)
	}
}

// For any records, partitions and memory limit: the output equals that of
// referenceSort, and no other file is left in the folder.
func TestCollectorMatchesReferenceSort(t *testing.T) {
	base := t.TempDir()
	iteration := 0
	rapid.Check(t, func(t *rapid.T) {
		iteration++
		dir := filepath.Join(base, strconv.Itoa(iteration))
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		rows := drawRows(t, 3000)
		parts := rapid.IntRange(1, 9).Draw(t, "parts")
		codec := rapid.SampledFrom([]mapreduce.Codec{mapreduce.CodecNone, mapreduce.CodecZstd}).Draw(t, "codec")
		c := NewCollector(Options{Parts: parts, Dir: dir, FanIn: rapid.IntRange(2, 6).Draw(t, "fan-in"),
			Memory: rapid.SampledFrom([]int64{4 << 10, 20 << 10, 1 << 20}).Draw(t, "memory")})
		for _, r := range rows {
			if err := c.Add(mapreduce.Partition([]byte(r.Key), parts), r.record()); err != nil {
				t.Fatal(err)
			}
		}
		out := filepath.Join(dir, "out")
		x := must[*mapreduce.Index](t)(c.Finish(out, codec))
		if d := gocmp.Diff(referenceSort(rows, parts), readParts(t, out, x)); d != "" {
			t.Fatal(d)
		}
		left := must[[]os.DirEntry](t)(os.ReadDir(dir))
		if len(left) != 1 {
			t.Fatalf("files left: %v", left)
		}
		if !slices.Equal(x.Parts, must[*mapreduce.Index](t)(mapreduce.DecodeIndex(x.Encode())).Parts) {
			t.Fatal("the index does not survive encoding")
		}
		os.RemoveAll(dir)
	})
}

// sumCombiner adds up the values of adjacent equal keys.
type sumCombiner struct{ calls, parts int }

func (s *sumCombiner) Combine(next func() (*Record, error), emit func(int, Record) error) error {
	s.calls++
	var key []byte
	var sum int64
	open := false
	flush := func() error {
		if !open {
			return nil
		}
		return emit(mapreduce.Partition(key, s.parts), Record{Key: key, Value: strconv.AppendInt(nil, sum, 10)})
	}
	for {
		r, err := next()
		if err != nil {
			return err
		}
		if r == nil {
			return flush()
		}
		if !open || !bytes.Equal(r.Key, key) {
			if err := flush(); err != nil {
				return err
			}
			key, sum, open = bytes.Clone(r.Key), 0, true
		}
		n, err := strconv.ParseInt(string(r.Value), 10, 64)
		if err != nil {
			return err
		}
		sum += n
	}
}

func TestCombinerPreservesSums(t *testing.T) {
	base := t.TempDir()
	iteration := 0
	rapid.Check(t, func(t *rapid.T) {
		iteration++
		dir := filepath.Join(base, strconv.Itoa(iteration))
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		rows := drawRows(t, 3000)
		want := map[string]int64{}
		parts := rapid.IntRange(1, 5).Draw(t, "parts")
		c := NewCollector(Options{Parts: parts, Dir: dir, FanIn: 3, Combiner: &sumCombiner{parts: parts},
			Memory: rapid.SampledFrom([]int64{16 << 10, 64 << 10, 1 << 20}).Draw(t, "memory")})
		for i, r := range rows {
			want[r.Key] += int64(i)
			r.Value, r.NoValue = strconv.Itoa(i), false
			if err := c.Add(mapreduce.Partition([]byte(r.Key), parts), r.record()); err != nil {
				t.Fatal(err)
			}
		}
		out := filepath.Join(dir, "out")
		x := must[*mapreduce.Index](t)(c.Finish(out, mapreduce.CodecNone))
		got := map[string]int64{}
		for p, part := range readParts(t, out, x) {
			if !slices.IsSortedFunc(part, func(a, b row) int { return cmp.Compare(a.Key, b.Key) }) {
				t.Fatal("not sorted")
			}
			for _, r := range part {
				if mapreduce.Partition([]byte(r.Key), parts) != p {
					t.Fatalf("%q is in partition %d", r.Key, p)
				}
				got[r.Key] += must[int64](t)(strconv.ParseInt(r.Value, 10, 64))
			}
		}
		if d := gocmp.Diff(want, got); d != "" {
			t.Fatal(d)
		}
		if left := must[[]os.DirEntry](t)(os.ReadDir(dir)); len(left) != 1 {
			t.Fatalf("files left: %v", left)
		}
		if len(rows) > 0 && c.Stats().CombineIn.Records < int64(len(rows)) {
			t.Fatalf("combiner saw %d of %d records", c.Stats().CombineIn.Records, len(rows))
		}
		os.RemoveAll(dir)
	})
}

// sameCombiner passes records on to their partitions, and allocates nothing.
type sameCombiner int

func (parts sameCombiner) Combine(next func() (*Record, error), emit func(int, Record) error) error {
	for {
		r, err := next()
		if r == nil || err != nil {
			return err
		}
		if err := emit(mapreduce.Partition(r.Key, int(parts)), *r); err != nil {
			return err
		}
	}
}

// The last merge through a combiner uses the memory of the Collector, because a task has no more.
func TestLastCombinerTakesNoFurtherArena(t *testing.T) {
	const memory, parts = 8 << 20, 2
	c := NewCollector(Options{Parts: parts, Dir: t.TempDir(), FanIn: 100, Memory: memory, Combiner: sameCombiner(parts)})
	for i := range memory / (entryBytes + 16) {
		key := []byte(strconv.Itoa(i))
		if err := c.Add(mapreduce.Partition(key, parts), Record{Key: key, Value: []byte("1")}); err != nil {
			t.Fatal(err)
		}
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	must[*mapreduce.Index](t)(c.Finish(filepath.Join(t.TempDir(), "out"), mapreduce.CodecNone))
	runtime.ReadMemStats(&after)
	s := c.Stats()
	if took := after.TotalAlloc - before.TotalAlloc; s.Spills < minCombineSegments || took > memory*3/4 {
		t.Errorf("%d spills, %d bytes allocated beside an arena of %d", s.Spills, took, memory)
	}
}

func writeSample(t *testing.T, codec mapreduce.Codec) (path string, x *mapreduce.Index) {
	t.Helper()
	dir := t.TempDir()
	c := NewCollector(Options{Parts: 1, Dir: dir, FanIn: 2, Memory: 1 << 20})
	for i := range 500 {
		if err := c.Add(0, Record{Key: []byte(fmt.Sprint("key", i%50)), Value: []byte("value")}); err != nil {
			t.Fatal(err)
		}
	}
	path = filepath.Join(dir, "out")
	return path, must[*mapreduce.Index](t)(c.Finish(path, codec))
}

func readAll(path string, x *mapreduce.Index) error {
	g := ExternalMerge{FanIn: 2, Memory: 1 << 16}
	c, err := g.Open([]Segment{{Path: path, Index: *x}})
	if err != nil {
		return err
	}
	defer c.Close()
	for {
		r, err := c.Next()
		if r == nil || err != nil {
			return err
		}
	}
}

// Whichever byte changes, and wherever the file is cut, the reader reports the
// partition as corrupt; it neither panics nor ends silently.
func TestReaderDetectsCorruption(t *testing.T) {
	for _, codec := range []mapreduce.Codec{mapreduce.CodecNone, mapreduce.CodecZstd} {
		t.Run(codec.String(), func(t *testing.T) {
			path, x := writeSample(t, codec)
			whole := must[[]byte](t)(os.ReadFile(path))
			step := max(1, len(whole)/400)
			for i := 0; i < len(whole); i += step {
				damaged := bytes.Clone(whole)
				damaged[i] ^= 0x11
				for what, b := range map[string][]byte{"changed": damaged, "cut": whole[:i]} {
					if err := os.WriteFile(path, b, 0o600); err != nil {
						t.Fatal(err)
					}
					if err := readAll(path, x); !errors.Is(err, mapreduce.ErrCorrupt) {
						t.Fatalf("byte %d %s: error %v", i, what, err)
					}
				}
			}
		})
	}
}

func TestLargeRecordsWithSmallMemory(t *testing.T) {
	dir := t.TempDir()
	c := NewCollector(Options{Parts: 2, Dir: dir, FanIn: 2, Memory: 4 << 10})
	var rows []row
	for i := range 20 {
		rows = append(rows, row{Key: fmt.Sprint(i % 3), Value: strings.Repeat("v", 1+i*1000)})
		rows = append(rows, row{Key: strings.Repeat("k", 70000+i%2), Value: fmt.Sprint(i)})
	}
	for _, r := range rows {
		if err := c.Add(mapreduce.Partition([]byte(r.Key), 2), r.record()); err != nil {
			t.Fatal(err)
		}
	}
	out := filepath.Join(dir, "out")
	x := must[*mapreduce.Index](t)(c.Finish(out, mapreduce.CodecNone))
	if d := gocmp.Diff(referenceSort(rows, 2), readParts(t, out, x)); d != "" {
		t.Fatal(d)
	}
}

// MergeToFanIn keeps the order, stays within the fan-in and needs few passes.
func TestMergeToFanInIsMinimal(t *testing.T) {
	for _, c := range []struct{ segments, fanIn, passes int }{{1, 2, 0}, {2, 2, 0}, {3, 2, 1}, {9, 2, 7}, {10, 4, 2}, {33, 32, 1}, {64, 32, 2}} {
		t.Run(fmt.Sprint(c.segments, " segments by ", c.fanIn), func(t *testing.T) {
			dir := t.TempDir()
			var segments []Segment
			for i := range c.segments {
				w := must[*segmentWriter](t)(createSegment(filepath.Join(dir, fmt.Sprint(i)), mapreduce.CodecNone, minBufferBytes))
				var head [maxHeaderBytes]byte
				rec := Record{Key: []byte("same"), Value: []byte(strconv.Itoa(i))}
				n := putHeader(head[:], rec)
				if err := w.addRecord(slices.Concat(head[:n], rec.Key, rec.Value)); err != nil {
					t.Fatal(err)
				}
				if err := w.endPart(); err != nil {
					t.Fatal(err)
				}
				segments = append(segments, Segment{Path: w.file.Name(), Index: *must[*mapreduce.Index](t)(w.close()), temp: true})
			}
			g := ExternalMerge{Dir: dir, NamePrefix: "m", FanIn: c.fanIn, Memory: 1 << 16}
			left := must[[]Segment](t)(g.MergeToFanIn(segments))
			if g.Passes != c.passes || len(left) > c.fanIn {
				t.Fatalf("%d passes to %d segments, want %d passes", g.Passes, len(left), c.passes)
			}
			cur := must[*Cursor](t)(g.Open(left))
			defer cur.Close()
			for i := range c.segments {
				r, err := cur.Next()
				if r == nil || err != nil || string(r.Value) != strconv.Itoa(i) {
					t.Fatalf("record %d is %v (%v)", i, r, err)
				}
			}
		})
	}
}

// A merge holds a record of each open segment, so it opens only as many segments as have memory for
// their largest records. Segments whose largest record is unknown are merged as before.
func TestMergeHoldsNoMoreRecordsThanFit(t *testing.T) {
	const memory, segments, fanIn = 1 << 20, 32, 32
	large := func(int) int { return memory / 2 }
	for name, c := range map[string]struct {
		value        func(segment int) int // bytes
		unknown      bool
		passes, left int
	}{
		"each as large as half of the memory":  {large, false, segments - 2, 2},
		"records that fit into the buffers":    {func(int) int { return memory/(segments+2) - 100 }, false, 0, segments},
		"one that fits beside smaller buffers": {func(i int) int { return 1 + i/(segments-1)*memory/2 }, false, 0, segments},
		"three of which two fit":               {func(i int) int { return 1 + i/(segments-3)*memory/3 }, false, 1, segments - 1},
		"files of an earlier version":          {large, true, 0, segments},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			var list []Segment
			for i := range segments {
				w := must[*segmentWriter](t)(createSegment(filepath.Join(dir, strconv.Itoa(i)), mapreduce.CodecNone, minBufferBytes))
				rec := Record{Key: []byte("k"), Value: bytes.Repeat([]byte{byte(i)}, c.value(i))}
				var head [maxHeaderBytes]byte
				n := putHeader(head[:], rec)
				if err := errors.Join(w.addRecord(slices.Concat(head[:n], rec.Key, rec.Value)), w.endPart()); err != nil {
					t.Fatal(err)
				}
				s := Segment{Path: w.file.Name(), Index: *must[*mapreduce.Index](t)(w.close()), temp: true}
				if c.unknown {
					s.Index.Parts[0].Largest = 0
				}
				list = append(list, s)
			}
			g := ExternalMerge{Dir: dir, NamePrefix: "m", FanIn: fanIn, Memory: memory}
			left := must[[]Segment](t)(g.MergeToFanIn(list))
			if g.Passes != c.passes || len(left) != c.left {
				t.Errorf("%d passes to %d segments, want %d to %d", g.Passes, len(left), c.passes, c.left)
			}
			cur := must[*Cursor](t)(g.Open(left))
			defer cur.Close()
			for i := range segments {
				r, err := cur.Next()
				if r == nil || err != nil || len(r.Value) != c.value(i) || r.Value[0] != byte(i) {
					t.Fatalf("record %d is another one (%v)", i, err)
				}
				held := 0
				for _, r := range cur.merger.readers {
					held += cap(r.buf)
				}
				if !c.unknown && held > memory+memory/8 { // a buffer grows to a round size
					t.Errorf("%d bytes in buffers", held)
				}
			}
		})
	}
}

// Reducers may already read the file of an earlier run, so it is replaced and not written to.
func TestOutputReplacesEarlierFile(t *testing.T) {
	path, linked := filepath.Join(t.TempDir(), "data"), filepath.Join(t.TempDir(), "linked")
	for _, value := range []string{"first", "again"} {
		c := NewCollector(Options{Parts: 1, Memory: 1 << 16, Dir: t.TempDir(), FanIn: 2})
		if err := c.Add(0, Record{Key: []byte("k"), Value: []byte(value)}); err != nil {
			t.Fatal(err)
		}
		must[*mapreduce.Index](t)(c.Finish(path, mapreduce.CodecNone))
		if err := os.Link(path, linked); err != nil && !errors.Is(err, os.ErrExist) {
			t.Fatal(err)
		}
	}
	for name, want := range map[string]string{linked: "\x01\x06kfirst", path: "\x01\x06kagain"} {
		if got := string(must[[]byte](t)(os.ReadFile(name))); got != want {
			t.Errorf("%s holds %q, want %q", name, got, want)
		}
	}
}

func FuzzReader(f *testing.F) {
	f.Add([]byte("\x01\x02kv\x00\x00"), int64(2))
	f.Add([]byte("\xff\xff\xff\xff\x0f\x01"), int64(1))
	fuzztest.Run(f, func(t *testing.T, b []byte, records int64) {
		want := mapreduce.PartitionRange{Length: int64(len(b)), RawLength: int64(len(b)), Records: records, CRC32C: mapreduce.CRC32C(0, b)}
		r, err := NewReader("fuzz", bytes.NewReader(b), mapreduce.CodecNone, want, 32)
		if err != nil {
			t.Fatal(err)
		}
		defer r.close()
		n := 0
		for {
			ok, err := r.Next()
			if err != nil && !errors.Is(err, mapreduce.ErrCorrupt) {
				t.Fatal(err)
			}
			if !ok || err != nil {
				break
			}
			if n++; n > len(b) {
				t.Fatal("more records than bytes")
			}
		}
	})
}
