package harness

import (
	"bufio"
	"errors"
	"io"

	"github.com/klauspost/compress/gzip"
)

// gzipReader reads the members of a gzip file one after the other. It skips zeros after a member,
// with which some programs fill up blocks. Other bytes there are an error, because they may be a
// damaged member.
type gzipReader struct {
	in *bufio.Reader
	z  *gzip.Reader
}

func newGzipReader(r io.Reader) (*gzipReader, error) {
	in := bufio.NewReaderSize(r, 64<<10)
	z, err := gzip.NewReader(in)
	if err != nil {
		return nil, err
	}
	z.Multistream(false)
	return &gzipReader{in, z}, nil
}

// Read implements io.Reader.
func (g *gzipReader) Read(p []byte) (int, error) {
	n, err := g.z.Read(p)
	if !errors.Is(err, io.EOF) {
		return n, err
	}
	return n, g.nextMember()
}

// nextMember prepares the next member; io.EOF if there is none.
func (g *gzipReader) nextMember() error {
	for {
		switch b, err := g.in.ReadByte(); {
		case err != nil:
			return err
		case b != 0:
			if err := g.in.UnreadByte(); err != nil {
				return err
			}
			err := g.z.Reset(g.in)
			if errors.Is(err, io.EOF) {
				return io.ErrUnexpectedEOF
			}
			g.z.Multistream(false)
			return err
		}
	}
}
