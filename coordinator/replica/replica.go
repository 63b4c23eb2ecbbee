package replica

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
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
	// Acknowledged is called if Dir holds a log and there is a network, before this server votes, with the servers that the
	// log names, this one among them. It asks the others for their Replica.Acknowledged of this server, and returns the
	// highest answer and who gave it; 0 for none. It limits the time that it takes. nil asks nobody.
	Acknowledged func(servers []Peer) (index uint64, by string)
	// Election is how long a server of a cluster waits for votes; for its leader it waits half
	// as long again before it stands for election, or half as long where the leader's process is
	// gone. 0 = 1 s. All servers have the same.
	Election time.Duration
	Logger   *slog.Logger
	Now      func() time.Time
	// Recorder is given what ends, nil for nobody.
	Recorder Recorder

	// SnapshotEntries is the number of entries between snapshots; 0 = 8192.
	SnapshotEntries uint64
	// NoSync disables fsync, for tests.
	NoSync bool
	// Writing, if set, is called before each write of log, vote and term, with its file and
	// whether it will be acknowledged only when it is synced. For simulations of a loss of power.
	Writing func(path string, synced bool)
	// Crash, if set, is called for every proposal n: true at Before means that
	// it is lost, true at After that it was applied but its proposer does not
	// learn of it. For tests of crashes at every step.
	Crash func(p Point, n uint64) bool
	// LogFault, if set, is called before and after each write of entries, vote and term, and each deletion of entries; an
	// error is the write's. For tests of disks.
	LogFault func(written bool) error
}

// Recorder keeps what ended. It stores durably up to which entry it has everything,
// and a snapshot waits for it, so that the log still has what it misses.
type Recorder interface {
	// Applied returns up to which entry everything is durable.
	Applied() uint64
	// Rewind says that the log ends at index, below Applied: it was restored.
	Rewind(index uint64) error
	// WaitForRoom waits until Record has room. It holds up the log.
	WaitForRoom()
	// Record is called in the order of the log, and must not block.
	Record([]facts.Ended)
	// Sync makes durable what was recorded up to index, and that it is everything.
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

func (r *Replica) start(c Config) error {
	logger := hclog.New(&hclog.LoggerOptions{Name: "raft", Level: hclog.Warn, Output: newRaftLog(c.Logger, time.Now), DisableTime: true})
	files, err := raft.NewFileSnapshotStoreWithLogger(c.Dir, 2, logger)
	if err != nil {
		return fmt.Errorf("folder of snapshots below %s: %w", c.Dir, err)
	}
	snaps := tidySnapshots{files, c.Dir}
	stored := folder{c.Dir, r.store, snaps}
	conf := r.raftConfig(c, logger)
	known, err := raft.HasExistingState(r.store, r.store, snaps)
	if err != nil {
		return fmt.Errorf("look at the raft store in %s: %w", c.Dir, err)
	}
	marked, err := r.checkOwner(c)
	if err != nil {
		return err
	}
	var servers []raft.Server
	if !known {
		if servers, err = r.firstServers(c); err != nil {
			return err
		}
		if !marked {
			if err := markOwner(r.store, c.Dir, c.ID); err != nil {
				return err
			}
		}
	}
	if known {
		if err := stored.refuseOldCopy(c); err != nil {
			return err
		}
	}
	r.transport(c, logger)
	if len(servers) > 0 {
		if err := raft.BootstrapCluster(conf, r.store, r.store, snaps, r.trans, raft.Configuration{Servers: servers}); err != nil {
			return fmt.Errorf("start a new cluster in %s: %w", c.Dir, err)
		}
	}
	if err := rewindRecorder(r.record, stored); err != nil {
		return err
	}
	r.store.running = make(chan func() raft.Future, 1)
	if r.raft, err = raft.NewRaft(conf, fsm{r}, r.store, r.store, snaps, r.trans); err != nil {
		return fmt.Errorf("start raft in %s: %w", c.Dir, err)
	}
	r.end = sync.OnceValue(r.raft.Shutdown) // raft waits for its end in the first call alone
	r.store.running <- r.end
	if err := r.checkMember(c); err != nil {
		return err
	}
	if known && !marked {
		if err := markOwner(r.store, c.Dir, c.ID); err != nil {
			return errors.Join(err, r.end().Error())
		}
	}
	if r.watch != nil {
		r.watch.start()
	}
	return nil
}

// rewindRecorder tells a recorder, nil for nobody, where it is ahead of the log.
func rewindRecorder(record Recorder, stored folder) error {
	if record == nil {
		return nil
	}
	last, err := stored.last()
	if err != nil {
		return err
	}
	if record.Applied() > last {
		return record.Rewind(last)
	}
	return nil
}

// ownerKey has the server's name in the store of raft's term and vote, which are that server's alone.
var ownerKey = []byte("ServerID")

// checkOwner refuses the folder of another server: this server would go on with the votes of the other, without its
// own, and might vote twice in a term. It reports whether the folder has a mark.
func (r *Replica) checkOwner(c Config) (marked bool, err error) {
	known, err := r.store.Lookup(ownerKey)
	if err != nil {
		return false, fmt.Errorf("owner of the log in %s: %w", c.Dir, err)
	}
	if known != nil && string(known) != c.ID {
		return true, fault.New(fault.Conflict, "%s is the folder of server %q, and not of %q, which would vote for it: start it with -id %s, or, for %q, with an empty folder and -join", c.Dir, known, c.ID, known, c.ID)
	}
	return known != nil, nil
}

// markOwner marks a folder as a server's. One with a log is marked only when the log names that server: a wrong mark
// would keep the right one out.
func markOwner(store raft.StableStore, dir, id string) error {
	if err := store.Set(ownerKey, []byte(id)); err != nil {
		return fmt.Errorf("mark %s as the folder of server %q: %w", dir, id, err)
	}
	return nil
}

// checkMember makes sure that this server is one of its own cluster: without its
// name there it would wait for a leader for ever.
func (r *Replica) checkMember(c Config) error {
	f := r.raft.GetConfiguration()
	if err := f.Error(); err != nil {
		return fmt.Errorf("servers of the cluster in %s: %w", c.Dir, err)
	}
	var names []string
	for _, s := range f.Configuration().Servers {
		if s.ID == raft.ServerID(c.ID) {
			return nil
		}
		names = append(names, string(s.ID))
	}
	if len(names) == 0 { // it was never started, and is to be added to a cluster
		return nil
	}
	return errors.Join(fault.New(fault.Conflict, "%s is the log of servers %q, and %q is none of them: start it with the -id that it had, or, if %q was removed from the cluster, move the folder away and start with -join", c.Dir, names, c.ID, c.ID), r.end().Error())
}

// aloneTimeout is how long a server that is alone waits before it elects itself, once or twice as
// long, and between two looks of raft at its lease, which it cannot lose: shorter ones wake an idle
// coordinator more often, longer ones delay its start.
const aloneTimeout = 50 * time.Millisecond

// commitNews is how many times in the time of an election an idle leader tells its followers, at most, up to where the
// log is committed; each entry tells them too. They need it for what callers accept although it may be old.
const commitNews = 5

// raftConfig returns raft's configuration. A server that is alone waits for no
// others.
func (r *Replica) raftConfig(c Config, logger hclog.Logger) *raft.Config {
	conf := raft.DefaultConfig()
	conf.LocalID = raft.ServerID(c.ID)
	conf.Logger = logger
	conf.NotifyCh = r.leading
	// Group commit: proposals that wait while an fsync is under way share the next.
	conf.BatchApplyCh = true
	conf.MaxAppendEntries = groupCommit
	conf.SnapshotInterval = 20 * time.Second
	conf.SnapshotThreshold = 8192
	conf.TrailingLogs = 4096
	conf.NoLegacyTelemetry = true
	conf.CommitTimeout = defaultElection / commitNews
	if c.SnapshotEntries > 0 {
		conf.SnapshotThreshold, conf.TrailingLogs, conf.SnapshotInterval = c.SnapshotEntries, c.SnapshotEntries, 200*time.Millisecond
	}
	if r.single {
		conf.HeartbeatTimeout, conf.ElectionTimeout, conf.LeaderLeaseTimeout = aloneTimeout, aloneTimeout, aloneTimeout
		conf.CommitTimeout = 5 * time.Millisecond
	} else if c.Election > 0 {
		conf.HeartbeatTimeout, conf.ElectionTimeout, conf.LeaderLeaseTimeout = c.Election, c.Election, c.Election/2
		conf.CommitTimeout = c.Election / commitNews
	}
	return conf
}

// firstServers returns the servers of a log that does not exist yet, none for a
// server that waits for the log of a leader.
func (r *Replica) firstServers(c Config) ([]raft.Server, error) {
	if c.Network == nil {
		return []raft.Server{{ID: raft.ServerID(c.ID), Address: raft.ServerAddress(c.ID)}}, nil
	}
	peers := []Peer{{c.ID, c.Network.Addr().String()}}
	if c.Enter != nil {
		var err error
		if peers, err = c.Enter(); err != nil {
			return nil, err
		}
	}
	var servers []raft.Server
	for _, p := range peers {
		servers = append(servers, raft.Server{ID: raft.ServerID(p.ID), Address: raft.ServerAddress(p.Address)})
	}
	return servers, nil
}

// transport makes raft's transport: in memory for a server that is alone.
func (r *Replica) transport(c Config, logger hclog.Logger) {
	if c.Network == nil {
		_, r.trans = raft.NewInmemTransport(raft.ServerAddress(c.ID))
		return
	}
	election := cmp.Or(c.Election, defaultElection)
	r.watch = newLeaderWatch(r, c.Network, election)
	// No pipelining: raft 1.8 stops reading answers at the first that is an error,
	// and its sender then waits for ever for room in the pipeline. That follower gets
	// no entry any more, and the server does not stop. Batches of entries make up
	// for it.
	t := raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{Stream: guardedLayer{c.Network, r.watch.noteEnd}, MaxPool: 3, MaxRPCsInFlight: 1, Timeout: rpcElections * election, Logger: logger})
	r.trans = notingTransport{t, &r.acks}
}

// Close stops the server. Everything acknowledged to a proposer is on disk.
func (r *Replica) Close() error {
	if r.watch != nil {
		r.watch.close()
	}
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

// Verify returns nil if this server leads at a time after the call began: what it
// has applied then is all that was acknowledged before the call. A server that is
// alone leads always. It costs a message to each other server.
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

// Propose adds e to the log, waits until it is applied, and returns its result.
// It sets the entry's version and time; e belongs to Propose afterwards.
// Unavailable: this server does not lead, or it is unknown whether the entry
// will be applied.
func (r *Replica) Propose(ctx context.Context, e *droverv1.Entry) (facts.Result, error) {
	results, err := r.ProposeAll(ctx, []*droverv1.Entry{e})
	if err != nil {
		return facts.Result{}, err
	}
	return results[0], nil
}

// ProposeAll is Propose for entries that follow each other in the log and share its writes. It returns the
// results of the first ones, and with an error not those of all.
func (r *Replica) ProposeAll(ctx context.Context, list []*droverv1.Entry) (results []facts.Result, err error) {
	var proposed []pending
	for _, e := range list {
		e.Version = facts.EntryVersion
		e.At, e.StepRules = r.entryTime(e)
		enqueue := r.enqueue
		if e.GetJobAccepted() != nil {
			enqueue = r.enqueueAccepted
		}
		var p pending
		if p, err = enqueue(e); err != nil {
			break
		}
		proposed = append(proposed, p)
	}
	for _, p := range proposed {
		res, err := r.await(ctx, p)
		if err != nil {
			return results, err
		}
		results = append(results, res)
	}
	return results, err
}

// enqueueAccepted numbers an accepted job and enqueues it. The number is in the entry, not counted
// when it is applied: whatever a replay makes of an entry, no other job's number changes. The lock
// keeps numbers in the order of the log. Nothing is waited for under it, least of all for the facts:
// submitters would queue up behind it for longer than whatever held the facts.
func (r *Replica) enqueueAccepted(e *droverv1.Entry) (pending, error) {
	r.acceptMu.Lock()
	defer r.acceptMu.Unlock()
	e.GetJobAccepted().Job = r.nextJobNumber()
	return r.enqueue(e)
}

// nextJobNumber returns a job number that no entry has. The caller holds
// acceptMu.
func (r *Replica) nextJobNumber() uint64 {
	r.lastJob = max(r.lastJob, r.appliedJob.Load()) + 1
	return r.lastJob
}

// pending is a proposal that is on its way into the log.
type pending struct {
	future raft.ApplyFuture
	n      uint64 // which proposal of this server it is
}

// enqueue encodes e and gives it to raft.
func (r *Replica) enqueue(e *droverv1.Entry) (pending, error) {
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(e)
	if err != nil {
		return pending{}, fault.New(fault.Invalid, "entry for the log: %w", err)
	}
	if len(b) > MaxEntry {
		return pending{}, fault.New(fault.Exhausted, "an entry of %d bytes, at most %d go into the log at once", len(b), MaxEntry)
	}
	n := r.nextProposal()
	if r.crash != nil && r.crash(Before, n) {
		return pending{}, ErrCrashed
	}
	return pending{r.raft.Apply(b, enqueueTimeout), n}, nil
}

func (r *Replica) await(ctx context.Context, p pending) (facts.Result, error) {
	res, err := wait(ctx, p.future)
	if r.crash != nil && r.crash(After, p.n) {
		return facts.Result{}, ErrCrashed
	}
	return res, err
}

func (r *Replica) nextProposal() uint64 {
	r.proposeMu.Lock()
	defer r.proposeMu.Unlock()
	r.proposals++
	return r.proposals
}

// entryTime returns the time of an entry proposed now, see facts.ClockTolerance, and the
// rules by which it is applied.
func (r *Replica) entryTime(e *droverv1.Entry) (at int64, stepRules uint32) {
	now := r.now().UnixNano()
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.facts.Clock().EntryTime(now), r.facts.Clock().ApplyRules(e, now)
}

func wait(ctx context.Context, f raft.ApplyFuture) (facts.Result, error) {
	done := make(chan error, 1)
	go func() { done <- f.Error() }() // ends when raft answers, at the latest at shutdown
	limit := time.NewTimer(applyTimeout)
	defer limit.Stop()
	select {
	case err := <-done:
		if err != nil {
			return facts.Result{}, classifyRaftError(err)
		}
		res, ok := f.Response().(facts.Result)
		if !ok {
			return facts.Result{}, fault.New(fault.Corrupt, "the log answered with %T", f.Response())
		}
		return res, nil
	case <-ctx.Done():
		return facts.Result{}, fault.New(fault.Unavailable, "gave up waiting for the log; the entry may still be applied: %w", ctx.Err())
	case <-limit.C:
		return facts.Result{}, fault.New(fault.Unavailable, "the log did not answer within %s; the entry may still be applied", applyTimeout)
	}
}

// LedNoMore reports whether err is of an entry that was proposed while this server had ceased to lead, ceased to, or
// gave its leadership to another one: who leads next may take the entry, or has it already.
func LedNoMore(err error) bool {
	for _, e := range []error{raft.ErrNotLeader, raft.ErrLeadershipLost, raft.ErrLeadershipTransferInProgress, raft.ErrRaftShutdown} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// classifyRaftError gives a raft error a class of package fault.
func classifyRaftError(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, raft.ErrNotLeader), errors.Is(err, raft.ErrLeadershipTransferInProgress):
		return fault.New(fault.Unavailable, "this coordinator does not lead: %w", err)
	case errors.Is(err, raft.ErrLeadershipLost):
		return fault.New(fault.Unavailable, "this coordinator stopped leading; the entry may still be applied: %w", err)
	case errors.Is(err, raft.ErrEnqueueTimeout):
		return fault.Overload("the log is overloaded: try again in a second")
	case errors.Is(err, raft.ErrRaftShutdown), errors.Is(err, raft.ErrAbortedByRestore):
		return fault.New(fault.Unavailable, "this coordinator is stopping: %w", err)
	default:
		return fault.New(fault.Unavailable, "the log: %w", err)
	}
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

// halt stops the server at what a newer program wrote: without it the facts would no longer be those of the
// others, and a later version of the program would go on with them. It returns the first error.
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
