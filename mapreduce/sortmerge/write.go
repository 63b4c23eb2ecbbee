package sortmerge

import (
	"fmt"
	"os"

	"github.com/klauspost/compress/zstd"

	"github.com/drover-run/drover/mapreduce"
)

const (
	minBufferBytes = 4 << 10
	maxBufferBytes = 1 << 20

	// windowBytes is how far back a compressed partition refers. A merge holds a window for each
	// open segment, so it is small; text repeats itself at shorter distances.
	windowBytes = 128 << 10
)

// EncoderBytes is the memory of the encoder of a compressed file besides the buffers, which
// TestMemoryOfCodecs checks.
const EncoderBytes = 2 << 20

// decoderBytes is the memory of a decoder besides the buffer of its reader, which TestMemoryOfCodecs
// checks: the window, a decoded block, a stored block, and tables.
const decoderBytes = 768 << 10

// segmentWriter writes a data file partition by partition.
type segmentWriter struct {
	file    *os.File
	encoder *zstd.Encoder // nil: not compressed
	raw     []byte        // compressed: records not yet passed to encoder
	out     []byte        // bytes not yet written to the file
	summed  int           // length of the prefix of out that part.CRC32C covers
	part    mapreduce.PartitionRange
	index   mapreduce.Index
}

func createSegment(path string, codec mapreduce.Codec, buffer int) (*segmentWriter, error) {
	f, err := mapreduce.CreateFile(path)
	if err != nil {
		return nil, err
	}
	w := &segmentWriter{file: f, out: make([]byte, 0, buffer), index: mapreduce.Index{Codec: codec}}
	if codec == mapreduce.CodecZstd {
		w.raw = make([]byte, 0, buffer)
		w.encoder, err = zstd.NewWriter(storedSink{w}, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1), zstd.WithWindowSize(windowBytes), zstd.WithLowerEncoderMem(true))
		if err != nil {
			f.Close()
			return nil, err
		}
	}
	return w, nil
}

// storedSink is the destination of the encoder.
type storedSink struct{ w *segmentWriter }

func (s storedSink) Write(p []byte) (int, error) { return len(p), s.w.store(p) }

// addRecord appends one encoded record to the current partition.
func (w *segmentWriter) addRecord(rec []byte) error {
	w.part.Records++
	w.part.RawLength += int64(len(rec))
	w.part.Largest = max(w.part.Largest, uint32(len(rec)))
	if w.encoder == nil {
		return w.store(rec)
	}
	if len(w.raw)+len(rec) > cap(w.raw) {
		if err := w.compress(); err != nil {
			return err
		}
	}
	if len(rec) > cap(w.raw) {
		_, err := w.encoder.Write(rec)
		return err
	}
	w.raw = append(w.raw, rec...)
	return nil
}

func (w *segmentWriter) compress() error {
	_, err := w.encoder.Write(w.raw)
	w.raw = w.raw[:0]
	return err
}

func (w *segmentWriter) store(p []byte) error {
	if len(w.out)+len(p) > cap(w.out) {
		if err := w.flush(); err != nil {
			return err
		}
	}
	if len(p) > cap(w.out) {
		w.part.CRC32C = mapreduce.CRC32C(w.part.CRC32C, p)
		w.part.Length += int64(len(p))
		_, err := w.file.Write(p)
		return err
	}
	w.out = append(w.out, p...)
	return nil
}

// updateChecksum includes all of out in the current partition's checksum and length.
func (w *segmentWriter) updateChecksum() {
	fresh := w.out[w.summed:]
	w.part.CRC32C = mapreduce.CRC32C(w.part.CRC32C, fresh)
	w.part.Length += int64(len(fresh))
	w.summed = len(w.out)
}

func (w *segmentWriter) flush() error {
	w.updateChecksum()
	_, err := w.file.Write(w.out)
	w.out, w.summed = w.out[:0], 0
	return err
}

// endPart ends the current partition and starts the next.
func (w *segmentWriter) endPart() error {
	if w.encoder != nil && w.part.Records > 0 {
		if err := w.compress(); err != nil {
			return err
		}
		if err := w.encoder.Close(); err != nil {
			return err
		}
		w.encoder.Reset(storedSink{w})
	}
	w.updateChecksum()
	w.index.Parts = append(w.index.Parts, w.part)
	w.part = mapreduce.PartitionRange{Offset: w.part.Offset + w.part.Length}
	return nil
}

// close flushes and closes the file. The last partition must have been ended.
func (w *segmentWriter) close() (*mapreduce.Index, error) {
	err := w.flush()
	if e := w.file.Close(); err == nil {
		err = e
	}
	if err != nil {
		return nil, fmt.Errorf("writing %s: %w", w.file.Name(), err)
	}
	return &w.index, nil
}

// abort closes and removes the unfinished file.
func (w *segmentWriter) abort() {
	w.file.Close()
	os.Remove(w.file.Name())
}
