package sortmerge

import (
	"fmt"
	"os"

	"github.com/klauspost/compress/zstd"

	"github.com/drover-run/drover/mapreduce"
)

const (
	minBuffer = 4 << 10
	maxBuffer = 1 << 20
)

// writer writes a data file partition by partition.
type writer struct {
	file  *os.File
	enc   *zstd.Encoder // nil: not compressed
	raw   []byte        // compressed: records on their way to enc
	out   []byte        // bytes on their way to the file
	mark  int           // start of what in out is not in cur.CRC32C yet
	cur   mapreduce.PartRange
	index mapreduce.Index
}

func createRun(path string, codec mapreduce.Codec, buffer int) (*writer, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	w := &writer{file: f, out: make([]byte, 0, buffer), index: mapreduce.Index{Codec: codec}}
	if codec == mapreduce.CodecZstd {
		w.raw = make([]byte, 0, buffer)
		w.enc, err = zstd.NewWriter(sink{w}, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1), zstd.WithWindowSize(1<<20), zstd.WithLowerEncoderMem(true))
		if err != nil {
			f.Close()
			return nil, err
		}
	}
	return w, nil
}

// sink is where the encoder writes.
type sink struct{ w *writer }

func (s sink) Write(p []byte) (int, error) { return len(p), s.w.store(p) }

// add appends one encoded record to the current partition.
func (w *writer) add(rec []byte) error {
	w.cur.Records++
	w.cur.Raw += int64(len(rec))
	if w.enc == nil {
		return w.store(rec)
	}
	if len(w.raw)+len(rec) > cap(w.raw) {
		if err := w.compress(); err != nil {
			return err
		}
	}
	if len(rec) > cap(w.raw) {
		_, err := w.enc.Write(rec)
		return err
	}
	w.raw = append(w.raw, rec...)
	return nil
}

func (w *writer) compress() error {
	_, err := w.enc.Write(w.raw)
	w.raw = w.raw[:0]
	return err
}

func (w *writer) store(p []byte) error {
	if len(w.out)+len(p) > cap(w.out) {
		if err := w.flush(); err != nil {
			return err
		}
	}
	if len(p) > cap(w.out) {
		w.cur.CRC32C = mapreduce.CRC32C(w.cur.CRC32C, p)
		w.cur.Length += int64(len(p))
		_, err := w.file.Write(p)
		return err
	}
	w.out = append(w.out, p...)
	return nil
}

// sum brings checksum and length of the current partition up to date.
func (w *writer) sum() {
	fresh := w.out[w.mark:]
	w.cur.CRC32C = mapreduce.CRC32C(w.cur.CRC32C, fresh)
	w.cur.Length += int64(len(fresh))
	w.mark = len(w.out)
}

func (w *writer) flush() error {
	w.sum()
	_, err := w.file.Write(w.out)
	w.out, w.mark = w.out[:0], 0
	return err
}

// endPart ends the current partition and starts the next.
func (w *writer) endPart() error {
	if w.enc != nil && w.cur.Records > 0 {
		if err := w.compress(); err != nil {
			return err
		}
		if err := w.enc.Close(); err != nil {
			return err
		}
		w.enc.Reset(sink{w})
	}
	w.sum()
	w.index.Parts = append(w.index.Parts, w.cur)
	w.cur = mapreduce.PartRange{Offset: w.cur.Offset + w.cur.Length}
	return nil
}

// close ends the file, which must be at the end of a partition.
func (w *writer) close() (*mapreduce.Index, error) {
	err := w.flush()
	if e := w.file.Close(); err == nil {
		err = e
	}
	if err != nil {
		return nil, fmt.Errorf("writing %s: %w", w.file.Name(), err)
	}
	return &w.index, nil
}

// abort closes and removes a file that will not be finished.
func (w *writer) abort() {
	w.file.Close()
	os.Remove(w.file.Name())
}
