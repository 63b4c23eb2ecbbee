package coordinator

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/coordinator/facts"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/policies"
)

// Limits of the loop.
const (
	maxActions    = 2000                   // of one decision
	rebuildPause  = 200 * time.Millisecond // between two rebuilds of State
	progressPause = 2 * time.Second        // between two updates of the progress of attempts
)

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

func (l *leader) rebuild(ctx context.Context, f *facts.Facts) error {
	if err := l.setPolicy(f); err != nil {
		return err
	}
	l.c.sessions.reset(f, l.c.now())
	l.c.wanted.rebuild(f, l.term)
	l.logs, l.finalized = logExpiries{scheduled: map[uint64]bool{}}, map[uint64]bool{}
	l.quarantines, l.maintenance, l.evacuations, l.refusals = quarantines{}, maintenance{}, evacuations{}, refusals{}
	for _, n := range f.Nodes() {
		l.trackNode(n)
		l.recheckNodes[n.ID] = true
	}
	clear(l.deadlines.jobs)
	l.c.locations.dropForgotten(f)
	l.estimates.completions = l.c.predictor.observeCompletions(f) || l.estimates.completions
	for _, id := range f.JobIDs() {
		j := f.Job(id)
		l.estimates.newest = max(l.estimates.newest, id)
		l.followJob(ctx, f, j)
		l.deadlines.track(j)
		if j.Live > 0 {
			f.EachActive(j, func(k facts.Key, _ *facts.Task, a *facts.Attempt) { l.refusals.track(k, a) })
		}
	}
	l.c.files.removeUnknown(f)
	return l.proj.rebuild(f)
}

// trackNode records what the leader is to do about a node at a certain time.
func (l *leader) trackNode(n *facts.Node) {
	l.quarantines.track(n)
	l.maintenance.track(n)
	l.evacuations.track(n)
}

// setPolicy creates the policy named in the facts, if it changed.
func (l *leader) setPolicy(f *facts.Facts) error {
	name, params, unknown := chosenScheduler(f)
	if name == "" {
		name, params = l.c.defaultScheduler()
	}
	if l.policy != nil && name == l.policyName && maps.Equal(params, l.policyParams) {
		return nil
	}
	p, err := policies.New(name, l.withBandwidth(name, params))
	if err != nil && l.policy == nil { // a newer program chose it: this one goes on with its own
		l.c.log.Error("the chosen scheduler is not known here", "err", err)
		name, params = l.c.defaultScheduler()
		p, err = policies.New(name, params)
	}
	if err != nil {
		return fault.New(fault.Invalid, "%w", err)
	}
	if len(unknown) > 0 {
		l.c.log.Warn("parameters of the chosen scheduler do not exist here and are left out: set it again without them", "parameters", unknown)
	}
	l.policy, l.policyName, l.policyParams, l.forceCycle = p, name, maps.Clone(params), true
	return nil
}

// withBandwidth returns params with the measured bandwidth of remote reads, if
// the scheduler has such a parameter and the operator did not set it.
func (l *leader) withBandwidth(name string, params map[string]string) map[string]string {
	i, err := policies.Get(name)
	if _, set := params["bandwidth"]; err != nil || set || l.bandwidth == 0 || !slices.ContainsFunc(i.Params, func(p policies.Param) bool { return p.Name == "bandwidth" }) {
		return params
	}
	out := maps.Clone(params)
	if out == nil {
		out = map[string]string{}
	}
	out["bandwidth"] = strconv.FormatInt(l.bandwidth, 10)
	return out
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

// followChanges is step 1.
func (l *leader) followChanges(ctx context.Context) error {
	var err error
	drift, changed := error(nil), false
	l.c.replica.TakeChanges(func(f *facts.Facts, changes []facts.Change) {
		changed = len(changes) > 0
		l.c.jobEnded.notifyOfEnds(f, changes)
		if isReset(changes) {
			err = l.followReset(ctx, f)
			return
		}
		if drift = l.proj.follow(f, changes); drift != nil {
			err = l.proj.rebuild(f)
		}
		l.applyChanges(ctx, f, changes)
		l.estimates.completions = l.c.predictor.observeCompletions(f) || l.estimates.completions
	})
	if drift != nil {
		l.c.metrics.rebuilds.Inc()
		l.c.log.Error("rebuilt the scheduler's state", "err", drift)
		l.forceCycle = true
	}
	if changed {
		l.c.changed.notify()
	}
	return err
}

// isReset reports whether the journal says that everything may have changed: nothing else of it counts then.
func isReset(changes []facts.Change) bool {
	return len(changes) > 0 && changes[0].Kind == facts.ChangeReset
}

// followReset rebuilds everything, State too.
func (l *leader) followReset(ctx context.Context, f *facts.Facts) error {
	l.policy, l.lastCycle, l.forceCycle = nil, time.Time{}, true // its caches may hold times from before a step of the clock
	return l.rebuild(ctx, f)
}

// applyChanges applies changes to everything but State, and does once what takes a look at all jobs.
func (l *leader) applyChanges(ctx context.Context, f *facts.Facts, changes []facts.Change) {
	lost := false
	for i := range changes {
		l.applyChange(ctx, f, &changes[i])
		lost = lost || changes[i].Kind == facts.ChangeNodeLost
	}
	if lost {
		l.c.locations.markStaleBefore(f, l.c.now())
	}
	l.outputs.tellReduces(f, l.c.wanted)
}

// applyChange applies a change to everything but State.
func (l *leader) applyChange(ctx context.Context, f *facts.Facts, c *facts.Change) {
	switch c.Kind {
	case facts.ChangeNode:
		if n := f.Node(c.Node); n.Up { // also of one that died before it was answered
			l.c.sessions.open(n.ID, n.Epoch, l.c.now())
		}
		l.c.wanted.registerNode(f.Node(c.Node))
		l.trackNode(f.Node(c.Node))
	case facts.ChangeNodeLost:
		l.trackNode(f.Node(c.Node))
		if n := f.Node(c.Node); !n.Up { // else it is registered again
			l.c.sessions.end(n.ID, n.Epoch)
		}
		l.c.dispatcher.nodeLost(c.Node)
	case facts.ChangeJob:
		if j := f.Job(c.Key.Job); j != nil {
			l.followJob(ctx, f, j)
			l.deadlines.track(j)
			l.estimates.accepted(j.ID)
		}
	case facts.ChangePlaced, facts.ChangeLevel, facts.ChangeStopping, facts.ChangeEnded, facts.ChangeOutput:
		l.applyAttemptChange(f, c)
		if c.Kind == facts.ChangePlaced {
			l.intents.checkOutput(ctx, f, c)
		}
	case facts.ChangeForgotten:
		for _, n := range c.Nodes {
			l.c.wanted.forgetJob(n, c.Key.Job)
		}
		l.c.locations.drop(c.Key.Job)
		delete(l.finalized, c.Key.Job)
		delete(l.intents.outputChecked, c.Key.Job)
		delete(l.logs.scheduled, c.Key.Job)
	case facts.ChangeBlobGone:
		if f.Blob(c.Digest) == nil { // it may have been uploaded again
			l.c.files.remove(c.Digest)
		}
	case facts.ChangeScheduler:
		if err := l.setPolicy(f); err != nil {
			l.c.log.Error("cannot change the scheduler", "err", err)
		}
	}
}

func (l *leader) applyAttemptChange(f *facts.Facts, c *facts.Change) {
	a := f.Attempt(c.Key)
	if a == nil {
		return
	}
	l.c.wanted.follow(f, c)
	if c.Kind == facts.ChangeLevel {
		l.recheckNodes[a.Node] = true
	}
	l.refusals.track(c.Key, a)
	if c.Kind == facts.ChangeEnded || c.Kind == facts.ChangeOutput {
		l.c.sessions.dropAttempt(a.Node, c.Key)
		if j := f.Job(c.Key.Job); int(c.Key.Stage) == j.MapStage() {
			l.outputs.dirty[j.ID] = true
			if a.State == facts.AttemptFailed && a.Cause() == droverv1.Cause_CAUSE_INPUT {
				l.c.locations.reportReadFailure(j.ID, l.c.now())
			}
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

// decide is step 6. What has been applied meanwhile is followed first. While it runs, no other scheduler is set: a
// decision of the present one, stored after the other's choice, would bring back what that choice deletes.
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

// applyNewLocations updates State with new block locations.
func (l *leader) applyNewLocations() {
	jobs := l.c.locations.takeChanged()
	l.c.replica.Read(func(f *facts.Facts) {
		for _, id := range jobs {
			if err := l.proj.setInputNodes(f, id); err != nil {
				l.c.log.Error("cannot apply block locations", "job", id, "err", err)
			}
		}
	})
}
