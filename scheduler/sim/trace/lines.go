package trace

import (
	"bufio"
	"bytes"
	"cmp"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
)

// Limits of the readers.
const (
	maxLine  = 256 << 20 // bytes
	maxLines = 50_000_000
)

// Options are the options of all readers.
type Options struct {
	// Name is the name of the file in errors.
	Name string
	// SkipBad counts and skips lines that cannot be read.
	SkipBad bool
	// maxTasks bounds the tasks that a whole file may declare in a few bytes: a damaged number
	// would take all memory. 0 is 100 million.
	maxTasks int
}

// maxDeclared is the default of Options.maxTasks.
const maxDeclared = 100_000_000

// taskCounter counts the tasks that a file declares by numbers.
type taskCounter struct {
	left, most int
}

func newTaskCounter(o Options) *taskCounter {
	most := cmp.Or(o.maxTasks, maxDeclared)
	return &taskCounter{left: most, most: most}
}

// tasks returns n tasks that each ran once as a says, or an error if the file has too many.
func (c *taskCounter) tasks(n int, a *HistoryAttempt) ([]HistoryTask, error) {
	if n > c.left {
		return nil, fmt.Errorf("%d tasks: with those before, more than %d in one file", n, c.most)
	}
	c.left -= n
	all := make([]HistoryTask, n)
	for i := range all {
		all[i].Attempts = []HistoryAttempt{*a}
	}
	return all, nil
}

// Count counts the lines that a reader met.
type Count struct {
	Lines   int // non-empty lines
	Bad     int // skipped by SkipBad
	Skipped int // valid, but nothing to simulate (no run time, no tasks)
	// FirstBad is the error of the first bad line, "" if there is none.
	FirstBad string
}

// Open opens a trace for reading, compressed with gzip or not.
func Open(path string) (io.ReadCloser, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	r, err := decompress(f)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", path, err), f.Close())
	}
	return struct {
		io.Reader
		io.Closer
	}{r, f}, nil
}

// readBytes is the size of one read of a file. A larger buffer is no faster, and each reader has two.
const readBytes = 64 << 10

// decompress returns the contents of a stream that may be compressed with gzip.
func decompress(r io.Reader) (io.Reader, error) {
	b := bufio.NewReaderSize(r, readBytes)
	head, err := b.Peek(2)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	if len(head) == 2 && head[0] == 0x1f && head[1] == 0x8b {
		return gzip.NewReader(b)
	}
	return b, nil
}

// scanLines calls line for each non-empty line with its number, counted from 1. An error of line
// ends the scan, or is counted with SkipBad.
func scanLines(r io.Reader, o Options, line func(n int, text []byte) error) (Count, error) {
	var c Count
	b := bufio.NewReaderSize(r, readBytes)
	for n := 1; ; n++ {
		text, err := readLine(b)
		if errors.Is(err, io.EOF) && len(text) == 0 {
			return c, nil
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return c, fmt.Errorf("%s:%d: %w", o.Name, n, err)
		}
		if n > maxLines {
			return c, fmt.Errorf("%s:%d: file has more than %d lines", o.Name, n, maxLines)
		}
		if text = bytes.TrimRight(text, "\r\n"); len(bytes.TrimSpace(text)) == 0 {
			continue
		}
		c.Lines++
		if err := line(n, text); err != nil {
			if errors.Is(err, errNothingToSimulate) {
				c.Skipped++
				continue
			}
			err = fmt.Errorf("%s:%d: %w", o.Name, n, err)
			if !o.SkipBad {
				return c, err
			}
			if c.Bad++; c.Bad == 1 {
				c.FirstBad = err.Error()
			}
		}
	}
}

// errNothingToSimulate marks a valid line without anything to simulate.
var errNothingToSimulate = errors.New("nothing to simulate")

func readLine(b *bufio.Reader) ([]byte, error) {
	text, err := b.ReadSlice('\n')
	if !errors.Is(err, bufio.ErrBufferFull) {
		return text, err
	}
	long := bytes.Clone(text)
	for errors.Is(err, bufio.ErrBufferFull) {
		text, err = b.ReadSlice('\n')
		if long = append(long, text...); len(long) > maxLine {
			return nil, fmt.Errorf("line longer than %d bytes", maxLine)
		}
	}
	return long, err
}

// parseNumber parses a field as a number within limits.
func parseNumber(field, what string, least, most float64) (float64, error) {
	x, err := strconv.ParseFloat(strings.TrimSpace(field), 64)
	if err != nil || !(x >= least && x <= most) {
		return 0, fmt.Errorf("%s is %q: expected a number from %g to %g", what, truncate(field), least, most)
	}
	return x, nil
}

// truncate shortens a bad field for an error.
func truncate(s string) string {
	if len(s) > 40 {
		return s[:40] + "…"
	}
	return s
}
