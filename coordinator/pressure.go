package coordinator

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/coordinator/facts"
	"github.com/drover-run/drover/jobspec"
)

// Frozen tasks cost no processor, but they keep their memory, which then is
// nobody's. Where they hold more than Config.FrozenShare of a node's memory, the
// largest go on to the next level that the node can do and has not refused for
// them, until they hold no more than that. Which tasks are suspended stays the
// scheduler's; this is how deep.

// deepen is step 3 of the loop, for the nodes on which levels changed.
func (l *leader) deepen(ctx context.Context) error {
	if len(l.pressed) == 0 {
		return nil
	}
	var acts []*droverv1.ActionFact
	l.c.view(func(f *facts.Facts) {
		for _, id := range slices.Sorted(keysOf(l.pressed)) {
			if n := f.Node(id); n != nil && n.Up {
				acts = append(acts, deeper(f, n, l.c.cfg.FrozenShare)...)
			}
		}
	})
	clear(l.pressed)
	if len(acts) == 0 {
		return nil
	}
	res, err := l.c.replica.Propose(ctx, &droverv1.Entry{Actor: actorSelf, Body: &droverv1.Entry_Decision{Decision: &droverv1.DecisionFact{Actions: acts}}})
	if err != nil {
		return fmt.Errorf("have frozen tasks give their memory: %w", err)
	}
	for _, d := range res.Dropped {
		l.c.log.Info("a frozen task stays as it is", "task", acts[d.At].GetKey(), "why", d.Reason)
	}
	return nil
}

func keysOf(m map[int32]bool) func(func(int32) bool) {
	return func(yield func(int32) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

// frozenTask is one that holds memory and nothing else.
type frozenTask struct {
	key facts.Key
	a   *facts.Attempt
}

// deeper gives what brings the memory of a node's frozen tasks below the share.
// O(attempts on the node).
func deeper(f *facts.Facts, n *facts.Node, share float64) (acts []*droverv1.ActionFact) {
	limit := int64(share * float64(n.Info.GetAllocatable().GetMemory()))
	var frozen []frozenTask
	held := int64(0)
	for _, k := range f.On(n.ID) {
		a := f.Attempt(k)
		if a == nil || a.State != facts.AttemptLive || a.Node != n.ID || a.Level != droverv1.Level_LEVEL_FROZEN || a.Target != 0 {
			continue
		}
		held += a.Held.Memory
		frozen = append(frozen, frozenTask{k, a})
	}
	slices.SortFunc(frozen, func(x, y frozenTask) int {
		return cmp.Or(cmp.Compare(y.a.Held.Memory, x.a.Held.Memory), facts.CompareKeys(x.key, y.key))
	})
	why := fmt.Sprintf("frozen tasks hold %s of the node's memory, more than the share of %g", jobspec.FormatSize(held), share)
	for _, t := range frozen {
		if held <= limit {
			break
		}
		to := nextLevel(n, t.a)
		if to == 0 {
			continue
		}
		held -= t.a.Held.Memory
		acts = append(acts, &droverv1.ActionFact{Kind: int32(facts.ActSuspend), Key: t.key.Proto(t.a.Run), Level: to, Why: why, ForJob: t.a.Sus.For, ByHand: t.a.Sus.Parked})
	}
	return acts
}

// nextLevel is the level below frozen that a node can do and has not refused for
// the attempt; 0 without one.
func nextLevel(n *facts.Node, a *facts.Attempt) droverv1.Level {
	for to := a.Level + 1; to <= droverv1.Level_LEVEL_CHECKPOINTED; to++ {
		if slices.Contains(n.Info.GetLevels(), to) && a.Sus.Bars()&(1<<to) == 0 {
			return to
		}
	}
	return 0
}
