package node

import (
	"context"
	"path/filepath"
	"sync"
	"time"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/node/leash"
	"github.com/drover-run/drover/node/task"
)

// lease is how long the coordinator surely takes the node for alive. Tasks of an
// exclusive stage run only while it holds. It counts from when a report was sent,
// the coordinator's from when it came in; and it is over here when a third of it
// is left, which is the time to have everything stand still. A daemon that was
// just started has none.
type lease struct {
	now func() time.Duration

	mu  sync.Mutex
	end time.Duration // when exclusive tasks must begin to stop
}

// Shares of a lease, in hundredths: when the daemon has exclusive tasks stop, and
// when the watch does, should the daemon not be able to.
const (
	leaseShare = 66
	watchShare = 76
)

// renew takes in an answer to what was sent at that time; ms 0 is an answer
// without a lease. It tells whether there was none before.
func (l *lease) renew(sent time.Duration, ms int64) (back bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	was, now := l.end, l.now()
	l.end = max(l.end, sent+time.Duration(ms)*time.Millisecond/100*leaseShare)
	return was <= now && l.end > now
}

// left is for how long exclusive tasks may run on; 0 or less: not any more.
func (l *lease) left() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.end - l.now()
}

// renewed has the exclusive tasks go on that stood still for want of a lease.
func (d *daemon) renewed(ctx context.Context, sent time.Duration, ms int64) {
	if d.leash != nil && ms > 0 {
		if err := d.leash.Renew(ctx, sent+time.Duration(ms)*time.Millisecond/100*watchShare); err != nil {
			d.log.Warn("the watch over exclusive tasks does not hear of the lease", "err", err)
		}
	}
	if !d.lease.renew(sent, ms) {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, a := range d.attempts {
		a.poke()
	}
}

// withoutLease changes what is wanted of an exclusive task while its node has no
// lease: nothing of it may run, since another run of it may begin elsewhere. One
// that cannot be frozen is ended.
func (a *attempt) withoutLease(w *task.Wanted, spec *droverv1.TaskSpec) {
	a.sus.leased = true
	if !spec.GetExclusive() || w.Goal != task.GoalRun {
		return
	}
	if a.sus.leased = a.d.lease.left() > 0; a.sus.leased {
		return
	}
	w.Hold = true
	w.Level = max(w.Level, task.LevelFrozen)
	if a.container == task.ContainerRunning && a.sus.barred.Has(task.LevelFrozen) {
		a.fault = &verdict{cause: droverv1.Cause_CAUSE_INFRA, message: "its node lost the coordinator, and it could not be frozen: a task of an exclusive stage does not run on then"}
	}
}

// freezeFiler is what an Enforcer can do besides whose freezing another process
// can do by writing 1 to a file.
type freezeFiler interface {
	FreezeFile(id string) string // of the attempt's container; "" without one
}

// openLeash makes the daemon's side of the watch over exclusive tasks, where there
// are cgroups and a helper program to be it.
func (d *daemon) openLeash() error {
	if _, ok := d.cfg.Enforcer.(freezeFiler); !ok || d.helper == "" {
		return nil
	}
	path := filepath.Join(d.cfg.Data, "leash")
	d.leash = &leash.Holder{Path: path, Start: leash.StartBy(path, append([]string{d.helper}, d.cfg.Helper[1:]...)...)}
	return d.leash.Clear()
}

// leashed puts an exclusive task under the watch before it begins to run or goes
// on.
func (a *attempt) leashed(ctx context.Context, spec *droverv1.TaskSpec) error {
	if a.d.leash == nil || !spec.GetExclusive() {
		return nil
	}
	if file := a.d.cfg.Enforcer.(freezeFiler).FreezeFile(a.id.String()); file != "" {
		return a.d.leash.Add(ctx, file)
	}
	return nil
}

// unleash takes it away once the task stands still or is gone.
func (a *attempt) unleash() {
	_, spec := a.goal()
	if a.d.leash == nil || !spec.GetExclusive() {
		return
	}
	if file := a.d.cfg.Enforcer.(freezeFiler).FreezeFile(a.id.String()); file != "" {
		if err := a.d.leash.Remove(file); err != nil {
			a.d.log.Warn("the watch over exclusive tasks still counts with one", "attempt", a.id, "err", err)
		}
	}
}

// onHold tells whether the attempt stands still for want of a lease alone. To the
// coordinator it runs: its level there is what was asked for.
func (a *attempt) onHold(wanted *droverv1.WantedAttempt) bool {
	return a.sus.frozen && wanted.GetSpec().GetExclusive() && wanted.GetGoal() == droverv1.Goal_GOAL_RUN && wanted.GetLevel() <= droverv1.Level_LEVEL_RUNNING
}

// noteHold is why a task that is to run does not.
const noteHold = "its stage is exclusive and its node had lost the coordinator: it stands still until the lease is back"
