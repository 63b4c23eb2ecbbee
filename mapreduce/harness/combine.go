package harness

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"

	"github.com/drover-run/drover/mapreduce"
	"github.com/drover-run/drover/mapreduce/sortmerge"
)

type (
	nextFunc = func() (*sortmerge.Record, error)
	emitFunc = func(sortmerge.Record) error
)

// combiner reduces a sorted sequence of records. It sees decoded keys, as they were on their lines.
type combiner interface {
	combine(next nextFunc, emit emitFunc) error
}

func (t *task) newCombiner(p *mapreduce.Program) sortmerge.Combiner {
	c := keyedCombiner{combiner: commandCombiner{t, p.Argv}, keys: &t.spec.Keys, coder: t.spec.Keys.Coder(t.spec.Reduces), reduces: t.spec.Reduces}
	if p.Builtin != "" {
		c.combiner = sumCombiner{}
	}
	return c
}

// keyedCombiner connects a combiner with the collector: it decodes the keys of the combiner's
// input, and assigns the combiner's output to the reducers of its keys.
type keyedCombiner struct {
	combiner
	keys    *mapreduce.Keys
	coder   *mapreduce.KeyCoder // not the mapper's coder: the combiner runs while the collector still uses the key that the mapper's coder encoded last; nil: keys are not encoded
	reduces int
}

func (c keyedCombiner) Combine(next nextFunc, emit func(part int, r sortmerge.Record) error) error {
	return c.combine(decodeKeys(next, c.coder), func(r sortmerge.Record) error {
		if c.coder == nil {
			return emit(c.keys.Partition(r.Key, c.reduces), r)
		}
		part, encoded := c.coder.Encode(r.Key)
		return emit(part, sortmerge.Record{Key: encoded, Value: r.Value, NoValue: r.NoValue})
	})
}

// decodeKeys returns the records of next with the keys as they were on their lines.
func decodeKeys(next nextFunc, coder *mapreduce.KeyCoder) nextFunc {
	if coder == nil {
		return next
	}
	var decoded sortmerge.Record // a copy: merging still compares the encoded key of next's own record
	return func() (*sortmerge.Record, error) {
		r, err := next()
		if r == nil || err != nil {
			return nil, err
		}
		key, err := coder.Decode(r.Key)
		if err != nil {
			return nil, err
		}
		decoded = sortmerge.Record{Key: key, Value: r.Value, NoValue: r.NoValue}
		return &decoded, nil
	}
}

// sumCombiner adds up the values of each key.
type sumCombiner struct{}

func (sumCombiner) combine(next nextFunc, emit emitFunc) error {
	return foldGroups(next, &sumFolder{}, func(key, value []byte) error {
		return emit(sortmerge.Record{Key: key, Value: value})
	})
}

// commandCombiner runs a user's combiner over one segment: all partitions in one
// process, because starting a process costs more than the work.
type commandCombiner struct {
	t    *task
	argv []string
}

func (c commandCombiner) combine(next nextFunc, emit emitFunc) error {
	err := c.t.runProgram(program{argv: c.argv,
		feed: func(_ context.Context, stdin io.Writer) error { return feedRecords(next, stdin) },
		drain: func(r io.Reader) error {
			return c.t.eachLine(r, "the combiner", func(line []byte) error {
				key, value, bare := c.t.spec.Keys.Split(line)
				return emit(sortmerge.Record{Key: key, Value: value, NoValue: bare})
			})
		}})
	if f := (*classifiedError)(nil); errors.As(err, &f) && f.class == mapreduce.ClassUserExit {
		return fmt.Errorf("the combiner: %w", err) // the combiner runs in a map task, whose mapper did not fail
	}
	return err
}

// feedRecords writes "key TAB value" lines in large chunks.
func feedRecords(next nextFunc, stdin io.Writer) error {
	buf := make([]byte, 0, chunkBytes)
	for {
		r, err := next()
		if err != nil {
			return err
		}
		if len(buf) > 0 && (r == nil || len(buf)+len(r.Key)+len(r.Value)+2 > cap(buf)) {
			if _, err := stdin.Write(buf); err != nil {
				return err
			}
			buf = buf[:0]
		}
		if r == nil {
			return nil
		}
		buf = append(append(append(append(buf, r.Key...), '\t'), r.Value...), '\n')
	}
}

// valueFolder folds the values of a key into one value.
type valueFolder interface {
	reset()
	add(key []byte, r *sortmerge.Record) error
	appendValue(buf []byte) []byte
}

// foldGroups folds the values of each key. emit must not retain its slices.
func foldGroups(next nextFunc, f valueFolder, emit func(key, value []byte) error) error {
	var key, value []byte
	open := false
	for {
		r, err := next()
		if err != nil {
			return err
		}
		if open && (r == nil || !bytes.Equal(r.Key, key)) {
			value = f.appendValue(value[:0])
			if err := emit(key, value); err != nil {
				return err
			}
			open = false
		}
		if r == nil {
			return nil
		}
		if !open {
			key, open = append(key[:0], r.Key...), true
			f.reset()
		}
		if err := f.add(key, r); err != nil {
			return err
		}
	}
}

// sumFolder adds integers. Its errors are permanent: another attempt of the mapper would write the
// same values.
type sumFolder struct{ sum int64 }

func (s *sumFolder) reset() { s.sum = 0 }

func (s *sumFolder) appendValue(buf []byte) []byte { return strconv.AppendInt(buf, s.sum, 10) }

func (s *sumFolder) add(key []byte, r *sortmerge.Record) error {
	n, err := parseNumber(r.Value)
	if err != nil && r.NoValue {
		return permanentErrorf(mapreduce.ClassUserData, "sum: the mapper's line %.60q has no tab and so no value: write KEY, a tab and a whole number", key)
	}
	if err != nil {
		return permanentErrorf(mapreduce.ClassUserData, "sum: the value %.60q of key %.60q is not a whole number", r.Value, key)
	}
	sum := s.sum + n
	if (sum > s.sum) != (n > 0) && n != 0 {
		return permanentErrorf(mapreduce.ClassUserData, "sum: the values of key %.60q overflow 64 bits", key)
	}
	s.sum = sum
	return nil
}

// parseNumber parses an integer; short ones without allocating a string.
func parseNumber(b []byte) (int64, error) {
	if len(b) == 0 || len(b) > 18 || b[0] < '0' || b[0] > '9' {
		return strconv.ParseInt(string(bytes.TrimSpace(b)), 10, 64)
	}
	n := int64(0)
	for _, c := range b {
		if c < '0' || c > '9' {
			return strconv.ParseInt(string(bytes.TrimSpace(b)), 10, 64)
		}
		n = 10*n + int64(c-'0')
	}
	return n, nil
}

// countFolder counts values.
type countFolder struct{ n int64 }

func (c *countFolder) reset()                              { c.n = 0 }
func (c *countFolder) appendValue(buf []byte) []byte       { return strconv.AppendInt(buf, c.n, 10) }
func (c *countFolder) add([]byte, *sortmerge.Record) error { c.n++; return nil }
