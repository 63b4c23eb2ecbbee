package node

import (
	"context"
	cryptorand "crypto/rand"
	"errors"
	"math/rand" // which a simulation can seed
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sync/errgroup"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/api/wire"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/internal/version"
)

// Limits of the session with the coordinator.
const (
	registerLimit     = 10 * time.Second
	reportLimit       = 20 * time.Second
	minReportGap      = 5 * time.Millisecond // between reports in the long run, so that changes accumulate
	reportBurst       = 4                    // reports that a quiet node may send without a gap
	maxReportAttempts = 500                  // in one report
	maxReportBytes    = 4 << 20              // of the attempts in one report; the coordinator's limit is 16 MiB
	minReconnectPause = 50 * time.Millisecond
	maxReconnectPause = 5 * time.Second
	defaultInterval   = time.Second
)

// errRegisterAgain ends a session because the coordinator requests a new
// registration.
var errRegisterAgain = errors.New("the coordinator requests a new registration")

// errLevelsChanged ends a session so that the next one registers the levels that
// the probe found.
var errLevelsChanged = errors.New("the node's levels have changed")

// sessionLoop maintains a session with the coordinator until ctx ends. Without a
// session, everything that runs keeps running.
func (d *daemon) sessionLoop(ctx context.Context) error {
	pause, ready := minReconnectPause, d.cfg.Ready
	for {
		start := time.Now()
		err := d.runSession(ctx, ready)
		if ctx.Err() != nil {
			return nil
		}
		if ready = d.cfg.Ready; errors.Is(err, errLevelsChanged) {
			ready = nil // it was ready before, and nothing was lost
			continue
		}
		// A node that has never been in the cluster ends with the error. One that has been waits:
		// its tasks run on, and an upgrade of the coordinator may solve the problem.
		if (errors.Is(err, fault.Conflict) || errors.Is(err, fault.Unsupported)) && d.attempts.identity().Cluster == "" {
			return err
		}
		if time.Since(start) > maxReconnectPause {
			pause = minReconnectPause
		}
		d.log.Warn("no session with the coordinator", "err", err, "retry_in", pause)
		// Jitter of up to a half, so that many nodes do not reconnect at once.
		t := time.NewTimer(pause + time.Duration(rand.Int63n(int64(pause/2))))
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return nil
		}
		pause = min(2*pause, maxReconnectPause)
	}
}

// runSession registers, then watches and reports until one of the two fails.
// ready is called after the registration unless it is nil.
func (d *daemon) runSession(ctx context.Context, ready func(address string)) error {
	d.metrics.sessions.Inc()
	reg, err := d.register(ctx)
	if err != nil {
		return err
	}
	if ready != nil {
		ready(d.cfg.Info.GetAddress())
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return d.watchWanted(ctx, reg.GetTerm()) })
	g.Go(func() error { return d.reportLoop(ctx, reg) })
	g.Go(func() error {
		select {
		case <-d.prober.changed:
			return errLevelsChanged
		case <-ctx.Done():
			return nil
		}
	})
	return g.Wait()
}

func (d *daemon) register(ctx context.Context) (*droverv1.RegisterResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, registerLimit)
	defer cancel()
	// A lost response may have given the node an epoch. By the token the coordinator knows that the
	// node, which registers again, has run nothing in that epoch. A restarted daemon has another
	// token, also on an old copy of its data folder, which does not contain what ran.
	if d.registration == "" {
		d.registration = cryptorand.Text()
	}
	sent := d.exclusive.lease.now()
	res, err := d.cfg.Coordinator.Register(ctx, connect.NewRequest(&droverv1.RegisterRequest{Node: d.prober.info(), Epoch: d.attempts.epoch(), Protocol: version.Protocol, Registration: d.registration}))
	if err != nil {
		if by, taken := wire.OwnerOf(err); taken {
			d.leaveName(by)
		}
		return nil, wire.FromError(err)
	}
	if err := version.CheckProtocol("this node", "the coordinator", res.Msg.GetProtocol()); err != nil {
		return nil, err
	}
	id, err := d.store.Register(res.Msg)
	if err != nil {
		return nil, err
	}
	d.registration = ""
	d.enterEpoch(id)
	d.renewLease(sent, res.Msg.GetLeaseMs())
	d.log.Info("registered", "node", id.Node, "epoch", id.Epoch, "term", id.Term, "cluster", id.Cluster)
	return res.Msg, nil
}

// watchWanted applies the wanted state that the coordinator streams. If another leader answers than
// the one that registered the node, it ends: in a new session, the node sends the new leader a full
// report, without which that leader would know only of attempts that change.
func (d *daemon) watchWanted(ctx context.Context, term uint64) error {
	id := d.attempts.identity()
	stream, err := d.cfg.Coordinator.Watch(ctx, connect.NewRequest(&droverv1.WatchRequest{Node: id.Node, Epoch: id.Epoch, Revision: id.Revision}))
	if err != nil {
		return wire.FromError(err)
	}
	defer stream.Close()
	for stream.Receive() {
		m := stream.Msg()
		if err := checkLeader(m.GetTerm(), term); err != nil {
			return err
		}
		err := d.applyWanted(m)
		if errors.Is(err, fault.Invalid) { // a delta to a set that the node does not have
			d.log.Warn("requesting a full set", "err", err)
			err = errors.Join(err, d.forgetRevision())
		}
		if err != nil {
			return err
		}
		for _, o := range m.GetRequests() {
			d.requests.Handle(d.runCtx, o)
		}
	}
	if err := stream.Err(); err != nil {
		return wire.FromError(err)
	}
	return fault.New(fault.Unavailable, "the coordinator ended the watch")
}

// checkLeader returns an error if the leader that answered has another term than the one that
// registered the node.
func checkLeader(answered, registered uint64) error {
	if answered != registered {
		return fault.New(fault.Unavailable, "another coordinator leads than the one that registered the node (terms %d and %d)", answered, registered)
	}
	return nil
}

// forgetRevision makes the next watch request a full set.
func (d *daemon) forgetRevision() error {
	id, err := d.store.ForgetRevision()
	if err != nil {
		return err
	}
	d.attempts.setRevision(d.attempts.identity().Term, id.Revision)
	return nil
}

// pacer spaces reports. The end of a short task must not wait because its start was just reported,
// but many tasks at once should share reports. So a quiet node may send reportBurst reports at
// once, and a busy one sends one per minReportGap.
type pacer struct{ due time.Time }

// next returns how long to wait after a report at time now; zero or less means not at all.
func (p *pacer) next(now time.Time) time.Duration {
	if earliest := now.Add(-(reportBurst - 1) * minReportGap); p.due.Before(earliest) {
		p.due = earliest
	}
	p.due = p.due.Add(minReportGap)
	return p.due.Sub(now)
}

// reportLoop sends reports: a full one first, then changes as they occur, and at
// least one report per interval.
func (d *daemon) reportLoop(ctx context.Context, reg *droverv1.RegisterResponse) error {
	interval := defaultInterval
	if ms := reg.GetReportIntervalMs(); ms > 0 {
		interval = time.Duration(ms) * time.Millisecond
	}
	tick := time.NewTicker(interval)
	defer tick.Stop()
	var pace pacer
	full := true
	for {
		more, err := d.sendReport(ctx, reg.GetTerm(), full)
		d.metrics.reports.WithLabelValues(resultLabel(err)).Inc()
		if err != nil {
			return err
		}
		full = false
		if wait := pace.next(time.Now()); wait > 0 {
			timer := time.NewTimer(wait)
			select {
			case <-timer.C:
			case <-ctx.Done():
				timer.Stop()
				return ctx.Err()
			}
		}
		if more {
			continue
		}
		select {
		case <-d.attempts.reportNow:
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
