package coordinator

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/coordinator/backup"
	"github.com/drover-run/drover/coordinator/blobs"
	"github.com/drover-run/drover/coordinator/facts"
	"github.com/drover-run/drover/coordinator/history"
	"github.com/drover-run/drover/coordinator/past"
	"github.com/drover-run/drover/coordinator/replica"
	"github.com/drover-run/drover/coordinator/secrets"
	"github.com/drover-run/drover/internal/fault"
)

// actorSelf is the actor of entries that the coordinator proposes on its own.
const actorSelf = "coordinator"

// core is the state that the API, the loop and the background tasks of one
// coordinator share.
type core struct {
	cfg     Config
	log     *slog.Logger
	replica *replica.Replica
	peers   *peers          // the other coordinators; nil without a port for them
	stop    <-chan struct{} // closed when the coordinator stops: streams end
	ready   sync.Once

	// What is kept, and what is known from it.
	blobs     *blobs.Store
	files     *storedFiles
	uploads   *uploadLedger
	disk      *diskGuard
	history   *history.Writer
	ended     *endedJobs
	past      *past.Store
	pastJobs  *pastReader
	recorder  *recorder
	predictor *predictor
	quoter    *quoter
	jobs      *jobView

	// Who calls, what he may, and when it is his turn.
	callers       *authenticator
	rights        *authorizer
	tokens        *tokens
	certificates  *certificates
	secretKeys    *secrets.Keys
	gate          *gate
	leadership    *leadership
	admission     *admission
	auditor       *auditor
	pools         *pools
	registrations *rates // of nodes, that change something
	registering   *nodeClaims
	watchTurns    *turns // for open watches of jobs
	submitting    *nameClaims

	// The nodes, and what they are told and say.
	sessions   *sessions
	wanted     *wantedSets
	dispatcher *dispatcher
	locations  *locationCache
	inputs     *inputLocator
	proxy      *proxy

	changed  *changeSignal // facts or reports changed
	jobEnded *changeSignal // of changed, those with a job that ended
	waits    *waitList

	startFailures startFailures
	metrics       *metrics
	tracing       *tracing

	deciding          chan struct{} // holds one while a decision is made, or the scheduler is set
	schedulerDefault  atomic.Pointer[SchedulerChoice]
	schedulerReloaded chan struct{} // the default changed; holds one
}

// Run runs a coordinator until ctx ends, then stops in order: streams end,
// calls in progress are answered, the log is closed. It then returns nil; an
// error otherwise says why it could not continue.
func Run(ctx context.Context, cfg Config) error {
	run, cancel := context.WithCancel(ctx)
	defer cancel()
	c, err := open(run, cfg)
	if err != nil {
		return err
	}
	g, gctx := errgroup.WithContext(run)
	g.Go(func() error { return c.serve(gctx) })
	g.Go(func() error { return c.campaign(gctx) })
	g.Go(func() error { return c.watchLog(gctx) })
	g.Go(func() error { return c.inputs.relocateStale(gctx) })
	g.Go(func() error { return c.upkeep(gctx) })
	g.Go(func() error { return c.followCertificates(gctx) })
	g.Go(func() error { return c.tokens.keep(gctx) })
	g.Go(func() error { return c.auditor.keep(gctx) })
	g.Go(func() error { return c.trainPredictor(gctx) })
	g.Go(func() error { return c.followReloads(gctx) })
	g.Go(func() error { return c.recorder.run(gctx) })
	g.Go(func() error { return c.samplePast(gctx) })
	if c.peers != nil {
		g.Go(func() error { return c.peers.keep(gctx) })
	}
	err = g.Wait()
	cancel()
	if errors.Is(err, context.Canceled) && ctx.Err() != nil {
		err = nil
	}
	return errors.Join(err, c.close())
}

// open opens the log, the files and the history below cfg.Dir. The first start of
// a server of a cluster waits for the others, until ctx ends.
func open(ctx context.Context, cfg Config) (*core, error) {
	if err := cfg.setDefaults(); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("folder of the coordinator: %w", err)
	}
	if err := refuseLostLog(cfg.Dir); err != nil {
		return nil, err
	}
	c := newCore(ctx, cfg)
	if err := c.openStores(); err != nil {
		return nil, err
	}
	if err := c.openLog(ctx); err != nil {
		return nil, errors.Join(err, c.peers.close(), c.auditor.close(), c.past.Close(), c.history.Close())
	}
	return c, nil
}

// newCore makes what needs no file.
func newCore(ctx context.Context, cfg Config) *core {
	c := &core{cfg: cfg, log: cfg.Logger, stop: ctx.Done(), sessions: newSessions(), wanted: newWantedSets(cfg.Now, cfg.KeepLogs), locations: newLocationCache(), predictor: newPredictor(), quoter: newQuoter(),
		leadership: newLeadership(), changed: newChangeSignal(), jobEnded: newChangeSignal(), submitting: &nameClaims{keys: map[string]string{}}, deciding: make(chan struct{}, 1), startFailures: startFailures{on: map[startedStage]int32{}}, schedulerReloaded: make(chan struct{}, 1)}
	c.schedulerDefault.Store(&SchedulerChoice{cfg.Scheduler, cfg.SchedulerParams})
	c.dispatcher = newDispatcher(c.wanted, c.nodesReaching)
	c.inputs = &inputLocator{dispatcher: c.dispatcher, locations: c.locations, leadership: c.leadership, view: c.view, now: c.now, log: c.log}
	c.waits = &waitList{now: c.now}
	c.jobs = &jobView{sessions: c.sessions, waits: c.waits}
	c.rights = &authorizer{operators: cfg.Operators, view: c.view}
	c.disk = &diskGuard{configured: cfg.DiskReserve, space: cfg.diskSpace}
	c.pools, c.uploads = newPools(cfg.limits), newUploadLedger(c)
	c.watchTurns = newTurns("watches", 2, 1, int(cfg.limits.streams/8)).withBudget(lookBudget)
	c.registrations, c.registering = newRates(registerRate), &nodeClaims{names: map[string]bool{}}
	c.certificates = newCertificates(cfg.Certificate)
	c.tokens = newTokens(c)
	c.secretKeys = openSecretKeys(cfg)
	c.metrics = newMetrics(c)
	c.proxy = newProxy(cfg.nodeTLS)
	return c
}

// openStores opens what is kept beside the log: files of users, history, audit log.
func (c *core) openStores() (err error) {
	cfg := &c.cfg
	if c.tracing, err = openTracing(c); err != nil {
		return err
	}
	if c.blobs, err = blobs.Open(filepath.Join(cfg.Dir, "blobs"), cfg.BlobQuota, maxUpload); err != nil {
		return err
	}
	if c.history, err = history.Open(filepath.Join(cfg.Dir, "history"), cfg.HistoryBytes, cfg.retainJobs+cfg.unwrittenJobs); err != nil {
		return err
	}
	for _, d := range c.history.Damaged() {
		c.log.Warn("a line of the history in JSON is damaged: the simulator leaves it out, and nothing else reads it", "file", d.File, "line", d.Line, "what", d.What)
	}
	c.ended = &endedJobs{history: c.history, locations: c.locations, metrics: c.metrics, limit: cfg.unwrittenJobs, later: map[uint64]bool{}}
	if err := c.openPast(); err != nil {
		return errors.Join(err, c.history.Close())
	}
	c.pastJobs = &pastReader{store: c.past, view: c.view, rights: c.rights}
	if c.auditor, err = openAuditor(*cfg); err != nil {
		return errors.Join(err, c.past.Close(), c.history.Close())
	}
	return nil
}

// openLog opens the log, and before it the port for the other coordinators, which a
// server needs to enter a cluster: nothing that answers there may read c.replica.
func (c *core) openLog(ctx context.Context) error {
	r, err := replica.Open(openPeerPort(ctx, c))
	if err != nil {
		return err
	}
	c.replica, c.gate.replica = r, r
	c.peers.opened(r)
	return nil
}

// openPeerPort opens the port for the other coordinators, if there is one, and returns how to
// open the log.
func openPeerPort(ctx context.Context, c *core) replica.Config {
	cfg := &c.cfg
	rc := replica.Config{Dir: filepath.Join(cfg.Dir, "raft"), ID: cfg.ID, Election: cfg.Election, Logger: cfg.Logger, Now: cfg.Now, NoSync: cfg.NoSync,
		SnapshotEntries: cfg.SnapshotEntries, Crash: cfg.Crash, LogFault: cfg.LogFault, Writing: cfg.Writing, Recorder: c.recorder}
	if cfg.PeerListener != nil {
		c.peers = newPeers(c)
	}
	c.files = newStoredFiles(c)
	c.gate = &gate{id: cfg.ID, leadership: c.leadership, peers: c.peers, stop: c.stop}
	c.callers, c.admission = newAuthenticator(c), newAdmission(c)
	if c.peers != nil {
		c.peers.start()
		rc.Network = c.peers.net
		if cfg.RaftNetwork != nil {
			rc.Network = cfg.RaftNetwork
		}
		rc.Enter = func() ([]replica.Peer, error) { return c.peers.enter(ctx) }
		rc.Acknowledged = func(servers []replica.Peer) (uint64, string) { return c.peers.acknowledged(ctx, servers) }
	}
	return rc
}

// refuseLostLog returns an error for a folder into which an archive was not restored
// to the end, or that has files of users or history and no log: a new, empty cluster
// must not take the place of a lost one in silence.
func refuseLostLog(dir string) error {
	if err := backup.Unfinished(dir); err != nil {
		return err
	}
	if replica.Exists(filepath.Join(dir, "raft")) {
		return nil
	}
	for _, pattern := range []string{"blobs/sha256/*", "history/*"} {
		found, err := filepath.Glob(filepath.Join(dir, pattern))
		if err != nil {
			return err
		}
		if len(found) > 0 {
			return fault.New(fault.Corrupt, "%s has no log in raft/, but holds %s: the log was lost. Restore the folder from a backup (drover operator snapshot restore); to begin a new, empty cluster move the folder away", dir, found[0])
		}
	}
	return nil
}

func (c *core) close() error {
	c.proxy.close()
	err := errors.Join(c.peers.close(), c.replica.Close()) // raft waits for its calls: first end their connections
	return errors.Join(err, c.recorder.flush(), c.tracing.close(), c.auditor.close(), c.past.Close(), c.history.Close())
}

// openPast opens the history, before the log, which gives it what it misses.
func (c *core) openPast() (err error) {
	c.past, err = past.Open(filepath.Join(c.cfg.Dir, "past"), past.Options{MaxBytes: c.cfg.HistoryBytes, MaxAge: c.cfg.HistoryAge, NoSync: c.cfg.NoSync})
	if err != nil {
		return err
	}
	if d := c.past.Repaired(); d != nil {
		c.log.Error("the history was damaged; what was whole is kept, and the log gives again what it has", "damage", d.What, "jobs kept", d.Jobs, "damaged file", d.Aside)
	}
	none := facts.New() // the status of an ended job needs no other facts
	c.recorder = newRecorder(c.past, c.log, func(j *facts.Job) *droverv1.GetJobResponse { return c.jobs.status(none, j) }, func(list []facts.Ended, b past.Batch) {
		if len(b.Jobs) > 0 {
			c.changed.notify()
		}
		c.tracing.ended(list, b)
	})
	return nil
}

// campaign follows the leader, and leads whenever this server becomes the leader.
func (c *core) campaign(ctx context.Context) error {
	for {
		if err := c.follow(ctx); err != nil || ctx.Err() != nil {
			return err
		}
		err := c.lead(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, replica.ErrCrashed):
			return err
		case c.replica.WriteError() != nil:
			return c.replica.WriteError()
		case err != nil && c.peers == nil:
			return fmt.Errorf("the coordinator's loop: %w", err)
		case err != nil:
			c.log.Warn("stopped leading", "err", err)
		}
	}
}

// watchLog returns why the log cannot be written, as soon as it cannot.
func (c *core) watchLog(ctx context.Context) error {
	select {
	case <-c.replica.Broken():
		return c.replica.WriteError()
	case <-ctx.Done():
		return nil
	}
}

// followEvery is the time between two looks of a follower at what it is not told.
const followEvery = time.Second

// follow returns nil when this server becomes the leader. Until then it does what
// every server does with new entries: it wakes readers, and removes files that
// left the facts, and where the inputs of forgotten jobs were located.
func (c *core) follow(ctx context.Context) error {
	t := time.NewTicker(followEvery)
	defer t.Stop()
	for {
		select {
		case lead := <-c.replica.Leadership():
			if lead {
				return nil
			}
		case <-c.replica.AppliedCh():
			c.followEntries()
			if c.replica.Leader() != c.cfg.ID {
				c.signalReady() // entries are applied when a leader says that they are committed
			}
		case <-t.C:
			if c.replica.Leads() { // the loop ended with an error, and raft leads on
				return nil
			}
			if c.peers != nil && c.peers.removed.Load() {
				return fault.New(fault.Conflict, "server %q was removed from the cluster: move %s away, and start it with -join to have it added again", c.cfg.ID, c.cfg.Dir)
			}
		case <-ctx.Done():
			return nil
		}
	}
}

func (c *core) followEntries() {
	c.replica.TakeChanges(func(f *facts.Facts, changes []facts.Change) {
		if isReset(changes) {
			c.locations.dropForgotten(f)
		}
		for i := range changes {
			switch x := &changes[i]; x.Kind {
			case facts.ChangeBlobGone:
				if f.Blob(x.Digest) == nil { // it may have been uploaded again
					c.files.remove(x.Digest)
				}
			case facts.ChangeForgotten: // it was located if this server led
				c.locations.drop(x.Key.Job)
			}
		}
		c.jobEnded.notifyOfEnds(f, changes)
	})
	c.changed.notify()
}

// signalReady says once that this server leads, or has a leader.
func (c *core) signalReady() {
	c.ready.Do(func() {
		if c.cfg.Ready != nil {
			c.cfg.Ready()
		}
	})
}

func (c *core) now() time.Time { return c.cfg.Now() }

// view calls fn with the facts under the read lock.
func (c *core) view(fn func(*facts.Facts)) { c.replica.Read(fn) }

// newID returns 128 random bits in hexadecimal.
func (c *core) newID() string {
	b := make([]byte, 16)
	_, _ = rand.Read(b) // never fails (crypto/rand)
	return hex.EncodeToString(b)
}

// nodesReaching returns the nodes that are up and can access files of a scheme,
// by id, schedulable ones first.
func (c *core) nodesReaching(sch string) []int32 {
	var first, rest []int32
	c.view(func(f *facts.Facts) {
		for _, n := range f.Nodes() {
			if !n.Up || !slices.Contains(n.Info.GetSchemes(), sch) {
				continue
			}
			if !n.Schedulable() {
				rest = append(rest, n.ID)
			} else {
				first = append(first, n.ID)
			}
		}
	})
	return append(first, rest...)
}

// propose proposes an entry on behalf of actor and waits until it is applied.
func (c *core) propose(ctx context.Context, actor string, body *droverv1.Entry) (facts.Result, error) {
	body.Actor = actor
	return c.replica.Propose(ctx, body)
}
