package harness

import (
	"bufio"
	"bytes"
	"io"

	"github.com/klauspost/compress/zlib"

	"github.com/drover-run/drover/mapreduce"
)

// binaryFormats are container formats whose files begin with these letters and a version byte below
// 9. Read as lines, such a file would produce garbage that looks like a result.
var binaryFormats = []struct{ letters, name string }{
	{"SEQ", "a Hadoop SequenceFile"},
	{"RCF", "a Hive RCFile"},
	{"Obj", "an Avro file"},
}

// refuseBinaryFormat returns r from its start, or an error if its first bytes are
// those of a format that is not text lines.
func refuseBinaryFormat(r io.Reader, p mapreduce.Piece) (io.Reader, error) {
	head, err := io.ReadAll(io.LimitReader(r, 4)) // not io.ReadFull: its error for a short file equals the error for a truncated one
	if err != nil {
		if p.Codec != mapreduce.CodecNone {
			err = &decompressError{err}
		}
		return nil, err
	}
	if len(head) == 4 && head[3] < 9 {
		for _, f := range binaryFormats {
			if string(head[:3]) == f.letters {
				return nil, permanentErrorf(mapreduce.ClassUserData, "input %s is %s, and a mapper reads lines of text: convert it first (hadoop fs -text FILE prints a SequenceFile as text)", p.Path, f.name)
			}
		}
	}
	return io.MultiReader(bytes.NewReader(head), r), nil
}

// zlibReader reads zlib streams, one after the other, as Hadoop's default codec
// does.
type zlibReader struct {
	in *bufio.Reader // a zlib reader reads no byte too many from an io.ByteReader
	z  io.ReadCloser
}

func newZlibReader(r io.Reader) *zlibReader {
	return &zlibReader{in: bufio.NewReaderSize(r, 64<<10)}
}

func (z *zlibReader) Read(p []byte) (int, error) {
	for {
		if z.z == nil {
			if _, err := z.in.Peek(1); err != nil {
				return 0, err // io.EOF after a complete stream
			}
			r, err := zlib.NewReader(z.in)
			if err != nil {
				return 0, unexpectedEOF(err)
			}
			z.z = r
		}
		n, err := z.z.Read(p)
		if err == io.EOF {
			z.z, err = nil, nil
		}
		if n > 0 || err != nil {
			return n, err
		}
	}
}

// unexpectedEOF keeps an end inside a header from looking like a complete file.
func unexpectedEOF(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}
