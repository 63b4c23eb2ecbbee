package past

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	bolt "go.etcd.io/bbolt"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/internal/boltpages"
	"github.com/drover-run/drover/internal/fault"
)

// Damage is what Open found damaged and what it did about it.
type Damage struct {
	What  error  // the first damage
	Aside string // where the damaged file is now
	Jobs  int    // that were whole, and are kept
}

// mend verifies a file. A damaged one is moved aside and its whole records are
// written to a new one of its name. It returns nil where there is nothing to mend.
func mend(path string) (*Damage, error) {
	next := path + ".mending"
	if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
		if err := os.Rename(next, path); err != nil && !errors.Is(err, fs.ErrNotExist) { // an earlier mend ended between its renames
			return nil, err
		}
	}
	what := verify(path)
	if what == nil || errors.Is(what, fault.Unsupported) || errors.Is(what, fault.Conflict) {
		return nil, what
	}
	d := &Damage{What: what, Aside: fmt.Sprintf("%s.damaged-%s", path, time.Now().UTC().Format("20060102T150405Z"))}
	if err := os.Remove(next); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if err := d.salvage(path, next); err != nil {
		return nil, errors.Join(what, err, os.Remove(next))
	}
	if err := os.Rename(path, d.Aside); err != nil {
		return nil, err
	}
	return d, os.Rename(next, path)
}

// verify reads a file whole, without the database. nil: it is whole or not there.
func verify(path string) error {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
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
	if err != nil {
		return fault.New(fault.Corrupt, "%s is damaged: %w", path, err)
	}
	for k := kindMeta; k.known(); k++ {
		found, err := p.Each(k.bucket(), func(key, value []byte) error {
			if k == kindMeta && bytes.Equal(key, versionKey) {
				return checkVersion(path, value)
			}
			got, _, _, err := unseal(key, value)
			if err == nil && got != k {
				err = fmt.Errorf("a value of bucket %q", got.bucket())
			}
			return err
		})
		if err == nil && !found {
			err = errors.New("it is missing")
		}
		if err != nil && fault.Class(err) == nil {
			return fault.New(fault.Corrupt, "%s is damaged: bucket %q: %w", path, k.bucket(), err)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// checkVersion checks the version of a file. Without a seal it is 1 or damaged: whatever wrote a
// higher one sealed it.
func checkVersion(path string, value []byte) error {
	if bytes.Equal(value, unsealedVersion) {
		return nil
	}
	k, version, _, err := unseal(versionKey, value)
	switch {
	case err != nil:
		return fmt.Errorf("its version: %w", err)
	case k == kindMeta && version > schemaVersion:
		return fault.New(fault.Unsupported, "%s has version %d, this program knows up to %d: use the drover that wrote it or a newer one", path, version, schemaVersion)
	case k != kindMeta || version != schemaVersion:
		return fmt.Errorf("its version is %d", version)
	}
	return nil
}

// salvageBatch bounds the pairs of one transaction.
const salvageBatch = 10_000

type pair struct {
	kind       kind
	index      uint64
	key, value []byte
}

// salvage writes every whole record of a damaged file to a new one; of two with the
// same key the one of the later entry. Indexes come from the jobs. Where the log
// stood is not taken: what the log can give again comes from it.
func (d *Damage) salvage(from, to string) (err error) {
	f, err := os.Open(from)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // it was only read
	db, err := openFile(to, true)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	var batch []pair
	flush := func() {
		if err == nil {
			err = db.Update(func(tx *bolt.Tx) error { return putPairs(tx, batch) })
		}
		batch = batch[:0]
	}
	read := boltpages.EachLeaf(f, func(key, value []byte) {
		k, index, _, bad := unseal(key, value)
		if bad != nil || k == kindMeta || k >= kindEnd && k <= kindName {
			return
		}
		if batch = append(batch, pair{k, index, bytes.Clone(key), bytes.Clone(value)}); len(batch) >= salvageBatch {
			flush()
		}
	})
	flush()
	if err := errors.Join(err, read); err != nil {
		return err
	}
	if err := db.Update(d.finish); err != nil {
		return err
	}
	return db.Sync()
}

// putPairs stores pairs unless newer ones of their keys are there.
func putPairs(tx *bolt.Tx, pairs []pair) error {
	for _, p := range pairs {
		b := tx.Bucket(p.kind.bucket())
		if old := b.Get(p.key); old != nil {
			if _, index, _, err := unseal(p.key, old); err == nil && index > p.index {
				continue
			}
		}
		if err := b.Put(p.key, p.value); err != nil {
			return err
		}
	}
	return nil
}

// finish makes the indexes, deletes jobs of which one of two parts is missing, and
// the usage of job names that were merged already, and counts.
func (d *Damage) finish(tx *bolt.Tx) error {
	var halves, merged [][]byte
	jobs, details := tx.Bucket(kindJob.bucket()), tx.Bucket(kindDetails.bucket())
	err := jobs.ForEach(func(key, value []byte) error {
		j := &droverv1.JobSummary{}
		if err := open(kindJob, key, value, j); err != nil || details.Get(key) == nil {
			halves = append(halves, key)
			return nil
		}
		d.Jobs++
		for _, x := range indexesOf(j) {
			if err := tx.Bucket(x.kind.bucket()).Put(x.key, seal(x.kind, 0, x.key, nil)); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	usage := tx.Bucket(kindUsage.bucket())
	err = usage.ForEach(func(key, _ []byte) error {
		k, err := decodeUsageKey(key)
		if err != nil {
			return err
		}
		name := k.name
		k.name = ""
		if name != "" && usage.Get(k.encode()) != nil {
			merged = append(merged, key)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return errors.Join(deleteKeys(jobs, halves), deleteKeys(usage, merged))
}
