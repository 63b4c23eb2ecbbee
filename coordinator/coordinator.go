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
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/coordinator/blobs"
	"github.com/drover-run/drover/coordinator/facts"
	"github.com/drover-run/drover/coordinator/history"
	"github.com/drover-run/drover/coordinator/replica"
	"github.com/drover-run/drover/scheduler"
)

// actorSelf is the actor of what the coordinator does by itself.
const actorSelf = "coordinator"

// core is one coordinator: what its API, its loop and its helpers share.
type core struct {
	cfg       Config
	log       *slog.Logger
	replica   *replica.Replica
	blobs     *blobs.Store
	history   *history.Writer
	sessions  *sessions
	wanted    *wantedSets
	orders    *orderBook
	hosts     *hostBook
	forecasts *forecasts
	quotes    *quotes
	metrics   *metrics
	proxy     *proxy

	leading atomic.Bool
	ready   sync.Once
	readyCh chan struct{}
	stop    <-chan struct{} // closed when the coordinator stops: streams end

	mu      sync.Mutex
	news    chan struct{} // closed and replaced when facts or reports changed
	waiting map[scheduler.StageID]scheduler.Waiting
	done    []history.Job       // ended jobs to write down
	touched map[string]int64    // digests that clients asked for lately, Unix ns
	names   map[string]struct{} // names of jobs being submitted
}

// Run runs a coordinator until ctx ends, then stops in order: streams end,
// calls under way are answered, the log is closed. It gives nil then; an error
// otherwise says why it could not go on.
func Run(ctx context.Context, cfg Config) error {
	c, err := open(cfg)
	if err != nil {
		return err
	}
	run, cancel := context.WithCancel(ctx)
	defer cancel()
	c.stop = run.Done()
	g, gctx := errgroup.WithContext(run)
	g.Go(func() error { return c.serve(gctx) })
	g.Go(func() error { return c.campaign(gctx) })
	g.Go(func() error { return c.relocate(gctx) })
	g.Go(func() error { return c.upkeep(gctx) })
	g.Go(func() error { return c.train(gctx) })
	err = g.Wait()
	cancel()
	if errors.Is(err, context.Canceled) && ctx.Err() != nil {
		err = nil
	}
	return errors.Join(err, c.close())
}

func open(cfg Config) (*core, error) {
	if err := cfg.setDefaults(); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("folder of the coordinator: %w", err)
	}
	c := &core{cfg: cfg, log: cfg.Logger, sessions: newSessions(), wanted: newWantedSets(), hosts: newHostBook(), forecasts: newForecasts(), quotes: newQuotes(),
		readyCh: make(chan struct{}), news: make(chan struct{}), touched: map[string]int64{}, names: map[string]struct{}{}}
	c.orders = newOrderBook(c.wanted, c.reaching)
	c.metrics = newMetrics(c)
	c.proxy = newProxy(cfg.NodeTLS)
	var err error
	if c.blobs, err = blobs.Open(filepath.Join(cfg.Dir, "blobs"), cfg.BlobQuota, maxUpload); err != nil {
		return nil, err
	}
	if c.history, err = history.Open(filepath.Join(cfg.Dir, "history")); err != nil {
		return nil, err
	}
	c.replica, err = replica.Open(replica.Config{Dir: filepath.Join(cfg.Dir, "raft"), ID: cfg.ID, Peers: cfg.Peers, Listener: cfg.RaftListener, TLS: cfg.RaftTLS,
		Logger: cfg.Logger, Now: cfg.Now, NoSync: cfg.NoSync, SnapshotEntries: cfg.SnapshotEntries, Crash: cfg.Crash})
	if err != nil {
		return nil, errors.Join(err, c.history.Close())
	}
	return c, nil
}

func (c *core) close() error {
	c.proxy.close()
	return errors.Join(c.replica.Close(), c.history.Close())
}

// campaign leads whenever this server is the leader.
func (c *core) campaign(ctx context.Context) error {
	for {
		select {
		case lead := <-c.replica.Leadership():
			if !lead {
				continue
			}
		case <-ctx.Done():
			return nil
		}
		err := c.lead(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, replica.ErrCrashed):
			return err
		case err != nil && len(c.cfg.Peers) <= 1:
			return fmt.Errorf("the coordinator's loop: %w", err)
		case err != nil:
			c.log.Warn("leading ended", "err", err)
		}
	}
}

// becomeReady tells once that this server leads.
func (c *core) becomeReady() {
	c.ready.Do(func() {
		close(c.readyCh)
		if c.cfg.Ready != nil {
			c.cfg.Ready()
		}
	})
}

func (c *core) now() time.Time { return c.cfg.Now() }

// view reads the facts.
func (c *core) view(fn func(*facts.Facts)) { c.replica.Read(fn) }

// newID gives 128 random bits as text.
func (c *core) newID() string {
	b := make([]byte, 16)
	_, _ = rand.Read(b) // never fails (crypto/rand)
	return hex.EncodeToString(b)
}

// changed wakes all that wait for news.
func (c *core) changed() {
	c.mu.Lock()
	defer c.mu.Unlock()
	close(c.news)
	c.news = make(chan struct{})
}

// newsCh is closed at the next change.
func (c *core) newsCh() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.news
}

// setWaiting keeps why stages wait, as the last decision said.
func (c *core) setWaiting(list []scheduler.Waiting) {
	m := make(map[scheduler.StageID]scheduler.Waiting, len(list))
	for _, w := range list {
		m[w.Stage] = w
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.waiting = m
}

func (c *core) waitingFor(s scheduler.StageID) (scheduler.Waiting, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	w, ok := c.waiting[s]
	return w, ok
}

// reaching lists the nodes that are up and reach files of a scheme, those that
// take work first, by id.
func (c *core) reaching(sch string) []int32 {
	var first, rest []int32
	c.view(func(f *facts.Facts) {
		for _, n := range f.Nodes() {
			if !n.Up || !contains(n.Info.GetSchemes(), sch) {
				continue
			}
			if !n.Takes() {
				rest = append(rest, n.ID)
			} else {
				first = append(first, n.ID)
			}
		}
	})
	return append(first, rest...)
}

func contains(list []string, s string) bool {
	for _, x := range list {
		if x == s {
			return true
		}
	}
	return false
}

// propose makes e durable for a caller of the API.
func (c *core) propose(ctx context.Context, actor string, body *droverv1.Entry) (facts.Result, error) {
	body.Actor = actor
	return c.replica.Propose(ctx, body)
}
