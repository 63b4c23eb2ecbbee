package bench

import (
	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/policies"
)

// packNodes bounds the cluster on which packing is judged: the judge looks at
// every node for every task.
const packNodes = 1000

// Packing fills an empty cluster (of at most 1,000 nodes) from one queue of
// plain tasks, once by the policy and once by the best-fit judge, and gives
// what the policy uses of the most used resource as a part of the judge's.
func Packing(c Config) (float64, error) {
	c.Nodes, c.Features, c.Tenants = min(c.Nodes, packNodes), FeaturesPlain, 1
	w, err := NewWorld(c)
	if err != nil {
		return 0, err
	}
	if err := w.Submit(70 * c.Nodes); err != nil {
		return 0, err
	}
	judge, err := NewWorld(c)
	if err != nil {
		return 0, err
	}
	if err := judge.Submit(70 * c.Nodes); err != nil {
		return 0, err
	}
	p, err := policies.New(c.Policy, c.Params)
	if err != nil {
		return 0, err
	}
	for range 100 * c.Nodes {
		d, err := scheduler.Cycle(w.S, p, w.Now, c.MaxActions, scheduler.Identity)
		if err != nil {
			return 0, err
		}
		if len(d.Actions) == 0 {
			break
		}
	}
	if err := judge.bestFit(); err != nil {
		return 0, err
	}
	return w.load() / judge.load(), nil
}

// bestFit places every waiting task that fits, in order, on the node that is
// left with the smallest sum of free shares, by looking at all nodes.
func (w *World) bestFit() error {
	for j := range w.S.Jobs() {
		g := j.Stages[0]
		for g.Ready() {
			best, disk, least := scheduler.NoNode, int16(-1), 0.0
			for _, n := range w.S.Nodes() {
				k, ok := n.Fits(g.Spec.Demand, g.Spec.Disk)
				if !ok {
					continue
				}
				left := 0.0
				for _, s := range n.Free.Sub(g.Spec.Demand).Shares(n.Spec.Capacity) {
					left += s
				}
				if best == scheduler.NoNode || left < least {
					best, disk, least = n.Spec.ID, k, left
				}
			}
			if best == scheduler.NoNode {
				break
			}
			a := w.S.Place(g, g.NextPending(0), best, disk)
			if err := w.S.Apply(&a, w.Now); err != nil {
				return err
			}
		}
	}
	return nil
}
