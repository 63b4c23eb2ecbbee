package replica

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
)

// fullDisk is a store whose snapshots cannot be ended, as raft's own when it cannot write what it has in its buffer: it
// leaves their folders. A limit of this process's files in its place would also hit the log of the test itself.
type fullDisk struct{ raft.SnapshotStore }

func (s fullDisk) Create(version raft.SnapshotVersion, index, term uint64, c raft.Configuration, configurationIndex uint64, trans raft.Transport) (raft.SnapshotSink, error) {
	sink, err := s.SnapshotStore.Create(version, index, term, c, configurationIndex, trans)
	return fullDiskSink{sink}, err
}

type fullDiskSink struct{ raft.SnapshotSink }

func (fullDiskSink) Close() error  { return syscall.ENOSPC }
func (fullDiskSink) Cancel() error { return syscall.ENOSPC }

// TestUnfinishedSnapshotsAreRemoved: what a crash left of a snapshot goes at the next start, and what cannot be written at once.
func TestUnfinishedSnapshotsAreRemoved(t *testing.T) {
	dir := t.TempDir()
	left := filepath.Join(dir, snapshotFolder, "2-10-1.tmp")
	if err := os.MkdirAll(left, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(left, "state.bin"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	r := open(t, Config{Dir: dir, ID: "c1", NoSync: true})
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	rest := func() []string {
		t.Helper()
		list, err := filepath.Glob(filepath.Join(dir, snapshotFolder, "*"))
		if err != nil {
			t.Fatal(err)
		}
		return list
	}
	if list := rest(); len(list) > 0 {
		t.Errorf("after a start: %v", list)
	}
	files, err := raft.NewFileSnapshotStoreWithLogger(dir, 2, hclog.NewNullLogger())
	if err != nil {
		t.Fatal(err)
	}
	create := func(in raft.SnapshotStore) raft.SnapshotSink {
		t.Helper()
		_, trans := raft.NewInmemTransport("c1")
		sink, err := tidySnapshots{in, dir}.Create(raft.SnapshotVersionMax, 5, 1, raft.Configuration{}, 1, trans)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := sink.Write([]byte("facts")); err != nil {
			t.Fatal(err)
		}
		return sink
	}
	for what, end := range map[string]func(raft.SnapshotSink) error{"cancel": raft.SnapshotSink.Cancel, "close": raft.SnapshotSink.Close} {
		sink := create(fullDisk{files})
		if len(rest()) != 1 {
			t.Errorf("before a %s: %v", what, rest())
		}
		if end(sink) == nil {
			t.Errorf("%s did not fail", what)
		}
		if list := rest(); len(list) > 0 {
			t.Errorf("after a %s that failed: %v", what, list)
		}
	}
	sink := create(files) // its description cannot be written
	meta := filepath.Join(dir, snapshotFolder, sink.ID()+unfinishedSuffix, "meta.json")
	if err := os.Remove(meta); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(meta, 0o700); err != nil {
		t.Fatal(err)
	}
	if sink.Close() == nil || len(rest()) > 0 {
		t.Errorf("after a close without a description: %v", rest())
	}
	if err := create(files).Close(); err != nil || len(rest()) != 1 {
		t.Errorf("a whole one: %v, %v", rest(), err)
	}
}
