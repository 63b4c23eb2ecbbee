package dump

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"hash"
	"io"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"github.com/drover-run/drover/internal/tree"
)

// blockBytes is the size of the blocks of a blockSum. It may not change: files of checksums have its sums.
const blockBytes = 64 << 10

var zeros [blockBytes]byte

// blockSum is a sum of a file's content for which blocks of zeros need not be read: a task may make a hole of any
// size for nothing. It is the same whether zeros are a hole or on the disk. For a file without a block of zeros it is the SHA-256
// of its content; otherwise that of the runs of such blocks and of the SHA-256 of the others.
type blockSum struct {
	data, runs hash.Hash
	block      []byte // the last one, as far as it was written
	at         int64  // where block begins in the file
	hashed     int64  // where what is not in data or runs yet begins
	hasRuns    bool
}

func newBlockSum() *blockSum {
	return &blockSum{data: sha256.New(), runs: sha256.New(), block: make([]byte, 0, blockBytes)}
}

// Write implements io.Writer.
func (s *blockSum) Write(p []byte) (int, error) {
	for all := p; len(all) > 0; {
		n := min(len(all), blockBytes-len(s.block))
		s.block = append(s.block, all[:n]...)
		if all = all[n:]; len(s.block) == blockBytes {
			s.endBlock()
		}
	}
	return len(p), nil
}

// skip passes over zeros, from the end of a block to the offset to, which is the end of another or of the file.
func (s *blockSum) skip(to int64) { s.at = to }

func (s *blockSum) endBlock() {
	if !bytes.Equal(s.block, zeros[:len(s.block)]) {
		s.endRun()
		s.data.Write(s.block)
		s.hashed = s.at + int64(len(s.block))
	}
	s.at += int64(len(s.block))
	s.block = s.block[:0]
}

// endRun adds the zeros before the current block.
func (s *blockSum) endRun() {
	if s.hashed < s.at {
		var run [16]byte
		binary.LittleEndian.PutUint64(run[:], uint64(s.hashed))
		binary.LittleEndian.PutUint64(run[8:], uint64(s.at))
		s.runs.Write(run[:])
		s.hasRuns = true
	}
}

// end returns the sum. Nothing may be written after it.
func (s *blockSum) end() string {
	s.endBlock()
	s.endRun()
	if !s.hasRuns {
		return hex.EncodeToString(s.data.Sum(nil))
	}
	s.runs.Write(s.data.Sum(nil))
	return hex.EncodeToString(s.runs.Sum(nil))
}

// hashBlocks sets the length of a file and the sum of its blocks. O(bytes that are not in holes).
func hashBlocks(ctx context.Context, e *tree.Entry, f *File) error {
	in, err := open(e)
	if err != nil {
		return err
	}
	f.Bytes, f.Blocks, err = sumBlocks(ctx, in)
	return errors.Join(err, in.Close())
}

// hashSparse is hashBlocks that also sets what of the file is in no hole.
func hashSparse(ctx context.Context, e *tree.Entry, f *File) error {
	in, err := open(e)
	if err != nil {
		return err
	}
	defer in.Close()
	if f.Bytes, f.Blocks, err = sumBlocks(ctx, in); err == nil {
		f.Ranges, err = dataRanges(in, f.Bytes)
	}
	return err
}

// sumBlocks returns the length of a file and the sum of its blocks.
func sumBlocks(ctx context.Context, in *os.File) (size int64, sum string, err error) {
	st, err := in.Stat()
	if err != nil {
		return 0, "", err
	}
	size = st.Size()
	s := newBlockSum()
	for at := int64(0); at < size; {
		from, to, err := nextData(in, at, size)
		if err != nil {
			return 0, "", err
		}
		s.skip(from)
		if _, err := io.Copy(untilDone{ctx, s}, io.NewSectionReader(in, from, to-from)); err != nil {
			return 0, "", err
		}
		at = to
	}
	return size, s.end(), nil
}

// dataRanges returns what of a file of that size is in no hole. The last of too many ranges has all the rest.
func dataRanges(f *os.File, size int64) (ranges []Range, err error) {
	for at := int64(0); at < size; {
		from, to, err := nextExtent(f, at, size)
		if err != nil {
			return nil, err
		}
		if from >= size {
			break
		}
		if len(ranges) == maxFileRanges-1 {
			to = size
		}
		if n := len(ranges); n > 0 && ranges[n-1].To == from {
			ranges[n-1].To = to
		} else {
			ranges = append(ranges, Range{from, to})
		}
		at = to
	}
	return ranges, nil
}

// nextData returns where the next blocks with data begin and end in a file of that size, from the begin of a block on.
func nextData(f *os.File, at, size int64) (from, to int64, err error) {
	if from, to, err = nextExtent(f, at, size); err != nil || from >= size {
		return from, to, err
	}
	const in = blockBytes - 1
	return max(at, from&^in), min(size, (to+in)&^in), nil
}

// nextExtent returns where the next data begins and ends in a file of that size, from at on. Where the file system has no
// holes that is all the rest.
func nextExtent(f *os.File, at, size int64) (from, to int64, err error) {
	from, err = f.Seek(at, unix.SEEK_DATA)
	switch {
	case errors.Is(err, unix.ENXIO):
		return size, size, nil
	case errors.Is(err, unix.EINVAL):
		return at, size, nil
	case err != nil:
		return 0, 0, err
	}
	if to, err = f.Seek(from, unix.SEEK_HOLE); err != nil {
		return 0, 0, err
	}
	return min(from, size), min(to, size), nil
}

// packed reads the ranges of a file one after the other, as if there were nothing between them.
type packed struct {
	file   io.ReaderAt
	ranges []Range
	size   int64 // of all ranges
	at     int64 // what is read next
	next   int   // the range in which that is
	before int64 // the bytes of all ranges before it
}

// Read implements io.Reader.
func (p *packed) Read(b []byte) (int, error) {
	for p.next < len(p.ranges) {
		r := p.ranges[p.next]
		in := p.at - p.before
		left := r.To - r.From - in
		if left <= 0 {
			p.before += r.To - r.From
			p.next++
			continue
		}
		n, err := p.file.ReadAt(b[:min(int64(len(b)), left)], r.From+in)
		if p.at += int64(n); n > 0 {
			err = nil
		}
		return n, err
	}
	return 0, io.EOF
}

// Seek implements io.Seeker.
func (p *packed) Seek(offset int64, whence int) (int64, error) {
	switch whence {
	case io.SeekCurrent:
		offset += p.at
	case io.SeekEnd:
		offset += p.size
	}
	if offset < 0 {
		return 0, fs.ErrInvalid
	}
	p.at, p.next, p.before = offset, 0, 0
	return offset, nil
}
