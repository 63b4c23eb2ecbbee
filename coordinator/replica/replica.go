package replica

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	"google.golang.org/protobuf/proto"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/coordinator/facts"
	"github.com/drover-run/drover/coordinator/raftstore"
	"github.com/drover-run/drover/internal/fault"
)

// MaxEntry bounds an entry of the log, in bytes. Larger things are staged.
const MaxEntry = 1 << 20

// Limits of waits.
const (
	enqueueTimeout = 2 * time.Second
	applyTimeout   = 15 * time.Second
	barrierTimeout = 30 * time.Second
	transportLimit = 10 * time.Second
)

// Peer is a server of the cluster.
type Peer struct {
	ID      string // unique name of the server
	Address string // host:port of its raft listener
}

// Config says how a replica runs. Dir and ID must be set; the rest may be zero
// for a single server.
type Config struct {
	Dir   string
	ID    string
	Peers []Peer // all servers, this one included; empty for a single one
	// Listener accepts the other servers' raft connections; with TLS both
	// sides show coordinators' certificates (TLS needs RootCAs and ClientCAs).
	// Needed with more than one peer.
	Listener net.Listener
	TLS      *tls.Config
	Logger   *slog.Logger
	Now      func() time.Time

	// SnapshotEntries is after how many entries a snapshot is made; 0 = 8192.
	SnapshotEntries uint64
	// NoSync leaves out fsync, for tests.
	NoSync bool
	// Crash, if set, is called for every entry: with Before, its n-th
	// proposal is lost, with After it was applied but its proposer does not
	// learn of it. For tests of crashes at every step.
	Crash func(p Point, n uint64) bool
}

// Point is where a test lets a server crash.
type Point int

// The points.
const (
	Before Point = iota + 1 // the entry is not in the log
	After                   // it is, and nobody was told
)

// ErrCrashed is what a proposer sees whose server was made to crash.
var ErrCrashed = errors.New("the server crashed (a test wanted it)")

// Replica is one server of the log.
type Replica struct {
	raft   *raft.Raft
	store  *raftstore.Store
	trans  raft.Transport
	now    func() time.Time
	crash  func(Point, uint64) bool
	single bool

	mu    sync.RWMutex // guards facts
	facts *facts.Facts

	propose sync.Mutex // guards count
	count   uint64

	applied chan struct{} // one token: something was applied
	leading chan bool     // raft's news of leadership
}

// Open starts the server. A single server has elected itself within a few
// tens of milliseconds; see Leadership.
func Open(c Config) (*Replica, error) {
	store, err := raftstore.Open(c.Dir, raftstore.Options{NoSync: c.NoSync})
	if err != nil {
		return nil, err
	}
	r := &Replica{store: store, now: c.Now, crash: c.Crash, facts: facts.New(), applied: make(chan struct{}, 1), leading: make(chan bool, 16), single: len(c.Peers) <= 1}
	if r.now == nil {
		r.now = time.Now
	}
	if err := r.start(c); err != nil {
		return nil, errors.Join(err, r.closeTransport(), store.Close())
	}
	return r, nil
}

func (r *Replica) start(c Config) error {
	logger := hclog.New(&hclog.LoggerOptions{Name: "raft", Level: hclog.Warn, Output: logWriter{c.Logger}, DisableTime: true})
	snaps, err := raft.NewFileSnapshotStoreWithLogger(c.Dir, 2, logger)
	if err != nil {
		return fmt.Errorf("folder of snapshots below %s: %w", c.Dir, err)
	}
	conf := r.raftConfig(c, logger)
	servers, err := r.transport(c, logger)
	if err != nil {
		return err
	}
	known, err := raft.HasExistingState(r.store, r.store, snaps)
	if err != nil {
		return fmt.Errorf("look at the raft store in %s: %w", c.Dir, err)
	}
	if !known {
		if err := raft.BootstrapCluster(conf, r.store, r.store, snaps, r.trans, raft.Configuration{Servers: servers}); err != nil {
			return fmt.Errorf("start a new cluster in %s: %w", c.Dir, err)
		}
	}
	if r.raft, err = raft.NewRaft(conf, fsm{r}, r.store, r.store, snaps, r.trans); err != nil {
		return fmt.Errorf("start raft in %s: %w", c.Dir, err)
	}
	return nil
}

// raftConfig: a single server need not wait for anybody, so its time-outs are
// as short as raft allows with comfort; several keep raft's defaults.
func (r *Replica) raftConfig(c Config, logger hclog.Logger) *raft.Config {
	conf := raft.DefaultConfig()
	conf.LocalID = raft.ServerID(c.ID)
	conf.Logger = logger
	conf.NotifyCh = r.leading
	conf.BatchApplyCh = true
	conf.MaxAppendEntries = 64
	conf.SnapshotInterval = 20 * time.Second
	conf.SnapshotThreshold = 8192
	conf.TrailingLogs = 4096
	conf.NoLegacyTelemetry = true
	if c.SnapshotEntries > 0 {
		conf.SnapshotThreshold, conf.TrailingLogs, conf.SnapshotInterval = c.SnapshotEntries, c.SnapshotEntries, 10*time.Millisecond
	}
	if r.single {
		conf.HeartbeatTimeout, conf.ElectionTimeout, conf.LeaderLeaseTimeout = 10*time.Millisecond, 10*time.Millisecond, 10*time.Millisecond
		conf.CommitTimeout = 5 * time.Millisecond
	}
	return conf
}

func (r *Replica) transport(c Config, logger hclog.Logger) ([]raft.Server, error) {
	if r.single {
		addr, t := raft.NewInmemTransport(raft.ServerAddress(c.ID))
		r.trans = t
		return []raft.Server{{ID: raft.ServerID(c.ID), Address: addr}}, nil
	}
	if c.Listener == nil {
		return nil, fault.New(fault.Invalid, "a cluster of %d servers needs a raft listener", len(c.Peers))
	}
	var servers []raft.Server
	self := false
	for _, p := range c.Peers {
		servers = append(servers, raft.Server{ID: raft.ServerID(p.ID), Address: raft.ServerAddress(p.Address)})
		self = self || p.ID == c.ID
	}
	if !self {
		return nil, fault.New(fault.Invalid, "server %q is not among the peers", c.ID)
	}
	r.trans = raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{
		Stream: newStream(c), MaxPool: 3, Timeout: transportLimit, Logger: logger,
	})
	return servers, nil
}

// logWriter gives raft's lines to slog.
type logWriter struct{ l *slog.Logger }

func (w logWriter) Write(b []byte) (int, error) {
	if w.l != nil {
		w.l.Warn("raft", "line", string(b))
	}
	return len(b), nil
}

// Close stops the server. Everything that a proposer was told is on disk.
func (r *Replica) Close() error {
	err := r.raft.Shutdown().Error()
	return errors.Join(err, r.closeTransport(), r.store.Close())
}

func (r *Replica) closeTransport() error {
	if t, ok := r.trans.(io.Closer); ok {
		return t.Close()
	}
	return nil
}

// Leadership gives true each time this server became the leader, and false
// each time it is none any more.
func (r *Replica) Leadership() <-chan bool { return r.leading }

// Leader gives the id of the present leader, "" while there is none.
func (r *Replica) Leader() string {
	_, id := r.raft.LeaderWithID()
	return string(id)
}

// Leads tells whether this server leads.
func (r *Replica) Leads() bool { return r.raft.State() == raft.Leader }

// Term is raft's present term. It rises with every election, so also with
// every restart.
func (r *Replica) Term() uint64 { return r.raft.CurrentTerm() }

// Barrier waits until everything in the log is applied here; a new leader
// starts with it.
func (r *Replica) Barrier() error { return class(r.raft.Barrier(barrierTimeout).Error()) }

// Applied gets a token after entries were applied: take the changes.
func (r *Replica) Applied() <-chan struct{} { return r.applied }

// Read calls fn with the facts under the read lock: fn must be short and keep
// nothing that may change (see package facts).
func (r *Replica) Read(fn func(*facts.Facts)) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	fn(r.facts)
}

// TakeChanges calls fn with the facts and the journal since the last call,
// under the write lock, so that both are of one index. There is one taker.
func (r *Replica) TakeChanges(fn func(*facts.Facts, []facts.Change)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	fn(r.facts, r.facts.TakeJournal())
}

// Propose makes e durable and true, and tells what it did. It stamps the
// entry's version and time; e belongs to Propose afterwards. Unavailable: this
// server does not lead, or it is not known whether the entry will come true.
func (r *Replica) Propose(ctx context.Context, e *droverv1.Entry) (facts.Result, error) {
	e.Version, e.At = facts.EntryVersion, r.stamp()
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(e)
	if err != nil {
		return facts.Result{}, fault.New(fault.Invalid, "entry for the log: %w", err)
	}
	if len(b) > MaxEntry {
		return facts.Result{}, fault.New(fault.Exhausted, "an entry of %d bytes, at most %d go into the log at once", len(b), MaxEntry)
	}
	n := r.number()
	if r.crash != nil && r.crash(Before, n) {
		return facts.Result{}, ErrCrashed
	}
	f := r.raft.Apply(b, enqueueTimeout)
	res, err := wait(ctx, f)
	if r.crash != nil && r.crash(After, n) {
		return facts.Result{}, ErrCrashed
	}
	return res, err
}

func (r *Replica) number() uint64 {
	r.propose.Lock()
	defer r.propose.Unlock()
	r.count++
	return r.count
}

func (r *Replica) stamp() int64 {
	now := r.now().UnixNano()
	r.mu.RLock()
	defer r.mu.RUnlock()
	return max(now, r.facts.At())
}

func wait(ctx context.Context, f raft.ApplyFuture) (facts.Result, error) {
	done := make(chan error, 1)
	go func() { done <- f.Error() }() // ends when raft answers, at shutdown at the latest
	limit := time.NewTimer(applyTimeout)
	defer limit.Stop()
	select {
	case err := <-done:
		if err != nil {
			return facts.Result{}, class(err)
		}
		res, ok := f.Response().(facts.Result)
		if !ok {
			return facts.Result{}, fault.New(fault.Corrupt, "the log answered with %T", f.Response())
		}
		return res, nil
	case <-ctx.Done():
		return facts.Result{}, fault.New(fault.Unavailable, "gave up waiting for the log; what was asked may still happen: %w", ctx.Err())
	case <-limit.C:
		return facts.Result{}, fault.New(fault.Unavailable, "the log did not answer within %s; what was asked may still happen", applyTimeout)
	}
}

// class gives raft's errors a class.
func class(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, raft.ErrNotLeader), errors.Is(err, raft.ErrLeadershipLost), errors.Is(err, raft.ErrLeadershipTransferInProgress):
		return fault.New(fault.Unavailable, "this coordinator does not lead: %w", err)
	case errors.Is(err, raft.ErrEnqueueTimeout):
		return fault.New(fault.Exhausted, "the log is overloaded: try again in a second")
	case errors.Is(err, raft.ErrRaftShutdown), errors.Is(err, raft.ErrAbortedByRestore):
		return fault.New(fault.Unavailable, "this coordinator is stopping: %w", err)
	default:
		return fault.New(fault.Unavailable, "the log: %w", err)
	}
}

// fsm is the facts as raft calls them.
type fsm struct{ r *Replica }

var _ raft.BatchingFSM = fsm{}

// Apply makes one entry true.
func (f fsm) Apply(l *raft.Log) any { return f.ApplyBatch([]*raft.Log{l})[0] }

// ApplyBatch makes entries true under one lock.
func (f fsm) ApplyBatch(logs []*raft.Log) []any {
	out := make([]any, len(logs))
	f.r.mu.Lock()
	for i, l := range logs {
		if l.Type != raft.LogCommand {
			continue
		}
		var e droverv1.Entry
		if err := proto.Unmarshal(l.Data, &e); err != nil {
			// Garbage in the log must not stop the cluster: it is an entry
			// that nobody knows.
			proto.Reset(&e)
		}
		out[i] = f.r.facts.Apply(l.Index, &e)
	}
	f.r.mu.Unlock()
	f.r.wake()
	return out
}

func (r *Replica) wake() {
	select {
	case r.applied <- struct{}{}:
	default:
	}
}

// Snapshot freezes the facts.
func (f fsm) Snapshot() (raft.FSMSnapshot, error) {
	f.r.mu.Lock()
	defer f.r.mu.Unlock()
	return snapshot{f.r.facts.Snapshot()}, nil
}

// Restore puts a snapshot in place of the facts.
func (f fsm) Restore(rc io.ReadCloser) error {
	defer func() { _ = rc.Close() }() // it was read to its end
	restored, err := facts.Restore(rc)
	if err != nil {
		return err
	}
	f.r.mu.Lock()
	f.r.facts = restored
	f.r.mu.Unlock()
	f.r.wake()
	return nil
}

type snapshot struct{ s *facts.Snapshot }

// Persist writes the frozen facts while Apply goes on.
func (s snapshot) Persist(sink raft.SnapshotSink) error {
	if err := s.s.Encode(sink); err != nil {
		return errors.Join(err, sink.Cancel())
	}
	return sink.Close()
}

// Release has nothing to give back.
func (snapshot) Release() {}

// Size gives the bytes of the log and the snapshots on disk.
func (r *Replica) Size(dir string) (bytes int64) {
	_ = filepath.WalkDir(dir, func(_ string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return nil // a file that goes while we look counts nothing
		}
		if i, err := d.Info(); err == nil {
			bytes += i.Size()
		}
		return nil
	})
	return bytes
}
