package harness

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/drover-run/drover/internal/seed"
	"github.com/drover-run/drover/mapreduce"
	"github.com/drover-run/drover/mapreduce/reference"
	"github.com/drover-run/drover/mapreduce/sortmerge"
)

// With many different words the table grows, and with little memory it is emptied
// many times; the counts always equal those of the reference.
func TestWordTableGrowsAndEmpties(t *testing.T) {
	var b strings.Builder
	for i := range 30_000 {
		fmt.Fprintf(&b, "w%d w%d\tx%d\n", i%20_000, i%7, i%300)
	}
	want, err := reference.Run(reference.Job{Mapper: "wordcount", Reducer: "sum", Reduces: 3}, []string{b.String()})
	check(t, err)
	for _, memory := range []int64{1 << 20, 64 << 20, 64 << 10} {
		t.Run(fmt.Sprint(memory), func(t *testing.T) {
			j := newTestJob(t, t.TempDir())
			s := j.mapSpec(0, mapreduce.Program{Builtin: "wordcount"}, 3)
			s.Combiner, s.SortMemory = &mapreduce.Program{Builtin: "sum"}, memory
			j.writeInput(&s, b.String())
			m := j.runOK(s)
			if spilled := m.Spills > 1; spilled != (memory < 64<<20) {
				t.Errorf("%d spills with %d bytes", m.Spills, memory)
			}
			if m.MapOutput.Records != 90_000 {
				t.Errorf("%d words counted", m.MapOutput.Records)
			}
			var got []string
			for p := range 3 {
				r := j.reduceSpec(p, mapreduce.Program{Builtin: "sum"}, j.shuffle(p, []*mapreduce.Result{m}, []mapreduce.TaskSpec{s}))
				got = append(got, j.output(r, j.runOK(r)))
			}
			if d := cmp.Diff(want, got); d != "" {
				t.Error(d)
			}
		})
	}
}

// A word that takes nearly all of the table's memory is passed on together with its memory.
// Otherwise each later word would find the table full and empty it.
func TestALongWordLeavesTheTableItsMemory(t *testing.T) {
	c := sortmerge.NewCollector(sortmerge.Options{Parts: 1, Memory: 1 << 20, Dir: t.TempDir(), FanIn: 4, Precombined: true})
	w := newWordTable(c, &mapreduce.TaskSpec{Reduces: 1}, nil, 1<<20)
	check(t, w.countText([]byte(strings.Repeat("w", 1_000_000)+"\n")))
	check(t, w.countText([]byte(strings.Repeat("a\n", 1000))))
	check(t, w.flush())
	if n := c.Stats().Added.Records; n != 2 {
		t.Errorf("%d records of two different words", n)
	}
}

// A table of little memory begins with fewer slots; otherwise its first word would fill it.
func TestATableOfLittleMemoryCounts(t *testing.T) {
	c := sortmerge.NewCollector(sortmerge.Options{Parts: 1, Memory: 1 << 20, Dir: t.TempDir(), FanIn: 4, Precombined: true})
	w := newWordTable(c, &mapreduce.TaskSpec{Reduces: 1}, nil, 32<<10)
	check(t, w.countText([]byte(strings.Repeat("a\n", 1000))))
	check(t, w.flush())
	if n := c.Stats().Added.Records; n != 1 {
		t.Errorf("%d records of one word", n)
	}
}

// Words of every length and of every byte, at every distance from the end of the text and at every
// offset in eight bytes, are counted as when the text is split byte by byte.
func TestWordTableMatchesSplittingByBytes(t *testing.T) {
	r := rand.New(rand.NewPCG(seed.New(t), 0))
	for range 300 {
		var text []byte
		for range 1 + r.IntN(400) {
			word := make([]byte, r.IntN(36))
			for i := range word {
				if word[i] = byte(r.IntN(256)); r.IntN(2) == 0 {
					word[i] = "ab \t\n\v\f\r\x00\x85\xa0\x08\x0e\x1f!"[r.IntN(15)]
				}
			}
			text = append(text, word...)
		}
		text = append(text, '\n')
		want := map[string]int{}
		check(t, eachWord(text, func(word []byte) error { want[string(word)]++; return nil }))
		dir := t.TempDir()
		c := sortmerge.NewCollector(sortmerge.Options{Parts: 1, Memory: 1 << 20, Dir: dir, FanIn: 4, Precombined: true, Combiner: keyedCombiner{combiner: sumCombiner{}, keys: &mapreduce.Keys{}, reduces: 1}})
		w := newWordTable(c, &mapreduce.TaskSpec{Reduces: 1}, nil, 1<<20)
		check(t, w.countText(text))
		check(t, w.flush())
		index, err := c.Finish(filepath.Join(dir, "out"), mapreduce.CodecNone)
		check(t, err)
		f, err := os.Open(filepath.Join(dir, "out"))
		check(t, err)
		defer f.Close()
		records, err := sortmerge.NewReader("out", f, mapreduce.CodecNone, index.Parts[0], 1<<16)
		check(t, err)
		got := map[string]int{}
		for {
			ok, err := records.Next()
			check(t, err)
			if !ok {
				break
			}
			n, err := strconv.Atoi(string(records.Record().Value))
			check(t, err)
			got[string(records.Record().Key)] += n
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Fatal(d)
		}
	}
}

// A file written by bzip2 itself: two concatenated streams.
func TestBzip2Input(t *testing.T) {
	b, err := os.ReadFile(filepath.Join("testdata", "two-streams.bz2"))
	check(t, err)
	j := newTestJob(t, t.TempDir())
	s := j.mapSpec(0, mapreduce.Program{Argv: []string{"cat"}}, 0, mapreduce.Piece{Path: "two-streams.bz2", Codec: mapreduce.CodecBzip2})
	j.writeInput(&s, string(b))
	if got := j.output(s, j.runOK(s)); got != "first stream\nsecond stream\n" {
		t.Errorf("got %q", got)
	}
}

// The output may be compressed; length and checksum are those of the stored bytes.
func TestCompressedOutput(t *testing.T) {
	j := newTestJob(t, t.TempDir())
	s := j.mapSpec(0, mapreduce.Program{Argv: []string{"cat"}}, 0)
	s.Output.Codec = mapreduce.CodecZstd
	text := randomText(9, 500_000)
	j.writeInput(&s, text)
	stored := j.output(s, j.runOK(s))
	back := j.mapSpec(1, mapreduce.Program{Argv: []string{"cat"}}, 0, mapreduce.Piece{Path: "f.zst", Codec: mapreduce.CodecZstd})
	j.writeInput(&back, stored)
	if got := j.output(back, j.runOK(back)); got != text || len(stored) > len(text)/2 {
		t.Errorf("%d bytes stored, %d back, want %d", len(stored), len(got), len(text))
	}
}

// A process outlives the program in its own session and holds its stdout: the
// task neither waits for ever nor succeeds.
func TestEscapedProcessHoldingStdout(t *testing.T) {
	if testing.Short() {
		t.Skip("not proved here: that a task whose process escaped with its stdout neither hangs nor succeeds; it waits for the whole grace of 5 s, run it without -short")
	}
	if _, err := exec.LookPath("setsid"); err != nil {
		t.Skip("not proved here: that a task whose process escaped with its stdout neither hangs nor succeeds; setsid is not installed")
	}
	t.Parallel()
	j := newTestJob(t, t.TempDir())
	s := j.mapSpec(0, shellProgram(`setsid sh -c 'echo $$ > pid; exec sleep 20' & cat`), 1)
	j.writeInput(&s, "a\n")
	if r := j.run(s); r.Class != mapreduce.ClassUserData || !strings.Contains(r.Error, "still held its stdout") {
		t.Errorf("class %s: %s", r.Class, r.Error)
	}
}

// The harness starts once for each task on slow machines, and CRIU dumps its whole
// state: it may import nothing but the standard library, the compressors, and four small
// packages that import the standard library alone.
func TestImportsStaySmall(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", "-f", "{{if not .Standard}}{{.ImportPath}}{{end}}", "../../cmd/drover-harness").Output()
	if err != nil {
		t.Skipf("not proved here: that the harness imports the standard library and compressors alone; go list: %v", err)
	}
	for _, p := range strings.Fields(string(out)) {
		if !strings.HasPrefix(p, "github.com/klauspost/compress") && !strings.HasPrefix(p, "github.com/drover-run/drover/mapreduce") && p != "github.com/drover-run/drover/cmd/drover-harness" && p != "github.com/drover-run/drover/internal/plain" && p != "github.com/drover-run/drover/internal/keyorder" && p != "github.com/drover-run/drover/internal/peakmem" && p != "github.com/drover-run/drover/internal/exechint" {
			t.Errorf("the harness imports %s", p)
		}
	}
}
