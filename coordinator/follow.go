package coordinator

import (
	"context"
	"maps"
	"slices"
	"strconv"
	"time"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/coordinator/facts"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/scheduler/policies"
)

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

// isReset reports whether the journal says that everything may have changed. The rest of the
// journal is then irrelevant.
func isReset(changes []facts.Change) bool {
	return len(changes) > 0 && changes[0].Kind == facts.ChangeReset
}

// followReset rebuilds everything, including State.
func (l *leader) followReset(ctx context.Context, f *facts.Facts) error {
	l.policy, l.lastCycle, l.forceCycle = nil, time.Time{}, true // its caches may hold times from before the clock was set back
	return l.rebuild(ctx, f)
}

func (l *leader) rebuild(ctx context.Context, f *facts.Facts) error {
	if err := l.setPolicy(f); err != nil {
		return err
	}
	now := l.c.now()
	if latest := now.Add(l.c.cfg.Lease); l.earliestCycle.After(latest) { // the clock was set back
		l.earliestCycle = latest
	}
	l.c.sessions.reset(f, now, l.earliestCycle)
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

// applyChanges applies changes to everything but State. What requires a pass over all jobs is done
// once, at the end.
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

// trackNode records the times at which the leader has to act on a node.
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
	if err != nil && l.policy == nil { // a newer program chose it: this program continues with its default
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
