package past

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/klauspost/compress/zstd"
	bolt "go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/internal/fault"
)

// schemaVersion is the version of the file; Open refuses a higher one.
const schemaVersion = 1

// FileName is the name of the file below the store's folder.
const FileName = "history.db"

const lockTimeout = 2 * time.Second

var (
	versionKey = []byte("version")
	appliedKey = []byte("applied")

	unsealedVersion = []byte{0, 0, 0, 1} // in files of before versions had a seal
)

// Options limits a store.
type Options struct {
	MaxBytes int64         // of the file's pages in use
	MaxAge   time.Duration // since a job's end
	NoSync   bool          // without fsync, for tests
	logger   *slog.Logger
}

// Store is the history in one file.
type Store struct {
	db       *bolt.DB
	page     int // bytes of a page
	o        Options
	repaired *Damage

	mu      sync.Mutex // guards applied
	applied uint64

	pack   *zstd.Encoder
	unpack *zstd.Decoder
}

// Open opens or makes the store in dir, which it verifies first: see the package
// comment. Conflict: another process has it open; Unsupported: a newer program wrote
// it.
func Open(dir string, o Options) (*Store, error) {
	if o.logger == nil {
		o.logger = slog.New(slog.DiscardHandler)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("folder of the history: %w", err)
	}
	path := filepath.Join(dir, FileName)
	damage, err := mend(path)
	if err != nil {
		return nil, err
	}
	db, err := openFile(path, o.NoSync)
	if err != nil {
		return nil, err
	}
	s := &Store{db: db, page: db.Info().PageSize, o: o, repaired: damage}
	// Details are a few kilobytes, of which a better level makes no less, with tables of a megabyte
	// that are to be cleared.
	if s.pack, err = zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithLowerEncoderMem(true)); err == nil {
		s.unpack, err = zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(maxDetails))
	}
	if err == nil {
		err = db.View(func(tx *bolt.Tx) error {
			s.applied = readApplied(tx)
			return nil
		})
	}
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return s, nil
}

// maxDetails bounds the details of one job, in bytes.
const maxDetails = 64 << 20

// openFile opens a file that was verified, or makes a new one: it has its name only
// when its buckets are there.
func openFile(path string, noSync bool) (*bolt.DB, error) {
	o := &bolt.Options{Timeout: lockTimeout, FreelistType: bolt.FreelistMapType, NoFreelistSync: true, NoSync: noSync}
	if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
		part := path + ".part"
		if err := os.Remove(part); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		db, err := bolt.Open(part, 0o600, o)
		if err != nil {
			return nil, fmt.Errorf("make %s: %w", path, err)
		}
		err = db.Update(prepare)
		if err := errors.Join(err, db.Close()); err != nil {
			return nil, fmt.Errorf("make %s: %w", path, err)
		}
		if err := os.Rename(part, path); err != nil {
			return nil, fmt.Errorf("make %s: %w", path, err)
		}
	}
	db, err := bolt.Open(path, 0o600, o)
	switch {
	case errors.Is(err, berrors.ErrTimeout):
		return nil, fault.New(fault.Conflict, "%s is open in another process: is a coordinator running on this folder?", path)
	case err != nil:
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	return db, nil
}

func prepare(tx *bolt.Tx) error {
	for k := kindMeta; k.known(); k++ {
		if _, err := tx.CreateBucketIfNotExists(k.bucket()); err != nil {
			return err
		}
	}
	if err := tx.Bucket(kindMeta.bucket()).Put(versionKey, seal(kindMeta, schemaVersion, versionKey, nil)); err != nil {
		return err
	}
	return putApplied(tx, 0)
}

func putApplied(tx *bolt.Tx, index uint64) error {
	return tx.Bucket(kindMeta.bucket()).Put(appliedKey, seal(kindMeta, index, appliedKey, nil))
}

func readApplied(tx *bolt.Tx) uint64 {
	_, index, _, err := unseal(appliedKey, tx.Bucket(kindMeta.bucket()).Get(appliedKey))
	if err != nil {
		return 0 // Open has verified it; 0 makes the caller give everything again
	}
	return index
}

// Close closes the file.
func (s *Store) Close() error {
	s.unpack.Close()
	return errors.Join(s.pack.Close(), s.db.Close())
}

// Applied returns the index up to which the store has everything.
func (s *Store) Applied() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.applied
}

// Repaired returns what Open found damaged, nil for nothing.
func (s *Store) Repaired() *Damage { return s.repaired }

// Advance stores durably that the store has everything up to index.
func (s *Store) Advance(index uint64) error { return s.Write(Batch{Index: index}) }

// Rewind stores durably that the store misses what is after index, since the log
// goes no further: it was restored from before.
func (s *Store) Rewind(index uint64) error {
	if err := s.db.Update(func(tx *bolt.Tx) error { return putApplied(tx, index) }); err != nil {
		return fmt.Errorf("history: %w", err)
	}
	s.setApplied(index)
	return nil
}

func (s *Store) setApplied(index uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.applied = index
}

// Size returns the bytes of the pages in use and of the file.
func (s *Store) Size() (used, file int64, err error) {
	err = s.db.View(func(tx *bolt.Tx) error {
		file = tx.Size()
		return nil
	})
	if err != nil { // it is closed
		return 0, 0, err
	}
	st := s.db.Stats()
	return file - int64(st.FreePageN+st.PendingPageN)*int64(s.page), file, nil
}

// OverLimit reports whether the store is larger than MaxBytes, so that Prune would delete jobs.
func (s *Store) OverLimit() bool {
	used, _, err := s.Size()
	return err == nil && s.o.MaxBytes > 0 && used > s.o.MaxBytes
}

// Has reports whether a job is in the store.
func (s *Store) Has(job uint64) (has bool) {
	_ = s.db.View(func(tx *bolt.Tx) error { // the closure returns no error, and an open database begins
		has = tx.Bucket(kindJob.bucket()).Get(jobKey(job)) != nil
		return nil
	})
	return has
}

func stateKey(s droverv1.JobState) []byte { return []byte{byte(s)} }
