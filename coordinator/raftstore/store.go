package raftstore

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"time"

	"github.com/hashicorp/raft"
	bolt "go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"

	"github.com/drover-run/drover/internal/fault"
)

// schemaVersion is the version of both files; Open refuses any other. 2 added
// checksums.
const schemaVersion = 2

// Names of the files below the store's folder.
const (
	LogFile    = "raft-log.db"
	StableFile = "raft-stable.db"
)

// lockTimeout bounds the wait for a file that another process has locked.
const lockTimeout = 2 * time.Second

var (
	metaBucket = []byte("meta")
	versionKey = []byte("version")
	rangeKey   = []byte("range")
	sumKey     = []byte("sum")
	logBucket  = []byte("log")
	kvBucket   = []byte("kv")
)

// Options configures a store.
type Options struct {
	// NoSync disables fsync, for tests only: a crash of the machine then loses
	// acknowledged entries.
	NoSync bool
	// Writing, if set, is called before each transaction, with its file and whether it will
	// be acknowledged only when it is synced. For simulations of a loss of power.
	Writing func(path string, synced bool)
	// Log gets warnings about writes that a loss of power interrupted; nil for none.
	Log *slog.Logger
}

// Store is raft's LogStore and StableStore in one folder.
type Store struct {
	log     *bolt.DB
	stable  *bolt.DB
	writing func(path string, synced bool) // nil for nobody
}

// update performs a transaction.
func (s *Store) update(db *bolt.DB, fn func(*bolt.Tx) error) error {
	if s.writing != nil {
		s.writing(db.Path(), !db.NoSync)
	}
	return db.Update(fn)
}

var (
	_ raft.LogStore          = (*Store)(nil)
	_ raft.StableStore       = (*Store)(nil)
	_ raft.MonotonicLogStore = (*Store)(nil)
)

// Open opens or makes the store in dir. Everything in it is read and checked
// first, O(bytes): a damaged file is never opened, changed or replaced by an
// empty one. Conflict: another process has it open; Unsupported: a program of
// another version wrote it; Corrupt: a file is damaged, missing, or no such store.
func Open(dir string, o Options) (*Store, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("folder of the raft store: %w", err)
	}
	if err := makeFiles(dir); err != nil {
		return nil, err
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if err := verify(dir, o.Log); err != nil {
		return nil, err
	}
	logDB, err := openFile(filepath.Join(dir, LogFile), logBucket, &bolt.Options{
		Timeout: lockTimeout, FreelistType: bolt.FreelistMapType, NoFreelistSync: true, NoSync: o.NoSync,
	})
	if err != nil {
		return nil, err
	}
	stable, err := openFile(filepath.Join(dir, StableFile), kvBucket, &bolt.Options{
		Timeout: lockTimeout, FreelistType: bolt.FreelistMapType, NoFreelistSync: true, NoSync: o.NoSync,
	})
	if err != nil {
		return nil, errors.Join(err, logDB.Close())
	}
	return &Store{log: logDB, stable: stable, writing: o.Writing}, nil
}

func openFile(path string, bucket []byte, o *bolt.Options) (*bolt.DB, error) {
	db, err := bolt.Open(path, 0o600, o)
	switch {
	case errors.Is(err, berrors.ErrTimeout):
		return nil, fault.New(fault.Conflict, "%s is open in another process: is a coordinator running on this folder?", path)
	case errors.Is(err, berrors.ErrInvalid), errors.Is(err, berrors.ErrChecksum), errors.Is(err, berrors.ErrVersionMismatch):
		return nil, fault.New(fault.Corrupt, "%s is not a raft store of Drover: %w", path, err)
	case err != nil:
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	if err := db.Update(func(tx *bolt.Tx) error { return prepare(tx, path, bucket) }); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return db, nil
}

// prepare creates the buckets of a new file and checks the version of an
// existing one.
func prepare(tx *bolt.Tx, path string, bucket []byte) error {
	meta, err := tx.CreateBucketIfNotExists(metaBucket)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if v := meta.Get(versionKey); v != nil {
		return checkVersion(path, v)
	}
	if err := meta.Put(versionKey, binary.BigEndian.AppendUint32(nil, schemaVersion)); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if _, err := tx.CreateBucketIfNotExists(bucket); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// Close closes both files.
func (s *Store) Close() error { return errors.Join(s.log.Close(), s.stable.Close()) }

// FirstIndex returns the lowest index stored, 0 for none.
func (s *Store) FirstIndex() (uint64, error) {
	return s.boundaryIndex(func(c *bolt.Cursor) ([]byte, []byte) { return c.First() })
}

// LastIndex returns the highest index stored, 0 for none.
func (s *Store) LastIndex() (uint64, error) {
	return s.boundaryIndex(func(c *bolt.Cursor) ([]byte, []byte) { return c.Last() })
}

func (s *Store) boundaryIndex(of func(*bolt.Cursor) ([]byte, []byte)) (uint64, error) {
	var n uint64
	err := s.log.View(func(tx *bolt.Tx) error {
		if k, _ := of(tx.Bucket(logBucket).Cursor()); k != nil {
			n = binary.BigEndian.Uint64(k)
		}
		return nil
	})
	return n, err
}

// IsMonotonic reports that indexes here follow each other without a gap: where
// a snapshot from the leader is newer than the whole log, raft then empties the log
// first.
func (s *Store) IsMonotonic() bool { return true }

// GetLog reads the entry at index into l; raft.ErrLogNotFound where there is
// none, Corrupt where it cannot be read.
func (s *Store) GetLog(index uint64, l *raft.Log) error {
	return s.log.View(func(tx *bolt.Tx) error {
		v := tx.Bucket(logBucket).Get(indexKey(index))
		if v == nil {
			return raft.ErrLogNotFound
		}
		if err := decode(index, v, l); err != nil {
			return fault.New(fault.Corrupt, "%s, entry %d: %w", s.log.Path(), index, err)
		}
		return nil
	})
}

// StoreLog stores one entry durably.
func (s *Store) StoreLog(l *raft.Log) error { return s.StoreLogs([]*raft.Log{l}) }

// StoreLogs stores the entries durably in one transaction, all or none. Corrupt: one does not
// follow the entry before it; Open would refuse a log with a gap.
func (s *Store) StoreLogs(logs []*raft.Log) error {
	return s.update(s.log, func(tx *bolt.Tx) error {
		b := tx.Bucket(logBucket)
		b.FillPercent = 0.95 // indexes ascend: pages are filled and rarely split
		last, _ := b.Cursor().Last()
		for _, l := range logs {
			if last != nil && l.Index != binary.BigEndian.Uint64(last)+1 {
				return fault.New(fault.Corrupt, "raft log: entry %d does not follow entry %d", l.Index, binary.BigEndian.Uint64(last))
			}
			last = indexKey(l.Index)
			v, err := encode(l)
			if err != nil {
				return fmt.Errorf("raft log, index %d: %w", l.Index, err)
			}
			if err := b.Put(last, v); err != nil {
				return fmt.Errorf("raft log, index %d: %w", l.Index, err)
			}
		}
		return putRange(tx)
	})
}

// deleteBatch bounds the entries deleted in one transaction, so that raft's own
// appends wait only for a short one.
const deleteBatch = 4096

// DeleteRange deletes first to last, inclusive, in bounded transactions. raft calls it with
// a prefix after a snapshot or with a conflicting suffix, and repeats it after a crash. A
// crash in between leaves no gap: a suffix is deleted from the high end.
func (s *Store) DeleteRange(first, last uint64) error {
	lowest, err := s.FirstIndex()
	if err != nil {
		return err
	}
	highest, err := s.LastIndex()
	if err != nil {
		return err
	}
	lo, hi := max(first, lowest), min(last, highest)
	isSuffix := hi == highest
	for lo <= hi && highest > 0 {
		from, to := lo, hi
		isLast := hi-lo < deleteBatch
		switch {
		case isLast:
		case isSuffix:
			from = hi - deleteBatch + 1
			hi = from - 1
		default:
			to = lo + deleteBatch - 1
			lo = to + 1
		}
		if err := s.deleteSome(from, to); err != nil {
			return fmt.Errorf("delete raft log %d to %d: %w", first, last, err)
		}
		if isLast {
			break
		}
	}
	return nil
}

// deleteSome deletes from to to, inclusive, in one transaction.
func (s *Store) deleteSome(from, to uint64) error {
	return s.update(s.log, func(tx *bolt.Tx) error {
		b := tx.Bucket(logBucket)
		c := b.Cursor()
		end := indexKey(to)
		var keys [][]byte
		for k, _ := c.Seek(indexKey(from)); k != nil && bytes.Compare(k, end) <= 0; k, _ = c.Next() {
			keys = append(keys, k)
		}
		for _, k := range keys {
			if err := b.Delete(k); err != nil {
				return err
			}
		}
		return putRange(tx)
	})
}

// errKeyNotFound has the text by which hashicorp/raft recognises an absent key.
var errKeyNotFound = errors.New("not found")

// Set stores a value durably.
func (s *Store) Set(key, val []byte) error {
	return s.update(s.stable, func(tx *bolt.Tx) error {
		b := tx.Bucket(kvBucket)
		if err := b.Put(key, val); err != nil {
			return err
		}
		var sum pairSum
		if err := b.ForEach(sum.add); err != nil {
			return err
		}
		return tx.Bucket(metaBucket).Put(sumKey, sum.encode())
	})
}

// Get returns a value, or errKeyNotFound.
func (s *Store) Get(key []byte) ([]byte, error) {
	var out []byte
	err := s.stable.View(func(tx *bolt.Tx) error {
		v := tx.Bucket(kvBucket).Get(key)
		if v == nil {
			return errKeyNotFound
		}
		out = bytes.Clone(v)
		return nil
	})
	return out, err
}

// Lookup returns a value, nil if there is none.
func (s *Store) Lookup(key []byte) ([]byte, error) {
	v, err := s.Get(key)
	if errors.Is(err, errKeyNotFound) {
		return nil, nil
	}
	return v, err
}

// SetUint64 stores a number durably.
func (s *Store) SetUint64(key []byte, val uint64) error {
	return s.Set(key, binary.BigEndian.AppendUint64(nil, val))
}

// GetUint64 returns a number; 0 and errKeyNotFound if there is none.
func (s *Store) GetUint64(key []byte) (uint64, error) {
	v, err := s.Get(key)
	if err != nil {
		return 0, err
	}
	if len(v) != 8 {
		return 0, fault.New(fault.Corrupt, "raft's value %q has %d bytes, want 8", key, len(v))
	}
	return binary.BigEndian.Uint64(v), nil
}

func indexKey(i uint64) []byte { return binary.BigEndian.AppendUint64(nil, i) }

const (
	recordVersion = 2
	headerLength  = 1 + 1 + 8 + 8 + 4
	sumLength     = 4
)

func encode(l *raft.Log) ([]byte, error) {
	if len(l.Data) > math.MaxUint32 {
		return nil, fmt.Errorf("%d bytes of data are over the limit of a record", len(l.Data))
	}
	var at int64
	if !l.AppendedAt.IsZero() {
		at = l.AppendedAt.UnixNano()
	}
	b := make([]byte, 0, headerLength+len(l.Data)+len(l.Extensions)+sumLength)
	b = append(b, recordVersion, byte(l.Type))
	b = binary.BigEndian.AppendUint64(b, l.Term)
	b = binary.BigEndian.AppendUint64(b, uint64(at))
	b = binary.BigEndian.AppendUint32(b, uint32(len(l.Data)))
	b = append(b, l.Data...)
	b = append(b, l.Extensions...)
	return binary.BigEndian.AppendUint32(b, recordSum(l.Index, b)), nil
}

// decode checks a record and copies everything out of b, which belongs to the
// database.
func decode(index uint64, b []byte, l *raft.Log) error {
	b, err := checkRecord(index, b)
	if err != nil {
		return err
	}
	if b[0] != recordVersion {
		return fmt.Errorf("record version %d, this program knows %d", b[0], recordVersion)
	}
	n := uint64(binary.BigEndian.Uint32(b[18:22]))
	if uint64(len(b)-headerLength) < n {
		return fmt.Errorf("a record of %d bytes says that it holds %d bytes of data", len(b), n)
	}
	body := bytes.Clone(b[headerLength:])
	*l = raft.Log{Index: index, Type: raft.LogType(b[1]), Term: binary.BigEndian.Uint64(b[2:10]), Data: body[:n:n]}
	if at := int64(binary.BigEndian.Uint64(b[10:18])); at != 0 {
		l.AppendedAt = time.Unix(0, at)
	}
	if uint64(len(body)) > n {
		l.Extensions = body[n:]
	}
	return nil
}
