package coordinator

import (
	"context"
	"fmt"
	"slices"
	"time"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/coordinator/facts"
)

// A drain may have a deadline. What still runs on the node then is checkpointed there,
// as a suspension for the node and for no job, and resumes on another node that can
// restore it and has free capacity, now or later. What cannot be checkpointed runs on, and
// `drover node status` says why it stays. The deadline is a fact: the next leader goes on.

// Limits of an evacuation.
const (
	evacuationPause  = 2 * time.Second // between two looks at a node whose deadline has passed
	maxEvacuations   = 256             // actions of one look
	maxStaying       = 20              // tasks that are named
	maxDrainDeadline = 30 * 24 * time.Hour
)

const drainedReason = "its node is drained and the deadline has passed"

// evacuations is when to look at what is on nodes whose drain has a deadline, Unix ns.
type evacuations map[int32]int64

// track follows a change of a node.
func (e evacuations) track(n *facts.Node) {
	if leavesAtDeadline(n) {
		e[n.ID] = n.DrainDeadline
	} else {
		delete(e, n.ID)
	}
}

// leavesAtDeadline reports whether what still runs on a node leaves it at its DrainDeadline.
func leavesAtDeadline(n *facts.Node) bool { return n.Up && n.Draining && n.DrainDeadline > 0 }

// propose proposes what moves tasks off nodes whose deadline has passed. It returns
// when the next look is due, zero for none.
func (e evacuations) propose(ctx context.Context, p proposer) (next time.Time, err error) {
	now := p.c.now()
	var acts []*droverv1.ActionFact
	p.c.view(func(f *facts.Facts) { acts, next = e.look(f, now) })
	if len(acts) == 0 {
		return next, nil
	}
	dropped, err := p.proposeDecision(ctx, &droverv1.DecisionFact{Actions: acts})
	if err != nil {
		return next, fmt.Errorf("evacuate drained nodes: %w", err)
	}
	for _, d := range dropped {
		p.c.log.Info("a task did not leave a drained node", "task", acts[d.Index].GetKey(), "why", d.Reason)
	}
	return next, nil
}

// look returns the actions that move tasks off nodes whose deadline has passed, and when the next
// look is due. The facts may be newer than e: if a drain has ended since, or its deadline was
// delayed, no task leaves the node.
func (e evacuations) look(f *facts.Facts, now time.Time) (acts []*droverv1.ActionFact, next time.Time) {
	for id, due := range e {
		n := f.Node(id)
		if !leavesAtDeadline(n) {
			continue // the loop follows the change next
		}
		at := time.Unix(0, max(due, n.DrainDeadline))
		if !at.After(now) {
			for _, t := range stayingOn(f, n) {
				if t.act != nil && len(acts) < maxEvacuations && !joinsProbation(f, acts, t.act) {
					acts = append(acts, t.act)
				}
			}
			at = now.Add(evacuationPause)
			e[id] = at.UnixNano()
		}
		next = earlier(next, at)
	}
	return acts, next
}

// joinsProbation reports whether an action moves an attempt to a node on probation, which takes one
// at a time, where another is or to which one of the actions before brings another. The next look
// finds a place for it.
func joinsProbation(f *facts.Facts, before []*droverv1.ActionFact, act *droverv1.ActionFact) bool {
	if act.Kind != int32(facts.ActMigrate) {
		return false
	}
	n := f.Node(act.Node)
	return n != nil && n.Probation && (n.Attempts > 0 || slices.ContainsFunc(before, func(b *droverv1.ActionFact) bool {
		return (b.Kind == act.Kind || b.Kind == int32(facts.ActPlace)) && b.Node == act.Node
	}))
}

// beyondProbation returns the moves of a decision that joinsProbation holds for: the scheduler
// knows nothing of probation, and Apply drops new attempts alone.
func beyondProbation(f *facts.Facts, d *droverv1.DecisionFact) (drops []facts.Drop) {
	for i, act := range d.GetActions() {
		if joinsProbation(f, d.GetActions()[:i], act) {
			drops = append(drops, facts.Drop{Index: i, Reason: facts.DropProbation})
		}
	}
	return drops
}

// stayingTask is an active attempt on a node whose deadline has passed.
type stayingTask struct {
	key facts.Key
	act *droverv1.ActionFact // what brings it on its way; nil if nothing does now
	why string               // why it is still there
}

// stayingOn returns the active attempts on a node, in key order, each with the next
// step off it. O(attempts on the node x nodes).
func stayingOn(f *facts.Facts, n *facts.Node) (out []stayingTask) {
	for _, k := range f.AttemptsOn(n.ID) {
		a := f.Attempt(k)
		if a == nil || !a.State.IsActive() || a.Node != n.ID {
			continue
		}
		t := stayingTask{key: k}
		if t.act, t.why = evacuation(f, n, k, a); t.act != nil {
			t.act.Key, t.act.Reason = keyAfter(k, a, t.act), drainedReason
		}
		out = append(out, t)
	}
	return out
}

// keyAfter returns the key of an action: a migration raises the run.
func keyAfter(k facts.Key, a *facts.Attempt, act *droverv1.ActionFact) *droverv1.AttemptKey {
	if act.Kind == int32(facts.ActMigrate) {
		return k.Proto(a.Run + 1)
	}
	return k.Proto(a.Run)
}

// evacuation returns the next step of an attempt off its node, nil if there is none,
// and why the attempt is still there.
func evacuation(f *facts.Facts, n *facts.Node, k facts.Key, a *facts.Attempt) (*droverv1.ActionFact, string) {
	const bottom = droverv1.Level_LEVEL_CHECKPOINTED
	byUser, _ := parkedBy(a)
	switch {
	case a.State != facts.AttemptLive:
		return nil, "it is being stopped"
	case a.Target != 0:
		return nil, "it is on its way to " + facts.LevelName(a.Target)
	case a.Level == bottom && byUser:
		return nil, "it was suspended by a user: move it to another node (drover task migrate -node NODE JOB STAGE/INDEX)"
	case a.Level == bottom:
		if to := facts.RestoreNode(f, k); to != nil {
			return &droverv1.ActionFact{Kind: int32(facts.ActMigrate), Node: to.ID, Disk: to.FirstDisk()}, "it moves to " + to.Info.GetName()
		}
		why := "it is checkpointed, and no other node that can restore it has free capacity"
		if a.Suspension.Drained {
			return nil, why
		}
		return &droverv1.ActionFact{Kind: int32(facts.ActSuspend), Level: bottom, Drain: true}, why
	case !slices.Contains(n.Info.GetLevels(), bottom):
		return nil, "the node cannot checkpoint tasks"
	case a.Suspension.RefusedLevels&(1<<bottom) != 0:
		why := "it cannot be checkpointed: see its events"
		if a.Suspension.Drained && a.Level > droverv1.Level_LEVEL_RUNNING { // on the way there it was frozen or swapped
			return &droverv1.ActionFact{Kind: int32(facts.ActResume)}, why
		}
		return nil, why
	case a.Suspension.Refused()&(1<<bottom) != 0:
		return nil, "it could not be checkpointed yet, and is tried again: see its events"
	default:
		return &droverv1.ActionFact{Kind: int32(facts.ActSuspend), Level: bottom, Drain: !byUser, Manual: byUser}, "it is about to be checkpointed"
	}
}

// stayingTexts names what is still on a drained node after its deadline, and why; of
// jobs that the caller may not read, that there is one.
func (s *clientService) stayingTexts(ctx context.Context, f *facts.Facts, n *facts.Node) (out []string) {
	if !n.Up || n.DrainDeadline == 0 || n.DrainDeadline > s.core.now().UnixNano() {
		return nil
	}
	all := stayingOn(f, n)
	for _, t := range all[:min(len(all), maxStaying)] {
		name := "a task of another tenant"
		if j := f.Job(t.key.Job); j != nil && s.core.rights.needJob(ctx, mayRead, f, j) == nil {
			name = fmt.Sprintf("%s %s/%d", j.Name, j.Spec.Stages[t.key.Stage].Name, t.key.Task)
		}
		out = append(out, name+": "+t.why)
	}
	if more := len(all) - len(out); more > 0 {
		out = append(out, fmt.Sprintf("%d more", more))
	}
	return out
}
