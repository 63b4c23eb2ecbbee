package mapreduce

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
)

// Source opens an input file for reading from an offset to its end. Reading
// at or past the end gives io.EOF.
type Source interface {
	Open(ctx context.Context, path string, offset int64) (io.ReadCloser, error)
}

// ErrLongLine is wrapped when no line ends within the limit past a split.
var ErrLongLine = errors.New("line too long")

const fetchBuffer = 1 << 20

// Fetch appends a split to a growing input and ends with Done; what it appends
// for an uncompressed piece are exactly the lines that belong to it. After a
// crash of the helper, Fetch on the same files goes on where they end.
//
// A line belongs to the piece [off, off+len) if it starts in (off, off+len],
// or at 0: the reader of a piece that does not start at 0 skips to after the
// first newline, and reads past the end to finish its last line. So any cut of
// a file covers each line once, and Fetch must read past the end, in steps,
// up to the first newline at or after off+len, but no more than maxLine bytes
// (0: DefaultMaxLine); more is ErrLongLine. On an error Fetch does not write
// Fail: the caller may try again first.
func Fetch(ctx context.Context, src Source, s *Split, maxLine int64, w *GrowingWriter) error {
	if maxLine <= 0 {
		maxLine = DefaultMaxLine
	}
	for i := w.Pieces(); i < len(s.Pieces); i++ {
		if err := fetchPiece(ctx, src, s.Pieces[i], maxLine, w); err != nil {
			return err
		}
		if err := w.EndPiece(); err != nil {
			return err
		}
	}
	return w.Done()
}

func fetchPiece(ctx context.Context, src Source, p Piece, maxLine int64, w *GrowingWriter) error {
	in, err := src.Open(ctx, p.Path, p.Offset)
	if err != nil {
		return fmt.Errorf("fetch %s: %w", p.Path, err)
	}
	defer in.Close()
	c := newCutter(p, maxLine)
	skip := w.pieceSize() // a helper before us appended this much of the same bytes
	buf := make([]byte, fetchBuffer)
	for !c.done {
		if err := ctx.Err(); err != nil {
			return err
		}
		n, err := in.Read(buf[:min(int64(len(buf)), c.want())])
		part, cutErr := c.feed(buf[:n])
		k := min(skip, int64(len(part)))
		skip -= k
		if len(part[k:]) > 0 {
			if _, err := w.Write(part[k:]); err != nil {
				return fmt.Errorf("fetch %s: %w", p.Path, err)
			}
		}
		if cutErr != nil {
			return cutErr
		}
		if err == io.EOF {
			if err := c.end(); err != nil {
				return err
			}
			break
		}
		if err != nil {
			return fmt.Errorf("fetch %s at %d: %w", p.Path, c.pos, err)
		}
	}
	if skip > 0 {
		return fmt.Errorf("fetch %s: %d bytes more were fetched before than the file gives now: it changed", p.Path, skip)
	}
	return nil
}

// cutter picks from the bytes of a file, fed in order from the start of a
// piece, those that belong to the piece.
type cutter struct {
	piece    Piece
	maxLine  int64
	pos      int64 // in the file, of the next byte fed
	skipping bool  // before the first newline of a piece that starts inside the file
	done     bool
}

func newCutter(p Piece, maxLine int64) *cutter {
	return &cutter{piece: p, maxLine: maxLine, pos: p.Offset, skipping: p.Codec == CodecNone && p.Offset > 0}
}

func (c *cutter) limit() int64 { return c.piece.Offset + c.piece.Length }

// want is how much to read next: all of the piece, then steps past its end.
func (c *cutter) want() int64 {
	if left := c.limit() - c.pos; left > 0 {
		return left
	}
	return tailStep
}

// tailStep is the step, in bytes, in which Fetch reads past the end of a piece.
const tailStep = 64 << 10

// feed takes the next bytes and returns those that belong to the piece.
func (c *cutter) feed(b []byte) ([]byte, error) {
	start := c.pos
	c.pos += int64(len(b))
	if c.piece.Codec != CodecNone {
		c.done = c.pos >= c.limit()
		return b, nil
	}
	if at := c.limit() - start; at <= int64(len(b)) {
		at = max(at, 0)
		if i := bytes.IndexByte(b[at:], '\n'); i >= 0 {
			b = b[:at+int64(i)+1]
			c.done = true
		} else if past := c.pos - c.limit(); past > c.maxLine {
			return nil, fmt.Errorf("fetch %s: %w: no newline within %d bytes after %d; is this a text file? (the limit is max_line)", c.piece.Path, ErrLongLine, c.maxLine, c.limit())
		}
	}
	if c.skipping {
		i := bytes.IndexByte(b, '\n')
		if i < 0 {
			return nil, nil
		}
		c.skipping = false
		b = b[i+1:]
	}
	return b, nil
}

// end is called at the end of the file.
func (c *cutter) end() error {
	if c.pos < c.limit() {
		return fmt.Errorf("fetch %s: the file ends at %d, the split at %d: it changed since the job was accepted", c.piece.Path, c.pos, c.limit())
	}
	return nil
}
