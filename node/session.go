package node

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sync/errgroup"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/api/wire"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/node/store"
)

// Limits of the session with the coordinator.
const (
	registerLimit   = 10 * time.Second
	reportLimit     = 20 * time.Second
	reportGap       = 5 * time.Millisecond // between two reports, so that changes gather
	reportMost      = 500                  // attempts in one report
	firstReconnect  = 50 * time.Millisecond
	lastReconnect   = 5 * time.Second
	defaultInterval = time.Second
)

// errAgain asks for a new registration.
var errAgain = errors.New("the coordinator wants the node to register again")

// errLevels ends a session so that the next one begins with the levels that the
// probe found: they are part of who the node is.
var errLevels = errors.New("the node has more to tell of itself")

// sessions keeps a session with the coordinator for as long as ctx lives. While
// there is none, everything that runs, runs on.
func (d *daemon) sessions(ctx context.Context) error {
	pause, ready := firstReconnect, d.cfg.Ready
	for {
		begun := time.Now()
		err := d.session(ctx, ready)
		if ctx.Err() != nil {
			return nil
		}
		if ready = d.cfg.Ready; errors.Is(err, errLevels) {
			ready = nil // it was ready before, and nothing was lost
			continue
		}
		if errors.Is(err, fault.Conflict) && d.identity().Cluster == "" {
			return err
		}
		if time.Since(begun) > lastReconnect {
			pause = firstReconnect
		}
		d.log.Warn("no session with the coordinator", "err", err, "again_in", pause)
		// Up to half more, so that many nodes do not come back at one moment.
		t := time.NewTimer(pause + rand.N(pause/2))
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return nil
		}
		pause = min(2*pause, lastReconnect)
	}
}

// session registers, then watches and reports until one of the two breaks. ready
// hears that it registered; nil for nobody.
func (d *daemon) session(ctx context.Context, ready func(address string)) error {
	d.metrics.sessions.Inc()
	reg, err := d.register(ctx)
	if err != nil {
		return err
	}
	if ready != nil {
		ready(d.cfg.Info.GetAddress())
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return d.watch(ctx) })
	g.Go(func() error { return d.reporting(ctx, reg) })
	g.Go(func() error {
		select {
		case <-d.probed:
			return errLevels
		case <-ctx.Done():
			return nil
		}
	})
	return g.Wait()
}

func (d *daemon) register(ctx context.Context) (*droverv1.RegisterResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, registerLimit)
	defer cancel()
	sent := d.lease.now()
	res, err := d.cfg.Coordinator.Register(ctx, connect.NewRequest(&droverv1.RegisterRequest{Node: d.info(), Epoch: d.epoch()}))
	if err != nil {
		return nil, wire.FromError(err)
	}
	id, err := d.store.Register(res.Msg)
	if err != nil {
		return nil, err
	}
	d.newEpoch(id)
	d.renewed(ctx, sent, res.Msg.GetLeaseMs())
	d.log.Info("registered", "node", id.Node, "epoch", id.Epoch, "term", id.Term, "cluster", id.Cluster)
	return res.Msg, nil
}

// watch applies what the coordinator streams.
func (d *daemon) watch(ctx context.Context) error {
	id := d.identity()
	stream, err := d.cfg.Coordinator.Watch(ctx, connect.NewRequest(&droverv1.WatchRequest{Node: id.Node, Epoch: id.Epoch, Revision: id.Revision}))
	if err != nil {
		return wire.FromError(err)
	}
	defer stream.Close()
	for stream.Receive() {
		m := stream.Msg()
		err := d.apply(m)
		if errors.Is(err, fault.Invalid) { // a delta to a set that we do not have
			d.log.Warn("asking for a full set", "err", err)
			err = errors.Join(err, d.forgetRevision())
		}
		if err != nil {
			return err
		}
		for _, o := range m.GetOrders() {
			d.orders.Do(d.run, o)
		}
	}
	if err := stream.Err(); err != nil {
		return wire.FromError(err)
	}
	return fault.New(fault.Unavailable, "the coordinator ended the watch")
}

// forgetRevision makes the next watch ask for a full set.
func (d *daemon) forgetRevision() error {
	id, err := d.store.ForgetRevision()
	if err != nil {
		return err
	}
	d.mu.Lock()
	d.id.Revision = id.Revision
	d.mu.Unlock()
	return nil
}

// reporting sends what was seen: everything at first, then changes as they
// come, and a sign of life each interval.
func (d *daemon) reporting(ctx context.Context, reg *droverv1.RegisterResponse) error {
	interval := defaultInterval
	if ms := reg.GetReportIntervalMs(); ms > 0 {
		interval = time.Duration(ms) * time.Millisecond
	}
	tick := time.NewTicker(interval)
	defer tick.Stop()
	gap := time.NewTicker(reportGap)
	defer gap.Stop()
	full := true
	for {
		more, err := d.reportOnce(ctx, full)
		d.metrics.reports.WithLabelValues(result(err)).Inc()
		if err != nil {
			return err
		}
		full = false
		select { // at least reportGap between two reports
		case <-gap.C:
		case <-ctx.Done():
			return ctx.Err()
		}
		if more {
			continue
		}
		select {
		case <-d.report:
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// reportOnce sends one report and takes what it carried off the lists. more
// says that not all fitted in.
func (d *daemon) reportOnce(ctx context.Context, full bool) (more bool, err error) {
	ids, req := d.nextReport(full)
	req.Attempts = d.snapshots(ids)
	sent := req.GetAttempts()
	req.Answers = d.orders.Take()
	req.Load = d.load(ctx)
	ctx, cancel := context.WithTimeout(ctx, reportLimit)
	defer cancel()
	begun := d.lease.now()
	res, err := d.cfg.Coordinator.Report(ctx, connect.NewRequest(req))
	if err != nil {
		d.orders.PutBack(req.Answers)
		return false, wire.FromError(err) // the next session starts with a full report
	}
	if !res.Msg.GetRegisterAgain() {
		d.renewed(ctx, begun, res.Msg.GetLeaseMs())
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, s := range sent {
		if s.GetPhase() == droverv1.Phase_PHASE_GONE { // not one that went while the report was under way
			delete(d.gone, store.IDOf(s.GetKey()))
		}
	}
	if res.Msg.GetRegisterAgain() {
		return false, errAgain
	}
	return len(d.dirty) > 0, nil
}

// nextReport chooses what to report: in a full report all, else at most
// reportMost of what changed.
func (d *daemon) nextReport(full bool) ([]store.ID, *droverv1.ReportRequest) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.sequence++
	req := &droverv1.ReportRequest{Node: d.id.Node, Epoch: d.id.Epoch, Sequence: d.sequence, Full: full, AppliedRevision: d.id.Revision}
	var ids []store.ID
	if full {
		for id, a := range d.attempts {
			if !a.silent {
				ids = append(ids, id)
			}
		}
	} else {
		for id := range d.dirty {
			ids = append(ids, id)
		}
	}
	for id := range d.gone {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	if !full && len(ids) > reportMost {
		ids = ids[:reportMost]
	}
	for _, id := range ids {
		delete(d.dirty, id)
	}
	return ids, req
}

// snapshots are the attempts as they are now; one that is gone says so.
func (d *daemon) snapshots(ids []store.ID) []*droverv1.SeenAttempt {
	seen := make([]*droverv1.SeenAttempt, 0, len(ids))
	for _, id := range ids {
		d.mu.Lock()
		a, gone := d.attempts[id], d.gone[id]
		silent := a != nil && a.silent
		d.mu.Unlock()
		switch {
		case silent:
		case a != nil:
			seen = append(seen, a.snapshot())
		case gone:
			seen = append(seen, &droverv1.SeenAttempt{Key: id.Key(), Phase: droverv1.Phase_PHASE_GONE})
		}
	}
	return seen
}
