package harness

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/drover-run/drover/mapreduce"
	"github.com/drover-run/drover/mapreduce/sortmerge"
)

// runMap executes a map task: the mapper's lines go to sorted partitions or, in a
// map-only job, straight to the output file.
func (t *task) runMap() error {
	if t.spec.Reduces == 0 {
		return t.runMapOnly()
	}
	opt := sortmerge.Options{Parts: t.spec.Reduces, Memory: t.spec.SortMemory, Dir: t.sortDir, FanIn: t.spec.FanIn, Precombined: t.isWordCount()}
	if t.spec.MapOutput.Codec == mapreduce.CodecZstd {
		opt.Memory = max(opt.Memory-sortmerge.EncoderBytes, opt.Memory/2)
	}
	if t.spec.Combiner != nil {
		opt.Combiner = t.newCombiner(t.spec.Combiner)
	}
	if t.isWordCount() {
		opt.Memory -= opt.Memory / 2 // the other half is for the table of words
	}
	c := sortmerge.NewCollector(opt)
	if err := t.mapToCollector(c); err != nil {
		return err
	}
	index, err := c.Finish(t.spec.MapOutput.Data, t.spec.MapOutput.Codec)
	if err != nil {
		return err
	}
	t.recordStats(c.Stats(), index)
	return mapreduce.WriteIndex(t.spec.MapOutput.Index, index)
}

func (t *task) recordStats(s sortmerge.Stats, x *mapreduce.Index) {
	t.partial.Index = x
	if t.partial.MapOutput == (mapreduce.Flow{}) {
		t.partial.MapOutput = s.Added
	}
	t.partial.Spilled = s.Spilled
	t.partial.CombineIn, t.partial.CombineOut = s.CombineIn, s.CombineOut
	t.partial.Spills, t.partial.MergePasses = s.Spills, s.MergePasses
	for _, p := range x.Parts {
		t.out.add(int(p.Records), int(p.RawLength))
		t.partial.Stored.Records += p.Records
		t.partial.Stored.Bytes += p.Length
	}
}

// isWordCount reports whether mapper and combiner are the built-in word count,
// which is counted in a hash table instead of sorting single words.
func (t *task) isWordCount() bool {
	c := t.spec.Combiner
	return t.spec.Program.Builtin == "wordcount" && c != nil && c.Builtin != ""
}

func (t *task) mapToCollector(c *sortmerge.Collector) error {
	collect := func(key, value []byte, bare bool) error {
		return c.Add(mapreduce.Partition(key, t.spec.Reduces), sortmerge.Record{Key: key, Value: value, NoValue: bare})
	}
	switch k := &t.spec.Keys; { // separate functions, so that the compiler inlines the usual partitioner
	case t.coder != nil:
		collect = func(key, value []byte, bare bool) error {
			t.partial.MapOutput.Records++
			t.partial.MapOutput.Bytes += int64(len(key) + len(value))
			part, encoded := t.coder.Encode(key)
			return c.Add(part, sortmerge.Record{Key: encoded, Value: value, NoValue: bare})
		}
	case !k.IsZero():
		collect = func(key, value []byte, bare bool) error {
			return c.Add(k.Partition(key, t.spec.Reduces), sortmerge.Record{Key: key, Value: value, NoValue: bare})
		}
	}
	switch {
	case t.isWordCount():
		return t.countWords(c)
	case t.spec.Program.Builtin != "":
		return t.builtinMap(collect)
	}
	return t.runMapper(func(r io.Reader) error {
		return t.eachLine(r, "the mapper", t.lineCollector(collect))
	})
}

// lineCollector returns a function that passes the key and the value of a line to collect.
func (t *task) lineCollector(collect collectFunc) func(line []byte) error {
	if k := &t.spec.Keys; k.Fields > 1 {
		return func(line []byte) error { return collect(k.Split(line)) }
	}
	return func(line []byte) error { return collect(mapreduce.SplitLine(line)) }
}

// runMapper runs the user's mapper over the split. The error of a failed mapper names the split, so
// that the user can find the failing record there.
func (t *task) runMapper(drain func(io.Reader) error) error {
	err := t.runProgram(program{argv: t.spec.Program.Argv, feed: t.feedSplit, drain: drain})
	var f *classifiedError
	pieces := t.spec.Input.Pieces
	if !errors.As(err, &f) || f.class != mapreduce.ClassUserExit || f.permanent || len(pieces) == 0 {
		return err
	}
	p, more := pieces[0], ""
	if n := len(pieces) - 1; n > 0 { // the last piece may still have been in the program's pipe: it failed at that piece or before
		given := t.piece.Load()
		more = fmt.Sprintf(" and %d more pieces; it had been given %d of all, the last of %s", n, given+1, pieces[given].Path)
	}
	return classErrorf(f.class, "%w; its input: bytes %d to %d of %s%s", err, p.Offset, p.Offset+p.Length, p.Path, more)
}

func (t *task) countWords(c *sortmerge.Collector) error {
	w := newWordTable(c, t.spec, t.coder, t.spec.SortMemory/2)
	if err := t.eachChunk(t.ctx, true, w.countText); err != nil {
		return err
	}
	if err := w.flush(); err != nil {
		return err
	}
	t.partial.MapOutput = mapreduce.Flow{Records: w.words, Bytes: w.bytes}
	return nil
}

func (t *task) runMapOnly() error {
	out, err := createOutput(t.spec.Output, &t.out)
	if err != nil {
		return err
	}
	if t.spec.Program.Builtin != "" {
		err = t.builtinMap(out.writeLine)
	} else {
		err = t.runMapper(out.copyFrom)
	}
	return t.finishOutput(out, err)
}

func (t *task) finishOutput(out *outputWriter, err error) error {
	stored, e := out.close()
	if err == nil {
		err = e
	}
	t.partial.Output = stored
	return err
}

// feedSplit writes the split to the mapper.
func (t *task) feedSplit(ctx context.Context, stdin io.Writer) error {
	return t.eachChunk(ctx, false, func(text []byte) error {
		_, err := stdin.Write(text)
		return err
	})
}

// eachLine calls use with each line of r without its newline; the last line may
// lack one. writer names the writer in messages. use must not retain the slice.
func (t *task) eachLine(r io.Reader, writer string, use func(line []byte) error) error {
	buf := make([]byte, chunkBytes)
	have := 0
	for {
		n, readErr := r.Read(buf[have:])
		if readErr != nil && readErr != io.EOF && !errors.Is(readErr, os.ErrClosed) {
			return readErr
		}
		from := 0
		scanned := have
		have += n
		for {
			i := bytes.IndexByte(buf[scanned:have], '\n')
			if i < 0 {
				break
			}
			if err := use(buf[from : scanned+i]); err != nil {
				return err
			}
			from = scanned + i + 1
			scanned = from
		}
		if readErr != nil && from < have {
			return use(buf[from:have])
		}
		if readErr != nil {
			return nil
		}
		have = copy(buf, buf[from:have])
		if int64(have) > t.spec.MaxLine {
			return permanentErrorf(mapreduce.ClassUserData, "%s wrote a line longer than %d bytes, the most that this task's memory allows: write shorter lines, or raise memory of the stage", writer, t.spec.MaxLine)
		}
		if have == len(buf) {
			buf = append(buf, make([]byte, len(buf))...)
		}
	}
}
