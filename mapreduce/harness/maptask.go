package harness

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"

	"github.com/drover-run/drover/mapreduce"
	"github.com/drover-run/drover/mapreduce/sortmerge"
)

// doMap runs a map task: the mapper's lines go to sorted partitions, or for a
// map-only job to the output file as they come.
func (t *task) doMap() error {
	if t.spec.Reduces == 0 {
		return t.mapOnly()
	}
	opt := sortmerge.Options{Parts: t.spec.Reduces, Memory: t.spec.SortMemory, Dir: t.temp, FanIn: t.spec.FanIn, Combined: t.countsWords()}
	if t.spec.Combiner != nil {
		opt.Combine = t.combiner(t.spec.Combiner)
	}
	if t.countsWords() {
		opt.Memory -= opt.Memory / 2 // the other half is for the table of words
	}
	c := sortmerge.NewCollector(opt)
	if err := t.mapInto(c); err != nil {
		return err
	}
	index, err := c.Finish(t.spec.MapOutput.Data, t.spec.MapOutput.Codec)
	if err != nil {
		return err
	}
	t.takeStats(c.Stats(), index)
	return mapreduce.WriteIndex(t.spec.MapOutput.Index, index)
}

func (t *task) takeStats(s sortmerge.Stats, x *mapreduce.Index) {
	t.res.Index = x
	if t.res.MapOut == (mapreduce.Flow{}) {
		t.res.MapOut = s.Added
	}
	t.res.Spilled = s.Spilled
	t.res.CombineIn, t.res.CombineOut = s.CombineIn, s.CombineOut
	t.res.Spills, t.res.MergePasses = s.Spills, s.MergePasses
	for _, p := range x.Parts {
		t.out.add(int(p.Records), int(p.Raw))
	}
}

// countsWords says that mapper and combiner are the built-in word count, which
// needs no sorting of single words.
func (t *task) countsWords() bool {
	c := t.spec.Combiner
	return t.spec.Program.Builtin == "wordcount" && c != nil && c.Builtin != ""
}

func (t *task) mapInto(c *sortmerge.Collector) error {
	collect := func(key, value []byte, bare bool) error {
		return c.Add(mapreduce.Partition(key, t.spec.Reduces), sortmerge.Record{Key: key, Value: value, NoValue: bare})
	}
	switch {
	case t.countsWords():
		return t.countWords(c)
	case t.spec.Program.Builtin != "":
		return t.builtinMap(collect)
	}
	return t.run(program{argv: t.spec.Program.Argv, feed: t.feedSplit, drain: func(r io.Reader) error {
		return t.lines(r, "the mapper", func(line []byte) error { return collect(splitLine(line)) })
	}})
}

func (t *task) countWords(c *sortmerge.Collector) error {
	w := newWordTable(c, t.spec.Reduces, t.spec.SortMemory/2)
	if err := t.chunks(t.ctx, true, w.text); err != nil {
		return err
	}
	if err := w.flush(); err != nil {
		return err
	}
	t.res.MapOut = mapreduce.Flow{Records: w.words, Bytes: w.bytes}
	return nil
}

func (t *task) mapOnly() error {
	out, err := createOutput(t.spec.Output, &t.out)
	if err != nil {
		return err
	}
	if t.spec.Program.Builtin != "" {
		err = t.builtinMap(out.line)
	} else {
		err = t.run(program{argv: t.spec.Program.Argv, feed: t.feedSplit, drain: out.drain})
	}
	return t.finishOutput(out, err)
}

func (t *task) finishOutput(out *output, err error) error {
	stored, e := out.close()
	if err == nil {
		err = e
	}
	t.res.Output = stored
	return err
}

// feedSplit writes the split to the mapper.
func (t *task) feedSplit(ctx context.Context, stdin io.Writer) error {
	return t.chunks(ctx, false, func(text []byte) error {
		_, err := stdin.Write(text)
		return err
	})
}

// splitLine cuts a line at its first tab. Without one, all of it is the key.
func splitLine(line []byte) (key, value []byte, bare bool) {
	if i := bytes.IndexByte(line, '\t'); i >= 0 {
		return line[:i], line[i+1:], false
	}
	return line, nil, true
}

// lines calls use with each line of r without its newline; the last line may
// lack one. who is for messages. use must not keep the slice.
func (t *task) lines(r io.Reader, who string, use func(line []byte) error) error {
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
			return failf(mapreduce.ClassUserData, "%s wrote a line longer than %d bytes; write text lines, or raise max_line", who, t.spec.MaxLine)
		}
		if have == len(buf) {
			buf = append(buf, make([]byte, len(buf))...)
		}
	}
}
