package harness

import (
	"bytes"
	"encoding/base64"
	"io"
	"strings"
	"testing"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zlib"
	"github.com/klauspost/compress/zstd"

	"github.com/drover-run/drover/mapreduce"
)

// bzip2Lines is the output of bzip2 for "a line\nanother\n".
const bzip2Lines = "QlpoOTFBWSZTWRRg/DIAAAHRgAAQQAAiZZQAIAAxANNNBAaGQgKY5yK3D3i7kinChICjB+GQ"

// Wherever a compressed file is cut, its task fails: the readable part would look like a complete
// input.
func TestCutCompressedInputIsRefused(t *testing.T) {
	const text = "a line\nanother\n"
	compress := func(open func(io.Writer) io.WriteCloser) string {
		var b bytes.Buffer
		z := open(&b)
		_, err := io.WriteString(z, text)
		check(t, err)
		check(t, z.Close())
		return b.String()
	}
	bzip2, err := base64.StdEncoding.DecodeString(bzip2Lines)
	check(t, err)
	for codec, file := range map[mapreduce.Codec]string{
		mapreduce.CodecGzip:    compress(func(w io.Writer) io.WriteCloser { return gzip.NewWriter(w) }),
		mapreduce.CodecDeflate: compress(func(w io.Writer) io.WriteCloser { return zlib.NewWriter(w) }),
		mapreduce.CodecBzip2:   string(bzip2),
		mapreduce.CodecZstd: compress(func(w io.Writer) io.WriteCloser {
			z, err := zstd.NewWriter(w)
			check(t, err)
			return z
		}),
	} {
		for cut := 1; cut < 2*len(file); cut++ {
			want := cut == len(file) // the first of two streams is a complete file, too
			got, err := readAllOf(file+file, cut, codec)
			if (err == nil) != want || want && got != text || !strings.HasPrefix(text+text, got) {
				t.Errorf("%s cut at %d of 2 times %d bytes: %q, %v", codec, cut, len(file), got, err)
			}
		}
		if got, err := readAllOf(file+file, 2*len(file), codec); err != nil || got != text+text {
			t.Errorf("%s: two streams: %q, %v", codec, got, err)
		}
	}
}

// readAllOf reads a compressed file that ends too early in the way in which a task reads a piece.
func readAllOf(file string, size int, codec mapreduce.Codec) (string, error) {
	r, closeReader, err := decompress(strings.NewReader(file[:size]), codec)
	if err != nil {
		return "", err
	}
	defer closeReader()
	if r, err = refuseBinaryFormat(r, mapreduce.Piece{Path: "file", Codec: codec}); err != nil {
		return "", err
	}
	got, err := io.ReadAll(r)
	return string(got), err
}
