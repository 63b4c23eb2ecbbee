package store

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"

	"go.etcd.io/bbolt"

	"github.com/drover-run/drover/internal/boltpages"
	"github.com/drover-run/drover/internal/fault"
)

// cure is what to do about a damaged file.
const cure = "move it away to start as a new node; what ran here starts again, here or elsewhere"

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// pairSum returns the contribution of a pair to the sum of the file: its CRC-32C, and one for the
// number of pairs.
func pairSum(bucket, key, value []byte) uint64 {
	crc := uint32(0)
	for _, b := range [][]byte{bucket, key, value} {
		crc = crc32.Update(crc, castagnoli, binary.BigEndian.AppendUint32(nil, uint32(len(b))))
		crc = crc32.Update(crc, castagnoli, b)
	}
	return 1<<40 + uint64(crc)
}

// put stores a pair and updates the sum of the file.
func put(tx *bbolt.Tx, name, key, value []byte) error {
	return changePair(tx, name, key, value, func(b *bbolt.Bucket) error { return b.Put(key, value) })
}

// remove deletes a pair, if it exists, and updates the sum of the file.
func remove(tx *bbolt.Tx, name, key []byte) error {
	return changePair(tx, name, key, nil, func(b *bbolt.Bucket) error { return b.Delete(key) })
}

func changePair(tx *bbolt.Tx, name, key, value []byte, do func(*bbolt.Bucket) error) error {
	bucket, meta := tx.Bucket(name), tx.Bucket(bucketMeta)
	sum := decodeUint(meta.Get(keySum))
	if old := bucket.Get(key); old != nil {
		sum -= pairSum(name, key, old)
	}
	if value != nil {
		sum += pairSum(name, key, value)
	}
	return errors.Join(do(bucket), meta.Put(keySum, encodeUint(sum)))
}

// clearBucket deletes all pairs of a bucket.
func clearBucket(tx *bbolt.Tx, name []byte) error {
	var keys [][]byte
	if err := tx.Bucket(name).ForEach(func(k, _ []byte) error { keys = append(keys, k); return nil }); err != nil {
		return err
	}
	for _, k := range keys {
		if err := remove(tx, name, k); err != nil {
			return err
		}
	}
	return nil
}

// sumOf computes the sum of a whole file that has none stored yet.
func sumOf(tx *bbolt.Tx) (sum uint64, err error) {
	for _, name := range buckets {
		if err := tx.Bucket(name).ForEach(func(k, v []byte) error {
			if string(k) != string(keySum) || string(name) != string(bucketMeta) {
				sum += pairSum(name, k, v)
			}
			return nil
		}); err != nil {
			return 0, err
		}
	}
	return sum, nil
}

// verify reads the whole file without bbolt, which would map the file and trust it. Corrupt: the
// file is damaged. Unsupported: a newer program wrote it. Unavailable: another daemon has it open.
func verify(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("node store: %w", err)
	}
	defer func() { _ = f.Close() }() // it was only read; this releases the lock
	if locked, err := boltpages.LockShared(f, lockTimeout); err != nil {
		return err
	} else if !locked {
		return fault.New(fault.Unavailable, "%s is in use by another node daemon: stop it first", path)
	}
	p, err := boltpages.Open(f)
	if err == nil {
		err = verifyPairs(p, path)
	}
	if err != nil && fault.Class(err) == nil {
		return fault.New(fault.Corrupt, "%s is damaged: %w: %s", path, err, cure)
	}
	return err
}

// verifyPairs compares the sum of all pairs with that in the file. Files of version 1 have none. Of
// files of newer versions, only the place of the version number is known.
func verifyPairs(p *boltpages.File, path string) error {
	var sum uint64
	var missing []byte
	var declared, version []byte
	for _, name := range buckets {
		found, err := p.Each(name, func(k, v []byte) error {
			if string(name) == string(bucketMeta) && string(k) == string(keySum) {
				declared = v
				return nil
			}
			if string(name) == string(bucketMeta) && string(k) == string(keyVersion) {
				version = v
			}
			sum += pairSum(name, k, v)
			return nil
		})
		if err != nil {
			return fmt.Errorf("bucket %q: %w", name, err)
		}
		if !found {
			missing = name
		}
	}
	switch v := decodeUint(version); {
	case declared == nil && v > schemaVersion && v < maxVersion:
		return newer(path, v)
	case missing != nil:
		return fmt.Errorf("bucket %q is missing", missing)
	case declared == nil && v == 1:
		return nil
	case len(declared) != 8 || decodeUint(declared) != sum:
		return errors.New("the checksum of its values is wrong")
	case v > schemaVersion:
		return newer(path, v)
	default:
		return nil
	}
}

// maxVersion is far above any version: a larger number is damage.
const maxVersion = 1000

func newer(path string, version uint64) error {
	return fault.New(fault.Unsupported, "%s has version %d, this program knows up to %d: use the drover that wrote it or a newer one, or remove the file to start as a new node", path, version, schemaVersion)
}

// makeFile makes a new file whole, so that an empty or half one is always damage.
func makeFile(path string) error {
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	next := path + ".new"
	if err := os.Remove(next); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	db, err := openDB(next)
	if err != nil {
		return err
	}
	if err := errors.Join(db.Update(initSchema), db.Close()); err != nil {
		return err
	}
	return os.Rename(next, path)
}
