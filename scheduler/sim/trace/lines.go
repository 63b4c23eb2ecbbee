package trace

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
)

// Limits of what is read.
const (
	MaxLine  = 256 << 20 // bytes of a line
	MaxLines = 50_000_000
)

// Options of all readers.
type Options struct {
	// Name of the file, for errors.
	Name string
	// SkipBad passes over lines that cannot be read, and counts them.
	SkipBad bool
}

// Count is what a reader met.
type Count struct {
	Lines   int // with content
	Bad     int // passed over by SkipBad
	LeftOut int // readable, but nothing to simulate (no run time, no tasks)
	// FirstBad is the first bad line's error, "" for none.
	FirstBad string
}

// Open opens a trace for reading, gzip or not.
func Open(path string) (io.ReadCloser, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	r, err := Plain(f)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", path, err), f.Close())
	}
	return struct {
		io.Reader
		io.Closer
	}{r, f}, nil
}

// Plain gives the text of a stream, unpacking gzip where it finds it.
func Plain(r io.Reader) (io.Reader, error) {
	b := bufio.NewReaderSize(r, 1<<20)
	head, err := b.Peek(2)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	if len(head) == 2 && head[0] == 0x1f && head[1] == 0x8b {
		return gzip.NewReader(b)
	}
	return b, nil
}

// scan calls line for each line with content, with its number from 1. An
// error of line ends the reading, or is counted with SkipBad.
func scan(r io.Reader, o Options, line func(n int, text []byte) error) (Count, error) {
	var c Count
	b := bufio.NewReaderSize(r, 1<<20)
	for n := 1; ; n++ {
		text, err := readLine(b)
		if errors.Is(err, io.EOF) && len(text) == 0 {
			return c, nil
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return c, fmt.Errorf("%s:%d: %w", o.Name, n, err)
		}
		if n > MaxLines {
			return c, fmt.Errorf("%s:%d: more than %d lines", o.Name, n, MaxLines)
		}
		if text = bytes.TrimRight(text, "\r\n"); len(bytes.TrimSpace(text)) == 0 {
			continue
		}
		c.Lines++
		if err := line(n, text); err != nil {
			if errors.Is(err, errLeftOut) {
				c.LeftOut++
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

// errLeftOut says that a line is right and holds nothing to simulate.
var errLeftOut = errors.New("nothing to simulate")

func readLine(b *bufio.Reader) ([]byte, error) {
	text, err := b.ReadSlice('\n')
	if !errors.Is(err, bufio.ErrBufferFull) {
		return text, err
	}
	long := bytes.Clone(text)
	for errors.Is(err, bufio.ErrBufferFull) {
		text, err = b.ReadSlice('\n')
		if long = append(long, text...); len(long) > MaxLine {
			return nil, fmt.Errorf("a line of more than %d bytes", MaxLine)
		}
	}
	return long, err
}

// number reads a field as a number within bounds.
func number(field, what string, least, most float64) (float64, error) {
	x, err := strconv.ParseFloat(strings.TrimSpace(field), 64)
	if err != nil || !(x >= least && x <= most) {
		return 0, fmt.Errorf("%s is %q: expected a number from %g to %g", what, clip(field), least, most)
	}
	return x, nil
}

// clip shortens what is shown of a bad field.
func clip(s string) string {
	if len(s) > 40 {
		return s[:40] + "…"
	}
	return s
}
