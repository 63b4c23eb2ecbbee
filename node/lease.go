package node

import (
	"context"
	"path/filepath"
	"sync"
	"time"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/node/task"
	"github.com/drover-run/drover/node/watchdog"
)

// lease is the time during which the coordinator certainly considers the node
// alive. Tasks of exclusive stages run only while it lasts. It counts from when a
// report was sent, the coordinator's from when the report arrived, and it ends
// here when a third of it is left: the time needed to freeze everything. A
// daemon that was just started has no lease.
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

// renew records the answer to a report sent at that time; ms 0 is an answer
// without a lease. It reports whether the lease had expired and is valid again.
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

// renewLease extends the lease, also for the watchdog, and wakes the exclusive
// tasks that were frozen without one.
func (d *daemon) renewLease(ctx context.Context, sent time.Duration, ms int64) {
	if d.watchdog != nil && ms > 0 {
		if err := d.watchdog.Renew(ctx, sent+time.Duration(ms)*time.Millisecond/100*watchdogShare); err != nil {
			d.log.Warn("cannot renew the lease for the watchdog of exclusive tasks", "err", err)
		}
	}
	if !d.lease.renew(sent, ms) {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, a := range d.attempts {
		a.wakeUp()
	}
}

// enforceLease changes the wanted state of an exclusive task while the node has
// no lease: it must not run, since another attempt may start elsewhere. A task
// that cannot be frozen is failed.
func (a *attempt) enforceLease(w *task.Wanted, spec *droverv1.TaskSpec) {
	a.suspension.hasLease = true
	if !spec.GetExclusive() || w.Goal != task.GoalRun {
		return
	}
	if a.suspension.hasLease = a.d.lease.remaining() > 0; a.suspension.hasLease {
		return
	}
	w.StartBlocked = true
	w.Level = max(w.Level, task.LevelFrozen)
	if a.container == task.ContainerRunning && a.suspension.refused.Has(task.LevelFrozen) {
		a.failure = &failure{cause: droverv1.Cause_CAUSE_INFRA, message: "its node lost the coordinator, and the task of an exclusive stage could not be frozen"}
	}
}

// freezeFileProvider is an optional ability of an Enforcer: another process can
// freeze an attempt by writing 1 to a file.
type freezeFileProvider interface {
	FreezeFile(id string) string // for the attempt's container; "" without one
}

// openWatchdog sets up the client of the watchdog over exclusive tasks, if there
// are cgroups and a helper program to run it.
func (d *daemon) openWatchdog() error {
	if _, ok := d.cfg.Enforcer.(freezeFileProvider); !ok || d.helperPath == "" {
		return nil
	}
	path := filepath.Join(d.cfg.Data, "watchdog")
	d.watchdog = &watchdog.Client{Path: path, Start: watchdog.Starter(path, append([]string{d.helperPath}, d.cfg.Helper[1:]...)...)}
	return d.watchdog.Clear()
}

// addToWatchdog registers an exclusive task with the watchdog before it starts or
// is thawed.
func (a *attempt) addToWatchdog(ctx context.Context, spec *droverv1.TaskSpec) error {
	if a.d.watchdog == nil || !spec.GetExclusive() {
		return nil
	}
	if file := a.d.cfg.Enforcer.(freezeFileProvider).FreezeFile(a.id.String()); file != "" {
		return a.d.watchdog.Add(ctx, file)
	}
	return nil
}

// removeFromWatchdog unregisters the task once it is frozen or gone.
func (a *attempt) removeFromWatchdog() {
	_, spec := a.wantedAndSpec()
	if a.d.watchdog == nil || !spec.GetExclusive() {
		return
	}
	if file := a.d.cfg.Enforcer.(freezeFileProvider).FreezeFile(a.id.String()); file != "" {
		if err := a.d.watchdog.Remove(file); err != nil {
			a.d.log.Warn("cannot remove a task from the watchdog", "attempt", a.id, "err", err)
		}
	}
}

// isPausedForLease reports whether the attempt is frozen only because the node
// has no lease. It is reported to the coordinator as running, the requested
// level.
func (a *attempt) isPausedForLease(wanted *droverv1.WantedAttempt) bool {
	return a.suspension.frozen && wanted.GetSpec().GetExclusive() && wanted.GetGoal() == droverv1.Goal_GOAL_RUN && wanted.GetLevel() <= droverv1.Level_LEVEL_RUNNING
}

// leaseLostNote explains why a task that should run is frozen.
const leaseLostNote = "its stage is exclusive and its node had lost the coordinator: it is frozen until the lease is renewed"
