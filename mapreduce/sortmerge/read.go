package sortmerge

import (
	"fmt"
	"io"
	"slices"

	"github.com/klauspost/compress/zstd"

	"github.com/drover-run/drover/mapreduce"
)

// Reader reads the records of one stored partition in order.
type Reader struct {
	rec      Record
	encoded  []byte // the current record as stored; valid until the next call of Next
	prefix   uint64
	shortKey bool // the prefix holds the whole key

	name              string
	stored            storedReader
	decoder           *zstd.Decoder
	free              *decoders // receives decoder
	decoded           io.Reader
	buf               []byte
	readPos, writePos int
	rawLeft           int64 // raw bytes not yet in buf
	records           int64
	wantRange         mapreduce.PartitionRange
}

// storedReader reads the stored bytes of a partition and updates their checksum.
type storedReader struct {
	file io.ReaderAt
	off  int64
	left int64
	crc  uint32
}

func (s *storedReader) Read(p []byte) (int, error) {
	if s.left == 0 {
		return 0, io.EOF
	}
	n, err := s.file.ReadAt(p[:min(int64(len(p)), s.left)], s.off)
	s.crc = mapreduce.CRC32C(s.crc, p[:n])
	s.off += int64(n)
	s.left -= int64(n)
	if n > 0 {
		return n, nil
	}
	if err == io.EOF {
		err = fmt.Errorf("%w: the file ends %d bytes early", mapreduce.ErrCorrupt, s.left)
	}
	return 0, err
}

// NewReader reads the partition want, stored with codec in file. name appears in
// error messages. buffer is in bytes; it grows for a larger record.
func NewReader(name string, file io.ReaderAt, codec mapreduce.Codec, want mapreduce.PartitionRange, buffer int) (*Reader, error) {
	return newReader(name, file, codec, want, buffer, &decoders{})
}

// newReader is like NewReader with decoders that other readers have returned.
func newReader(name string, file io.ReaderAt, codec mapreduce.Codec, want mapreduce.PartitionRange, buffer int, free *decoders) (*Reader, error) {
	r := &Reader{name: name, wantRange: want, rawLeft: want.RawLength, stored: storedReader{file: file, off: want.Offset, left: want.Length}}
	r.buf = make([]byte, max(maxHeaderBytes, min(int64(buffer), want.RawLength)))
	r.decoded = &r.stored
	switch codec {
	case mapreduce.CodecNone:
	case mapreduce.CodecZstd:
		if want.Length == 0 {
			break
		}
		d, err := free.take(&r.stored)
		if err != nil {
			return nil, r.corruptError(err.Error())
		}
		r.decoder, r.decoded, r.free = d, d, free
	default:
		return nil, r.corruptError("codec " + codec.String())
	}
	return r, nil
}

// decoders are those that no reader uses. A decoder is used for one partition after the other,
// because its tables and its window cost more than the records of a small partition.
type decoders struct{ idle []*zstd.Decoder }

// take returns a decoder of r. It refuses a frame with a larger window than a segmentWriter's, so
// that a file from another node cannot use up the memory of the task.
func (d *decoders) take(r io.Reader) (*zstd.Decoder, error) {
	n := len(d.idle)
	if n == 0 {
		return zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(windowBytes), zstd.WithDecoderLowmem(true))
	}
	z := d.idle[n-1]
	d.idle = d.idle[:n-1]
	return z, z.Reset(r)
}

// put takes back a decoder, which keeps no reference to its reader.
func (d *decoders) put(z *zstd.Decoder) {
	if z.Reset(nil) == nil {
		d.idle = append(d.idle, z)
	}
}

func (d *decoders) close() {
	for _, z := range d.idle {
		z.Close()
	}
	d.idle = nil
}

// Record returns the current record, valid until the next call of Next.
func (r *Reader) Record() Record { return r.rec }

// close returns the decoder and frees the buffer. It does not close the file.
func (r *Reader) close() {
	if r.decoder != nil {
		r.free.put(r.decoder)
		r.decoder, r.decoded = nil, &r.stored
	}
	r.buf = nil
}

func (r *Reader) corruptError(what string) error {
	return fmt.Errorf("%s at %d: %w: %s", r.name, r.wantRange.Offset, mapreduce.ErrCorrupt, what)
}

// Next advances to the next record. It returns false at the end, after checking
// the checksum, the length and the number of records.
func (r *Reader) Next() (bool, error) {
	b := r.buf[r.readPos:r.writePos]
	size, klen, vlen, ok := readHeader(b)
	if !ok || size+klen+max(vlen, 0) > len(b) {
		done, err := r.fillRecord()
		if done || err != nil {
			return false, err
		}
		b = r.buf[r.readPos:r.writePos]
		size, klen, vlen, _ = readHeader(b)
	}
	end := size + klen + max(vlen, 0)
	r.encoded = b[:end]
	r.rec.Key = b[size : size+klen : size+klen]
	r.rec.Value = b[size+klen : end : end]
	r.rec.NoValue = vlen < 0
	r.prefix = prefixAt(b, size, klen)
	r.shortKey = klen <= 8
	r.readPos += end
	r.records++
	return true, nil
}

// fillRecord reads until the buffer holds a whole record. done reports the end
// of the partition.
func (r *Reader) fillRecord() (done bool, err error) {
	if r.readPos == r.writePos && r.rawLeft == 0 {
		return true, r.verifyEnd()
	}
	copy(r.buf, r.buf[r.readPos:r.writePos])
	r.writePos -= r.readPos
	r.readPos = 0
	for {
		size, klen, vlen, ok := readHeader(r.buf[:r.writePos])
		need := size + klen + max(vlen, 0)
		if ok && need <= r.writePos {
			return false, nil
		}
		if ok && int64(need-r.writePos) > r.rawLeft {
			return false, r.corruptError("a record is longer than the partition")
		}
		if r.rawLeft == 0 || (!ok && r.writePos >= maxHeaderBytes) {
			return false, r.corruptError("a record is cut or has no length")
		}
		if r.writePos == len(r.buf) || (ok && need > len(r.buf)) {
			r.buf = slices.Grow(r.buf[:r.writePos], max(need-r.writePos, 1))
			r.buf = r.buf[:cap(r.buf)]
		}
		if err := r.readMore(); err != nil {
			return false, err
		}
	}
}

func (r *Reader) readMore() error {
	n, err := r.decoded.Read(r.buf[r.writePos:min(int64(len(r.buf)), int64(r.writePos)+r.rawLeft)])
	r.writePos += n
	r.rawLeft -= int64(n)
	if n > 0 || err == nil {
		return nil
	}
	if r.decoder != nil || err == io.EOF {
		return r.corruptError(err.Error())
	}
	return fmt.Errorf("%s: %w", r.name, err)
}

// verifyEnd checks the partition against its range.
func (r *Reader) verifyEnd() error {
	if n, err := io.Copy(io.Discard, r.decoded); n > 0 || err != nil {
		return r.corruptError(fmt.Sprintf("%d bytes follow the last record (%v)", n, err))
	}
	switch {
	case r.stored.left != 0:
		return r.corruptError(fmt.Sprintf("%d stored bytes were not used", r.stored.left))
	case r.stored.crc != r.wantRange.CRC32C:
		return r.corruptError(fmt.Sprintf("checksum %08x, want %08x", r.stored.crc, r.wantRange.CRC32C))
	case r.records != r.wantRange.Records:
		return r.corruptError(fmt.Sprintf("%d records, want %d", r.records, r.wantRange.Records))
	}
	return nil
}
