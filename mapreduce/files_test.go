package mapreduce

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/drover-run/drover/internal/fuzztest"
)

func exampleIndex() *Index {
	return &Index{Codec: CodecZstd, Parts: []PartitionRange{{0, 10, 20, 2, 7, 15}, {10, 0, 0, 0, 0, 0}, {10, 5, 5, 1, 9, 5}}}
}

func TestIndexRoundTripAndDamage(t *testing.T) {
	x := exampleIndex()
	b := x.Encode()
	got, err := DecodeIndex(b)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(x, got); d != "" {
		t.Fatal(d)
	}
	for i := range b {
		damaged := bytes.Clone(b)
		damaged[i] ^= 0x40
		if _, err := DecodeIndex(damaged); err == nil {
			t.Fatalf("byte %d changed and nobody saw it", i)
		}
		if _, err := DecodeIndex(b[:i]); !errors.Is(err, ErrCorrupt) {
			t.Fatalf("cut at %d: %v", i, err)
		}
	}
}

// An index file of version 1, kept in testdata, must stay readable. An earlier program, which did
// not record the largest records, wrote it.
func TestIndexVersion1IsReadable(t *testing.T) {
	path, want := filepath.Join("testdata", "index-v1.bin"), exampleIndex()
	for i := range want.Parts {
		want.Parts[i].Largest = 0
	}
	if os.Getenv("DROVER_WRITE_TESTDATA") != "" {
		if err := os.WriteFile(path, want.Encode(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := ReadIndex(path)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Fatal(d)
	}
}

func FuzzDecodeIndex(f *testing.F) {
	f.Add(exampleIndex().Encode())
	f.Add([]byte("drvindex"))
	fuzztest.Run(f, func(t *testing.T, b []byte) {
		x, err := DecodeIndex(b)
		if err == nil && !bytes.Equal(x.Encode(), b) {
			// Only the reserved words may change without being detected.
			if y, err := DecodeIndex(x.Encode()); err != nil || cmp.Diff(x, y) != "" {
				t.Fatalf("decoded index does not encode to itself: %v", err)
			}
		}
	})
}

func TestVerifyPartition(t *testing.T) {
	data := []byte("some bytes of a partition")
	r := PartitionRange{Length: int64(len(data)), CRC32C: CRC32C(0, data)}
	for name, c := range map[string]struct {
		got  string
		want bool
	}{
		"the same bytes":   {string(data), true},
		"one byte changed": {"some bytes of a partitioN", false},
		"one byte less":    {string(data[1:]), false},
		"one byte more":    {string(data) + "x", false},
		"nothing":          {"", false},
	} {
		t.Run(name, func(t *testing.T) {
			err := r.Verify(strings.NewReader(c.got))
			if (err == nil) != c.want || (err != nil && !errors.Is(err, ErrCorrupt)) {
				t.Errorf("error %v, want ok %v", err, c.want)
			}
		})
	}
}

func TestJournalRefusesMalformedLines(t *testing.T) {
	const head = `{"op":"journal","version":1}` + "\n"
	for name, c := range map[string]struct{ text, wantErr string }{
		"no version first":        {`{"op":"done"}` + "\n", "first line"},
		"a newer version":         {`{"op":"journal","version":2}` + "\n", "version 2"},
		"an unknown operation":    {head + `{"op":"what"}` + "\n", "unknown operation"},
		"pieces out of order":     {head + `{"op":"piece","bytes":9}` + "\n" + `{"op":"piece","bytes":8}` + "\n", "follow"},
		"not JSON":                {head + "done\n", "invalid"},
		"a line without end":      {head + strings.Repeat("x", 1<<17), "longer than"},
		"lines after done":        {head + `{"op":"done"}` + "\n" + `{"op":"piece"}` + "\n", "after done"},
		"a segment that is none":  {head + `{"op":"segment"}` + "\n", "missing"},
		"half a line is no error": {head + `{"op":"do`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "j")
			if err := os.WriteFile(path, []byte(c.text), 0o600); err != nil {
				t.Fatal(err)
			}
			r := JournalReader{Path: path}
			defer r.Close()
			_, err := r.Poll()
			if (err == nil) != (c.wantErr == "") || (err != nil && !strings.Contains(err.Error(), c.wantErr)) {
				t.Errorf("error %v, want %q", err, c.wantErr)
			}
		})
	}
}

// A helper that dies in the middle of a line: its successor resumes after the
// last whole line and announces nothing twice.
func TestSegmentWriterResumesAfterCrash(t *testing.T) {
	path := filepath.Join(t.TempDir(), "j")
	seg := func(i int) Segment { return Segment{Map: i, File: "f", Codec: CodecNone} }
	w, err := NewSegmentWriter(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Add(seg(0)); err != nil {
		t.Fatal(err)
	}
	if _, err := w.journal.f.WriteString(`{"op":"segm`); err != nil {
		t.Fatal(err)
	}
	w.Close()
	w, err = NewSegmentWriter(path)
	if err != nil {
		t.Fatal(err)
	}
	if !w.Has(0) || w.Has(1) {
		t.Fatal("wrong memory of what was announced")
	}
	for _, i := range []int{0, 1} {
		if err := w.Add(seg(i)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Done(); err != nil {
		t.Fatal(err)
	}
	w.Close()
	r := JournalReader{Path: path}
	defer r.Close()
	if _, err := r.Poll(); err != nil {
		t.Fatal(err)
	}
	want := Journal{Segments: []Segment{seg(0), seg(1)}, Done: true}
	if d := cmp.Diff(want, r.Journal); d != "" {
		t.Fatal(d)
	}
}

func FuzzJournal(f *testing.F) {
	f.Add([]byte(`{"op":"journal","version":1}`+"\n"+`{"op":"piece","bytes":9}`+"\n"), 3)
	fuzztest.Run(f, func(t *testing.T, b []byte, cut int) {
		cut = min(max(cut, 0), len(b))
		var whole, parts JournalReader
		e1 := whole.parse(b)
		e2 := parts.parse(b[:cut])
		if e2 == nil {
			e2 = parts.parse(b[cut:])
		}
		if (e1 == nil) != (e2 == nil) || cmp.Diff(whole.Journal, parts.Journal) != "" {
			t.Fatalf("read in two parts: %v %+v, whole: %v %+v", e2, parts.Journal, e1, whole.Journal)
		}
	})
}

func TestResultRoundTrip(t *testing.T) {
	path := filepath.Join(t.TempDir(), "result.json")
	r := &Result{Version: ResultVersion, Kind: KindMap, Class: ClassUserExit, UserExit: 3, Error: "x",
		Counters: Counters{"g": {"n": 1}}, Index: exampleIndex()}
	if err := WriteResult(path, r); err != nil {
		t.Fatal(err)
	}
	got, err := ReadResult(path)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(r, got); d != "" {
		t.Fatal(d)
	}
	for name, c := range map[string]struct{ text, wantErr string }{
		"a later version":  {`{"version":2}`, "version 2"},
		"no class":         {`{"version":1}`, "no class"},
		"an unknown class": {`{"version":1,"class":"odd"}`, "not one of"},
		"half a file":      {`{"version":1,`, "unexpected end"},
	} {
		t.Run(name, func(t *testing.T) {
			if err := os.WriteFile(path, []byte(c.text), 0o600); err != nil {
				t.Fatal(err)
			}
			if _, err := ReadResult(path); err == nil || !strings.Contains(err.Error(), c.wantErr) {
				t.Errorf("error %v, want %q", err, c.wantErr)
			}
		})
	}
}

func TestClassesAndExitCodesAgree(t *testing.T) {
	for c := ClassOK; c <= ClassInternal; c++ {
		back, ok := ClassOfExitCode(c.ExitCode())
		if !ok || back.ExitCode() != c.ExitCode() {
			t.Errorf("%s exits %d, which is read as %s", c, c.ExitCode(), back)
		}
	}
	if _, ok := ClassOfExitCode(137); ok {
		t.Error("137 is not a code of the harness")
	}
}
