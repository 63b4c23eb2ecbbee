package coordinator

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/coordinator/facts"
	"github.com/drover-run/drover/jobspec"
)

// Frozen tasks use no CPU but keep their memory, which nobody else can use. If
// they occupy more than Config.FrozenShare of a node's memory, the largest are
// escalated to the next level that the node supports and has not refused for
// them, until the share is met. The scheduler decides which tasks are
// suspended; this decides how deeply.

// escalateFrozen is step 3, for the nodes on which levels changed since the last call.
func escalateFrozen(ctx context.Context, p proposer, changed map[int32]bool) error {
	if len(changed) == 0 {
		return nil
	}
	var acts []*droverv1.ActionFact
	p.c.view(func(f *facts.Facts) {
		for _, id := range slices.Sorted(maps.Keys(changed)) {
			if n := f.Node(id); n != nil && n.Up {
				acts = append(acts, escalations(f, n, p.c.cfg.FrozenShare)...)
			}
		}
	})
	clear(changed)
	if len(acts) == 0 {
		return nil
	}
	dropped, err := p.proposeDecision(ctx, &droverv1.DecisionFact{Actions: acts})
	if err != nil {
		return fmt.Errorf("escalate frozen tasks: %w", err)
	}
	for _, d := range dropped {
		p.c.log.Info("a frozen task was not escalated", "task", acts[d.Index].GetKey(), "why", d.Reason)
	}
	return nil
}

// frozenTask is a frozen attempt.
type frozenTask struct {
	key facts.Key
	a   *facts.Attempt
}

// escalations returns the actions that bring the memory of a node's frozen
// tasks below the share. O(attempts on the node).
func escalations(f *facts.Facts, n *facts.Node, share float64) (acts []*droverv1.ActionFact) {
	limit := int64(share * float64(n.Info.GetAllocatable().GetMemory()))
	var frozen []frozenTask
	occupied := int64(0)
	for _, k := range f.AttemptsOn(n.ID) {
		a := f.Attempt(k)
		if a == nil || a.State != facts.AttemptLive || a.Node != n.ID || a.Level != droverv1.Level_LEVEL_FROZEN || a.Target != 0 {
			continue
		}
		occupied += a.Occupied.Memory
		frozen = append(frozen, frozenTask{k, a})
	}
	slices.SortFunc(frozen, func(x, y frozenTask) int {
		return cmp.Or(cmp.Compare(y.a.Occupied.Memory, x.a.Occupied.Memory), facts.CompareKeys(x.key, y.key))
	})
	why := fmt.Sprintf("frozen tasks occupy %s of the node's memory, more than the share of %g", jobspec.FormatSize(occupied), share)
	for _, t := range frozen {
		if occupied <= limit {
			break
		}
		to := nextLevel(n, t.a)
		if to == 0 {
			continue
		}
		occupied -= t.a.Occupied.Memory
		act := &droverv1.ActionFact{Kind: int32(facts.ActSuspend), Key: t.key.Proto(t.a.Run), Level: to, Reason: why, PreemptorJob: t.a.Suspension.Preemptor}
		act.Manual, act.Drain = parkedBy(t.a)
		acts = append(acts, act)
	}
	return acts
}

// nextLevel returns the next level deeper than the attempt's that the node supports
// and has not refused for the attempt; 0 if there is none.
func nextLevel(n *facts.Node, a *facts.Attempt) droverv1.Level {
	for to := a.Level + 1; to <= droverv1.Level_LEVEL_CHECKPOINTED; to++ {
		if slices.Contains(n.Info.GetLevels(), to) && a.Suspension.Refused()&(1<<to) == 0 {
			return to
		}
	}
	return 0
}
