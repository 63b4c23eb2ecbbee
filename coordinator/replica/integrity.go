package replica

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"github.com/drover-run/drover/coordinator/facts"
	"github.com/drover-run/drover/coordinator/raftstore"
	"github.com/drover-run/drover/internal/fault"
)

// snapshotFolder is the name that raft's file store gives to its folder, and
// damagedFolder where snapshots go that are not to be believed.
const (
	snapshotFolder = "snapshots"
	damagedFolder  = "damaged-snapshots"
)

const cure = "restore the folder from a backup (drover operator snapshot restore), keep what is whole (drover operator repair), or, beside other coordinators, move it away and start with -join"

// Exists reports whether dir holds a replica's log or snapshots, or Open will have a repaired log
// there.
func Exists(dir string) bool {
	ids, err := snapshotIDs(dir)
	return raftstore.Exists(dir) || len(ids) > 0 || err != nil || raftstore.Exists(dir+repairedName)
}

// snapshotIDs lists the folders of finished snapshots, oldest first.
func snapshotIDs(dir string) ([]string, error) {
	entries, err := os.ReadDir(filepath.Join(dir, snapshotFolder))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var ids []string
	for _, e := range entries {
		if e.IsDir() && !strings.HasSuffix(e.Name(), unfinishedSuffix) {
			ids = append(ids, e.Name())
		}
	}
	return ids, err
}

// snapshotName returns the term and the index in the name of a snapshot's folder, zeros if it has
// none that can be true.
func snapshotName(id string) (term, index uint64) {
	if _, err := fmt.Sscanf(id, "%d-%d-", &term, &index); err != nil || max(term, index) >= 1<<48 {
		return 0, 0
	}
	return term, index
}

// checkSnapshots reads every snapshot completely before raft uses one, O(bytes). Raft itself skips
// a snapshot that it cannot read, and trusts the index stored beside one; both would lose
// acknowledged entries silently. Damaged snapshots are moved aside if the others and the log
// contain everything. Otherwise the error, Corrupt, names the damage and nothing is changed.
// Unsupported: a newer program wrote one. It returns the last index of the newest undamaged one, 0
// for none.
func checkSnapshots(dir string, store *raftstore.Store, log *slog.Logger) (newest uint64, err error) {
	ids, err := snapshotIDs(dir)
	if err != nil {
		return 0, err
	}
	snaps, err := raft.NewFileSnapshotStoreWithLogger(dir, max(2, len(ids)), hclog.NewNullLogger())
	if err != nil {
		return 0, fmt.Errorf("snapshots below %s: %w", dir, err)
	}
	damaged := map[string]error{}
	for _, id := range ids {
		index, err := checkSnapshot(snaps, dir, id)
		if errors.Is(err, fault.Unsupported) { // it is whole: this program must neither move it nor go on without it
			return 0, fmt.Errorf("%s: %w", filepath.Join(dir, snapshotFolder, id), err)
		}
		if err != nil {
			damaged[id] = err
			continue
		}
		newest = max(newest, index)
	}
	first, err := store.FirstIndex()
	if err != nil {
		return 0, err
	}
	last, err := store.LastIndex()
	if err != nil {
		return 0, err
	}
	// With an empty log everything is in the snapshots: then none may be damaged. Nor may one that
	// is newer than the log.
	covered := first > 0 && first <= newest+1
	for _, id := range ids {
		why := damaged[id]
		if why == nil {
			continue
		}
		path := filepath.Join(dir, snapshotFolder, id)
		if _, index := snapshotName(id); !covered || index > max(last, newest) {
			return 0, fault.New(fault.Corrupt, "%s is damaged: %w: the log has entries %d to %d and the newest whole snapshot ends at %d: %s", path, why, first, last, newest, cure)
		}
		aside := filepath.Join(dir, damagedFolder)
		if err := os.MkdirAll(aside, 0o700); err != nil {
			return 0, err
		}
		if err := os.Rename(path, filepath.Join(aside, id)); err != nil {
			return 0, fmt.Errorf("move the damaged snapshot aside: %w", err)
		}
		if log != nil {
			log.Error("a snapshot is damaged and was moved aside; an older one and the log hold everything", "snapshot", path, "to", aside, "err", why)
		}
	}
	if first > newest+1 { // raft panics on a log without its beginning and without a snapshot
		return 0, fault.New(fault.Corrupt, "entries %d to %d are missing below %s: the log begins after the newest whole snapshot, or there is none: %s", newest+1, first-1, dir, cure)
	}
	return newest, nil
}

// dropReplaced removes the entries of a log that ends before the newest snapshot. A server that is
// far behind gets one from its leader, and a stop may come before raft has removed the entries that
// it replaces. Raft would append after the snapshot, with a gap that the next start refuses.
func dropReplaced(store *raftstore.Store, newest uint64) error {
	last, err := store.LastIndex()
	if err != nil || last >= newest {
		return err
	}
	return store.DeleteRange(0, last)
}

// metaSumFile holds the checksum of a snapshot's meta.json, which has index, term
// and the servers of the cluster, and none of its own.
const metaSumFile = "meta.crc32c"

func metaSum(meta []byte) string {
	return fmt.Sprintf("%08x", crc32.Checksum(meta, crc32.MakeTable(crc32.Castagnoli)))
}

// writeMetaSum writes the checksum beside the description of a finished snapshot.
func writeMetaSum(dir, id string) error {
	folder := filepath.Join(dir, snapshotFolder, id)
	b, err := os.ReadFile(filepath.Join(folder, "meta.json"))
	if err != nil {
		return err
	}
	part := filepath.Join(folder, metaSumFile+".part")
	f, err := os.OpenFile(part, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteString(metaSum(b))
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(part, filepath.Join(folder, metaSumFile))
}

// checkSnapshot returns the index of a snapshot that is whole: its checksum is
// right, and folder, description and content name the same index and term.
func checkSnapshot(snaps *raft.FileSnapshotStore, dir, id string) (uint64, error) {
	b, err := os.ReadFile(filepath.Join(dir, snapshotFolder, id, "meta.json"))
	if err != nil {
		return 0, err
	}
	want, err := os.ReadFile(filepath.Join(dir, snapshotFolder, id, metaSumFile))
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // a crash may have come before it was written
		return 0, err
	}
	if got := metaSum(b); err == nil && string(want) != got {
		return 0, fmt.Errorf("meta.json: its checksum is %q, want %q", got, want)
	}
	var meta raft.SnapshotMeta
	if err := json.Unmarshal(b, &meta); err != nil {
		return 0, fmt.Errorf("meta.json: %w", err)
	}
	if want := fmt.Sprintf("%d-%d-", meta.Term, meta.Index); !strings.HasPrefix(id, want) || meta.ID != id {
		return 0, fmt.Errorf("meta.json is of index %d, term %d and of snapshot %q", meta.Index, meta.Term, meta.ID)
	}
	_, r, err := snaps.Open(id) // checks the checksum
	if err != nil {
		return 0, err
	}
	defer func() { _ = r.Close() }() // it was only read
	index, err := facts.SnapshotIndex(r)
	if err != nil {
		return 0, err
	}
	if index > meta.Index {
		return 0, fmt.Errorf("its content goes to entry %d and meta.json says %d", index, meta.Index)
	}
	return meta.Index, nil
}
