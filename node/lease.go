package node

import (
	"sync"
	"time"

	"golang.org/x/sys/unix"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
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

// leaseShare of a lease is when exclusive tasks stop, in hundredths.
const leaseShare = 66

// sinceBoot also counts the time that the machine sleeps.
func sinceBoot() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		panic("node: the machine has no clock since its start: " + err.Error())
	}
	return time.Duration(ts.Nano())
}

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
func (d *daemon) renewed(sent time.Duration, ms int64) {
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

// onHold tells whether the attempt stands still for want of a lease alone. To the
// coordinator it runs: its level there is what was asked for.
func (a *attempt) onHold(wanted *droverv1.WantedAttempt) bool {
	return a.sus.frozen && wanted.GetSpec().GetExclusive() && wanted.GetGoal() == droverv1.Goal_GOAL_RUN && wanted.GetLevel() <= droverv1.Level_LEVEL_RUNNING
}

// noteHold is why a task that is to run does not.
const noteHold = "its stage is exclusive and its node had lost the coordinator: it stands still until the lease is back"
