package node

import (
	"context"
	"log/slog"
	"path/filepath"
	"sync"
	"time"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/node/store"
	"github.com/drover-run/drover/node/task"
	"github.com/drover-run/drover/node/watchdog"
)

// lease is the time during which the coordinator certainly considers the node alive. Tasks of
// exclusive stages run only while it lasts. Here it counts from when a report was sent, at the
// coordinator from when the report arrived, and here it ends when a third of it is left: the time
// needed to freeze everything. A daemon that was just started has no lease.
type lease struct {
	now func() time.Duration

	mu  sync.Mutex
	end time.Duration // when exclusive tasks must start to stop
}

// Percentages of a lease after which the daemon freezes exclusive tasks, and
// after which the watchdog does so if the daemon does not.
const (
	leaseShare    = 66
	watchdogShare = 76
)

// renew records the response to a report sent at that time; ms is 0 for a response without a lease.
// It reports whether the lease had expired and is valid again.
func (l *lease) renew(sent time.Duration, ms int64) (back bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	was, now := l.end, l.now()
	l.end = max(l.end, sent+time.Duration(ms)*time.Millisecond/100*leaseShare)
	return was <= now && l.end > now
}

// remaining returns how long exclusive tasks may run; 0 or less: not at all.
func (l *lease) remaining() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.end - l.now()
}

// freezeFileProvider is an optional ability of an Enforcer: another process can
// freeze an attempt by writing 1 to a file.
type freezeFileProvider interface {
	FreezeFile(id string) string // for the attempt's container; "" without one
}

// exclusiveGuard prevents tasks of exclusive stages from running without a lease. It owns the lease
// itself, and the client of the watchdog, the process beside the daemon that freezes such tasks if
// the daemon does not. A task is registered with the watchdog before it runs, and unregistered only
// when it is frozen or gone.
type exclusiveGuard struct {
	lease      lease
	watchdog   *watchdog.Client       // nil where no other process can freeze a task
	freezeFile func(id string) string // of an attempt's container, for the watchdog; "" without one
	renewed    chan struct{}          // holds one value if the watchdog's lease was renewed since keepWatchdog last looked
	attempts   *attemptTable          // knows which the coordinator has given up
	log        *slog.Logger
}

// newExclusiveGuard sets up the lease, and the client of the watchdog if there are
// cgroups and a helper program to run it.
func newExclusiveGuard(cfg *Config, helper string, attempts *attemptTable) (*exclusiveGuard, error) {
	g := &exclusiveGuard{lease: lease{now: watchdog.SinceBoot}, renewed: make(chan struct{}, 1), attempts: attempts, log: cfg.Log}
	if cfg.SinceBoot != nil {
		g.lease.now = cfg.SinceBoot
	}
	p, ok := cfg.Enforcer.(freezeFileProvider)
	if !ok || helper == "" {
		return g, nil
	}
	path := filepath.Join(cfg.Data, "watchdog")
	g.freezeFile = p.FreezeFile
	g.watchdog = &watchdog.Client{Path: path, Start: watchdog.Starter(path, append([]string{helper}, cfg.Helper[1:]...)...)}
	return g, g.watchdog.FreezeLeftovers()
}

// renew extends the lease, and then that of the watchdog, because what the watchdog needs must not
// take time of the daemon's own lease. It reports whether exclusive tasks that were frozen without
// a lease may run again.
func (g *exclusiveGuard) renew(sent time.Duration, ms int64) (back bool) {
	back = g.lease.renew(sent, ms)
	if g.watchdog == nil || ms <= 0 {
		return back
	}
	listed, err := g.watchdog.Renew(sent + time.Duration(ms)*time.Millisecond/100*watchdogShare)
	if err != nil {
		g.log.Warn("cannot renew the lease for the watchdog of exclusive tasks", "err", err)
	}
	if listed {
		select {
		case g.renewed <- struct{}{}:
		default:
		}
	}
	return back
}

// keepWatchdog starts the watchdogs again if all were killed, after each renewal, until ctx ends. A
// start may take seconds, and the next report does not wait for it.
func (g *exclusiveGuard) keepWatchdog(ctx context.Context) error {
	for {
		select {
		case <-g.renewed:
		case <-ctx.Done():
			return nil
		}
		if err := g.watchdog.EnsureRunning(ctx); err != nil && ctx.Err() == nil {
			g.log.Warn("no watchdog of exclusive tasks is running", "err", err)
		}
	}
}

// errNoLease is the error of a step that would let an exclusive task run after the lease has ended.
// The step was chosen while the lease lasted.
var errNoLease = fault.New(fault.Unavailable, "its stage is exclusive, and the node has no lease for it any more")

// add registers a task with the watchdog, if it is exclusive, before it starts or is thawed. It
// returns errNoLease if the task may no longer run, because the step that calls add may have begun
// long ago.
func (g *exclusiveGuard) add(ctx context.Context, id store.ID, spec *droverv1.TaskSpec) error {
	if !spec.GetExclusive() {
		return nil
	}
	if g.watchdog != nil {
		if file := g.freezeFile(id.String()); file != "" {
			if err := g.watchdog.Add(ctx, file); err != nil {
				return err
			}
		}
	}
	switch { // in this order: if the task is given up from here on, abandon finds it registered
	case g.attempts.find(id) == nil:
		g.abandon(id, spec)
		return errNoLease
	case g.lease.remaining() <= 0:
		g.remove(id, spec)
		return errNoLease
	default:
		return nil
	}
}

// remove unregisters a task that is frozen or gone. It reports whether the task was registered.
func (g *exclusiveGuard) remove(id store.ID, spec *droverv1.TaskSpec) (registered bool) {
	if g.watchdog == nil || !spec.GetExclusive() {
		return false
	}
	if file := g.freezeFile(id.String()); file != "" {
		var err error
		if registered, err = g.watchdog.Remove(file); err != nil {
			g.log.Warn("cannot remove a task from the watchdog", "attempt", id, "err", err)
		}
	}
	return registered
}

// abandon freezes a task of an older epoch before the next lease: the coordinator may have started
// it elsewhere, and it runs until its container is removed. The next lease would thaw it if it
// stayed registered with the watchdog. The caller must first mark it as given up in attempts, which
// add checks after it has registered a task.
func (g *exclusiveGuard) abandon(id store.ID, spec *droverv1.TaskSpec) {
	if g.watchdog == nil || !spec.GetExclusive() {
		return
	}
	if file := g.freezeFile(id.String()); file != "" {
		if err := g.watchdog.Abandon(file); err != nil {
			g.log.Warn("cannot freeze a task that the coordinator has given up; it runs until its container is removed", "attempt", id, "err", err)
		}
	}
}

// renewLease extends the lease and wakes the exclusive tasks that were frozen without one. After a
// restore of the coordinator it does nothing until the first full set is applied: until then, a
// task that the coordinator does not know, and may have started elsewhere, still counts as wanted
// here.
func (d *daemon) renewLease(sent time.Duration, ms int64) {
	if d.attempts.identity().Restored {
		return
	}
	if d.exclusive.renew(sent, ms) {
		d.attempts.each((*attempt).wakeUp)
	}
}

// wantedUnderLease returns the wanted state, the last known spec, and whether the node has a lease.
// It reads the lease first: a registration changes the wanted state before it renews the lease, and
// what was wanted in an older epoch must not run under the lease of the next.
func (a *attempt) wantedUnderLease() (hasLease bool, wanted *droverv1.WantedAttempt, spec *droverv1.TaskSpec) {
	hasLease = a.d.exclusive.lease.remaining() > 0
	wanted, spec = a.mail.wantedAndSpec()
	return hasLease, wanted, spec
}

// enforceLease changes the wanted state of an exclusive task while the node has
// no lease: it must not run, since another attempt may start elsewhere. A task
// that cannot be frozen, and does not stay freezing either, is failed.
func (a *attempt) enforceLease(w *task.Wanted, spec *droverv1.TaskSpec, hasLease bool) {
	a.suspension.setLease(hasLease, spec.GetExclusive() && w.Goal == task.GoalRun && w.Level <= task.LevelRunning)
	if hasLease || !spec.GetExclusive() || w.Goal != task.GoalRun {
		return
	}
	w.StartBlocked = true
	w.Level = max(w.Level, task.LevelFrozen)
	if a.container.phase == task.ContainerRunning && a.suspension.refused.Has(task.LevelFrozen) {
		a.failure = &failure{cause: droverv1.Cause_CAUSE_INFRA, message: "its node lost the coordinator, and the task of an exclusive stage could not be frozen"}
	}
}

// leaseLostNote explains to users why a task that should run is frozen.
const leaseLostNote = "its stage is exclusive and its node had lost the coordinator: it is frozen until the lease is renewed"
