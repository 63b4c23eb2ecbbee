package replica

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"github.com/drover-run/drover/coordinator/raftstore"
	"github.com/drover-run/drover/internal/fault"
)

// Damage is what a repair of a log would keep and lose.
type Damage struct {
	What     []string // what is damaged, a line each; empty for nothing
	Snapshot uint64   // last index of the newest whole snapshot, 0 for none
	First    uint64   // first and last entry of the log that can be kept, 0 for none
	Last     uint64
	Lost     uint64 // entries after Last that are known to have been there
	Aside    string // where the damaged folder is, after Repair
	Servers  []Peer // of the cluster, as the part that is kept knows them
	// Alone is the id of the server that continues without the others of its cluster; "" for a
	// server without others. Its entries may be older than theirs, and the two must never meet
	// again.
	Alone string

	snapshotID string
	term       uint64
	entries    []*raft.Log
}

// Kept returns the index of the last entry that is kept.
func (d *Damage) Kept() uint64 { return max(d.Snapshot, d.Last) }

// repairedName is added to the name of a log for a repaired one that is whole and has not its name
// yet.
const repairedName = ".repairing"

// finishRepair gives a repaired log its name if a crash came after the damaged one was moved aside.
func finishRepair(dir string) error {
	if _, err := os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	err := os.Rename(dir+repairedName, dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// Inspect reads the log below dir and returns what is damaged and what a repair would keep. It
// changes nothing, except that it finishes an interrupted repair whose files were all written. No
// server may run on dir. Conflict: one does. Unsupported: a newer program wrote a snapshot.
func Inspect(dir string) (*Damage, error) {
	if err := finishRepair(dir); err != nil {
		return nil, err
	}
	if !Exists(dir) {
		return nil, fault.New(fault.NotFound, "%s holds no log: name the data folder of a coordinator with -data", dir)
	}
	if err := raftstore.RequireStopped(dir); err != nil {
		return nil, err
	}
	d := &Damage{}
	read := raftstore.Read
	if err := raftstore.Verify(dir); err != nil {
		d.What, read = append(d.What, err.Error()), raftstore.Salvage
	}
	ids, err := snapshotIDs(dir)
	if err != nil {
		return nil, err
	}
	snaps, err := raft.NewFileSnapshotStoreWithLogger(dir, max(2, len(ids)), hclog.NewNullLogger())
	if err != nil {
		return nil, err
	}
	for _, id := range ids {
		index, err := checkSnapshot(snaps, dir, id)
		if errors.Is(err, fault.Unsupported) {
			return nil, fmt.Errorf("snapshot %s: %w", id, err)
		}
		if err != nil {
			d.What = append(d.What, fmt.Sprintf("snapshot %s: %v", id, err))
			continue
		}
		if index >= d.Snapshot {
			d.Snapshot, d.snapshotID = index, id
		}
	}
	s, err := read(dir, d.Snapshot)
	if err != nil {
		return nil, err
	}
	if s.First > d.Snapshot+1 {
		d.What = append(d.What, fmt.Sprintf("entries %d to %d are missing", d.Snapshot+1, s.First-1))
	}
	d.term = s.Term
	for _, id := range ids { // a folder's name begins with the term and the index, also that of a damaged snapshot
		term, index := snapshotName(id)
		d.term, s.Highest = max(d.term, term), max(s.Highest, index)
	}
	if err := d.findServers(snaps, s.Entries); err != nil {
		return nil, err
	}
	if len(s.Entries) > 0 {
		d.entries, d.First, d.Last = s.Entries, s.Entries[0].Index, s.Entries[len(s.Entries)-1].Index
	}
	if s.Highest > d.Kept() {
		d.Lost = s.Highest - d.Kept()
	}
	return d, nil
}

// findServers takes the servers from the newest of entries and snapshot that has
// them.
func (d *Damage) findServers(snaps *raft.FileSnapshotStore, entries []*raft.Log) error {
	var conf raft.Configuration
	if d.snapshotID != "" {
		meta, r, err := snaps.Open(d.snapshotID)
		if err != nil {
			return err
		}
		conf = meta.Configuration
		if err := r.Close(); err != nil {
			return err
		}
	}
	for _, e := range entries {
		if e.Type == raft.LogConfiguration {
			conf = raft.DecodeConfiguration(e.Data)
		}
	}
	d.Servers = peersOf(conf)
	return nil
}

// Repair makes a new log of what d keeps, and moves the damaged one aside. Jobs, ends and decisions
// in the lost entries are unknown afterwards: the log's next entry is a RestoredFact.
func Repair(dir string, d *Damage) error {
	if d.Kept() == 0 {
		return fault.New(fault.Corrupt, "nothing of the log in %s can be read: restore it from an archive (drover operator snapshot restore)", dir)
	}
	if d.Alone == "" && len(d.Servers) > 1 {
		return fault.New(fault.Conflict, "%s is of a cluster of %d coordinators, which have the whole log: move the data folder away and start the coordinator with -join; if too few of the others are left, go on without them: drover operator repair -alone ID", dir, len(d.Servers))
	}
	if !slices.ContainsFunc(d.Servers, func(p Peer) bool { return d.Alone == "" || p.ID == d.Alone }) {
		return fault.New(fault.Invalid, "server %q is not one of those that %s knows: %v", d.Alone, dir, d.Servers)
	}
	next, aside := dir+repairedName, fmt.Sprintf("%s.damaged-%s", dir, time.Now().UTC().Format("20060102T150405Z"))
	part := next + ".part" // until it is whole: see finishRepair
	if err := errors.Join(os.RemoveAll(part), os.RemoveAll(next)); err != nil {
		return err
	}
	if err := d.write(dir, part); err != nil {
		return errors.Join(err, os.RemoveAll(part))
	}
	if err := os.Rename(part, next); err != nil {
		return err
	}
	if err := os.Rename(dir, aside); err != nil {
		return err
	}
	d.Aside = aside
	if err := os.Rename(next, dir); err != nil {
		return fmt.Errorf("the repaired log is in %s, the damaged one in %s: %w", next, aside, err)
	}
	return nil
}

func (d *Damage) write(from, to string) (err error) {
	store, err := raftstore.Open(to, raftstore.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	if d.snapshotID != "" {
		if err := copySnapshot(from, to, d.snapshotID); err != nil {
			return err
		}
	}
	const batch = 256 // entries in one transaction
	for i := 0; i < len(d.entries); i += batch {
		if err := store.StoreLogs(d.entries[i:min(i+batch, len(d.entries))]); err != nil {
			return err
		}
	}
	if d.Alone != "" {
		return d.finishAlone(store)
	}
	return finishSeed(store, d.Kept(), d.term, fmt.Sprintf("repaired: entries up to %d were kept, at least %d were lost", d.Kept(), d.Lost))
}

// finishAlone appends an entry by which this server is the only one.
func (d *Damage) finishAlone(store *raftstore.Store) error {
	i := slices.IndexFunc(d.Servers, func(p Peer) bool { return p.ID == d.Alone })
	conf := raft.Configuration{Servers: []raft.Server{{ID: raft.ServerID(d.Alone), Address: raft.ServerAddress(d.Servers[i].Address)}}}
	at := d.Kept() + 1
	if err := store.StoreLog(&raft.Log{Index: at, Term: d.term + TermJump, Type: raft.LogConfiguration, Data: raft.EncodeConfiguration(conf)}); err != nil {
		return err
	}
	return finishSeed(store, at, d.term, fmt.Sprintf("server %s goes on without the other coordinators: entries up to %d were kept, newer ones that only those had are lost", d.Alone, d.Kept()))
}

func copySnapshot(from, to, id string) error {
	target := filepath.Join(to, snapshotFolder, id)
	if err := os.MkdirAll(filepath.Dir(target), 0o700); err != nil {
		return err
	}
	if err := os.CopyFS(target, os.DirFS(filepath.Join(from, snapshotFolder, id))); err != nil {
		return err
	}
	return filepath.WalkDir(target, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		return errors.Join(f.Sync(), f.Close())
	})
}
