package bench

import (
	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/policies"
)

// maxPackingNodes limits the cluster of measurePacking, because best fit examines every node for
// every task.
const maxPackingNodes = 1000

// measurePacking fills an empty cluster (of at most 1,000 nodes) from one queue of plain tasks,
// once by the policy and once by best fit, and returns the policy's utilisation of the most used
// resource over that of best fit.
func measurePacking(c Config) (float64, error) {
	c.Nodes, c.Features, c.Tenants = min(c.Nodes, maxPackingNodes), FeaturesPlain, 1
	w, err := newWorld(c)
	if err != nil {
		return 0, err
	}
	if err := w.submit(70 * c.Nodes); err != nil {
		return 0, err
	}
	reference, err := newWorld(c)
	if err != nil {
		return 0, err
	}
	if err := reference.submit(70 * c.Nodes); err != nil {
		return 0, err
	}
	p, err := policies.New(c.Policy, c.Params)
	if err != nil {
		return 0, err
	}
	for range 100 * c.Nodes {
		d, err := scheduler.Cycle(w.s, p, w.now, c.maxActions, scheduler.AcceptAll)
		if err != nil {
			return 0, err
		}
		if len(d.Actions) == 0 {
			break
		}
	}
	if err := reference.placeBestFit(); err != nil {
		return 0, err
	}
	return w.currentLoad() / reference.currentLoad(), nil
}

// placeBestFit places every waiting task that fits, in order, on the node with the smallest sum of
// free shares after the placement. It examines all nodes.
func (w *world) placeBestFit() error {
	for j := range w.s.Jobs() {
		g := j.Stages[0]
		for g.Ready() {
			best, disk, least := scheduler.NoNode, int16(-1), 0.0
			for _, n := range w.s.Nodes() {
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
			a := w.s.Attempts().PlaceAction(g, g.NextPending(0), best, disk)
			if err := w.s.Apply(&a, w.now); err != nil {
				return err
			}
		}
	}
	return nil
}
