package harness

import (
	"bytes"
	"fmt"
	"io"
	"os"

	"github.com/klauspost/compress/zstd"

	"github.com/drover-run/drover/mapreduce"
)

// outputWriter writes the output file of a reduce or map-only task: text that ends with a newline,
// compressed if requested, with length and checksum of the stored bytes. Its goroutine compresses,
// sums and writes one buffer while the caller fills the other.
type outputWriter struct {
	buf    []byte        // the caller's
	full   chan []byte   // to the goroutine
	free   chan []byte   // back from it
	failed chan struct{} // closed at the first error
	ended  chan struct{} // closed when the goroutine has ended
	err    error         // the first error; read it only after failed or ended is closed

	// Owned by the goroutine until it has ended.
	file     *os.File
	encoder  *zstd.Encoder
	dst      io.Writer // encoder or checksumWriter
	stored   mapreduce.StoredFile
	counts   *flowCounter
	lastByte byte
}

// createOutput creates the file. The caller closes the writer.
func createOutput(o *mapreduce.OutputFile, counts *flowCounter) (*outputWriter, error) {
	f, err := mapreduce.CreateFile(o.Path)
	if err != nil {
		return nil, err
	}
	w := &outputWriter{file: f, counts: counts, lastByte: '\n', buf: make([]byte, 0, chunkBytes),
		full: make(chan []byte, 1), free: make(chan []byte, 2), failed: make(chan struct{}), ended: make(chan struct{})}
	w.stored = mapreduce.StoredFile{Path: o.Path, Codec: o.Codec}
	w.dst = checksumWriter{w}
	if o.Codec == mapreduce.CodecZstd {
		w.encoder, err = zstd.NewWriter(w.dst, zstd.WithEncoderConcurrency(1), zstd.WithWindowSize(1<<20))
		if err != nil {
			f.Close()
			return nil, err
		}
		w.dst = w.encoder
	}
	w.free <- make([]byte, 0, chunkBytes)
	go w.writeBuffers()
	return w, nil
}

// writeBuffers writes the buffers that the caller fills, until full is closed. After an error it
// only returns the buffers to the caller.
func (w *outputWriter) writeBuffers() {
	defer close(w.ended)
	for p := range w.full {
		if w.err == nil {
			if w.err = w.writeText(p); w.err != nil {
				close(w.failed)
			}
		}
		w.free <- p[:0]
	}
}

// checksumWriter writes to the file and updates length and checksum.
type checksumWriter struct{ w *outputWriter }

func (s checksumWriter) Write(p []byte) (int, error) {
	n, err := s.w.file.Write(p)
	s.w.stored.Bytes += int64(n)
	s.w.stored.CRC32C = mapreduce.CRC32C(s.w.stored.CRC32C, p[:n])
	return n, err
}

// writeText writes one buffer.
func (w *outputWriter) writeText(p []byte) error {
	if len(p) == 0 {
		return nil
	}
	w.counts.add(bytes.Count(p, newline), len(p))
	w.lastByte = p[len(p)-1]
	_, err := w.dst.Write(p)
	return err
}

// writeLine writes the key, a tab unless bare, the value and a newline.
func (w *outputWriter) writeLine(key, value []byte, bare bool) error {
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

// flush hands the buffer to the goroutine. It returns the error of an earlier buffer.
func (w *outputWriter) flush() error {
	w.full <- w.buf
	w.buf = <-w.free
	select {
	case <-w.failed:
		return w.err
	default:
		return nil
	}
}

// copyFrom copies r, the stdout of a program, to its end.
func (w *outputWriter) copyFrom(r io.Reader) error {
	if err := w.flush(); err != nil {
		return err
	}
	for {
		n, err := r.Read(w.buf[:cap(w.buf)])
		w.buf = w.buf[:n]
		if e := w.flush(); e != nil {
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

// close finishes the last line and closes the file.
func (w *outputWriter) close() (*mapreduce.StoredFile, error) {
	w.full <- w.buf
	close(w.full)
	<-w.ended
	err := w.err
	if err == nil && w.lastByte != '\n' {
		err = w.writeText(newline)
	}
	if w.encoder != nil && err == nil {
		err = w.encoder.Close()
	}
	if e := w.file.Close(); err == nil {
		err = e
	}
	if err != nil {
		return nil, fmt.Errorf("writing the output: %w", err)
	}
	return &w.stored, nil
}
