package harness

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"pgregory.net/rapid"

	"github.com/drover-run/drover/internal/keyorder"
	"github.com/drover-run/drover/mapreduce"
	"github.com/drover-run/drover/mapreduce/reference"
)

func compress(t tester, c mapreduce.Codec, text string) string {
	var b bytes.Buffer
	switch c {
	case mapreduce.CodecNone:
		return text
	case mapreduce.CodecGzip: // two concatenated members
		for _, part := range []string{text[:len(text)/2], text[len(text)/2:]} {
			z := gzip.NewWriter(&b)
			_, err := z.Write([]byte(part))
			check(t, err)
			check(t, z.Close())
		}
	case mapreduce.CodecZstd:
		for _, part := range []string{text[:len(text)/2], text[len(text)/2:]} {
			z, err := zstd.NewWriter(&b)
			check(t, err)
			_, err = z.Write([]byte(part))
			check(t, err)
			check(t, z.Close())
		}
	default:
		t.Fatalf("codec %s", c)
	}
	return b.String()
}

// drawJob draws programs that fit together.
func drawJob(t *rapid.T) (reference.Job, *rapid.Generator[string]) {
	words := rapid.Map(rapid.SliceOfN(rapid.StringMatching(`[a-dé]{1,5}|\x{ff}`), 0, 6), func(w []string) string { return strings.Join(w, " ") })
	numbers := rapid.Map(rapid.Custom(func(t *rapid.T) [2]string {
		return [2]string{rapid.StringMatching(`[a-c]{0,9}`).Draw(t, "key"), strconv.Itoa(rapid.IntRange(-50, 50).Draw(t, "n"))}
	}), func(kv [2]string) string { return kv[0] + "\t" + kv[1] })
	anyLine := rapid.StringMatching(`[a-c]{0,4}(\t[a-c\t]{0,5})?`)
	plain := rapid.StringMatching(`[a-c \r]{0,14}`)
	table := rapid.StringMatching(`[a-c\x{01} ]{0,3}(\t[a-c\x{01}]{0,3}){0,4}`)
	measured := rapid.StringMatching(`(-?[0-9]{0,3}(\.[0-9])?|[ab])(\t(-?[0-9]{0,3}(\.[0-9])?|[ab])){0,3}`)
	j := reference.Job{Reduces: rapid.IntRange(0, 5).Draw(t, "reduces")}
	var line *rapid.Generator[string]
	kind, fields := rapid.IntRange(0, 5).Draw(t, "kind"), 3
	if kind == 0 {
		fields = 1 // a word
	}
	if j.Reduces > 0 {
		drawKeys(t, &j, fields)
	}
	switch kind {
	case 0:
		j.Mapper, j.Reducer, line = "wordcount", "wordcount", words
		if rapid.Bool().Draw(t, "combine") && j.Reduces > 0 {
			j.Combiner = "sum"
		}
	case 1:
		j.Mapper, j.Reducer, line = "identity", "sum", numbers
		for range j.KeyFields - 1 { // the number remains the value
			rest := line
			line = rapid.Map(rapid.Custom(func(t *rapid.T) [2]string {
				return [2]string{rapid.StringMatching(`[a-c]{0,3}`).Draw(t, "field"), rest.Draw(t, "rest")}
			}), func(f [2]string) string { return f[0] + "\t" + f[1] })
		}
		if rapid.Bool().Draw(t, "combine") && j.Reduces > 0 {
			j.Combiner = "wordcount"
		}
	case 2:
		j.Mapper, j.Reducer, line = "grep", rapid.SampledFrom([]string{"identity", "count"}).Draw(t, "reducer"), anyLine
		j.Pattern = rapid.SampledFrom([]string{"a", "^b", "c$", "a.*b", ""}).Draw(t, "pattern")
	case 3:
		j.Mapper, j.Reducer, line = "identity", rapid.SampledFrom([]string{"identity", "count"}).Draw(t, "reducer"), table
	case 4:
		j.Mapper, j.Reducer, line = "identity", rapid.SampledFrom([]string{"identity", "count"}).Draw(t, "reducer"), measured
	default:
		j.Mapper, j.Reducer, line = "sort", "sort", plain
	}
	return j, line
}

// drawKeys draws which part of a line is its key, of at most this many fields, and which reducer
// gets it; often the default.
func drawKeys(t *rapid.T, j *reference.Job, fields int) {
	j.KeyFields = min(fields, rapid.SampledFrom([]int{0, 0, 1, 2, 3}).Draw(t, "key fields"))
	if n := max(j.KeyFields, 1); rapid.Bool().Draw(t, "order") {
		j.KeyOrder = rapid.SliceOfN(rapid.SampledFrom([]string{"text", "text desc", "number", "number desc"}), n, n).Draw(t, "key order")
	}
	switch rapid.IntRange(0, 2).Draw(t, "partitioner") {
	case 1:
		j.PartitionFields = rapid.IntRange(1, max(j.KeyFields, 1)).Draw(t, "partition fields")
	case 2:
		key := rapid.StringMatching(`([a-d]{1,2}|-?[0-9]{1,2})(\t[a-c0-9]{0,2})?`)
		order, _ := keyorder.Parse(j.KeyOrder)
		inOrder := func(key string) string { return string(order.Append(nil, []byte(key))) } // equal for keys that are equal in the order
		j.PartitionKeys = rapid.SliceOfNDistinct(key, j.Reduces-1, j.Reduces-1, inOrder).Draw(t, "partition keys")
		slices.SortFunc(j.PartitionKeys, order.Compare)
	}
}

func programs(j reference.Job) (m, r mapreduce.Program, c *mapreduce.Program) {
	m, r = mapreduce.Program{Builtin: j.Mapper}, mapreduce.Program{Builtin: j.Reducer}
	if j.Mapper == "grep" {
		m.Args = []string{j.Pattern}
	}
	if j.Combiner != "" {
		c = &mapreduce.Program{Builtin: j.Combiner}
	}
	return m, r, c
}

// For any job, input, codecs, memory and fan-in: the outputs equal those of the
// reference.
func TestRandomJobsMatchReference(t *testing.T) {
	base := t.TempDir()
	n := 0
	rapid.Check(t, func(t *rapid.T) {
		n++
		dir := filepath.Join(base, strconv.Itoa(n))
		defer os.RemoveAll(dir)
		h := newTestJob(t, dir)
		j, line := drawJob(t)
		m, r, c := programs(j)
		memory := rapid.SampledFrom([]int64{4 << 10, 16 << 10, 1 << 20}).Draw(t, "memory")
		fanIn := rapid.IntRange(2, 5).Draw(t, "fan-in")
		var texts, got []string
		var results []*mapreduce.Result
		var specs []mapreduce.TaskSpec
		for i := range rapid.IntRange(1, 4).Draw(t, "maps") {
			pieces, stored, text := drawInput(t, line)
			texts = append(texts, text)
			s := h.mapSpec(i, m, j.Reduces, pieces...)
			s.SortMemory, s.FanIn, s.Combiner = memory, fanIn, c
			s.Keys = mapreduce.Keys{Fields: j.KeyFields, PartitionFields: j.PartitionFields, PartitionKeys: j.PartitionKeys, Order: j.KeyOrder}
			if j.Reduces > 0 {
				s.MapOutput.Codec = rapid.SampledFrom([]mapreduce.Codec{mapreduce.CodecNone, mapreduce.CodecZstd}).Draw(t, "codec")
			}
			h.writeInput(&s, stored...)
			res := h.runOK(s)
			if j.Reduces == 0 {
				got = append(got, h.output(s, res))
			}
			if lines := int64(len(reference.Lines(text))); res.Input.Records != lines {
				t.Fatalf("%d lines in, counted %d", lines, res.Input.Records)
			}
			results, specs = append(results, res), append(specs, s)
		}
		for p := range j.Reduces {
			s := h.reduceSpec(p, r, h.shuffle(p, results, specs))
			s.Keys = mapreduce.Keys{Fields: j.KeyFields, Order: j.KeyOrder}
			s.SortMemory, s.FanIn = memory, fanIn
			got = append(got, h.output(s, h.runOK(s)))
		}
		want, err := reference.Run(j, texts)
		check(t, err)
		if d := cmp.Diff(want, got); d != "" {
			t.Fatal(d)
		}
	})
}

// drawInput draws the pieces of a split, each stored in its codec, and their
// text, with a newline after every line.
func drawInput(t *rapid.T, line *rapid.Generator[string]) (pieces []mapreduce.Piece, stored []string, text string) {
	lines := rapid.SliceOfN(line, 1, 20).Draw(t, "lines")
	for range rapid.IntRange(1, 3).Draw(t, "pieces") {
		var b strings.Builder
		for i := range rapid.IntRange(0, 400).Draw(t, "number") {
			b.WriteString(lines[(i*7+i/11)%len(lines)] + "\n")
		}
		whole := b.String()
		text += whole
		if rapid.Bool().Draw(t, "no final newline") && len(whole) > 1 && !strings.HasSuffix(whole, "\n\n") {
			whole = strings.TrimSuffix(whole, "\n")
		}
		codec := rapid.SampledFrom([]mapreduce.Codec{mapreduce.CodecNone, mapreduce.CodecGzip, mapreduce.CodecZstd}).Draw(t, "piece codec")
		pieces = append(pieces, mapreduce.Piece{Path: "f", Codec: codec})
		stored = append(stored, compress(t, codec, whole))
	}
	return pieces, stored, text
}
