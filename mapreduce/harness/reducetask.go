package harness

import (
	"bytes"
	"cmp"
	"context"
	"io"
	"math"
	"path/filepath"
	"slices"

	"github.com/drover-run/drover/mapreduce"
	"github.com/drover-run/drover/mapreduce/sortmerge"
)

// runReduce executes a reduce task: it waits for all partition files, merges them
// in the order of their map tasks, and passes the records to the reducer.
func (t *task) runReduce() error {
	segments, err := t.awaitSegments()
	if err != nil {
		return err
	}
	for _, s := range segments {
		t.partial.Fetched.Records += s.Range.Records
		t.partial.Fetched.Bytes += s.Range.Length
	}
	g := &sortmerge.ExternalMerge{Dir: t.sortDir, NamePrefix: "merge", FanIn: t.spec.FanIn, Memory: t.spec.SortMemory}
	runs, err := g.MergeToFanIn(t.mergeInputs(segments))
	t.partial.MergePasses, t.partial.Spilled = g.Passes, mapreduce.Flow{Records: g.Records, Bytes: g.Bytes}
	if err != nil {
		return err
	}
	cursor, err := g.Open(runs)
	if err != nil {
		return err
	}
	defer cursor.Close()
	next := t.countInput(decodeKeys(cursor.Next, t.coder))
	out, err := createOutput(t.spec.Output, &t.out)
	if err != nil {
		return err
	}
	if t.spec.Program.Builtin != "" {
		err = t.builtinReduce(next, out)
	} else {
		err = t.runProgram(program{argv: t.spec.Program.Argv, drain: out.copyFrom, feed: func(ctx context.Context, stdin io.Writer) error {
			return feedRecords(next, stdin)
		}})
	}
	return t.finishOutput(out, err)
}

// countInput counts records and groups on their way to the reducer, in batches.
// Between batches it stops if the context has ended.
func (t *task) countInput(next nextFunc) nextFunc {
	const batch = 1024
	var key []byte
	var records, size int
	first := true
	return func() (*sortmerge.Record, error) {
		r, err := next()
		if r != nil {
			records++
			size += len(r.Key) + len(r.Value)
			if first || !bytes.Equal(key, r.Key) {
				key, first = append(key[:0], r.Key...), false
				t.partial.Groups++
			}
		}
		if r == nil || records == batch {
			t.in.add(records, size)
			records, size = 0, 0
			if err == nil {
				err = t.ctx.Err()
			}
		}
		return r, err
	}
}

// awaitSegments follows the journal until the file of every map task is present. It waits without a
// limit, because a map may run for hours and the node watches the helper. It returns the segments
// in the order of the map tasks.
func (t *task) awaitSegments() ([]mapreduce.Segment, error) {
	in := t.spec.Shuffle
	j := mapreduce.JournalReader{Path: in.Journal}
	defer j.Close()
	stall := stallTimer{limit: math.MaxInt64}
	stall.reset()
	for {
		changed, err := j.Poll()
		if err != nil {
			return nil, classErrorf(mapreduce.ClassInput, "%w", err)
		}
		t.segments.Store(int64(len(j.Segments)))
		switch {
		case j.FailReason != "":
			return nil, classErrorf(mapreduce.ClassInput, "the partitions did not arrive: %s", j.FailReason)
		case len(j.Segments) >= in.Maps || j.Done:
			return checkSegments(j.Segments, in.Maps)
		case changed:
			stall.reset()
			continue
		}
		if _, err := stall.wait(t.ctx); err != nil {
			return nil, err
		}
	}
}

func checkSegments(got []mapreduce.Segment, maps int) ([]mapreduce.Segment, error) {
	s := slices.SortedFunc(slices.Values(got), func(a, b mapreduce.Segment) int { return cmp.Compare(a.Map, b.Map) })
	for i, seg := range s {
		if seg.Map != i {
			return nil, classErrorf(mapreduce.ClassInput, "the journal names map %d instead of map %d", seg.Map, i)
		}
	}
	if len(s) != maps {
		return nil, classErrorf(mapreduce.ClassInput, "the journal is done after %d of %d partitions", len(s), maps)
	}
	return s, nil
}

func (t *task) mergeInputs(segments []mapreduce.Segment) []sortmerge.Segment {
	var runs []sortmerge.Segment
	for _, s := range segments {
		if s.Range.Records == 0 && s.Range.Length == 0 {
			continue
		}
		path := s.File
		if !filepath.IsAbs(path) {
			path = filepath.Join(t.spec.Shuffle.Dir, path)
		}
		runs = append(runs, sortmerge.Segment{Path: path, Index: mapreduce.Index{Codec: s.Codec, Parts: []mapreduce.PartitionRange{s.Range}}})
	}
	return runs
}
