package harness

import (
	"bytes"
	"compress/bzip2"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"time"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"github.com/drover-run/drover/mapreduce"
)

const (
	firstPoll  = time.Millisecond
	longPoll   = 20 * time.Millisecond
	zstdWindow = 128 << 20 // as much as "zstd --long=27" needs
)

// patience counts waiting. It adds up its own sleeps instead of reading a
// clock, so that time in which the task was frozen does not count.
type patience struct {
	limit, waited, sleep time.Duration
}

func newPatience(s *mapreduce.TaskSpec) patience {
	return patience{limit: time.Duration(s.StallMS) * time.Millisecond, sleep: firstPoll}
}

func (p *patience) reset() { p.waited, p.sleep = 0, firstPoll }

// wait sleeps a little and reports false when patience is at its end.
func (p *patience) wait(ctx context.Context) (bool, error) {
	if p.waited >= p.limit {
		return false, nil
	}
	timer := time.NewTimer(p.sleep)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return true, ctx.Err()
	case <-timer.C:
	}
	p.waited += p.sleep
	p.sleep = min(2*p.sleep, longPoll)
	return true, nil
}

// growing reads the growing input behind its writer. Of a piece whose end is
// not known only the last may be read: it has no end but the file's.
type growing struct {
	ctx      context.Context
	path     string
	file     *os.File
	journal  mapreduce.JournalReader
	pieces   int
	off      int64
	patience patience
	err      error // the first, so that no decompressor hides it
}

func newGrowing(ctx context.Context, s *mapreduce.TaskSpec) *growing {
	return &growing{ctx: ctx, path: s.Input.File, pieces: len(s.Input.Pieces), patience: newPatience(s),
		journal: mapreduce.JournalReader{Path: s.Input.File + mapreduce.JournalSuffix}}
}

func (g *growing) close() {
	g.journal.Close()
	if g.file != nil {
		g.file.Close()
	}
}

// pieceReader reads the bytes of one piece.
type pieceReader struct {
	g *growing
	i int
}

func (p pieceReader) Read(b []byte) (int, error) {
	n, err := p.g.read(b, p.i)
	if err != nil && err != io.EOF && p.g.err == nil {
		p.g.err = err
	}
	return n, err
}

// read returns bytes of piece i, waiting for them, and io.EOF at its end.
func (g *growing) read(b []byte, i int) (int, error) {
	for {
		ends := g.journal.Ends
		known := len(ends) > i
		if known && g.off == ends[i] {
			return 0, io.EOF
		}
		if known || i == g.pieces-1 {
			if known {
				b = b[:min(int64(len(b)), ends[i]-g.off)]
			}
			n, err := g.readAt(b)
			if n > 0 || err != nil {
				return n, err
			}
			if known {
				return 0, failf(mapreduce.ClassInput, "input %s ends at %d, its journal says %d", g.path, g.off, ends[i])
			}
		}
		if err := g.more(); err != nil {
			return 0, err
		}
	}
}

// readAt reads what is there; nothing is not an error.
func (g *growing) readAt(b []byte) (int, error) {
	if g.file == nil {
		f, err := os.Open(g.path)
		if errors.Is(err, fs.ErrNotExist) {
			return 0, nil
		}
		if err != nil {
			return 0, err
		}
		g.file = f
	}
	n, err := g.file.ReadAt(b, g.off)
	if n > 0 {
		g.off += int64(n)
		g.patience.reset()
		return n, nil
	}
	if err == io.EOF {
		err = nil
	}
	return 0, err
}

// more looks into the journal, and waits if it says nothing new.
func (g *growing) more() error {
	changed, err := g.journal.Poll()
	if err != nil {
		return failf(mapreduce.ClassInput, "%w", err)
	}
	switch {
	case g.journal.Failed != "":
		return failf(mapreduce.ClassInput, "the input did not come: %s", g.journal.Failed)
	case changed:
		g.patience.reset()
		return nil
	case g.journal.Done && len(g.journal.Ends) < g.pieces:
		return failf(mapreduce.ClassInput, "input %s is done after %d of %d pieces", g.path, len(g.journal.Ends), g.pieces)
	}
	ok, err := g.patience.wait(g.ctx)
	if err == nil && !ok {
		err = failf(mapreduce.ClassInput, "the input stalled: no byte came for %v after the first %d", g.patience.limit, g.off)
	}
	return err
}

// chunks calls use with text of all pieces in turn, decompressed. Text of
// different pieces never shares a line: a last line without newline gets one.
// With lines, each call gets whole lines, none longer than maxLine. use must
// not keep the slice.
func (t *task) chunks(ctx context.Context, lines bool, use func(text []byte) error) error {
	g := newGrowing(ctx, t.spec)
	defer g.close()
	buf := make([]byte, chunkBytes)
	for i, p := range t.spec.Input.Pieces {
		r, closeReader, err := decompress(pieceReader{g, i}, p.Codec)
		if err == nil {
			buf, err = t.readPiece(ctx, r, buf, lines, use)
			closeReader()
		}
		if err == nil {
			continue
		}
		if g.err != nil {
			return g.err
		}
		var corrupt *badInput
		if errors.As(err, &corrupt) {
			return failf(mapreduce.ClassUserData, "input %s: not valid %s (%w)", p.Path, p.Codec, err)
		}
		return err
	}
	return nil
}

// badInput marks an error of the decompressor.
type badInput struct{ error }

func (b *badInput) Unwrap() error { return b.error }

// decompress wraps a piece. A compressed file of no bytes at all is empty.
func decompress(r io.Reader, c mapreduce.Codec) (_ io.Reader, closeReader func(), err error) {
	none := func() {}
	if c == mapreduce.CodecNone {
		return r, none, nil
	}
	first := make([]byte, 1)
	switch _, err := io.ReadFull(r, first); {
	case err == io.EOF:
		return bytes.NewReader(nil), none, nil
	case err != nil:
		return nil, none, err
	}
	r = io.MultiReader(bytes.NewReader(first), r)
	switch c {
	case mapreduce.CodecGzip:
		z, err := gzip.NewReader(r)
		if err != nil {
			return nil, none, &badInput{err}
		}
		return z, none, nil
	case mapreduce.CodecBzip2:
		return bzip2.NewReader(r), none, nil
	case mapreduce.CodecZstd:
		z, err := zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(zstdWindow), zstd.WithDecoderLowmem(true))
		if err != nil {
			return nil, none, &badInput{err}
		}
		return z, z.Close, nil
	default:
		return nil, none, failf(mapreduce.ClassSpec, "codec %s of input", c)
	}
}

// readPiece reads one piece to its end. It returns the buffer, which grows for
// long lines.
func (t *task) readPiece(ctx context.Context, r io.Reader, buf []byte, lines bool, use func([]byte) error) ([]byte, error) {
	_, plain := r.(pieceReader)
	have := 0
	last := byte('\n')
	for {
		if err := ctx.Err(); err != nil {
			return buf, err
		}
		n, readErr := r.Read(buf[have:])
		if n > 0 {
			t.in.add(bytes.Count(buf[have:have+n], newline), n)
			last = buf[have+n-1]
			var err error
			if buf, have, err = t.consume(buf, have+n, lines, use); err != nil {
				return buf, err
			}
		}
		switch {
		case readErr == io.EOF:
			return buf, t.lastLine(buf, have, last, use)
		case readErr != nil && plain:
			return buf, readErr
		case readErr != nil:
			return buf, &badInput{readErr}
		}
	}
}

var newline = []byte{'\n'}

// consume gives use what is in buf[:have], or only its whole lines, and moves
// the rest to the front, of a buffer with room for more.
func (t *task) consume(buf []byte, have int, lines bool, use func([]byte) error) ([]byte, int, error) {
	end := have
	if lines {
		end = bytes.LastIndexByte(buf[:have], '\n') + 1
	}
	if end > 0 {
		if err := use(buf[:end]); err != nil {
			return buf, have, err
		}
		have = copy(buf, buf[end:have])
	}
	if int64(have) > t.spec.MaxLine {
		return buf, have, failf(mapreduce.ClassUserData, "a line of the input is longer than %d bytes; is it text? raise max_line if it is", t.spec.MaxLine)
	}
	if have == len(buf) {
		buf = append(buf, make([]byte, len(buf))...)
	}
	return buf, have, nil
}

// lastLine ends the last line of a piece that has no newline.
func (t *task) lastLine(buf []byte, have int, last byte, use func([]byte) error) error {
	if last == '\n' {
		return nil
	}
	t.in.add(1, 0)
	if have == len(buf) {
		buf = append(buf, 0)
	}
	buf[have] = '\n'
	return use(buf[:have+1])
}
