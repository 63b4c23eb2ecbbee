package harness

import (
	"bytes"
	"cmp"
	"context"
	"io"
	"path/filepath"
	"slices"

	"github.com/drover-run/drover/mapreduce"
	"github.com/drover-run/drover/mapreduce/sortmerge"
)

// doReduce runs a reduce task: wait for all partition files, merge them in the
// order of their map tasks, and send the records through the reducer.
func (t *task) doReduce() error {
	segments, err := t.awaitSegments()
	if err != nil {
		return err
	}
	g := &sortmerge.Merging{Dir: t.temp, Name: "merge", FanIn: t.spec.FanIn, Memory: t.spec.SortMemory}
	runs, err := g.Narrow(t.runsOf(segments))
	t.res.MergePasses, t.res.Spilled = g.Passes, mapreduce.Flow{Records: g.Records, Bytes: g.Bytes}
	if err != nil {
		return err
	}
	cursor, err := g.Open(runs)
	if err != nil {
		return err
	}
	defer cursor.Close()
	out, err := createOutput(t.spec.Output, &t.out)
	if err != nil {
		return err
	}
	if t.spec.Program.Builtin != "" {
		err = t.builtinReduce(t.counted(cursor.Next), out)
	} else {
		err = t.run(program{argv: t.spec.Program.Argv, drain: out.drain, feed: func(ctx context.Context, stdin io.Writer) error {
			return feedRecords(t.counted(cursor.Next), stdin)
		}})
	}
	return t.finishOutput(out, err)
}

// counted counts records and groups on their way to the reducer, a batch at a
// time, and stops when the task is told to.
func (t *task) counted(next nextFunc) nextFunc {
	const batch = 1024
	var key []byte
	var records, size int
	first := true
	return func() (sortmerge.Record, bool, error) {
		r, ok, err := next()
		if ok {
			records++
			size += len(r.Key) + len(r.Value)
			if first || !bytes.Equal(key, r.Key) {
				key, first = append(key[:0], r.Key...), false
				t.res.Groups++
			}
		}
		if !ok || records == batch {
			t.in.add(records, size)
			records, size = 0, 0
			if err == nil {
				err = t.ctx.Err()
			}
		}
		return r, ok, err
	}
}

// awaitSegments follows the journal until every map task's file is there, and
// returns them in the order of the map tasks.
func (t *task) awaitSegments() ([]mapreduce.Segment, error) {
	in := t.spec.Shuffle
	j := mapreduce.JournalReader{Path: in.Journal}
	defer j.Close()
	p := newPatience(t.spec)
	for {
		changed, err := j.Poll()
		if err != nil {
			return nil, failf(mapreduce.ClassInput, "%w", err)
		}
		t.segments.Store(int64(len(j.Segments)))
		switch {
		case j.Failed != "":
			return nil, failf(mapreduce.ClassInput, "the partitions did not come: %s", j.Failed)
		case len(j.Segments) >= in.Maps || j.Done:
			return checkSegments(j.Segments, in.Maps)
		case changed:
			p.reset()
			continue
		}
		ok, err := p.wait(t.ctx)
		if err != nil {
			return nil, err
		}
		if !ok {
			return nil, failf(mapreduce.ClassInput, "the shuffle stalled: %d of %d partitions present, none new for %v", len(j.Segments), in.Maps, p.limit)
		}
	}
}

func checkSegments(got []mapreduce.Segment, maps int) ([]mapreduce.Segment, error) {
	s := slices.SortedFunc(slices.Values(got), func(a, b mapreduce.Segment) int { return cmp.Compare(a.Map, b.Map) })
	for i, seg := range s {
		if seg.Map != i {
			return nil, failf(mapreduce.ClassInput, "the journal names map %d where map %d is due", seg.Map, i)
		}
	}
	if len(s) != maps {
		return nil, failf(mapreduce.ClassInput, "the journal is done after %d of %d partitions", len(s), maps)
	}
	return s, nil
}

func (t *task) runsOf(segments []mapreduce.Segment) []sortmerge.Run {
	var runs []sortmerge.Run
	for _, s := range segments {
		if s.Range.Records == 0 && s.Range.Length == 0 {
			continue
		}
		path := s.File
		if !filepath.IsAbs(path) {
			path = filepath.Join(t.spec.Shuffle.Dir, path)
		}
		runs = append(runs, sortmerge.Run{Path: path, Index: mapreduce.Index{Codec: s.Codec, Parts: []mapreduce.PartRange{s.Range}}})
	}
	return runs
}
