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

	"github.com/klauspost/compress/zstd"

	"github.com/drover-run/drover/mapreduce"
)

const (
	minPoll    = time.Millisecond
	maxPoll    = 20 * time.Millisecond
	zstdWindow = 32 << 20 // the window of "zstd --long=25" and of all levels but 21 and 22; it is charged to the task
)

// stallTimer limits waiting. It adds up its own sleeps instead of reading a
// clock, so that time during which the task was frozen does not count.
type stallTimer struct {
	limit, waited, sleep time.Duration
}

func newStallTimer(s *mapreduce.TaskSpec) stallTimer {
	return stallTimer{limit: time.Duration(s.StallMS) * time.Millisecond, sleep: minPoll}
}

func (s *stallTimer) reset() { s.waited, s.sleep = 0, minPoll }

// wait sleeps a little. It returns false once the limit has been reached.
func (s *stallTimer) wait(ctx context.Context) (bool, error) {
	if s.waited >= s.limit {
		return false, nil
	}
	timer := time.NewTimer(s.sleep)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return true, ctx.Err()
	case <-timer.C:
	}
	s.waited += s.sleep
	s.sleep = min(2*s.sleep, maxPoll)
	return true, nil
}

// growingInput reads the growing input while the helper writes it. A piece whose end is not known
// yet can be read only if it is the last one: reading any other piece would run into the next
// piece.
type growingInput struct {
	ctx      context.Context
	path     string
	file     *os.File
	journal  mapreduce.JournalReader
	pieces   int
	offset   int64
	stall    stallTimer
	firstErr error // kept here, because a decompressor may hide it
}

func newGrowingInput(ctx context.Context, s *mapreduce.TaskSpec) *growingInput {
	return &growingInput{ctx: ctx, path: s.Input.File, pieces: len(s.Input.Pieces), stall: newStallTimer(s),
		journal: mapreduce.JournalReader{Path: s.Input.File + mapreduce.JournalSuffix}}
}

func (g *growingInput) close() {
	g.journal.Close()
	if g.file != nil {
		g.file.Close()
	}
}

// pieceReader reads the bytes of one piece.
type pieceReader struct {
	g *growingInput
	i int
}

func (p pieceReader) Read(b []byte) (int, error) {
	n, err := p.g.readPiece(b, p.i)
	if err != nil && err != io.EOF && p.g.firstErr == nil {
		p.g.firstErr = err
	}
	return n, err
}

// readPiece returns bytes of piece i, waiting for them if necessary, and io.EOF
// at its end.
func (g *growingInput) readPiece(b []byte, i int) (int, error) {
	for {
		ends := g.journal.PieceEnds
		known := len(ends) > i
		if known && g.offset == ends[i] {
			return 0, io.EOF
		}
		if known || i == g.pieces-1 {
			if known {
				b = b[:min(int64(len(b)), ends[i]-g.offset)]
			}
			n, err := g.readAvailable(b)
			if n > 0 || err != nil {
				return n, err
			}
			if known {
				return 0, classErrorf(mapreduce.ClassInput, "input %s ends at %d, its journal says %d", g.path, g.offset, ends[i])
			}
		}
		if err := g.awaitMore(); err != nil {
			return 0, err
		}
	}
}

// readAvailable reads the bytes present; none is not an error.
func (g *growingInput) readAvailable(b []byte) (int, error) {
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
	n, err := g.file.ReadAt(b, g.offset)
	if n > 0 {
		g.offset += int64(n)
		g.stall.reset()
		return n, nil
	}
	if err == io.EOF {
		err = nil
	}
	return 0, err
}

// awaitMore reads the journal, and sleeps if it has nothing new.
func (g *growingInput) awaitMore() error {
	changed, err := g.journal.Poll()
	if err != nil {
		return classErrorf(mapreduce.ClassInput, "%w", err)
	}
	switch {
	case g.journal.FailReason != "":
		return classErrorf(mapreduce.ClassInput, "the input did not arrive: %s", g.journal.FailReason)
	case changed:
		g.stall.reset()
		return nil
	case g.journal.Done && len(g.journal.PieceEnds) < g.pieces:
		return classErrorf(mapreduce.ClassInput, "input %s is done after %d of %d pieces", g.path, len(g.journal.PieceEnds), g.pieces)
	}
	ok, err := g.stall.wait(g.ctx)
	if err == nil && !ok {
		err = classErrorf(mapreduce.ClassInput, "the input stalled: no byte arrived for %v after the first %d", g.stall.limit, g.offset)
	}
	return err
}

// eachChunk calls use with the decompressed text of all pieces in order. Pieces
// never share a line: a last line without newline gets one. With lines set, each
// call gets whole lines of at most maxLine bytes each. use must not retain the
// slice.
func (t *task) eachChunk(ctx context.Context, lines bool, use func(text []byte) error) error {
	g := newGrowingInput(ctx, t.spec)
	defer g.close()
	buf := make([]byte, chunkBytes)
	for i, p := range t.spec.Input.Pieces {
		t.piece.Store(int64(i))
		r, closeReader, err := decompress(pieceReader{g, i}, p.Codec)
		if err == nil && p.Offset == 0 {
			r, err = refuseBinaryFormat(r, p)
		}
		if err == nil {
			buf, err = t.readPiece(ctx, r, p, buf, lines, use)
			closeReader()
		}
		if err == nil {
			continue
		}
		if g.firstErr != nil {
			return g.firstErr
		}
		if errors.Is(err, zstd.ErrWindowSizeExceeded) {
			return permanentErrorf(mapreduce.ClassUserData, "input %s: its zstd window is larger than %d MiB: compress it with a level up to 20, or with at most --long=25 (%w)", p.Path, zstdWindow>>20, err)
		}
		var corrupt *decompressError
		if errors.As(err, &corrupt) {
			return permanentErrorf(mapreduce.ClassUserData, "input %s: not valid %s (%w)", p.Path, p.Codec, err)
		}
		return err
	}
	return nil
}

// decompressError marks an error of the decompressor.
type decompressError struct{ error }

func (b *decompressError) Unwrap() error { return b.error }

// decompress wraps the reader of a piece. A compressed file of zero bytes counts
// as empty.
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
		z, err := newGzipReader(r)
		if err != nil {
			return nil, none, &decompressError{err}
		}
		return z, none, nil
	case mapreduce.CodecBzip2:
		return bzip2.NewReader(r), none, nil
	case mapreduce.CodecZstd:
		z, err := zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(zstdWindow), zstd.WithDecoderLowmem(true))
		if err != nil {
			return nil, none, &decompressError{err}
		}
		return z, z.Close, nil
	case mapreduce.CodecDeflate:
		return newZlibReader(r), none, nil
	default:
		return nil, none, classErrorf(mapreduce.ClassSpec, "codec %s of input", c)
	}
}

// readPiece reads one piece to its end. It returns the buffer, which grows for
// long lines.
func (t *task) readPiece(ctx context.Context, r io.Reader, p mapreduce.Piece, buf []byte, lines bool, use func([]byte) error) ([]byte, error) {
	plain := p.Codec == mapreduce.CodecNone
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
			if buf, have, err = t.passChunk(p.Path, buf, have+n, lines, use); err != nil {
				return buf, err
			}
		}
		switch {
		case readErr == io.EOF:
			return buf, t.endLastLine(buf, have, last, use)
		case readErr != nil && plain:
			return buf, readErr
		case readErr != nil:
			return buf, &decompressError{readErr}
		}
	}
}

var newline = []byte{'\n'}

// passChunk passes buf[:have], or only its whole lines, to use. It moves the rest
// to the front of the buffer and grows a full buffer.
func (t *task) passChunk(path string, buf []byte, have int, lines bool, use func([]byte) error) ([]byte, int, error) {
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
		return buf, have, permanentErrorf(mapreduce.ClassUserData, "input %s: a line is longer than %d bytes, the most that this task's memory allows a built-in: is it text? If it is, raise memory of the stage, or use a command, which reads lines of any length", path, t.spec.MaxLine)
	}
	if have == len(buf) {
		buf = append(buf, make([]byte, len(buf))...)
	}
	return buf, have, nil
}

// endLastLine passes on the last line of a piece that lacks a newline, and adds the newline.
func (t *task) endLastLine(buf []byte, have int, last byte, use func([]byte) error) error {
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
