package raftstore

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"

	bolt "go.etcd.io/bbolt"

	"github.com/drover-run/drover/internal/boltpages"
	"github.com/drover-run/drover/internal/durable"
	"github.com/drover-run/drover/internal/fault"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// cure is what an operator can do about damage; it ends every message about it.
const cure = "restore the folder from a backup (drover operator snapshot restore), keep what is whole (drover operator repair), or, beside other coordinators, move it away and start with -join"

// recordSum returns the checksum of a record without its last four bytes.
func recordSum(index uint64, b []byte) uint32 {
	return crc32.Update(crc32.Checksum(indexKey(index), castagnoli), castagnoli, b)
}

// checkRecord returns a record without its checksum.
func checkRecord(index uint64, b []byte) ([]byte, error) {
	n := len(b) - sumLength
	if n < headerLength {
		return nil, fmt.Errorf("a record of %d bytes, want at least %d", len(b), headerLength+sumLength)
	}
	if got, want := recordSum(index, b[:n]), binary.BigEndian.Uint32(b[n:]); got != want {
		return nil, fmt.Errorf("its checksum is %08x, want %08x", got, want)
	}
	return b[:n], nil
}

// putRange stores which entries the log has, in the transaction that changes
// them: a check can tell then that entries are missing at either end.
func putRange(tx *bolt.Tx) error {
	c := tx.Bucket(logBucket).Cursor()
	var first, last uint64
	if k, _ := c.First(); k != nil {
		first = binary.BigEndian.Uint64(k)
		// Not without a first: bbolt looks for ever for the last key of a bucket whose
		// pages this transaction has emptied.
		k, _ = c.Last()
		last = binary.BigEndian.Uint64(k)
	}
	return tx.Bucket(metaBucket).Put(rangeKey, encodeRange(first, last))
}

func encodeRange(first, last uint64) []byte {
	b := binary.BigEndian.AppendUint64(indexKey(first), last)
	return binary.BigEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

// pairSum is the number and the checksum of the pairs of a bucket.
type pairSum struct{ n, sum uint32 }

func (s *pairSum) add(key, value []byte) error {
	for _, b := range [][]byte{key, value} {
		s.sum = crc32.Update(s.sum, castagnoli, binary.BigEndian.AppendUint32(nil, uint32(len(b))))
		s.sum = crc32.Update(s.sum, castagnoli, b)
	}
	s.n++
	return nil
}

func (s *pairSum) encode() []byte {
	return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, s.n), s.sum)
}

func checkVersion(path string, v []byte) error {
	if len(v) != 4 {
		return fault.New(fault.Corrupt, "%s is damaged: its version has %d bytes, want 4: %s", path, len(v), cure)
	}
	switch n := binary.BigEndian.Uint32(v); {
	case n == 0 || n >= maxVersion:
		return fault.New(fault.Corrupt, "%s is damaged: its version is %d: %s", path, n, cure)
	case n > schemaVersion:
		return newer(path, n)
	case n < schemaVersion:
		return fault.New(fault.Unsupported, "%s has version %d, which has no checksums; this program reads version %d alone", path, n, schemaVersion)
	}
	return nil
}

// maxVersion is more than there will ever be: a larger number is damage.
const maxVersion = 1000

// newer returns the error for a version above this program's. No checksum covers the version, so it
// has both causes.
func newer(path string, version uint32) error {
	return fault.New(fault.Unsupported, "%s has version %d, this program knows up to %d: use the drover that wrote it or a newer one, or restore a backup from before the upgrade; %s", path, version, schemaVersion, ifDamaged)
}

const ifDamaged = "if no newer drover has run here, the version is damaged: " + cure

// Exists reports whether dir holds a store, or a part of one.
func Exists(dir string) bool {
	for _, name := range []string{LogFile, StableFile} {
		if _, err := os.Lstat(filepath.Join(dir, name)); !errors.Is(err, fs.ErrNotExist) {
			return true
		}
	}
	return false
}

// makeFiles makes both files of a new store. Each is complete before it gets its name, so that a
// crash leaves no file that looks empty. The log gets its name last, so that a crash never leaves a
// log without the other file.
func makeFiles(dir string) error {
	logPath, stablePath := filepath.Join(dir, LogFile), filepath.Join(dir, StableFile)
	if _, err := os.Lstat(logPath); !errors.Is(err, fs.ErrNotExist) {
		return err // also nil: Verify sees whether the other file is there
	}
	part := logPath + ".part"
	if _, err := os.Lstat(stablePath); err == nil {
		if _, err := os.Lstat(part); err != nil { // it was not the first start that was cut short
			return fault.New(fault.Corrupt, "%s is missing beside %s: %s", logPath, StableFile, cure)
		}
	}
	for _, f := range []struct {
		path   string
		bucket []byte
		key    []byte
		value  []byte
	}{{part, logBucket, rangeKey, encodeRange(0, 0)}, {stablePath + ".part", kvBucket, sumKey, new(pairSum).encode()}} {
		if err := os.Remove(f.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		db, err := openFile(f.path, f.bucket, &bolt.Options{Timeout: lockTimeout, FreelistType: bolt.FreelistMapType, NoFreelistSync: true})
		if err != nil {
			return err
		}
		err = db.Update(func(tx *bolt.Tx) error { return tx.Bucket(metaBucket).Put(f.key, f.value) })
		if err := errors.Join(err, db.Close()); err != nil {
			return fmt.Errorf("make %s: %w", f.path, err)
		}
	}
	for _, path := range []string{stablePath, logPath} {
		if err := os.Rename(path+".part", path); err != nil {
			return fmt.Errorf("make %s: %w", path, err)
		}
	}
	return durable.SyncFolder(dir)
}

// Verify reads both files of a store, without changing or locking them, and
// returns the first damage that it finds: Corrupt with file and place.
func Verify(dir string) error { return verify(dir, slog.New(slog.DiscardHandler)) }

// verify is Verify, and logs what a loss of power has cut short.
func verify(dir string, log *slog.Logger) error {
	if err := verifyLog(filepath.Join(dir, LogFile), log); err != nil {
		return err
	}
	return verifyStable(filepath.Join(dir, StableFile), log)
}

func logTorn(p *boltpages.File, path string, log *slog.Logger) {
	if what := p.Torn(); what != "" {
		log.Warn("a loss of power cut a write of the raft store short; it goes on with the state before that write, which nobody was told of", "file", path, "what", what)
	}
}

func verifyLog(path string, log *slog.Logger) error {
	var first, last uint64
	var declared []byte
	err := verifyFile(path, func(p *boltpages.File) error {
		logTorn(p, path, log)
		if err := inMeta(p, path, rangeKey, &declared); err != nil {
			return err
		}
		found, err := p.Each(logBucket, func(key, value []byte) error {
			if len(key) != 8 {
				return fmt.Errorf("an index of %d bytes", len(key))
			}
			index := binary.BigEndian.Uint64(key)
			if first == 0 {
				first = index
			} else if index != last+1 {
				return fmt.Errorf("entry %d follows entry %d", index, last)
			}
			last = index
			if _, err := checkRecord(index, value); err != nil {
				return fmt.Errorf("entry %d: %w", index, err)
			}
			return nil
		})
		if err == nil && !found {
			err = fmt.Errorf("it has no bucket %q", logBucket)
		}
		return err
	})
	if err != nil {
		return err
	}
	if string(declared) != string(encodeRange(first, last)) {
		return fault.New(fault.Corrupt, "%s is damaged: it holds entries %d to %d and says otherwise (%x): %s", path, first, last, declared, cure)
	}
	return nil
}

func verifyStable(path string, log *slog.Logger) error {
	var sum pairSum
	var declared []byte
	err := verifyFile(path, func(p *boltpages.File) error {
		logTorn(p, path, log)
		if err := inMeta(p, path, sumKey, &declared); err != nil {
			return err
		}
		found, err := p.Each(kvBucket, sum.add)
		if err == nil && !found {
			err = fmt.Errorf("it has no bucket %q", kvBucket)
		}
		return err
	})
	if err == nil && string(declared) != string(sum.encode()) {
		err = fault.New(fault.Corrupt, "%s is damaged: the checksum of its %d values is %x, want %x: %s", path, sum.n, sum.encode(), declared, cure)
	}
	return err
}

// verifyFile opens a file's pages for fn and says of any damage where it is.
func verifyFile(path string, fn func(*boltpages.File) error) error {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return fault.New(fault.Corrupt, "%s is missing: %s", path, cure)
	}
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // it was only read; this releases the lock
	if locked, err := boltpages.LockShared(f, lockTimeout); err != nil {
		return err
	} else if !locked {
		return fault.New(fault.Conflict, "%s is open in another process: is a coordinator running on this folder?", path)
	}
	p, err := boltpages.Open(f)
	if err == nil {
		err = fn(p)
	}
	if err != nil && fault.Class(err) == nil {
		return fault.New(fault.Corrupt, "%s is damaged: %w: %s", path, err, cure)
	}
	return err
}

// inMeta checks the file's version and reads one value of its meta bucket.
func inMeta(p *boltpages.File, path string, key []byte, value *[]byte) error {
	var version []byte
	if _, err := p.Each(metaBucket, func(k, v []byte) error {
		switch string(k) {
		case string(versionKey):
			version = v
		case string(key):
			*value = v
		default:
			return fmt.Errorf("a value %q in bucket %q", k, metaBucket)
		}
		return nil
	}); err != nil {
		return err
	}
	return checkVersion(path, version)
}
