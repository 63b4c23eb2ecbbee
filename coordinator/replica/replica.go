package replica

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
	"google.golang.org/protobuf/proto"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/coordinator/facts"
	"github.com/drover-run/drover/coordinator/raftstore"
	"github.com/drover-run/drover/internal/fault"
)

// MaxEntry bounds an entry of the log, in bytes. Larger submissions are staged.
const MaxEntry = 1 << 20

// groupCommit is the most entries that one fsync makes durable.
const groupCommit = 512

// Timeouts.
const (
	enqueueTimeout  = 2 * time.Second
	applyTimeout    = 15 * time.Second
	takeTime        = 100 * time.Microsecond // that raft has at its end for the proposals in its queue
	barrierTimeout  = 30 * time.Second
	rpcElections    = 10 // a message between servers may take so many times the time of an election
	defaultElection = time.Second
)

// Peer is a server of the cluster.
type Peer struct {
	ID      string // unique name of the server
	Address string // host:port of its peer port
}

// Config configures a replica. Dir and ID are required; the rest may be zero
// for a single server.
type Config struct {
	Dir string
	ID  string
	// Network connects the servers of a cluster (see package peer); nil for a
	// server that is alone. Its address is this server's.
	Network raft.StreamLayer
	// Enter is called if Dir holds no log and there is a network. It returns the
	// servers that a new cluster begins with, this one among them, or none if a
	// leader has added this server, which then waits for the log. nil for a new
	// cluster of this server.
	Enter func() ([]Peer, error)
	// Acknowledged is called before this server votes, if Dir holds a log and there is a network,
	// with the servers in the log, this one included. It asks the others for their
	// Replica.Acknowledged of this server, and returns the highest answer and who gave it, 0 for
	// none. It must limit its time. nil asks nobody.
	Acknowledged func(servers []Peer) (index uint64, by string)
	// Election is how long a server of a cluster waits for votes; 0 = 1 s. All servers have the
	// same. A server stands for election when its leader was silent for one and a half times as
	// long, or for half as long if the leader's process is gone.
	Election time.Duration
	Logger   *slog.Logger
	Now      func() time.Time
	// Recorder gets the jobs and attempts that end; nil for none.
	Recorder Recorder

	// SnapshotEntries is the number of entries between snapshots; 0 = 8192.
	SnapshotEntries uint64
	// NoSync disables fsync, for tests.
	NoSync bool
	// Writing, if set, is called before each write of log, vote and term, with its file and
	// whether it will be acknowledged only when it is synced. For simulations of a loss of power.
	Writing func(path string, synced bool)
	// Crash, if set, is called for every proposal n. True at Before means that the proposal is
	// lost, true at After that it was applied but its proposer does not learn of it. It is for
	// tests of crashes at every step.
	Crash func(p Point, n uint64) bool
	// LogFault, if set, is called before and after each write of entries, vote and term, and each
	// deletion of entries; an error is the write's. For tests of disks.
	LogFault func(written bool) error
}

// Recorder stores the jobs and attempts that end. It stores durably up to which entry it is
// complete, and a snapshot waits for it, so that the log still has what the recorder lacks.
type Recorder interface {
	// Applied returns up to which entry everything is durable.
	Applied() uint64
	// Rewind says that the log ends at index, below Applied: it was restored.
	Rewind(index uint64) error
	// WaitForRoom waits until Record has room. It holds up the log.
	WaitForRoom()
	// Record is called in the order of the log, and must not block.
	Record([]facts.Ended)
	// Sync makes the records up to index durable, and marks them as complete.
	Sync(index uint64) error
}

// Point is where a test may crash a server.
type Point int

// The points.
const (
	Before Point = iota + 1 // the entry is not in the log
	After                   // it is in the log, and not acknowledged
)

// ErrCrashed is returned to a proposer whose server was made to crash.
var ErrCrashed = errors.New("the server crashed (requested by a test)")

// Replica is one server of the log.
type Replica struct {
	dir    string
	raft   *raft.Raft
	end    func() raft.Future // ends raft; the same future each time
	store  *watchedStore
	trans  raft.Transport
	now    func() time.Time
	crash  func(Point, uint64) bool
	record Recorder // nil for nobody
	single bool
	id     string

	mu    sync.RWMutex // guards facts
	facts *facts.Facts
	newer error // of an entry that a newer program wrote: nothing after it is applied; the goroutine of raft's state machine alone uses it

	queue queue

	proposeMu sync.Mutex // guards proposals
	proposals uint64

	acceptMu   sync.Mutex // guards lastJob, and keeps accepted jobs in the order of their numbers
	lastJob    uint64
	appliedJob atomic.Uint64 // the last job of facts, for those who hold acceptMu

	transfers transfers
	watch     *leaderWatch // nil for a server that is alone
	acks      acknowledgements

	applied chan struct{} // one token: entries were applied
	leading chan bool     // raft's leadership notifications
}

// Open starts the server. A single server elects itself within a tenth of a
// second; see Leadership.
func Open(c Config) (*Replica, error) {
	if err := finishRepair(c.Dir); err != nil {
		return nil, err
	}
	if ids, err := snapshotIDs(c.Dir); err != nil {
		return nil, err
	} else if len(ids) > 0 && !raftstore.Exists(c.Dir) {
		return nil, fault.New(fault.Corrupt, "%s has snapshots and no log: %s and %s are missing: %s", c.Dir, raftstore.LogFile, raftstore.StableFile, cure)
	}
	store, err := raftstore.Open(c.Dir, raftstore.Options{NoSync: c.NoSync, Writing: c.Writing, Log: c.Logger})
	if err != nil {
		return nil, err
	}
	newest, err := checkSnapshots(c.Dir, store, c.Logger)
	if err == nil {
		err = errors.Join(dropReplaced(store, newest), removeUnfinished(c.Dir))
	}
	if err != nil {
		return nil, errors.Join(err, store.Close())
	}
	r := &Replica{dir: c.Dir, store: &watchedStore{Store: store, fault: c.LogFault, broken: make(chan struct{})}, now: c.Now, crash: c.Crash, record: c.Recorder, facts: facts.New(), applied: make(chan struct{}, 1), leading: make(chan bool, 16), single: c.Network == nil, id: c.ID}
	if r.now == nil {
		r.now = time.Now
	}
	if r.record != nil {
		r.facts.EndedLog().Record()
	}
	if err := r.start(c); err != nil {
		return nil, errors.Join(err, r.closeTransport(), store.Close())
	}
	return r, nil
}

// Close stops the server. Everything acknowledged to a proposer is on disk.
func (r *Replica) Close() error {
	if r.watch != nil {
		r.watch.close()
	}
	r.queue.end()
	err := r.end().Error()
	return errors.Join(err, r.closeTransport(), r.store.Close())
}

func (r *Replica) closeTransport() error {
	if t, ok := r.trans.(io.Closer); ok {
		return t.Close()
	}
	return nil
}

// Leadership delivers true each time this server becomes the leader, and false
// each time it stops leading.
func (r *Replica) Leadership() <-chan bool { return r.leading }

// Leader returns the id of the current leader, "" if there is none.
func (r *Replica) Leader() string {
	_, id := r.raft.LeaderWithID()
	return string(id)
}

// Leads reports whether this server leads.
func (r *Replica) Leads() bool { return r.raft.State() == raft.Leader }

// BeginTerm waits until everything in the log is applied here, and returns the
// term in which this server leads. A new leader starts with it. Unavailable: it
// does not lead, or not any more.
func (r *Replica) BeginTerm(ctx context.Context) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, barrierTimeout)
	defer cancel()
	term := r.raft.CurrentTerm()
	if err := awaitFuture(ctx, r.raft.Barrier(barrierTimeout)); err != nil {
		return 0, err
	}
	if err := awaitFuture(ctx, r.raft.VerifyLeader()); err != nil {
		return 0, err
	}
	if r.raft.CurrentTerm() != term {
		return 0, fault.New(fault.Unavailable, "this coordinator stopped leading in term %d", term)
	}
	if err := r.WriteError(); err != nil { // it may not have applied everything
		return 0, err
	}
	return term, nil
}

// awaitFuture waits for what raft was asked for, or until ctx ends.
func awaitFuture(ctx context.Context, f raft.Future) error {
	done := make(chan error, 1)
	go func() { done <- f.Error() }() // ends when raft answers, at the latest at shutdown
	select {
	case err := <-done:
		return classifyRaftError(err)
	case <-ctx.Done():
		return fault.New(fault.Unavailable, "gave up waiting for the other coordinators: %w", ctx.Err())
	}
}

// Term returns raft's current term. It rises with every election, so also with
// every restart.
func (r *Replica) Term() uint64 { return r.raft.CurrentTerm() }

// Verify returns nil if this server leads at a time after the call began: it has then applied
// everything that was acknowledged before the call. A server without others always leads. It costs
// a message to each other server.
func (r *Replica) Verify(ctx context.Context) error {
	if r.single {
		return nil
	}
	return awaitFuture(ctx, r.raft.VerifyLeader())
}

// AppliedCh receives a token after entries were applied.
func (r *Replica) AppliedCh() <-chan struct{} { return r.applied }

// Read calls fn with the facts under the read lock. fn must be short and keep
// nothing that may change (see package facts).
func (r *Replica) Read(fn func(*facts.Facts)) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	fn(r.facts)
}

// TakeChanges calls fn with the facts and the journal since the last call,
// under the write lock, so that both are of the same index. It has one caller.
func (r *Replica) TakeChanges(fn func(*facts.Facts, []facts.Change)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	fn(r.facts, r.facts.TakeJournal())
}

// fsm adapts the facts to raft.
type fsm struct{ r *Replica }

var _ raft.BatchingFSM = fsm{}

// Apply applies one entry.
func (f fsm) Apply(l *raft.Log) any { return f.ApplyBatch([]*raft.Log{l})[0] }

// ApplyBatch applies entries under one lock. They are decoded before it is taken,
// so that readers do not wait for that.
func (f fsm) ApplyBatch(logs []*raft.Log) []any {
	out := make([]any, len(logs))
	entries := make([]*droverv1.Entry, len(logs))
	for i, l := range logs {
		if l.Type != raft.LogCommand {
			continue
		}
		entries[i] = new(droverv1.Entry)
		if err := proto.Unmarshal(l.Data, entries[i]); err != nil {
			// Garbage in the log must not stop the cluster: it is treated as an
			// entry without a body.
			proto.Reset(entries[i])
		}
	}
	if f.r.record != nil {
		f.r.record.WaitForRoom()
	}
	f.r.mu.Lock()
	for i, e := range entries {
		switch l := logs[i]; {
		case e == nil:
		case f.r.newer != nil || facts.Newer(e):
			out[i] = facts.Result{Err: f.halt(fault.New(fault.Unsupported, "a newer drover wrote entry %d of the log, which this one does not understand", l.Index))}
		case e.GetTerm() != 0 && e.GetTerm() != l.Term:
			out[i] = f.r.facts.Refuse(l.Index, fault.New(fault.Conflict, "the leader of term %d decided this, and the log is in term %d", e.GetTerm(), l.Term))
		default:
			out[i] = f.r.facts.Apply(l.Index, e)
		}
	}
	if f.r.record != nil {
		f.r.record.Record(f.r.facts.EndedLog().Take())
	}
	f.r.appliedJob.Store(f.r.facts.LastJob())
	f.r.mu.Unlock()
	f.r.signalApplied()
	return out
}

// halt stops the server at an entry of a newer program. If it continued, its facts would differ
// from those of the others, and a later version of the program would continue with them. It returns
// the first error.
func (f fsm) halt(err error) error {
	if f.r.newer == nil {
		f.r.newer = err
		_ = f.r.store.note(err) // it is this error
	}
	return f.r.newer
}

func (r *Replica) signalApplied() {
	select {
	case r.applied <- struct{}{}:
	default:
	}
}

// Snapshot returns an immutable copy of the facts.
func (f fsm) Snapshot() (raft.FSMSnapshot, error) {
	if f.r.newer != nil { // raft believes that what came after it is applied
		return nil, f.r.newer
	}
	f.r.mu.Lock()
	defer f.r.mu.Unlock()
	return snapshot{f.r.facts.Snapshot(), f.r.dir, f.r.record}, nil
}

// Restore replaces the facts by a snapshot.
func (f fsm) Restore(rc io.ReadCloser) error {
	defer func() { _ = rc.Close() }() // it has been read completely
	restored, err := facts.Restore(rc)
	if errors.Is(err, fault.Unsupported) {
		return f.halt(err)
	}
	if err != nil {
		return err
	}
	if f.r.record != nil {
		restored.EndedLog().Record()
		if restored.Index() > f.r.record.Applied() { // the entries before it are not here
			f.r.record.Record(restored.EndedLog().All())
		}
	}
	f.r.mu.Lock()
	f.r.facts = restored
	f.r.appliedJob.Store(restored.LastJob())
	f.r.mu.Unlock()
	f.r.signalApplied()
	return nil
}

type snapshot struct {
	s      *facts.Snapshot
	dir    string // of the replica
	record Recorder
}

// Persist encodes the copy while Apply continues. Raft drops entries of the log
// after it, so the recorder must have them.
func (s snapshot) Persist(sink raft.SnapshotSink) error {
	if s.record != nil {
		if err := s.record.Sync(s.s.Index()); err != nil {
			return errors.Join(err, sink.Cancel())
		}
	}
	if err := s.s.Encode(sink); err != nil {
		return errors.Join(err, sink.Cancel())
	}
	if err := sink.Close(); err != nil {
		return err
	}
	return writeMetaSum(s.dir, sink.ID())
}

// Release does nothing.
func (snapshot) Release() {}
