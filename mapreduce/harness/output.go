package harness

import (
	"bytes"
	"fmt"
	"io"
	"os"

	"github.com/klauspost/compress/zstd"

	"github.com/drover-run/drover/mapreduce"
)

// output writes the final file of a reduce or map-only task: text that ends
// with a newline, maybe compressed, with length and checksum as stored.
type output struct {
	file   *os.File
	enc    *zstd.Encoder
	to     io.Writer // enc or stored
	stored mapreduce.Stored
	counts *flow
	buf    []byte
	last   byte
}

func createOutput(o *mapreduce.OutputFile, counts *flow) (*output, error) {
	f, err := os.OpenFile(o.Path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	w := &output{file: f, counts: counts, last: '\n', buf: make([]byte, 0, chunkBytes)}
	w.stored = mapreduce.Stored{Path: o.Path, Codec: o.Codec}
	w.to = storedWriter{w}
	if o.Codec == mapreduce.CodecZstd {
		w.enc, err = zstd.NewWriter(w.to, zstd.WithEncoderConcurrency(1), zstd.WithWindowSize(1<<20))
		if err != nil {
			f.Close()
			return nil, err
		}
		w.to = w.enc
	}
	return w, nil
}

// storedWriter writes to the file and sums what it wrote.
type storedWriter struct{ w *output }

func (s storedWriter) Write(p []byte) (int, error) {
	n, err := s.w.file.Write(p)
	s.w.stored.Bytes += int64(n)
	s.w.stored.CRC32C = mapreduce.CRC32C(s.w.stored.CRC32C, p[:n])
	return n, err
}

// text writes a large piece of text.
func (w *output) text(p []byte) error {
	if len(p) == 0 {
		return nil
	}
	w.counts.add(bytes.Count(p, newline), len(p))
	w.last = p[len(p)-1]
	_, err := w.to.Write(p)
	return err
}

// line writes key, a tab unless bare, value and newline.
func (w *output) line(key, value []byte, bare bool) error {
	if len(w.buf)+len(key)+len(value)+2 > cap(w.buf) {
		if err := w.flush(); err != nil {
			return err
		}
	}
	w.buf = append(w.buf, key...)
	if !bare {
		w.buf = append(append(w.buf, '\t'), value...)
	}
	w.buf = append(w.buf, '\n')
	return nil
}

func (w *output) flush() error {
	err := w.text(w.buf)
	w.buf = w.buf[:0]
	return err
}

// drain copies r, the stdout of a program, to its end.
func (w *output) drain(r io.Reader) error {
	buf := w.buf[:cap(w.buf)]
	for {
		n, err := r.Read(buf)
		if e := w.text(buf[:n]); e != nil {
			return e
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// close ends the last line and the file.
func (w *output) close() (*mapreduce.Stored, error) {
	err := w.flush()
	if err == nil && w.last != '\n' {
		err = w.text(newline)
	}
	if w.enc != nil && err == nil {
		err = w.enc.Close()
	}
	if e := w.file.Close(); err == nil {
		err = e
	}
	if err != nil {
		return nil, fmt.Errorf("writing the output: %w", err)
	}
	return &w.stored, nil
}
