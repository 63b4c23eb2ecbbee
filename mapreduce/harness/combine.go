package harness

import (
	"bytes"
	"context"
	"io"
	"strconv"

	"github.com/drover-run/drover/mapreduce"
	"github.com/drover-run/drover/mapreduce/sortmerge"
)

type (
	nextFunc = func() (sortmerge.Record, bool, error)
	emitFunc = func(sortmerge.Record) error
)

func (t *task) combiner(p *mapreduce.Program) sortmerge.Combiner {
	if p.Builtin != "" {
		return sumCombiner{}
	}
	return commandCombiner{t, p.Argv}
}

// sumCombiner adds up the values of each key.
type sumCombiner struct{}

func (sumCombiner) Combine(next nextFunc, emit emitFunc) error {
	return eachGroup(next, &summing{}, func(key, value []byte) error {
		return emit(sortmerge.Record{Key: key, Value: value})
	})
}

// commandCombiner runs a user's combiner over one run: all partitions in one
// process, since starting a process costs more than the work.
type commandCombiner struct {
	t    *task
	argv []string
}

func (c commandCombiner) Combine(next nextFunc, emit emitFunc) error {
	return c.t.run(program{argv: c.argv,
		feed: func(_ context.Context, stdin io.Writer) error { return feedRecords(next, stdin) },
		drain: func(r io.Reader) error {
			return c.t.lines(r, "the combiner", func(line []byte) error {
				key, value, bare := splitLine(line)
				return emit(sortmerge.Record{Key: key, Value: value, NoValue: bare})
			})
		}})
}

// feedRecords writes "key TAB value" lines in large pieces.
func feedRecords(next nextFunc, stdin io.Writer) error {
	buf := make([]byte, 0, chunkBytes)
	for {
		r, ok, err := next()
		if err != nil {
			return err
		}
		if len(buf) > 0 && (!ok || len(buf)+len(r.Key)+len(r.Value)+2 > cap(buf)) {
			if _, err := stdin.Write(buf); err != nil {
				return err
			}
			buf = buf[:0]
		}
		if !ok {
			return nil
		}
		buf = append(append(append(append(buf, r.Key...), '\t'), r.Value...), '\n')
	}
}

// folding makes one value of the values of a key.
type folding interface {
	start()
	add(key []byte, r sortmerge.Record) error
	value(buf []byte) []byte
}

// eachGroup folds each key's values. emit gets slices that it must not keep.
func eachGroup(next nextFunc, f folding, emit func(key, value []byte) error) error {
	var key, value []byte
	open := false
	for {
		r, ok, err := next()
		if err != nil {
			return err
		}
		if open && (!ok || !bytes.Equal(r.Key, key)) {
			value = f.value(value[:0])
			if err := emit(key, value); err != nil {
				return err
			}
			open = false
		}
		if !ok {
			return nil
		}
		if !open {
			key, open = append(key[:0], r.Key...), true
			f.start()
		}
		if err := f.add(key, r); err != nil {
			return err
		}
	}
}

// summing adds up whole numbers.
type summing struct{ sum int64 }

func (s *summing) start() { s.sum = 0 }

func (s *summing) value(buf []byte) []byte { return strconv.AppendInt(buf, s.sum, 10) }

func (s *summing) add(key []byte, r sortmerge.Record) error {
	n, err := parseNumber(r.Value)
	if err != nil {
		return failf(mapreduce.ClassUserData, "sum: the value %.60q of key %.60q is not a whole number", r.Value, key)
	}
	sum := s.sum + n
	if (sum > s.sum) != (n > 0) && n != 0 {
		return failf(mapreduce.ClassUserData, "sum: the values of key %.60q add up to more than 64 bits hold", key)
	}
	s.sum = sum
	return nil
}

// parseNumber reads short numbers without making a string.
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

// counting counts values.
type counting struct{ n int64 }

func (c *counting) start()                             { c.n = 0 }
func (c *counting) value(buf []byte) []byte            { return strconv.AppendInt(buf, c.n, 10) }
func (c *counting) add([]byte, sortmerge.Record) error { c.n++; return nil }
