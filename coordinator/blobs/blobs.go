// Package blobs is the coordinator's content-addressed store: the files and
// image archives that jobs name by the SHA-256 of their bytes.
//
// What it is: a folder. Which digests belong to the cluster, and which may go,
// are facts (BlobFact); this package only holds bytes.
//
//	blobs/
//	├── sha256/ab/abcdef…   a whole blob, read-only; its name is its content
//	└── incoming/…          uploads under way; emptied at Open
//
// A blob gets its name by a rename after its bytes are synced and their digest
// was checked, so a file under sha256/ is always whole. Put is safe to repeat
// and may run several times at once for one digest.
package blobs

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/drover-run/drover/internal/fault"
)

// MaxUploads bounds the uploads under way at once.
const MaxUploads = 16

// Store is a folder of blobs. Safe for concurrent use.
type Store struct {
	dir    string
	quota  int64 // bytes
	single int64 // bytes of one blob

	mu      sync.Mutex // guards what follows
	used    int64      // bytes of whole blobs
	pending int64      // bytes announced by uploads under way
	uploads int
}

// Open opens or makes the store. quota bounds all blobs, single one of them,
// both in bytes. What was being uploaded when the process ended is removed.
func Open(dir string, quota, single int64) (*Store, error) {
	s := &Store{dir: dir, quota: quota, single: single}
	if err := os.RemoveAll(s.incoming()); err != nil {
		return nil, fmt.Errorf("store of files: %w", err)
	}
	for _, d := range []string{s.incoming(), filepath.Join(dir, "sha256")} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			return nil, fmt.Errorf("store of files: %w", err)
		}
	}
	err := filepath.WalkDir(filepath.Join(dir, "sha256"), func(_ string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		i, err := d.Info()
		if err == nil {
			s.used += i.Size()
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("store of files: %w", err)
	}
	return s, nil
}

func (s *Store) incoming() string { return filepath.Join(s.dir, "incoming") }

// CheckDigest tells whether d is "sha256:" and 64 lower-case hex digits.
func CheckDigest(d string) error {
	h, ok := strings.CutPrefix(d, "sha256:")
	if !ok || len(h) != 64 || strings.Trim(h, "0123456789abcdef") != "" {
		return fault.New(fault.Invalid, "%.80q is no digest: want sha256: and 64 hex digits", d)
	}
	return nil
}

// Path gives the file of a digest that CheckDigest accepts.
func (s *Store) path(digest string) string {
	h := strings.TrimPrefix(digest, "sha256:")
	return filepath.Join(s.dir, "sha256", h[:2], h)
}

// Used gives the bytes of all blobs, and the quota.
func (s *Store) Used() (used, quota int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.used, s.quota
}

// Has tells whether the blob is here and gives its size in bytes.
func (s *Store) Has(digest string) (int64, bool) {
	if CheckDigest(digest) != nil {
		return 0, false
	}
	i, err := os.Stat(s.path(digest))
	if err != nil {
		return 0, false
	}
	return i.Size(), true
}

// Open opens a blob for reading; NotFound where it is not here.
func (s *Store) Open(digest string) (*os.File, error) {
	if err := CheckDigest(digest); err != nil {
		return nil, err
	}
	f, err := os.Open(s.path(digest))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fault.New(fault.NotFound, "%s is not in the store", digest)
	}
	return f, err
}

// Put reads size bytes from r and keeps them as digest. Exhausted: over a
// quota or too many uploads; Invalid: the bytes are not what was announced.
func (s *Store) Put(digest string, size int64, r io.Reader) error {
	if err := CheckDigest(digest); err != nil {
		return err
	}
	if _, ok := s.Has(digest); ok {
		return nil
	}
	if err := s.admit(digest, size); err != nil {
		return err
	}
	added, err := s.receive(digest, size, r)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.uploads--
	s.pending -= size
	s.used += added
	return err
}

func (s *Store) admit(digest string, size int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case size < 0:
		return fault.New(fault.Invalid, "%s: a size of %d bytes", digest, size)
	case size > s.single:
		return fault.New(fault.Exhausted, "a file of %d MiB is over the limit of %d MiB for one upload: put large data into HDFS and name it as input", size>>20, s.single>>20)
	case s.used+s.pending+size > s.quota:
		return fault.New(fault.Exhausted, "the store holds %d of %d MiB, no room for %d more: an operator can raise the quota or forget old jobs", (s.used+s.pending)>>20, s.quota>>20, size>>20)
	case s.uploads >= MaxUploads:
		return fault.New(fault.Exhausted, "%d uploads are under way, the limit: try again in a second", s.uploads)
	}
	s.uploads++
	s.pending += size
	return nil
}

// receive gives the bytes by which the store grew.
func (s *Store) receive(digest string, size int64, r io.Reader) (added int64, err error) {
	f, err := os.CreateTemp(s.incoming(), "up-*")
	if err != nil {
		return 0, fmt.Errorf("receive %s: %w", digest, err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}()
	h := sha256.New()
	n, err := io.Copy(io.MultiWriter(f, h), io.LimitReader(r, size+1))
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return 0, fmt.Errorf("receive %s: %w", digest, err)
	}
	if got := "sha256:" + hex.EncodeToString(h.Sum(nil)); n != size || got != digest {
		return 0, fault.New(fault.Invalid, "%s: received %d bytes with digest %s, announced were %d bytes; was the file changed while it was sent?", digest, n, got, size)
	}
	return s.publish(digest, f.Name(), size)
}

func (s *Store) publish(digest, from string, size int64) (int64, error) {
	to := s.path(digest)
	if err := os.MkdirAll(filepath.Dir(to), 0o700); err != nil {
		return 0, fmt.Errorf("keep %s: %w", digest, err)
	}
	if err := os.Chmod(from, 0o400); err != nil {
		return 0, fmt.Errorf("keep %s: %w", digest, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.Has(digest); ok {
		return 0, os.Remove(from) // another upload of the same bytes was faster
	}
	if err := os.Rename(from, to); err != nil {
		return 0, fmt.Errorf("keep %s: %w", digest, err)
	}
	return size, syncDir(filepath.Dir(to))
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// Remove forgets a blob; one that is not here is fine.
func (s *Store) Remove(digest string) error {
	if err := CheckDigest(digest); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	size, ok := s.Has(digest)
	if !ok {
		return nil
	}
	if err := os.Remove(s.path(digest)); err != nil {
		return fmt.Errorf("remove %s: %w", digest, err)
	}
	s.used -= size
	return nil
}

// List gives the digests that are here, in order.
func (s *Store) List() ([]string, error) {
	var out []string
	err := filepath.WalkDir(filepath.Join(s.dir, "sha256"), func(_ string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			out = append(out, "sha256:"+d.Name())
		}
		return err
	})
	return out, err
}
