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
	defer in.Close()
	st, err := in.Stat()
	if err != nil {
		return err
	}
	f.Bytes = st.Size()
	s := newBlockSum()
	for at := int64(0); at < f.Bytes; {
		from, to, err := nextData(in, at, f.Bytes)
		if err != nil {
			return err
		}
		s.skip(from)
		if _, err := io.Copy(untilDone{ctx, s}, io.NewSectionReader(in, from, to-from)); err != nil {
			return err
		}
		at = to
	}
	f.blocks = s.end()
	return nil
}

// nextData returns where the next blocks with data begin and end in a file of that size, from the begin of a block on. Where the file
// system has no holes that is all the rest.
func nextData(f *os.File, at, size int64) (from, to int64, err error) {
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
	const in = blockBytes - 1
	return max(at, from&^in), min(size, (to+in)&^in), nil
}
