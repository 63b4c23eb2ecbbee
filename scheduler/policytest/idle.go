package policytest

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/drover-run/drover/scheduler"
)

// idleCapacity sums up idle capacity, in seconds of a whole node, by its reason. The idle part of a
// schedulable node is one minus the used share of its most used resource. While stages wait,
// idle capacity is attributed to their reasons in proportion to the waiting work (tasks x
// dominant share of one task).
type idleCapacity struct {
	By          map[scheduler.Reason]float64
	NoWork      float64 // nothing waited
	Unexplained float64 // ready stages without a reason
}

// add accounts for a State that stays unchanged for the duration, with a decision applied. O(nodes
// + stages).
func (i *idleCapacity) add(s *scheduler.State, d *scheduler.Decision, duration time.Duration) {
	idle := 0.0
	for _, n := range s.Nodes() {
		if n.Schedulable() {
			if used := n.Used().DominantShare(n.Spec.Capacity); used < 1 { // NaN for a node without CPU
				idle += 1 - used
			}
		}
	}
	idle *= duration.Seconds()
	given := map[scheduler.StageID]scheduler.Reason{}
	for k := range d.Waiting {
		given[d.Waiting[k].Stage] = d.Waiting[k].Reason
	}
	waits, all := map[scheduler.Reason]float64{}, 0.0
	for j := range s.Jobs() {
		for _, g := range j.Stages {
			if !g.Ready() {
				continue
			}
			w := float64(g.Pending)
			if share := g.Spec.Demand.DominantShare(s.Cluster().Total()); share > 0 && share < 1 {
				w *= share
			}
			reason := given[g.ID()] // 0: no reason was given
			if reason == 0 && openedBy(d, g) {
				reason = scheduler.ReasonCycleFull
			}
			waits[reason] += w
			all += w
		}
	}
	if all == 0 {
		i.NoWork += idle
		return
	}
	if i.By == nil {
		i.By = map[scheduler.Reason]float64{}
	}
	for r, w := range waits {
		if r == 0 {
			i.Unexplained += idle * w / all
		} else {
			i.By[r] += idle * w / all
		}
	}
}

// join adds the sums of another idleCapacity.
func (i *idleCapacity) join(other *idleCapacity) {
	if i.By == nil {
		i.By = map[scheduler.Reason]float64{}
	}
	for r, sum := range other.By {
		i.By[r] += sum
	}
	i.NoWork += other.NoWork
	i.Unexplained += other.Unexplained
}

// String returns the totals, with the reasons in their order.
func (i *idleCapacity) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "idle node-seconds: no work %.0f", i.NoWork)
	var reasons []scheduler.Reason
	for r := range i.By {
		reasons = append(reasons, r)
	}
	slices.Sort(reasons)
	for _, r := range reasons {
		fmt.Fprintf(&b, ", %v %.0f", r, i.By[r])
	}
	fmt.Fprintf(&b, ", unexplained %.0f", i.Unexplained)
	return b.String()
}
