package replica

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/raft"
	"google.golang.org/protobuf/proto"

	"github.com/drover-run/drover/coordinator/facts"
	"github.com/drover-run/drover/coordinator/raftstore"
	"github.com/drover-run/drover/internal/fault"
)

// snapshotAt writes a snapshot of server c1 with one tenant, and returns its folder.
func snapshotAt(t *testing.T, dir string, index uint64) string {
	t.Helper()
	f := facts.New()
	e := tenant(0)
	e.Version = facts.EntryVersion
	f.Apply(index, e)
	var b bytes.Buffer
	if err := f.Snapshot().Encode(&b); err != nil {
		t.Fatal(err)
	}
	if err := writeSnapshot(dir, SeedState{ID: "c1", Index: index, SnapshotTerm: 3, Facts: &b}); err != nil {
		t.Fatal(err)
	}
	found, err := filepath.Glob(filepath.Join(dir, snapshotFolder, fmt.Sprintf("3-%d-*", index)))
	if err != nil || len(found) != 1 {
		t.Fatal(found, err)
	}
	return found[0]
}

// logOf makes a log of entries first to last, each a tenant.
func logOf(t *testing.T, dir string, first, last uint64) {
	t.Helper()
	store, err := raftstore.Open(dir, raftstore.Options{NoSync: true})
	if err != nil {
		t.Fatal(err)
	}
	var logs []*raft.Log
	for i := first; i <= last; i++ {
		e := tenant(0)
		e.Version = facts.EntryVersion
		b, err := proto.Marshal(e)
		if err != nil {
			t.Fatal(err)
		}
		logs = append(logs, &raft.Log{Index: i, Term: 3, Type: raft.LogCommand, Data: b})
	}
	if err := errors.Join(store.StoreLogs(logs), store.SetUint64([]byte("CurrentTerm"), 3), store.Close()); err != nil {
		t.Fatal(err)
	}
}

// TestARepairNamesEntriesThatAreMissing damages the newest snapshot of a log that begins after the one before it. What was
// between the two is lost, and a repair made a log with a gap, which did not start.
func TestARepairNamesEntriesThatAreMissing(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "raft")
	logOf(t, dir, 60, 120)
	snapshotAt(t, dir, 10)
	if err := os.WriteFile(filepath.Join(snapshotAt(t, dir, 100), "state.bin"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(Config{Dir: dir, ID: "c1", NoSync: true}); !errors.Is(err, fault.Corrupt) {
		t.Fatalf("it starts: %v", err)
	}
	d, err := Inspect(dir)
	if err != nil || d.Kept() != 10 || d.Lost != 110 || !strings.Contains(strings.Join(d.What, "\n"), "entries 11 to 59 are missing") {
		t.Fatalf("%+v, %v", d, err)
	}
	if err := Repair(dir, d); err != nil {
		t.Fatal(err)
	}
	r := open(t, Config{Dir: dir, ID: "c1", NoSync: true})
	until(t, "it leads", r.Leads)
	if _, err := r.BeginTerm(context.Background()); err != nil {
		t.Fatal(err)
	}
	if n := count(r); n != 1 {
		t.Errorf("%d tenants, want the one of the older snapshot", n)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	if d, err := Inspect(dir); err != nil || len(d.What) > 0 {
		t.Errorf("after the repair: %+v, %v", d, err)
	}
}

// TestALogWithoutItsBeginningIsRefused opens a log that begins late and has no snapshot, on which raft would panic.
func TestALogWithoutItsBeginningIsRefused(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "raft")
	logOf(t, dir, 60, 120)
	if _, err := Open(Config{Dir: dir, ID: "c1", NoSync: true}); !errors.Is(err, fault.Corrupt) || !strings.Contains(err.Error(), "entries 1 to 59 are missing") {
		t.Errorf("%v", err)
	}
	d, err := Inspect(dir)
	if err != nil || d.Kept() != 0 || d.Lost != 120 || len(d.What) != 1 {
		t.Fatalf("%+v, %v", d, err)
	}
	if err := Repair(dir, d); !errors.Is(err, fault.Corrupt) {
		t.Errorf("%v", err)
	}
}

// TestARepairCountsWhatADamagedSnapshotHad damages the newest snapshot of a log that has no entry after it.
func TestARepairCountsWhatADamagedSnapshotHad(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "raft")
	logOf(t, dir, 1, 0)
	snapshotAt(t, dir, 10)
	if err := os.WriteFile(filepath.Join(snapshotAt(t, dir, 100), "state.bin"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if d, err := Inspect(dir); err != nil || d.Kept() != 10 || d.Lost != 90 {
		t.Errorf("%+v, %v", d, err)
	}
}

// TestALogBehindItsSnapshotGoesOn opens what a stop leaves between a snapshot that the leader sent and the removal of the
// entries that it replaces, and then appends.
func TestALogBehindItsSnapshotGoesOn(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "raft")
	logOf(t, dir, 1, 10)
	snapshotAt(t, dir, 100)
	for range 2 {
		r := open(t, Config{Dir: dir, ID: "c1", NoSync: true})
		until(t, "it leads", r.Leads)
		if _, err := r.Propose(context.Background(), tenant(1)); err != nil {
			t.Fatal(err)
		}
		if first, err := r.store.FirstIndex(); first != 101 || err != nil {
			t.Errorf("the log begins at %d, %v", first, err)
		}
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestARepairThatWasCutShortIsFinished takes the name of a repaired log back, as a crash between the two renames of a repair
// does: a start and an inspection find the repaired log. What is not whole is not taken.
func TestARepairThatWasCutShortIsFinished(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "raft")
	logOf(t, dir, 11, 20)
	snapshotAt(t, dir, 10)
	if err := os.Rename(dir, dir+".repairing.part"); err != nil {
		t.Fatal(err)
	}
	if _, err := Inspect(dir); !errors.Is(err, fault.NotFound) || Exists(dir) {
		t.Fatalf("a part of a repaired log was taken: %v", err)
	}
	if err := os.Rename(dir+".repairing.part", dir+".repairing"); err != nil {
		t.Fatal(err)
	}
	if !Exists(dir) {
		t.Error("a coordinator would call the log lost")
	}
	if d, err := Inspect(dir); err != nil || len(d.What) > 0 || d.Kept() != 20 {
		t.Fatalf("%+v, %v", d, err)
	}
	if err := os.Rename(dir, dir+".repairing"); err != nil {
		t.Fatal(err)
	}
	r := open(t, Config{Dir: dir, ID: "c1", NoSync: true})
	defer func() { _ = r.Close() }()
	until(t, "it has the repaired log", func() bool { return r.Leads() && count(r) == 1 })
}

// TestADamagedSnapshotAfterTheLogIsRefused damages a snapshot that the leader sent, and which is newer than the whole log: what
// it had is nowhere else, so it is not moved aside.
func TestADamagedSnapshotAfterTheLogIsRefused(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "raft")
	logOf(t, dir, 1, 10)
	path := snapshotAt(t, dir, 100)
	if err := os.WriteFile(filepath.Join(path, "state.bin"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if r, err := Open(Config{Dir: dir, ID: "c1", NoSync: true}); !errors.Is(err, fault.Corrupt) {
		t.Errorf("it starts: %v", err)
		if err == nil {
			_ = r.Close()
		}
	}
	if _, err := os.Stat(path); err != nil {
		t.Error(err)
	}
	if d, err := Inspect(dir); err != nil || d.Kept() != 10 || d.Lost != 90 {
		t.Errorf("%+v, %v", d, err)
	}
}
