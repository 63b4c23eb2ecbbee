package simcluster

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/hashicorp/raft"

	"github.com/drover-run/drover/coordinator/raftstore"
)

// unsyncedWrites has what a loss of power would take from the raft store of one run of a
// server, or from the store of one run of a node's daemon. As long as every write is synced, which costs nothing in memory, that is nothing, and
// nothing is copied.
type unsyncedWrites struct {
	mu     sync.Mutex
	before map[string][]byte // by the file's name: its bytes before the first write that was not synced
	err    error
}

// writing is told of each write before it.
func (d *unsyncedWrites) writing(path string, synced bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	name := filepath.Base(path)
	switch _, pending := d.before[name]; {
	case synced:
		delete(d.before, name) // an fsync is of the whole file
	case !pending:
		b, err := os.ReadFile(path)
		d.before[name], d.err = b, errors.Join(d.err, err)
	}
}

// reopened returns the writes of the next run on the same disk: what was not synced when its
// process died still is not. A run that was ended from outside changes only its own.
func (d *unsyncedWrites) reopened() *unsyncedWrites {
	next := &unsyncedWrites{before: map[string][]byte{}}
	if d != nil {
		d.mu.Lock()
		defer d.mu.Unlock()
		maps.Copy(next.before, d.before)
	}
	return next
}

// losePower takes from the files in dir what was not synced.
func (d *unsyncedWrites) losePower(dir string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	err := d.err
	for name, b := range d.before {
		err = errors.Join(err, os.WriteFile(filepath.Join(dir, name), b, 0o600))
	}
	clear(d.before)
	return err
}

// TestALossOfPowerTakesWhatWasNotSynced writes to a store with and without fsyncs.
func TestALossOfPowerTakesWhatWasNotSynced(t *testing.T) {
	for _, synced := range []bool{false, true} {
		dir := t.TempDir()
		disk := (*unsyncedWrites)(nil).reopened()
		s, err := raftstore.Open(dir, raftstore.Options{NoSync: !synced, Writing: disk.writing})
		if err != nil {
			t.Fatal(err)
		}
		err = errors.Join(s.StoreLog(&raft.Log{Index: 1, Term: 1}), s.SetUint64([]byte("CurrentTerm"), 1), s.StoreLog(&raft.Log{Index: 2, Term: 1}), s.Close())
		if err := errors.Join(err, disk.reopened().losePower(dir)); err != nil {
			t.Fatal(err)
		}
		if s, err = raftstore.Open(dir, raftstore.Options{NoSync: true}); err != nil {
			t.Fatal(err)
		}
		last, err := s.LastIndex()
		_, errTerm := s.GetUint64([]byte("CurrentTerm"))
		if err != nil || (last == 2) != synced || (errTerm == nil) != synced {
			t.Errorf("synced %v: after a loss of power the last entry is %d (%v), the term %v", synced, last, err, errTerm)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
