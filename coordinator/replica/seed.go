package replica

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	"google.golang.org/protobuf/proto"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/coordinator/facts"
	"github.com/drover-run/drover/coordinator/raftstore"
	"github.com/drover-run/drover/internal/fault"
)

const (
	// TermJump is how far the term of a restored or repaired log is above the
	// highest that is known. Nodes refuse a term below one that they have seen,
	// and the lost log may have gone further: each start takes a term or two, so
	// this is more than twelve days of a restart every second. Revisions of wanted
	// sets have the term in their upper 32 bits, which leaves 4,000 restores.
	TermJump = 1 << 20
	// JobGap is how many job numbers a restored or repaired log leaves out: the
	// lost log may have given them to jobs whose tasks still run.
	JobGap = 1_000_000
	// runGap is how many runs of each attempt it leaves out: a node that is away may have
	// a run that the lost log gave.
	runGap = 1_000
	// eventGap is how many numbers of events it leaves out: somebody may have seen those of
	// the lost log.
	eventGap = 1_000_000_000
)

// keyCurrentTerm is hashicorp/raft's key of the term in its stable store.
var keyCurrentTerm = []byte("CurrentTerm")

// SeedState is the state that a new log begins with.
type SeedState struct {
	ID           string    // of the single server
	Index        uint64    // of the last entry in Facts
	SnapshotTerm uint64    // term of that entry, or a later one
	AboveTerm    uint64    // highest term known
	Facts        io.Reader // a snapshot of the facts
	What         string    // how it came about, for the event
}

// Seed makes the log of a single server in dir, which must have none, from a
// snapshot of the facts. The entry after it is a RestoredFact.
func Seed(dir string, s SeedState) (err error) {
	if Exists(dir) {
		return fault.New(fault.Exists, "%s has a log already", dir)
	}
	store, err := raftstore.Open(dir, raftstore.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	if err := writeSnapshot(dir, s); err != nil {
		return fmt.Errorf("write a snapshot below %s: %w", dir, err)
	}
	if err := markOwner(store, dir, s.ID); err != nil {
		return err
	}
	return finishSeed(store, s.Index, s.AboveTerm, s.What)
}

func writeSnapshot(dir string, s SeedState) error {
	snaps, err := raft.NewFileSnapshotStoreWithLogger(dir, 2, hclog.NewNullLogger())
	if err != nil {
		return err
	}
	addr, trans := raft.NewInmemTransport(raft.ServerAddress(s.ID))
	servers := raft.Configuration{Servers: []raft.Server{{ID: raft.ServerID(s.ID), Address: addr}}}
	sink, err := snaps.Create(raft.SnapshotVersionMax, s.Index, max(s.SnapshotTerm, 1), servers, 1, trans)
	if err != nil {
		return err
	}
	if _, err := io.Copy(sink, s.Facts); err != nil {
		return errors.Join(err, sink.Cancel())
	}
	if err := sink.Close(); err != nil {
		return err
	}
	return writeMetaSum(dir, sink.ID())
}

// finishSeed appends the RestoredFact after index and sets the term.
func finishSeed(store *raftstore.Store, index, aboveTerm uint64, what string) error {
	term := aboveTerm + TermJump
	e := &droverv1.Entry{Version: facts.EntryVersion, Actor: "operator", Body: &droverv1.Entry_Restored{Restored: &droverv1.RestoredFact{What: what, SkipJobs: JobGap, SkipRuns: runGap, SkipEvents: eventGap, ClusterEpoch: uint64(time.Now().Unix())}}}
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(e)
	if err != nil {
		return err
	}
	if err := store.StoreLog(&raft.Log{Index: index + 1, Term: term, Type: raft.LogCommand, Data: b}); err != nil {
		return fmt.Errorf("write the first entry: %w", err)
	}
	if err := store.Set(keyCurrentTerm, binary.BigEndian.AppendUint64(nil, term)); err != nil {
		return fmt.Errorf("write the term: %w", err)
	}
	return nil
}

// Copy returns an immutable copy of the facts, and the log's term.
func (r *Replica) Copy() (*facts.Snapshot, uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.facts.Snapshot(), r.raft.CurrentTerm()
}
