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
	rec     Record
	encoded []byte // the current record as stored; valid until next
	prefix  uint64
	short   bool // the prefix is the whole key

	name    string
	src     storedReader
	dec     *zstd.Decoder
	in      io.Reader
	buf     []byte
	r, w    int
	left    int64 // raw bytes not yet in buf
	records int64
	want    mapreduce.PartRange
}

// storedReader reads the stored bytes and sums them.
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

// NewReader reads the partition want, stored with codec in file, whose name is
// for messages. buffer is in bytes and grows for a record that is larger.
func NewReader(name string, file io.ReaderAt, codec mapreduce.Codec, want mapreduce.PartRange, buffer int) (*Reader, error) {
	r := &Reader{name: name, want: want, left: want.Raw, src: storedReader{file: file, off: want.Offset, left: want.Length}}
	r.buf = make([]byte, max(maxHeader, min(int64(buffer), want.Raw)))
	r.in = &r.src
	switch codec {
	case mapreduce.CodecNone:
	case mapreduce.CodecZstd:
		if want.Length == 0 {
			break
		}
		d, err := zstd.NewReader(&r.src, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(8<<20), zstd.WithDecoderLowmem(true))
		if err != nil {
			return nil, r.corrupt(err.Error())
		}
		r.dec, r.in = d, d
	default:
		return nil, r.corrupt("codec " + codec.String())
	}
	return r, nil
}

// Record is the current record, valid until the next call of Next.
func (r *Reader) Record() Record { return r.rec }

// Close frees what the reader holds; it does not close the file.
func (r *Reader) Close() {
	if r.dec != nil {
		r.dec.Close()
		r.dec = nil
	}
	r.buf = nil
}

func (r *Reader) corrupt(what string) error {
	return fmt.Errorf("%s at %d: %w: %s", r.name, r.want.Offset, mapreduce.ErrCorrupt, what)
}

// Next moves to the next record. It returns false at the end, after the
// checksum, the length and the number of records have been found right.
func (r *Reader) Next() (bool, error) {
	b := r.buf[r.r:r.w]
	size, klen, vlen, ok := header(b)
	if !ok || size+klen+max(vlen, 0) > len(b) {
		done, err := r.fill()
		if done || err != nil {
			return false, err
		}
		b = r.buf[r.r:r.w]
		size, klen, vlen, _ = header(b)
	}
	end := size + klen + max(vlen, 0)
	r.encoded = b[:end]
	r.rec.Key = b[size : size+klen : size+klen]
	r.rec.Value = b[size+klen : end : end]
	r.rec.NoValue = vlen < 0
	r.prefix = prefix8(r.rec.Key)
	r.short = klen <= 8
	r.r += end
	r.records++
	return true, nil
}

// fill makes the buffer hold a whole record, or finds the end.
func (r *Reader) fill() (done bool, err error) {
	if r.r == r.w && r.left == 0 {
		return true, r.end()
	}
	copy(r.buf, r.buf[r.r:r.w])
	r.w -= r.r
	r.r = 0
	for {
		size, klen, vlen, ok := header(r.buf[:r.w])
		need := size + klen + max(vlen, 0)
		if ok && need <= r.w {
			return false, nil
		}
		if ok && int64(need-r.w) > r.left {
			return false, r.corrupt("a record is longer than the partition")
		}
		if r.left == 0 || (!ok && r.w >= maxHeader) {
			return false, r.corrupt("a record is cut or has no length")
		}
		if r.w == len(r.buf) || (ok && need > len(r.buf)) {
			r.buf = slices.Grow(r.buf[:r.w], max(need-r.w, 1))
			r.buf = r.buf[:cap(r.buf)]
		}
		if err := r.more(); err != nil {
			return false, err
		}
	}
}

func (r *Reader) more() error {
	n, err := r.in.Read(r.buf[r.w:min(int64(len(r.buf)), int64(r.w)+r.left)])
	r.w += n
	r.left -= int64(n)
	if n > 0 || err == nil {
		return nil
	}
	if r.dec != nil || err == io.EOF {
		return r.corrupt(err.Error())
	}
	return fmt.Errorf("%s: %w", r.name, err)
}

// end checks that the partition was what its range promised.
func (r *Reader) end() error {
	if n, err := io.Copy(io.Discard, r.in); n > 0 || err != nil {
		return r.corrupt(fmt.Sprintf("%d bytes follow the last record (%v)", n, err))
	}
	switch {
	case r.src.left != 0:
		return r.corrupt(fmt.Sprintf("%d stored bytes were not used", r.src.left))
	case r.src.crc != r.want.CRC32C:
		return r.corrupt(fmt.Sprintf("checksum %08x, want %08x", r.src.crc, r.want.CRC32C))
	case r.records != r.want.Records:
		return r.corrupt(fmt.Sprintf("%d records, want %d", r.records, r.want.Records))
	}
	return nil
}
