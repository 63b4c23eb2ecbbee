// Package blobs is the coordinator's content-addressed store: the files and
// image archives that jobs reference by the SHA-256 of their bytes.
//
// The store is a folder. Which digests belong to the cluster, and which may be
// removed, are facts (BlobFact); this package only holds bytes.
//
//	blobs/
//	├── sha256/ab/abcdef…   a complete blob, read-only; its name is its digest
//	├── incoming/…          uploads in progress; emptied at Open
//	└── damaged/abcdef…-N   blobs whose bytes had another digest; for an operator to look at
//
// A blob is renamed to its name after its bytes are synced and their digest is
// verified, so a file under sha256/ is always complete. Has knows it when its name is
// synced, too. Put is idempotent and may run concurrently for one digest.
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
	"time"

	"github.com/drover-run/drover/internal/durable"
	"github.com/drover-run/drover/internal/fault"
)

// maxUploads bounds the uploads in progress. Who may have how many of them is
// the caller's to decide.
const maxUploads = 64

// Store is a folder of blobs. It is safe for concurrent use.
type Store struct {
	dir       string
	quota     int64 // bytes
	maxUpload int64 // bytes of one blob
	syncDir   func(dir string) error

	mu       sync.Mutex        // guards the fields below; no sync is waited for under it
	sizes    map[string]int64  // bytes of complete blobs, by digest: what a damaged file has may differ
	unsynced map[string]uint64 // by digest, the number of a rename that a loss of power may undo
	renames  uint64
	used     int64 // the sum of sizes, without those whose Put has not returned
	pending  int64 // bytes received by uploads in progress
	uploads  int
}

// Open opens or creates the store. quota bounds all blobs, single one of them,
// both in bytes. Incomplete uploads are removed.
func Open(dir string, quota, single int64) (*Store, error) {
	s := &Store{dir: dir, quota: quota, maxUpload: single, syncDir: durable.SyncFolder, sizes: map[string]int64{}, unsynced: map[string]uint64{}}
	if err := os.RemoveAll(s.incoming()); err != nil {
		return nil, fmt.Errorf("blob store: %w", err)
	}
	for _, d := range []string{s.incoming(), filepath.Join(dir, "sha256")} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			return nil, fmt.Errorf("blob store: %w", err)
		}
	}
	err := filepath.WalkDir(filepath.Join(dir, "sha256"), func(_ string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		i, err := d.Info()
		if err == nil {
			s.sizes["sha256:"+d.Name()] = i.Size()
			s.used += i.Size()
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("blob store: %w", err)
	}
	return s, nil
}

func (s *Store) incoming() string { return filepath.Join(s.dir, "incoming") }

// CheckDigest returns an error unless d is "sha256:" and 64 lower-case hex
// digits.
func CheckDigest(d string) error {
	h, ok := strings.CutPrefix(d, "sha256:")
	if !ok || len(h) != 64 || strings.Trim(h, "0123456789abcdef") != "" {
		return fault.New(fault.Invalid, "%.80q is not a digest: want sha256: and 64 hex digits", d)
	}
	return nil
}

// path returns the file of a valid digest.
func (s *Store) path(digest string) string {
	h := strings.TrimPrefix(digest, "sha256:")
	return filepath.Join(s.dir, "sha256", h[:2], h)
}

// Used returns the bytes of all blobs, and the quota.
func (s *Store) Used() (used, quota int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.used, s.quota
}

// Has reports whether the store has the blob durably, and returns its size in bytes.
func (s *Store) Has(digest string) (int64, bool) {
	if CheckDigest(digest) != nil {
		return 0, false
	}
	size, ok := s.stat(digest)
	s.mu.Lock() // after the look at the file, which may be renamed in between
	defer s.mu.Unlock()
	return size, ok && s.unsynced[digest] == 0
}

// stat returns the size of the file of a valid digest, false if there is none.
func (s *Store) stat(digest string) (int64, bool) {
	i, err := os.Stat(s.path(digest))
	if err != nil {
		return 0, false
	}
	return i.Size(), true
}

// Stored returns when a blob was stored, false if the store does not have it.
func (s *Store) Stored(digest string) (time.Time, bool) {
	i, err := os.Stat(s.path(digest))
	if err != nil {
		return time.Time{}, false
	}
	return i.ModTime(), true
}

// Open opens a blob for reading; NotFound if the store does not have it.
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

// Put stores size bytes from r as digest. If the blob is here with that size, r is not
// read; with another one, the sender or a disk is wrong, and what r brings decides.
// Exhausted: over a quota, or too many uploads; Invalid: size or digest do not match.
func (s *Store) Put(digest string, size int64, r io.Reader) error {
	if err := CheckDigest(digest); err != nil {
		return err
	}
	if have, ok := s.Has(digest); ok && have == size {
		return nil
	}
	if err := s.admit(digest, size); err != nil {
		return err
	}
	m := &meter{s: s}
	added, err := s.receive(digest, size, r, m)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.uploads--
	s.pending -= m.n
	s.used += added
	return err
}

func (s *Store) admit(digest string, size int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case size < 0:
		return fault.New(fault.Invalid, "%s: invalid size of %d bytes", digest, size)
	case size > s.maxUpload:
		return fault.New(fault.Exhausted, "a file of %d MiB is over the limit of %d MiB for one upload: put large data into HDFS and name it as input", size>>20, s.maxUpload>>20)
	case s.used+s.pending+size > s.quota:
		return fault.New(fault.Exhausted, "the blob store has %d of %d MiB in use, %d more do not fit: an operator can raise the quota (drover coordinator -blob-quota), or ended jobs free their files", (s.used+s.pending)>>20, s.quota>>20, size>>20)
	case s.uploads >= maxUploads:
		return fault.Overload("%d uploads are in progress, the limit: try again in a second", s.uploads)
	}
	s.uploads++
	return nil
}

// meter counts the bytes that an upload has sent against the quota. What it
// only announced takes no space from others.
type meter struct {
	s *Store
	n int64 // bytes; guarded by s.mu
}

// Write implements io.Writer.
func (m *meter) Write(p []byte) (int, error) {
	m.s.mu.Lock()
	defer m.s.mu.Unlock()
	if n := int64(len(p)); m.s.used+m.s.pending+n > m.s.quota {
		return 0, fault.New(fault.Exhausted, "the blob store is full (%d MiB) since other uploads were faster: an operator can raise the quota (drover coordinator -blob-quota)", m.s.quota>>20)
	}
	m.n += int64(len(p))
	m.s.pending += int64(len(p))
	return len(p), nil
}

// receive stores a blob and returns the bytes by which the store grew.
func (s *Store) receive(digest string, size int64, r io.Reader, m *meter) (added int64, err error) {
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
	n, err := io.Copy(io.MultiWriter(m, f, h), io.LimitReader(r, size+1))
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

// publish gives a received blob its name, and returns the bytes by which the store grew
// when the name is synced.
func (s *Store) publish(digest, from string, size int64) (int64, error) {
	to := s.path(digest)
	if err := os.MkdirAll(filepath.Dir(to), 0o700); err != nil {
		return 0, fmt.Errorf("keep %s: %w", digest, err)
	}
	if err := os.Chmod(from, 0o400); err != nil {
		return 0, fmt.Errorf("keep %s: %w", digest, err)
	}
	added, rename, err := s.rename(digest, from, size)
	if err != nil || rename == 0 {
		return added, err
	}
	// Without the lock: removals wait for it while the facts are locked.
	if err = s.syncDir(filepath.Dir(to)); err != nil {
		return added, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.unsynced[digest] == rename {
		delete(s.unsynced, digest)
	}
	return added, nil
}

// rename renames a received blob to its name, unless an upload of the same bytes was faster.
// It returns by how many bytes the store grew, and the rename that is to be synced before
// the blob is acknowledged, 0 for none.
func (s *Store) rename(digest, from string, size int64) (added int64, rename uint64, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if have, ok := s.stat(digest); ok && have == size {
		return 0, s.unsynced[digest], os.Remove(from)
	}
	if err = os.Rename(from, s.path(digest)); err != nil {
		return 0, 0, fmt.Errorf("keep %s: %w", digest, err)
	}
	added = size - s.sizes[digest] // a damaged file was there, or none
	s.sizes[digest] = size
	s.renames++
	s.unsynced[digest] = s.renames
	return added, s.renames, nil
}

// Remove removes a blob. Removing an absent one succeeds.
func (s *Store) Remove(digest string) error {
	if err := CheckDigest(digest); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := os.Remove(s.path(digest)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove %s: %w", digest, err)
	}
	s.forgetLocked(digest)
	return nil
}

// forgetLocked returns to the quota what a blob took that is no longer in the store.
func (s *Store) forgetLocked(digest string) {
	s.used -= s.sizes[digest]
	delete(s.sizes, digest)
	delete(s.unsynced, digest)
}

// List returns the digests in the store, sorted.
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
