package mapreduce

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
)

// Source opens an input file for reading from an offset to its end. bytes is the number of bytes
// that the caller expects to read; it may read a few more. A read at or past the end returns
// io.EOF.
type Source interface {
	Open(ctx context.Context, path string, offset, bytes int64) (io.ReadCloser, error)
}

// ErrShrunk is the error of FetchSplit for a file that ends before its split. Another attempt
// cannot read more of the file.
var ErrShrunk = errors.New("it changed since the job was accepted")

// fetchBufferBytes bounds the buffer of FetchSplit.
const fetchBufferBytes = 1 << 20

// FetchSplit appends a split to a growing input and then calls Done. From an uncompressed piece it
// appends exactly the lines that belong to the piece. After a crash of the helper, FetchSplit on
// the same files resumes where the files end. In a piece that does not start at 0 it then reads up
// to the first line of the piece again.
//
// A line belongs to the piece [off, off+len) if it starts in (off, off+len], or at 0: the reader of
// a piece that does not start at 0 skips to the first newline, and reads past the end to finish its
// last line. Any way of cutting a file therefore covers each line exactly once. FetchSplit reads
// past the end in steps, up to the first newline at or after off+len: lines may be of any length
// that the task's disk space holds. It reads nothing past the end of a piece in which no line
// starts, and never past FileLength. FetchSplit does not call Fail on an error, because the caller
// may retry.
func FetchSplit(ctx context.Context, src Source, s *Split, w *GrowingWriter) error {
	longest := int64(tailReadBytes)
	for i := range s.Pieces {
		longest = max(longest, s.Pieces[i].Length)
	}
	buf := make([]byte, min(longest, fetchBufferBytes)) // one for all pieces: a split may pack thousands of small files
	for i := w.pieceCount(); i < len(s.Pieces); i++ {
		if err := fetchPiece(ctx, src, s.Pieces[i], w, buf); err != nil {
			return err
		}
		if err := w.EndPiece(); err != nil {
			return err
		}
	}
	return w.Done()
}

func fetchPiece(ctx context.Context, src Source, p Piece, w *GrowingWriter, buf []byte) error {
	c := newLineCutter(p)
	skip := c.resume(w.bytesInPiece()) // an earlier helper, or an earlier call, has already appended these bytes
	var in io.ReadCloser
	defer func() {
		if in != nil {
			in.Close()
		}
	}()
	for !c.done {
		if err := ctx.Err(); err != nil {
			return err
		}
		if in == nil {
			opened, err := src.Open(ctx, p.Path, c.pos, c.expectedBytes(skip))
			if err != nil {
				return fmt.Errorf("fetch %s: %w", p.Path, err)
			}
			in = opened
		}
		n, err := in.Read(buf[:min(int64(len(buf)), c.nextReadBytes())])
		wasSkipping := c.skipping
		part := c.feed(buf[:n])
		k := min(skip, int64(len(part)))
		skip -= k
		if len(part[k:]) > 0 {
			if _, err := w.Write(part[k:]); err != nil {
				return fmt.Errorf("fetch %s: %w", p.Path, err)
			}
		}
		if err == io.EOF {
			if err := c.checkEnd(); err != nil {
				return err
			}
			break
		}
		if err != nil {
			return fmt.Errorf("fetch %s at %d: %w", p.Path, c.pos, err)
		}
		if at := c.pos; wasSkipping {
			if skip = c.resume(skip); c.pos > at {
				in.Close() // the loop opens the file again at c.pos
				in = nil
			}
		}
	}
	if skip > 0 {
		return fmt.Errorf("fetch %s: the file changed: %d bytes fetched earlier are no longer in it", p.Path, skip)
	}
	return nil
}

// lineCutter selects the bytes that belong to a piece. The caller feeds it the bytes of the file in
// order from the start of the piece, except the bytes that resume passes over.
type lineCutter struct {
	piece    Piece
	pos      int64 // offset in the file of the next byte fed
	skipping bool  // true before the first newline of a piece that starts inside the file
	done     bool
}

func newLineCutter(p Piece) *lineCutter {
	return &lineCutter{piece: p, pos: p.Offset, skipping: p.Codec == CodecNone && p.Offset > 0}
}

func (c *lineCutter) pieceEnd() int64 { return c.piece.Offset + c.piece.Length }

// readEnd returns the offset past which nothing is read.
func (c *lineCutter) readEnd() int64 {
	switch {
	case c.piece.Codec != CodecNone:
		return c.pieceEnd()
	case c.piece.FileLength == 0:
		return math.MaxInt64
	default:
		return max(c.piece.FileLength, c.pieceEnd())
	}
}

// resume passes over the next bytes, which an earlier helper or call has already appended, and
// returns how many of them must be fed again: all of them while the start of the first line is
// unknown, and the bytes behind the end of the piece, in which the last line may end.
func (c *lineCutter) resume(fed int64) (again int64) {
	if fed == 0 || c.skipping || c.done {
		return fed
	}
	to := max(c.pos, min(c.pos+fed, c.pieceEnd()))
	again = fed - (to - c.pos)
	c.pos, c.done = to, to >= c.readEnd()
	return again
}

// expectedBytes returns how many bytes are likely to be read from here on. It is 0 while a resumed
// piece still searches for its first line: the bytes after it are then passed over.
func (c *lineCutter) expectedBytes(fed int64) int64 {
	if c.skipping && fed > 0 {
		return 0
	}
	return max(0, c.pieceEnd()-c.pos)
}

// nextReadBytes returns how much to read next: the rest of the piece, then
// steps past its end.
func (c *lineCutter) nextReadBytes() int64 {
	if left := c.pieceEnd() - c.pos; left > 0 {
		return left
	}
	return min(tailReadBytes, c.readEnd()-c.pos)
}

// tailReadBytes is the step in which FetchSplit reads past the end of a piece.
const tailReadBytes = 64 << 10

// feed consumes the next bytes and returns those that belong to the piece.
func (c *lineCutter) feed(b []byte) []byte {
	start := c.pos
	c.pos += int64(len(b))
	c.done = c.pos >= c.readEnd()
	if c.piece.Codec != CodecNone {
		return b
	}
	if at := c.pieceEnd() - start; at <= int64(len(b)) {
		at = max(at, 0)
		if i := bytes.IndexByte(b[at:], '\n'); i >= 0 {
			b = b[:at+int64(i)+1]
			c.done = true
		} else if c.skipping && bytes.IndexByte(b[:at], '\n') < 0 {
			c.done = true // no line starts in the piece
			return nil
		}
	}
	if c.skipping {
		i := bytes.IndexByte(b, '\n')
		if i < 0 {
			return nil
		}
		c.skipping = false
		b = b[i+1:]
	}
	return b
}

// checkEnd returns an error if the file ended before the piece did.
func (c *lineCutter) checkEnd() error {
	if c.pos < c.pieceEnd() {
		return fmt.Errorf("fetch %s: the file ends at %d, the split at %d: %w", c.piece.Path, c.pos, c.pieceEnd(), ErrShrunk)
	}
	return nil
}
