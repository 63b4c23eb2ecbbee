package coordinator

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/drover-run/drover/coordinator/facts"
	"github.com/drover-run/drover/scheduler"
)

// Limits of cycles.
const (
	maxActions   = 2000                   // of one decision
	rebuildPause = 200 * time.Millisecond // between two rebuilds of State
)

// decide is step 6. It first follows what has been applied since step 1. While it runs, no other
// scheduler can be set: a decision of the old scheduler, stored after the choice of the new one,
// would restore policy states that the choice has deleted.
func (l *leader) decide(ctx context.Context) error {
	select {
	case l.c.deciding <- struct{}{}:
		defer func() { <-l.c.deciding }()
	case <-ctx.Done():
		return ctx.Err()
	}
	if err := l.followChanges(ctx); err != nil {
		return err
	}
	return l.runCycle(ctx)
}

// cycleDelay returns how long to wait before a cycle; an hour or more means
// that there is no reason for one.
func (l *leader) cycleDelay() time.Duration {
	now := l.c.now()
	due := 24 * time.Hour
	if l.wakeAt > 0 {
		due = max(0, l.wakeAt.Sub(scheduler.Time(now.UnixNano())))
	}
	if l.forceCycle || l.proj.state.Stamp() != l.stamp {
		due = 0
	}
	if due < time.Hour {
		due = max(due, l.c.cfg.cycleInterval-now.Sub(l.lastCycle), l.earliestCycle.Sub(now))
	}
	return due
}

// runCycle runs a cycle of the policy, and rebuilds State if that failed.
func (l *leader) runCycle(ctx context.Context) error {
	now := l.c.now()
	l.lastCycle, l.forceCycle, l.wakeAt = now, false, 0
	var dropped []facts.Drop
	var wake scheduler.Time
	commit := func(d scheduler.Decision) (scheduler.Decision, error) {
		wake = d.Wake
		decided := l.c.now()
		out, drops, err := l.commit(ctx, d)
		dropped = drops
		l.c.tracing.decided(l.policyName, now, decided, out)
		return out, err
	}
	d, err := scheduler.Cycle(l.proj.state, l.policy, scheduler.Time(now.UnixNano()), maxActions, commit)
	took := l.c.now().Sub(now)
	l.c.metrics.observeCycle(took, len(d.Actions), len(dropped))
	l.wakeAt = max(d.Wake, wake)
	l.c.waits.set(&d)
	l.stamp = l.proj.state.Stamp()
	dropped = slices.DeleteFunc(dropped, func(x facts.Drop) bool { return x.Reason == facts.DropProbation }) // State does not know of probation
	if len(d.Actions) > 0 {
		l.forceCycle = true // the next cycle may place more
	}
	switch {
	case err == nil && len(dropped) == 0:
		return nil
	case err == nil, errors.Is(err, scheduler.ErrInvalid), errors.Is(err, scheduler.ErrNoCapacity), errors.Is(err, scheduler.ErrStale), errors.Is(err, scheduler.ErrUnknown):
		return l.resync(ctx, err, dropped)
	default:
		return err
	}
}

// commit proposes a decision in entries of bounded size, and returns the part
// that was applied and what was dropped.
func (l *leader) commit(ctx context.Context, d scheduler.Decision) (scheduler.Decision, []facts.Drop, error) {
	l.c.view(func(f *facts.Facts) {
		for i := range d.Actions {
			if d.Actions[i].Kind == scheduler.ActPlace {
				d.Actions[i].Run = facts.RestoresOf(f).FirstRun()
			}
		}
	})
	fact := decisionFact(&d, l.locality)
	var beyond []facts.Drop
	l.c.view(func(f *facts.Facts) { beyond = beyondProbation(f, fact) })
	if len(beyond) > 0 {
		d = withoutDropped(d, beyond)
		fact = decisionFact(&d, l.locality)
	}
	l.c.view(func(f *facts.Facts) { keepParked(f, fact) })
	dropped, err := l.proposeDecision(ctx, fact)
	if err != nil {
		return scheduler.Decision{}, nil, fmt.Errorf("commit a decision: %w", err)
	}
	return withoutDropped(d, dropped), dropped, nil
}

// locality returns how near to its data a placement is. For data on machines
// that are not nodes, it uses the racks named by the file system.
func (l *leader) locality(a *scheduler.Action) string {
	near := locality(l.proj.state, a)
	if near == "node" || near == "rack" || l.proj.state.Stage(a.Task.StageID()).Spec.Kind != scheduler.KindMap {
		return near
	}
	hosts, racks := l.c.locations.splitHosts(uint64(a.Task.Job), a.Task.Index)
	switch n := l.proj.state.Node(a.Node); {
	case n.Spec.Path != "" && slices.Contains(racks, n.Spec.Path):
		return "rack"
	case len(hosts) > 0:
		return "remote"
	default:
		return near
	}
}

// resync rebuilds State after a decision that the log dropped in part or that
// State refused, at most every rebuildPause.
func (l *leader) resync(ctx context.Context, err error, dropped []facts.Drop) error {
	for _, x := range dropped {
		l.c.log.Info("dropped from a decision", "action", x.Index, "why", x.Reason)
	}
	if err != nil {
		l.c.metrics.rebuilds.Inc()
		l.c.log.Error("a cycle failed", "err", err)
	}
	if wait := rebuildPause - l.c.now().Sub(l.lastRebuild); wait > 0 && !l.lastRebuild.IsZero() {
		t := time.NewTimer(wait)
		defer t.Stop()
		select {
		case <-t.C:
		case <-ctx.Done():
			return nil
		}
	}
	l.lastRebuild = l.c.now()
	if err := l.proposeDeletion(ctx, deletionScope{}); err != nil {
		return err
	}
	var bad error
	l.c.replica.TakeChanges(func(f *facts.Facts, changes []facts.Change) {
		if isReset(changes) {
			bad = l.followReset(ctx, f)
			return
		}
		l.applyChanges(ctx, f, changes)
		bad = l.proj.rebuild(f)
	})
	l.forceCycle = true
	l.c.changed.notify()
	l.c.jobEnded.notify()
	return bad
}
