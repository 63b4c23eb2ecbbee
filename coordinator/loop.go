package coordinator

import (
	"context"
	"errors"
	"time"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/coordinator/facts"
	"github.com/drover-run/drover/scheduler"
)

// progressPause is the time between two updates of the progress of attempts.
const progressPause = 2 * time.Second

// errNotLeading ends the loop of a leader whose term is over.
var errNotLeading = errors.New("another coordinator leads now, or none")

// leader is the loop of a leading server. It owns State and follows the facts;
// everything slow (requests to nodes, commits of results) runs in goroutines of
// its own. Each pass:
//
//  1. Follow: apply the changes of the facts to State, wanted sets and history.
//  2. Expire: propose the loss of nodes whose lease ended (none if this loop stood
//     still itself: see standstill), the probation of nodes whose quarantine
//     ended, the end of expired back-offs after refusals, maintenance windows that
//     begin or end, and moves off nodes whose drain has reached its deadline; let
//     nodes remove the logs of jobs that ended KeepLogs ago.
//  3. Escalate: bring frozen tasks to the next level where they occupy too much
//     memory.
//  4. Estimate: predict run times again where tasks ended; record deadlines that
//     are infeasible or have passed.
//  5. Update progress: every progressPause tell State which attempts run and how
//     far they are. That is no fact, but policies that order by progress need it.
//  6. Decide: run a Cycle if State changed, cycleInterval after the last one. Its
//     commit proposes the decision and waits: one is in flight.
//  7. Wait for entries applied, the end of a lease or a policy's wake-up.
type leader struct {
	proposer

	proj         *projection
	policy       scheduler.Policy
	policyName   string            // as named in the facts
	policyParams map[string]string // as named in the facts
	bandwidth    int64             // of remote reads, as passed to the policy, bytes/s; 0 for not measured

	stamp         scheduler.Stamp
	lastCycle     time.Time
	wakeAt        scheduler.Time // requested by the last decision
	earliestCycle time.Time      // no cycle before; zero for no limit
	lastRebuild   time.Time
	lastProgress  time.Time
	forceCycle    bool // run a cycle although State did not change

	standstill   standstill     // as of the last look at the leases
	recheckNodes map[int32]bool // nodes on which levels changed since the last escalation
	outputs      outputChanges
	estimates    estimateUpdates
	deadlines    deadlineWatch
	logs         logExpiries
	refusals     refusals
	quarantines  quarantines
	maintenance  maintenance
	evacuations  evacuations
	finalized    map[uint64]bool // ended jobs without active attempts whose end has been handled

	intents *intents
}

// lead runs the loop until ctx ends or this server stops leading.
func (c *core) lead(ctx context.Context) error {
	term, err := c.replica.BeginTerm(ctx)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	l := newLeader(c, term)
	defer c.waits.set(&scheduler.Decision{})
	defer l.intents.wg.Wait()
	defer cancel()
	if err := l.start(ctx); err != nil {
		return err
	}
	c.leadership.begin(term)
	defer c.leadership.end()
	c.signalReady()
	c.log.Info("leading", "term", l.term)
	return l.run(ctx)
}

func newLeader(c *core, term uint64) *leader {
	return &leader{proposer: proposer{c, term}, proj: c.newProjection(c.locations.resolveForLeader),
		intents: &intents{c: c, term: term, busy: map[intent]bool{}, outputChecked: map[uint64]bool{}}, recheckNodes: map[int32]bool{},
		outputs: outputChanges{map[uint64]bool{}, map[uint64]int32{}}, deadlines: deadlineWatch{jobs: map[uint64]missState{}}}
}

// start proposes the cluster's first entry and builds the loop's state from the
// facts.
func (l *leader) start(ctx context.Context) error {
	var cluster string
	l.c.replica.Read(func(f *facts.Facts) { cluster = f.Cluster() })
	if cluster == "" {
		e := &droverv1.Entry{Actor: actorSelf, Body: &droverv1.Entry_Cluster{Cluster: &droverv1.ClusterFact{Id: l.c.newID()}}}
		if _, err := l.c.replica.Propose(ctx, e); err != nil {
			return err
		}
	}
	if err := l.c.correctTime(ctx); err != nil {
		return err
	}
	name, _ := l.c.defaultScheduler()
	l.c.view(func(f *facts.Facts) {
		if chosen, _ := f.Scheduler(); chosen != "" {
			name = chosen
		}
	})
	err := takeOver(ctx, l.proposer, name)
	if err != nil {
		return err
	}
	l.c.dispatcher.reset(l.term)
	l.c.replica.TakeChanges(func(f *facts.Facts, _ []facts.Change) {
		l.earliestCycle = earliestCycle(f, l.c.now(), l.c.cfg.Lease)
		err = l.rebuild(ctx, f)
	})
	return err
}

func (l *leader) run(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		if err := l.followChanges(ctx); err != nil {
			return err
		}
		next, err := l.expire(ctx)
		if err != nil {
			return err
		}
		if err := escalateFrozen(ctx, l.proposer, l.recheckNodes); err != nil {
			return err
		}
		estimates, err := l.updateEstimates(ctx)
		if err != nil {
			return err
		}
		deadlines, err := l.deadlines.check(ctx, l.c, l.proj.state)
		if err != nil {
			return err
		}
		next = earlier(earlier(next, estimates), earlier(deadlines, l.updateProgress()))
		if due := l.cycleDelay(); due <= 0 {
			if err := l.decide(ctx); err != nil {
				return err
			}
			continue // the decision is a change to follow
		} else if due < time.Hour {
			next = earlier(next, l.c.now().Add(due))
		}
		wait := time.Minute
		if !next.IsZero() {
			wait = max(0, min(wait, next.Sub(l.c.now())))
		}
		timer.Reset(wait)
		select {
		case <-l.c.replica.AppliedCh():
		case <-l.c.locations.changedCh:
			l.applyNewLocations()
		case <-l.c.schedulerReloaded:
			if err := l.applyReload(ctx); err != nil {
				return err
			}
		case <-timer.C:
		case lead := <-l.c.replica.Leadership():
			if !lead {
				return errNotLeading
			}
		case <-ctx.Done():
			return nil
		}
	}
}

// expire is step 2. It returns when it is due again, zero for never.
func (l *leader) expire(ctx context.Context) (time.Time, error) {
	now := l.c.now()
	if gap := l.standstill.observe(now, l.c.cfg.Lease); gap > 0 {
		l.c.log.Warn("the coordinator stood still, or its clock was set ahead: every node has a full lease again", "for", gap.Round(time.Millisecond))
		l.c.sessions.renewAll(now)
	}
	gone, next := l.c.sessions.endLeases(now, l.c.cfg.Lease)
	if soon := now.Add(lookEvery(l.c.cfg.Lease)); next.After(soon) {
		next = soon // a later look is a standstill
	} else if next.IsZero() {
		l.standstill = standstill{} // without leases the loop may sleep for longer
	}
	if len(gone) > 0 {
		if err := l.declareLost(ctx, gone); err != nil {
			return next, err
		}
		next = l.c.now()
	}
	for _, propose := range []func() (time.Time, error){
		func() (time.Time, error) { return l.quarantines.startProbations(ctx, l.c) },
		func() (time.Time, error) { return l.refusals.expire(ctx, l.c) },
		func() (time.Time, error) { return l.maintenance.propose(ctx, l.proposer) },
		func() (time.Time, error) { return l.evacuations.propose(ctx, l.proposer) },
	} {
		at, err := propose()
		if err != nil {
			return next, err
		}
		next = earlier(next, at)
	}
	return earlier(next, l.logs.expire(l.c)), nil
}

// earlier returns the earlier of two times; zero is never.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// updateProgress is step 5. It returns when it is due again, zero while no
// attempt is live.
func (l *leader) updateProgress() time.Time {
	now, s := l.c.now(), l.proj.state
	if s.Attempts().Live() == 0 {
		return time.Time{}
	}
	if due := l.lastProgress.Add(progressPause); now.Before(due) {
		return due
	}
	l.lastProgress = now
	if err := l.proj.applyProgress(l.c.sessions.runningAttempts(), scheduler.Time(now.UnixNano())); err != nil {
		l.c.log.Error("cannot apply the progress of attempts", "err", err)
	}
	return now.Add(progressPause)
}
