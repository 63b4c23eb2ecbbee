package mapreduce

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"
)

func TestPlanSplits(t *testing.T) {
	b := func(path string, off, n int64, hosts ...string) FileBlock {
		return FileBlock{Path: path, Offset: off, Length: n, Hosts: hosts}
	}
	for name, c := range map[string]struct {
		blocks  []FileBlock
		combine int64
		want    string // path@offset+length joined by "," in [] with hosts
		wantErr string
	}{
		"one split for each block, in order of place": {
			blocks: []FileBlock{b("f", 10, 10, "n2"), b("f", 0, 10, "n1")},
			want:   "[f@0+10|n1][f@10+10|n2]",
		},
		"empty files and blocks produce no split": {
			blocks: []FileBlock{b("e", 0, 0, "n1"), b("f", 0, 1)},
			want:   "[f@0+1|]",
		},
		"a compressed file is one split, hosts by bytes": {
			blocks: []FileBlock{b("a.gz", 0, 10, "n1", "n2"), b("a.gz", 10, 30, "n3", "n2"), b("a.gz", 40, 5, "n3")},
			want:   "[a.gz@0+45|n2,n3,n1]",
		},
		"combine packs the blocks of one host": {
			blocks:  []FileBlock{b("a", 0, 4, "n1"), b("b", 0, 4, "n2"), b("c", 0, 4, "n1"), b("d", 0, 4, "n2")},
			combine: 8,
			want:    "[a@0+4,c@0+4|n1][b@0+4,d@0+4|n2]",
		},
		"combine packs leftovers of several hosts": {
			blocks:  []FileBlock{b("a", 0, 2, "n1"), b("b", 0, 2, "n2"), b("c", 0, 2, "n3")},
			combine: 8,
			want:    "[a@0+2,b@0+2,c@0+2|n1,n2,n3]",
		},
		"combine goes on with a host behind a file that does not fit": {
			blocks:  []FileBlock{b("a", 0, 3, "n1"), b("b", 0, 6, "n1"), b("c", 0, 1, "n2"), b("d", 0, 4, "n1")},
			combine: 8,
			want:    "[a@0+3,d@0+4|n1][b@0+6|n1][c@0+1|n2]",
		},
		"combine leaves large blocks alone and packs compressed files": {
			blocks:  []FileBlock{b("a", 0, 9, "n1"), b("z.gz", 0, 3, "n1"), b("b.bz2", 0, 3, "n1")},
			combine: 8,
			want:    "[a@0+9|n1][b.bz2@0+3,z.gz@0+3|n1]",
		},
		"an unsupported compression is refused by name": {
			blocks:  []FileBlock{b("a.xz", 0, 9)},
			wantErr: "a.xz: compression .xz is not supported",
		},
		"overlapping blocks are refused": {
			blocks:  []FileBlock{b("a", 0, 9), b("a", 8, 9)},
			wantErr: "one ends at 9, the next starts at 8",
		},
		"a hole in a compressed file is refused": {
			blocks:  []FileBlock{b("a.gz", 0, 9), b("a.gz", 10, 9)},
			wantErr: "one ends at 9, the next starts at 10",
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := PlanSplits(c.blocks, c.combine)
			if c.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), c.wantErr) {
					t.Fatalf("error %v, want %q", err, c.wantErr)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if s := formatSplits(got); s != c.want {
				t.Errorf("got  %s\nwant %s", s, c.want)
			}
		})
	}
}

func formatSplits(splits []Split) string {
	var out strings.Builder
	for _, s := range splits {
		var ps []string
		for _, p := range s.Pieces {
			ps = append(ps, fmt.Sprintf("%s@%d+%d", p.Path, p.Offset, p.Length))
		}
		fmt.Fprintf(&out, "[%s|%s]", strings.Join(ps, ","), strings.Join(s.Hosts, ","))
	}
	return out.String()
}

// For any blocks and any limit: every byte is in exactly one piece, no packed
// split exceeds the limit, and the order of blocks does not matter.
func TestPlanSplitsCoversEveryByteOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		blocks := drawBlocks(t)
		combine := rapid.Int64Range(0, 64).Draw(t, "combine")
		splits, err := PlanSplits(blocks, combine)
		if err != nil {
			t.Fatal(err)
		}
		seen := map[string]int{}
		for _, s := range splits {
			if len(s.Pieces) > 1 && s.length() > combine {
				t.Fatalf("packed split of %d bytes over %d", s.length(), combine)
			}
			for _, p := range s.Pieces {
				for i := p.Offset; i < p.Offset+p.Length; i++ {
					seen[fmt.Sprint(p.Path, "@", i)]++
				}
			}
		}
		var total int64
		for _, b := range blocks {
			total += b.Length
		}
		if int64(len(seen)) != total {
			t.Fatalf("%d bytes covered of %d", len(seen), total)
		}
		for at, n := range seen {
			if n != 1 {
				t.Fatalf("%s covered %d times", at, n)
			}
		}
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "shuffle"), 0))
		r.Shuffle(len(blocks), func(i, j int) { blocks[i], blocks[j] = blocks[j], blocks[i] })
		again, err := PlanSplits(blocks, combine)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(splits, again); d != "" {
			t.Fatalf("order of blocks changed the plan: %s", d)
		}
	})
}

// For any blocks: of the units that a host holds, less than half a split's bytes end up in splits
// that are not whole on one host; the same holds for racks. The bytes of each host are those of the
// pieces that it holds, counted one by one.
func TestPackedSplitsAreLocal(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		blocks := drawBlocks(t)
		combine := rapid.Int64Range(1, 64).Draw(t, "combine")
		splits, err := PlanSplits(blocks, combine)
		if err != nil {
			t.Fatal(err)
		}
		hosts := func(b FileBlock) []string { return b.Hosts }
		racks := func(b FileBlock) []string { return b.Racks }
		scattered, acrossRacks, hostNames, rackNames := int64(0), int64(0), map[string]bool{}, map[string]bool{}
		for i := range splits {
			s := &splits[i]
			onHost, onRack := slowBytes(blocks, s, hosts), slowBytes(blocks, s, racks)
			checkHostBytes(t, s, onHost)
			if len(s.Pieces) == 1 {
				continue // a single piece is not packed
			}
			if !holdWhole(onHost, s.length()) {
				scattered += slowLocated(blocks, s, hosts)
			}
			if !holdWhole(onHost, s.length()) && !holdWhole(onRack, s.length()) {
				acrossRacks += slowLocated(blocks, s, racks)
			}
		}
		for _, b := range blocks {
			for k := range b.Hosts {
				hostNames[b.Hosts[k]], rackNames[b.Racks[k]] = true, true
			}
		}
		if limit := int64(len(hostNames)) * (combine + 1) / 2; scattered > limit {
			t.Fatalf("%d bytes are in splits that no host holds, want at most %d: %s", scattered, limit, formatSplits(splits))
		}
		if limit := int64(len(rackNames)) * (combine + 1) / 2; acrossRacks > limit {
			t.Fatalf("%d bytes are in splits that no rack holds, want at most %d: %s", acrossRacks, limit, formatSplits(splits))
		}
	})
}

// slowBytes returns how many bytes of a split each host (or rack) holds.
func slowBytes(blocks []FileBlock, s *Split, namesOf func(FileBlock) []string) map[string]int64 {
	out := map[string]int64{}
	eachByteOf(blocks, s, func(b FileBlock) {
		names := slices.Clone(namesOf(b))
		slices.Sort(names)
		for _, n := range slices.Compact(names) {
			out[n]++
		}
	})
	return out
}

// slowLocated returns how many bytes of a split are in pieces that some host (or rack) holds.
func slowLocated(blocks []FileBlock, s *Split, namesOf func(FileBlock) []string) (n int64) {
	for _, p := range s.Pieces {
		if one := (&Split{Pieces: []Piece{p}}); holdWhole(slowBytes(blocks, one, namesOf), p.Length) {
			n += p.Length
		}
	}
	return n
}

func eachByteOf(blocks []FileBlock, s *Split, use func(FileBlock)) {
	for _, p := range s.Pieces {
		for at := p.Offset; at < p.Offset+p.Length; at++ {
			for _, b := range blocks {
				if b.Path == p.Path && b.Offset <= at && at < b.Offset+b.Length {
					use(b)
				}
			}
		}
	}
}

func holdWhole(held map[string]int64, length int64) bool {
	for _, n := range held {
		if n == length {
			return true
		}
	}
	return false
}

func checkHostBytes(t *rapid.T, s *Split, want map[string]int64) {
	got := map[string]int64{}
	for k, h := range s.Hosts {
		if got[h] = s.length(); s.HostBytes != nil {
			got[h] = s.HostBytes[k]
		}
		if k > 0 && got[h] > got[s.Hosts[k-1]] {
			t.Fatalf("hosts %v with %v bytes: not the best first", s.Hosts, s.HostBytes)
		}
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Fatalf("bytes on hosts: %s", d)
	}
}

// A split of thousands of files has replicas on as many hosts: the best hosts are kept.
func TestSplitKeepsTheBestHosts(t *testing.T) {
	var blocks []FileBlock
	for i := range 2000 {
		host := fmt.Sprintf("n%04d", i)
		blocks = append(blocks, FileBlock{Path: fmt.Sprintf("f%04d", i), Length: 10 + int64(i), Hosts: []string{host}, Racks: []string{"r" + host}})
	}
	splits, err := PlanSplits(blocks, 1<<30)
	if err != nil || len(splits) != 1 {
		t.Fatalf("%d splits, %v", len(splits), err)
	}
	s := splits[0]
	if len(s.Hosts) != maxSplitHosts || len(s.HostBytes) != maxSplitHosts || len(s.Racks) != maxSplitHosts || s.Hosts[0] != "n1999" || s.HostBytes[0] != 2009 {
		t.Errorf("%d hosts from %s, %d of them with bytes, %d racks; want %d from n1999", len(s.Hosts), s.Hosts[0], len(s.HostBytes), len(s.Racks), maxSplitHosts)
	}
}

// Replicas move, and other versions pack differently: accepted splits keep their pieces and get the
// new hosts.
func TestRelocateKeepsPieces(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		blocks := drawBlocks(t)
		splits, err := PlanSplits(blocks, rapid.Int64Range(0, 64).Draw(t, "combine"))
		if err != nil {
			t.Fatal(err)
		}
		if again, err := Relocate(blocks, splits); err != nil || cmp.Diff(splits, again, cmpopts.EquateEmpty()) != "" {
			t.Fatalf("without a move: %v\n%s", err, cmp.Diff(splits, again))
		}
		moved := slices.Clone(blocks)
		for i := range moved {
			moved[i].Hosts, moved[i].Racks = []string{fmt.Sprint("m", i%3)}, nil
		}
		moved = append(moved, FileBlock{Path: "came later", Length: 5})
		got, err := Relocate(moved, splits)
		if err != nil {
			t.Fatal(err)
		}
		for i := range got {
			if d := cmp.Diff(splits[i].Pieces, got[i].Pieces); d != "" {
				t.Fatalf("split %d has other pieces: %s", i, d)
			}
			checkHostBytes(t, &got[i], slowBytes(moved, &got[i], func(b FileBlock) []string { return b.Hosts }))
		}
		for i := range moved {
			if moved[i].Length > 0 && moved[i].Path != "came later" {
				grown := slices.Clone(moved)
				grown[i].Length++
				if len(grown) > i+1 && grown[i+1].Path == grown[i].Path {
					continue // overlaps
				}
				if _, err := Relocate(grown, splits); !errors.Is(err, errPiecesChanged) {
					t.Fatalf("%s has grown: error %v", grown[i].Path, err)
				}
			}
		}
	})
}

func drawBlocks(t *rapid.T) []FileBlock {
	var blocks []FileBlock
	for f := range rapid.IntRange(0, 12).Draw(t, "files") {
		name := fmt.Sprintf("f%02d%s", f, rapid.SampledFrom([]string{"", ".gz", ".txt"}).Draw(t, "ext"))
		off := int64(0)
		for range rapid.IntRange(0, 4).Draw(t, "blocks") {
			n := rapid.Int64Range(0, 40).Draw(t, "length")
			h := rapid.Permutation([]string{"n1", "n2", "n3", "n4"}).Draw(t, "hosts")[:rapid.IntRange(0, 3).Draw(t, "replicas")]
			var racks []string
			for _, x := range h {
				racks = append(racks, "r"+string('1'+(x[1]-'1')/2))
			}
			blocks = append(blocks, FileBlock{Path: name, Offset: off, Length: n, Hosts: slices.Clone(h), Racks: racks})
			off += n
		}
	}
	return blocks
}

// memSource serves files from memory in reads of at most readBytes bytes. The
// read number failAt (1 is the first) fails once.
type memSource struct {
	files     map[string][]byte
	readBytes int
	failAt    int
	totalRead int64
}

type memFile struct {
	src *memSource
	r   *bytes.Reader
}

func (m *memSource) Open(_ context.Context, path string, off, _ int64) (io.ReadCloser, error) {
	b, ok := m.files[path]
	if !ok {
		return nil, os.ErrNotExist
	}
	r := bytes.NewReader(b)
	if _, err := r.Seek(off, io.SeekStart); err != nil {
		return nil, err
	}
	return &memFile{m, r}, nil
}

func (f *memFile) Read(p []byte) (int, error) {
	if f.src.failAt > 0 {
		if f.src.failAt--; f.src.failAt == 0 {
			return 0, io.ErrUnexpectedEOF
		}
	}
	n, err := f.r.Read(p[:min(len(p), f.src.readBytes)])
	f.src.totalRead += int64(n)
	return n, err
}

func (*memFile) Close() error { return nil }

// For any cut of a file: the pieces, fetched one by one, make up the file as it was
// planned, and each consists of whole lines, even if the helper dies once and the
// file is appended to.
func TestFetchSplitCoversEachLineOnce(t *testing.T) {
	dir := t.TempDir()
	run := 0
	rapid.Check(t, func(t *rapid.T) {
		run++
		lines := rapid.SliceOfN(rapid.StringMatching(`[a-c]{0,9}`), 0, 30).Draw(t, "lines")
		text := strings.Join(lines, "\n")
		if rapid.Bool().Draw(t, "final newline") {
			text += "\n"
		}
		// Bytes appended after planning are not part of the input. If the planned length is unknown,
		// the file must not have grown.
		later, planned := rapid.StringMatching(`[a-c\n]{0,20}`).Draw(t, "appended"), int64(len(text))
		if later == "" && rapid.Bool().Draw(t, "an unknown length") {
			planned = 0
		}
		src := &memSource{files: map[string][]byte{"f": []byte(text + later)}, readBytes: rapid.IntRange(1, 20).Draw(t, "step")}
		var all []byte
		for off := int64(0); off < int64(len(text)); {
			n := rapid.Int64Range(1, int64(len(text))-off).Draw(t, "piece")
			s := Split{Pieces: []Piece{{Path: "f", Offset: off, Length: n, Codec: CodecNone, FileLength: planned}}}
			src.failAt = rapid.IntRange(0, 6).Draw(t, "fail at read")
			got := fetchAll(t, filepath.Join(dir, fmt.Sprint(run, "-", off)), src, &s)
			if len(all) > 0 && len(got) > 0 && all[len(all)-1] != '\n' {
				t.Fatalf("piece at %d follows half a line", off)
			}
			all = append(all, got...)
			off += n
		}
		if string(all) != text {
			t.Fatalf("got %q, want %q", all, text)
		}
	})
}

// A fetch that fails late in a large piece goes on there: it does not read everything again.
func TestFetchSplitResumesWhereItFailed(t *testing.T) {
	const size, read = 8 << 20, 64 << 10
	text := strings.Repeat("line\n", size/5+1)[:size]
	for name, c := range map[string]struct {
		piece Piece
		want  string
	}{
		"from the start of a file": {Piece{Length: size, Codec: CodecNone}, text},
		"inside a file":            {Piece{Offset: 8, Length: size - 16, Codec: CodecNone}, text[10 : size-3]},
		"with a codec":             {Piece{Length: size, Codec: CodecGzip}, text},
	} {
		t.Run(name, func(t *testing.T) {
			c.piece.Path = "f"
			src := &memSource{files: map[string][]byte{"f": []byte(text)}, readBytes: read, failAt: size / read * 7 / 8}
			if got := fetchAll(t, filepath.Join(t.TempDir(), "in"), src, &Split{Pieces: []Piece{c.piece}}); string(got) != c.want {
				t.Errorf("%d bytes, want %d", len(got), len(c.want))
			}
			if src.failAt != 0 || src.totalRead > size+2*read {
				t.Errorf("%d bytes read of %d", src.totalRead, size)
			}
		})
	}
}

// Thousands of small files may be packed into one split, so the cost of a piece must not grow with
// the buffer.
func TestPiecesShareABuffer(t *testing.T) {
	src := &memSource{files: map[string][]byte{"f": []byte("a line\n")}, readBytes: fetchBufferBytes}
	s := &Split{Pieces: make([]Piece, 100)}
	for i := range s.Pieces {
		s.Pieces[i] = Piece{Path: "f", Length: 7}
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	got := fetchAll(t, filepath.Join(t.TempDir(), "in"), src, s)
	runtime.ReadMemStats(&after)
	if want := strings.Repeat("a line\n", 100); string(got) != want {
		t.Errorf("got %d bytes, want %d", len(got), len(want))
	}
	if n := after.TotalAlloc - before.TotalAlloc; n > 4*fetchBufferBytes {
		t.Errorf("100 pieces of 7 bytes allocated %d bytes", n)
	}
}

func fetchAll(t interface {
	Fatal(...any)
	Fatalf(string, ...any)
}, path string, src Source, s *Split) []byte {
	for try := 0; ; try++ {
		w, err := NewGrowingWriter(path)
		if err != nil {
			t.Fatal(err)
		}
		err = FetchSplit(context.Background(), src, s, w)
		w.Close()
		if err == nil {
			break
		}
		if try > 3 {
			t.Fatal(err)
		}
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	r := JournalReader{Path: path + JournalSuffix}
	defer r.Close()
	if _, err := r.Poll(); err != nil {
		t.Fatal(err)
	}
	if !r.Done || r.TotalBytes != int64(len(b)) || len(r.PieceEnds) != len(s.Pieces) || r.PieceEnds[len(r.PieceEnds)-1] != r.TotalBytes {
		t.Fatalf("journal %+v for %d bytes", r.Journal, len(b))
	}
	return b
}

func TestFetchSplitLimits(t *testing.T) {
	long := bytes.Repeat([]byte("x"), 1<<20)
	for name, c := range map[string]struct {
		piece   Piece
		wantErr string
		maxRead int64
	}{
		"a line of any length is completed":           {Piece{Path: "long", Offset: 0, Length: 10, Codec: CodecNone}, "", 1 << 20},
		"a piece in which no line starts ends there":  {Piece{Path: "long", Offset: 10, Length: 4 << 10, Codec: CodecNone}, "", 4 << 10},
		"a file that shrank":                          {Piece{Path: "long", Offset: 0, Length: 2 << 20, Codec: CodecNone}, "the file ends at 1048576, the split at 2097152", 2 << 20},
		"a missing file":                              {Piece{Path: "none", Offset: 0, Length: 10, Codec: CodecNone}, "fetch none", 0},
		"a compressed piece is copied unchanged":      {Piece{Path: "long", Offset: 0, Length: 1 << 20, Codec: CodecGzip}, "", 1 << 20},
		"a split reads little more than its own part": {Piece{Path: "text", Offset: 5, Length: 10, Codec: CodecNone}, "", 10 + 64<<10},
	} {
		t.Run(name, func(t *testing.T) {
			src := &memSource{files: map[string][]byte{"long": long, "text": []byte(strings.Repeat("line\n", 1<<18))}, readBytes: 1 << 20}
			w, err := NewGrowingWriter(filepath.Join(t.TempDir(), "in"))
			if err != nil {
				t.Fatal(err)
			}
			defer w.Close()
			err = FetchSplit(context.Background(), src, &Split{Pieces: []Piece{c.piece}}, w)
			if (err == nil) != (c.wantErr == "") || (err != nil && !strings.Contains(err.Error(), c.wantErr)) {
				t.Errorf("error %v, want %q", err, c.wantErr)
			}
			if src.totalRead > c.maxRead {
				t.Errorf("read %d bytes, want at most %d", src.totalRead, c.maxRead)
			}
		})
	}
}

func TestPlanSplitsReadsAFileNamedTwiceTwice(t *testing.T) {
	block := func(path string, off, n int64) FileBlock { return FileBlock{Path: path, Offset: off, Length: n} }
	twice := []FileBlock{block("b.gz", 0, 7), block("b.gz", 7, 3), block("a", 0, 5), block("a", 5, 5)}
	splits, err := PlanSplits(append(twice, twice...), 0)
	if err != nil {
		t.Fatal(err)
	}
	var got []Piece
	for _, s := range splits {
		got = append(got, s.Pieces...)
	}
	want := []Piece{{Path: "a", Offset: 0, Length: 5, Codec: CodecNone}, {Path: "a", Offset: 0, Length: 5, Codec: CodecNone}, {Path: "a", Offset: 5, Length: 5, Codec: CodecNone}, {Path: "a", Offset: 5, Length: 5, Codec: CodecNone}, {Path: "b.gz", Offset: 0, Length: 10, Codec: CodecGzip}, {Path: "b.gz", Offset: 0, Length: 10, Codec: CodecGzip}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if _, err := PlanSplits(append(twice, twice[0]), 0); err == nil {
		t.Error("a compressed file with one block more than the others is accepted")
	}
}
