package store

import (
	"fmt"
	"path/filepath"
	"sync"
	"testing"

	"go.etcd.io/bbolt"
)

// Whatever calls share a transaction, each returns when its own change is stored:
// a second reader of the file sees it.
func TestRecordsOfManyCallersAreStored(t *testing.T) {
	s, err := Open(filepath.Join(t.TempDir(), "node.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	s.SkipSync()
	const callers, rounds = 16, 20
	var wg sync.WaitGroup
	for c := range callers {
		wg.Go(func() {
			for r := range rounds {
				id := ID(fmt.Sprintf("%d.0.%d.1.1", c+1, r))
				if err := s.PutRecord(id, Record{Epoch: uint64(c*rounds + r + 1)}); err != nil {
					t.Error(err)
				}
				if stored(t, s, id) == nil {
					t.Errorf("%s is not stored when PutRecord returns", id)
				}
				if r%2 == 1 {
					continue
				}
				if err := s.DeleteRecord(id); err != nil {
					t.Error(err)
				}
				if stored(t, s, id) != nil {
					t.Errorf("%s is stored when DeleteRecord returns", id)
				}
			}
		})
	}
	wg.Wait()
	all, err := s.Records()
	if err != nil || len(all) != callers*rounds/2 {
		t.Errorf("%d records, %v; want %d", len(all), err, callers*rounds/2)
	}
	for id, r := range all {
		var c, n int
		if _, err := fmt.Sscanf(string(id), "%d.0.%d.", &c, &n); err != nil || r.Epoch != uint64((c-1)*rounds+n+1) {
			t.Errorf("record %s has epoch %d, %v", id, r.Epoch, err)
		}
	}
}

func stored(t *testing.T, s *Store, id ID) (value []byte) {
	if err := s.db.View(func(tx *bbolt.Tx) error {
		value = append(value, tx.Bucket(bucketRecords).Get([]byte(id))...)
		return nil
	}); err != nil {
		t.Error(err)
	}
	return value
}

// No caller is told that its change is stored, and none waits forever, if the file
// cannot be written.
func TestAllCallersLearnOfAFailedCommit(t *testing.T) {
	s, err := Open(filepath.Join(t.TempDir(), "node.db"))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for c := range 16 {
		wg.Go(func() {
			if err := s.PutRecord(ID(fmt.Sprintf("%d.0.0.1.1", c)), Record{}); err == nil {
				t.Error("a record was stored in a closed file")
			}
		})
	}
	wg.Wait()
}
