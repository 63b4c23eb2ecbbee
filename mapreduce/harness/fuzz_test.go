package harness

import (
	"bytes"
	"compress/gzip"
	"io"
	"testing"

	"github.com/drover-run/drover/internal/fuzztest"
	"github.com/drover-run/drover/mapreduce"
)

// FuzzDecompress reads an input with each codec: the result must be an error or bytes, never a
// panic, and no more bytes may be in memory than are requested.
func FuzzDecompress(f *testing.F) {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	if _, err := z.Write([]byte("one\ntwo\n")); err != nil {
		f.Fatal(err)
	}
	if err := z.Close(); err != nil {
		f.Fatal(err)
	}
	f.Add(b.Bytes())
	f.Add(append(b.Bytes(), make([]byte, 100)...))
	f.Add([]byte("BZh91AY&SY\x00\x00\x00\x00"))
	f.Add([]byte{0x28, 0xb5, 0x2f, 0xfd, 0, 0})
	f.Add([]byte{0x78, 0x9c, 3, 0, 0, 0, 0, 1})
	fuzztest.Run(f, func(t *testing.T, b []byte) {
		for c := mapreduce.CodecNone; c <= mapreduce.CodecDeflate; c++ {
			r, done, err := decompress(bytes.NewReader(b), c)
			if err != nil {
				continue
			}
			n, err := io.Copy(io.Discard, io.LimitReader(r, 1<<20))
			if c == mapreduce.CodecNone && (err != nil || n != int64(min(len(b), 1<<20))) {
				t.Errorf("plain: %d bytes, %v", n, err)
			}
			done()
		}
	})
}
