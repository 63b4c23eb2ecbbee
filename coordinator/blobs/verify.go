package blobs

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/drover-run/drover/internal/fault"
)

// Send reads a blob from offset on in pieces of at most len(buf) bytes, gives
// each to send, and verifies the digest of the whole. A blob with another digest
// is moved aside: Has and Open do not know it any more, and Put takes it again.
// NotFound: the store does not have it. Corrupt: it was damaged; Unavailable: it was,
// and it was stored again meanwhile. What was sent of it is then to be thrown away. It
// also reads what lies before offset.
func (s *Store) Send(digest string, offset int64, buf []byte, send func([]byte) error) error {
	f, err := s.Open(digest)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // it was only read
	h := sha256.New()
	if _, err := io.CopyN(h, f, offset); errors.Is(err, io.EOF) {
		if err := s.checkSum(f, digest, h); err != nil { // it was cut short
			return err
		}
		return fault.New(fault.Invalid, "%s has fewer than %d bytes", digest, offset)
	} else if err != nil {
		return s.readFailed(f, digest, err)
	}
	for {
		n, err := io.ReadFull(f, buf)
		_, _ = h.Write(buf[:n]) // a hash does not fail
		if n > 0 {
			if err := send(buf[:n]); err != nil {
				return err
			}
		}
		switch {
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			return s.checkSum(f, digest, h)
		case err != nil:
			return s.readFailed(f, digest, err)
		}
	}
}

// checkSum moves a blob aside whose bytes have another digest.
func (s *Store) checkSum(f *os.File, digest string, h hash.Hash) error {
	if got := "sha256:" + hex.EncodeToString(h.Sum(nil)); got != digest {
		return s.setAside(f, digest, fmt.Sprintf("its bytes have the digest %s", got))
	}
	return nil
}

// readFailed moves a blob aside that the disk cannot read.
func (s *Store) readFailed(f *os.File, digest string, err error) error {
	var p *fs.PathError
	if errors.As(err, &p) {
		err = p.Err // without the coordinator's path
	}
	return s.setAside(f, digest, "it cannot be read: "+err.Error())
}

// setAside moves a damaged blob, of which f is the file that was read, out of the store. It
// returns why, Corrupt; Unavailable if another file has its name by now, which stays.
func (s *Store) setAside(f *os.File, digest, why string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	damaged := fault.New(fault.Corrupt, "the coordinator's copy of %s is damaged: %s; submit the job again, which uploads the file again", digest, why)
	read, err := f.Stat()
	if err != nil {
		return errors.Join(damaged, err)
	}
	stored, err := os.Stat(s.path(digest))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return damaged // another reader was faster
	case err != nil:
		return errors.Join(damaged, err)
	case !os.SameFile(read, stored):
		return fault.New(fault.Unavailable, "the coordinator's copy of %s was damaged, and was stored again meanwhile: ask for it again", digest)
	}
	dir := filepath.Join(s.dir, "damaged")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return errors.Join(damaged, err)
	}
	// Each damaged copy is kept, so that an operator can compare them.
	for i := 1; i <= maxDamaged; i++ {
		to := filepath.Join(dir, fmt.Sprintf("%s-%d", strings.TrimPrefix(digest, "sha256:"), i))
		if _, err := os.Lstat(to); err == nil && i < maxDamaged {
			continue
		}
		if err := os.Rename(s.path(digest), to); err != nil {
			return errors.Join(damaged, fmt.Errorf("move it aside: %w", err))
		}
		s.forgetLocked(digest)
		break
	}
	return damaged
}

// maxDamaged bounds the damaged copies of one blob; the last is replaced.
const maxDamaged = 3
