package past

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"time"

	bolt "go.etcd.io/bbolt"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
)

// pruneKeys bounds the pairs that one transaction deletes, so that writers wait only
// for a short one.
const pruneKeys = 20_000

// Prune deletes what is over the limits at a time: jobs that ended first, and samples
// and usage that are too old. It returns how many jobs it deleted. Attempts of live
// jobs stay. The file does not shrink; its pages are used again.
func (s *Store) Prune(now time.Time) (jobs int, err error) {
	for {
		used, _, err := s.Size()
		if err != nil {
			return jobs, err
		}
		before := int64(0)
		if s.o.MaxAge > 0 {
			before = now.Add(-s.o.MaxAge).UnixMilli()
		}
		n, more, err := s.pruneSome(before, s.o.MaxBytes > 0 && used > s.o.MaxBytes)
		jobs += n
		if err != nil {
			return jobs, fmt.Errorf("history: prune: %w", err)
		}
		if !more {
			return jobs, s.pruneSeries(now, before)
		}
	}
}

// pruneSome deletes jobs that ended before a time, and with over also the one that
// ended first, in one transaction, and reports whether there may be more to delete.
func (s *Store) pruneSome(beforeMS int64, over bool) (jobs int, more bool, err error) {
	err = s.db.Update(func(tx *bolt.Tx) error {
		budget := pruneKeys
		for budget > 0 {
			key, _ := tx.Bucket(kindEnd.bucket()).Cursor().First()
			if key == nil {
				return nil
			}
			end, id := unstamp(key)
			if end >= beforeMS && !over {
				return nil
			}
			n, err := deleteAttempts(tx, id, budget)
			if err != nil {
				return err
			}
			if budget -= n; budget <= 0 {
				break
			}
			if err := deleteJob(tx, end, id); err != nil {
				return err
			}
			budget -= 8
			jobs++
			if end >= beforeMS { // the size is known again only after the transaction
				if n > 0 || jobs >= 100 {
					break
				}
			}
		}
		more = true
		return nil
	})
	return jobs, more, err
}

func deleteAttempts(tx *bolt.Tx, job uint64, most int) (n int, err error) {
	prefix := jobKey(job)
	b := tx.Bucket(kindAttempt.bucket())
	var keys [][]byte
	c := b.Cursor()
	for key, _ := c.Seek(prefix); key != nil && bytes.HasPrefix(key, prefix) && len(keys) < most; key, _ = c.Next() {
		keys = append(keys, key)
	}
	for _, key := range keys {
		if err := b.Delete(key); err != nil {
			return n, err
		}
		n++
	}
	return n, nil
}

// deleteJob deletes a job that the index of ends has.
func deleteJob(tx *bolt.Tx, endMS int64, id uint64) error {
	key := jobKey(id)
	j := &droverv1.JobSummary{}
	if err := open(kindJob, key, tx.Bucket(kindJob.bucket()).Get(key), j); err != nil {
		return err
	}
	if err := deleteIndexes(tx, j); err != nil {
		return err
	}
	for _, k := range [...]kind{kindJob, kindDetails} {
		if err := tx.Bucket(k.bucket()).Delete(key); err != nil {
			return err
		}
	}
	return tx.Bucket(kindEnd.bucket()).Delete(stamp(endMS, id))
}

// pruneSeries deletes old samples and usage, and merges the job names in the usage of
// days before the oldest job.
func (s *Store) pruneSeries(now time.Time, beforeMS int64) error {
	for more := true; more; {
		err := s.db.Update(func(tx *bolt.Tx) (err error) {
			more = false
			if err := pruneSamples(tx, now, beforeMS); err != nil {
				return err
			}
			if err := pruneUsage(tx, dayOf(beforeMS)); err != nil {
				return err
			}
			if key, _ := tx.Bucket(kindEnd.bucket()).Cursor().First(); key != nil {
				end, _ := unstamp(key)
				more, err = mergeNames(tx, dayOf(end), pruneKeys)
			}
			return err
		})
		if err != nil {
			return fmt.Errorf("history: prune: %w", err)
		}
	}
	return nil
}

func pruneUsage(tx *bolt.Tx, day uint32) error {
	b := tx.Bucket(kindUsage.bucket())
	var keys [][]byte
	c := b.Cursor()
	for key, _ := c.First(); key != nil && binary.BigEndian.Uint32(key) < day && len(keys) < pruneKeys; key, _ = c.Next() {
		keys = append(keys, key)
	}
	return deleteKeys(b, keys)
}

func pruneSamples(tx *bolt.Tx, now time.Time, beforeMS int64) error {
	b := tx.Bucket(kindSample.bucket())
	var keys [][]byte
	c := b.Cursor()
	for key, _ := c.First(); key != nil && len(keys) < pruneKeys; {
		r := int(key[0])
		old := beforeMS
		if r < len(resolutions) && resolutions[r].keep > 0 {
			old = now.Add(-resolutions[r].keep).UnixMilli()
		}
		if sampleTime(key) < old {
			keys = append(keys, bytes.Clone(key))
			key, _ = c.Next()
			continue
		}
		// The rest of this tenant's are newer.
		key, _ = c.Seek(append(bytes.Clone(key[:len(key)-8]), bytes.Repeat([]byte{0xff}, 9)...))
	}
	return deleteKeys(b, keys)
}

func deleteKeys(b *bolt.Bucket, keys [][]byte) error {
	for _, key := range keys {
		if err := b.Delete(key); err != nil {
			return err
		}
	}
	return nil
}
