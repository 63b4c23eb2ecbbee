package forecast

import (
	"cmp"
	"slices"
	"time"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/deadline"
)

// updateSlack computes the job's times as the scheduler predicts them, without errors: the duration
// after each stage, and the job's latest start.
func (w *jobState) updateSlack() {
	longest := time.Duration(0)
	for i := range w.stages {
		w.stages[i].tail, w.stages[i].leastTail = 0, 0
	}
	for i := len(w.stages) - 1; i >= 0; i-- {
		g := &w.stages[i]
		through, least := g.tail, g.leastTail
		if g.done < g.spec.Tasks {
			through += g.spec.Estimate
			least += deadline.LeastRunTime(g.spec.Estimate, w.spec.Bound)
		}
		longest = max(longest, through)
		for _, a := range g.spec.After {
			w.stages[a].tail, w.stages[a].leastTail = max(w.stages[a].tail, through), max(w.stages[a].leastTail, least)
		}
	}
	if w.lane == laneDeadline {
		w.key = w.spec.Deadline.Add(-longest)
	}
}

// latestStart returns the latest time at which waiting tasks of a stage can begin on n slots so
// that the job is predicted to meet its deadline.
func (w *jobState) latestStart(g *stageState, waiting, n int32) scheduler.Time {
	waves := (waiting + n - 1) / n
	return w.spec.Deadline.Add(-g.tail).Add(-time.Duration(waves) * g.spec.Estimate)
}

// slotsFor returns the fewest slots on which waiting tasks of a stage end in time if they begin
// now. As many slots as tasks must suffice.
func (w *jobState) slotsFor(g *stageState, waiting int32, now scheduler.Time) int32 {
	if g.spec.Estimate <= 0 {
		return 1
	}
	left := w.spec.Deadline.Add(-g.tail).Sub(now)
	waves := min(max(1, int64(left/g.spec.Estimate)), int64(waiting))
	return int32((int64(waiting) + waves - 1) / waves)
}

// dropInfeasible removes jobs whose deadlines cannot be met any more from the lane: they are served
// behind the other jobs of their tenants. O(stages of the lane) if there are none.
func (p *Forecaster) dropInfeasible() {
	left := false
	for _, w := range p.lane {
		if w.isInfeasible(p.now) {
			w.lane, w.key, left = laneInfeasible, 0, true
		}
	}
	if left {
		p.sortJobs()
	}
}

// isInfeasible is deadline.Slack.Infeasible in the sample.
func (w *jobState) isInfeasible(now scheduler.Time) bool {
	for i := range w.stages {
		g := &w.stages[i]
		if g.waiting > 0 && w.isOpen(g) && now > w.spec.Deadline.Add(-g.leastTail).Add(-deadline.LeastRunTime(g.spec.Estimate, w.spec.Bound)) {
			return true
		}
	}
	return false
}

// preempt is PDSonQueue Alg. 5 for the lane: it takes the fewest slots that let a stage end before
// the deadline, each only if the stage cannot wait for free capacity.
func (p *Forecaster) preempt() {
	for _, w := range p.lane {
		for i := range w.stages {
			if g := &w.stages[i]; g.waiting > 0 && w.isOpen(g) {
				p.preemptFor(w, g)
			}
		}
	}
}

func (p *Forecaster) preemptFor(w *jobState, g *stageState) {
	for g.mayStart() {
		waiting := g.waiting - p.servedByRunning(w, g)
		if waiting <= 0 {
			return
		}
		if p.canWait(w, g, w.latestStart(g, waiting, w.slotsFor(g, waiting, p.now))) || !p.withinCaps(w, g.spec.Demand, g.spec.Demand) || !p.leavesCaps(w, g) ||
			!p.preemptVictims(w, g) {
			return
		}
	}
}

// servedByRunning returns how many waiting tasks of a stage can follow its running tasks in their slots and end in time.
func (p *Forecaster) servedByRunning(w *jobState, g *stageState) (n int32) {
	for _, x := range p.queue {
		if x.job != w || x.cancelled || x.stage != g.index {
			continue
		}
		switch left := w.spec.Deadline.Add(-g.tail).Sub(x.endsAt); {
		case left <= 0:
		case g.spec.Estimate <= 0:
			return g.waiting
		default:
			if n += int32(min(int64(left/g.spec.Estimate), int64(g.waiting-n))); n == g.waiting {
				return n // enough for all
			}
		}
	}
	return n
}

// canWait reports whether on some node the next task to end frees enough for a task of the stage by a time.
func (p *Forecaster) canWait(w *jobState, g *stageState, latest scheduler.Time) bool {
	next := make([]*taskState, len(p.nodes))
	for _, x := range p.queue {
		if x.job != nil && !x.cancelled && (next[x.node] == nil || x.endsAt < next[x.node].endsAt) {
			next[x.node] = x
		}
	}
	for i, x := range next {
		if x != nil && x.endsAt <= latest && p.takes(&p.nodes[i], w, g) && g.spec.Demand.Fits(p.nodes[i].free.Add(x.demand)) {
			return true
		}
	}
	return false
}

// preemptVictims suspends regular tasks on the node where the fewest suffice, low priority and newest first, and places
// a task of the stage there. It returns false if no node has enough victims.
func (p *Forecaster) preemptVictims(w *jobState, g *stageState) bool {
	best, node := []*taskState(nil), -1
	byNode := make([][]*taskState, len(p.nodes))
	for _, x := range p.queue {
		if p.isVictim(x) {
			byNode[x.node] = append(byNode[x.node], x)
		}
	}
	for i := range byNode {
		n := &p.nodes[i]
		if !p.takes(n, w, g) || len(byNode[i]) == 0 {
			continue
		}
		if v := chooseVictims(byNode[i], n, p.freeFor(n, w, g), g.spec.Demand); v != nil && (node < 0 || len(v) < len(best)) {
			best, node = v, i
		}
	}
	if node < 0 {
		return false
	}
	p.suspend(best)
	p.place(w, g, int32(node))
	return true
}

// isVictim reports whether a task runs and may be suspended for others.
func (p *Forecaster) isVictim(x *taskState) bool {
	return x.job != nil && !x.cancelled && x.job.givesWayOn(&p.nodes[x.node])
}

// givesWayOn reports whether a task of a job is suspended on a node when a guarantee needs what it occupies.
func (w *jobState) givesWayOn(n *nodeState) bool {
	return w.lane > laneDeadline && w.spec.Project == 0 && n.canSuspend
}

// compareAsVictim orders victims: those of low priority, and of infeasible jobs, first, then the newest.
func (x *taskState) compareAsVictim(y *taskState) int {
	return cmp.Or(cmp.Compare(min(y.job.lane, laneLow), min(x.job.lane, laneLow)), cmp.Compare(y.seq, x.seq))
}

// suspendForCaps suspends regular tasks, on any nodes, until a job may occupy more within the caps
// above it, or no such task is left.
func (p *Forecaster) suspendForCaps(w *jobState, more scheduler.Resources) {
	if len(p.subtrees) == 0 {
		return
	}
	for t := w.tenant; t != nil; t = p.state.Tenant(t.Spec.Parent) {
		for {
			r, ok := t.Spec.Caps.Total.Allows(p.subtrees[t.Spec.ID].Add(more))
			if ok {
				break
			}
			var victim *taskState
			for _, x := range p.queue {
				if p.isVictim(x) && p.state.TenantTree().IsBelow(x.job.spec.Tenant, t.Spec.ID) && occupiedWhenSuspended(x.demand, &p.nodes[x.node])[r] < x.demand[r] && (victim == nil || x.compareAsVictim(victim) < 0) {
					victim = x
				}
			}
			if victim == nil {
				break
			}
			p.suspend([]*taskState{victim})
		}
	}
}

// suspend suspends running tasks.
func (p *Forecaster) suspend(list []*taskState) {
	for _, x := range list {
		x.occupied = occupiedWhenSuspended(x.demand, &p.nodes[x.node])
		p.release(x, x.demand.Sub(x.occupied))
		x.cancelled, x.remaining = true, x.endsAt.Sub(p.now)
		p.suspended = append(p.suspended, x)
	}
}

// occupiedWhenSuspended returns what a suspended task still occupies of its demand on a node.
func occupiedWhenSuspended(d scheduler.Resources, n *nodeState) scheduler.Resources {
	if n.Spec.Levels.FreesMemory() {
		return scheduler.Resources{}
	}
	return scheduler.Resources{scheduler.Memory: d[scheduler.Memory]}
}

// chooseVictims returns the tasks to suspend, in order, so that a demand fits on a node with the
// given free capacity; nil if all of them do not suffice. It sorts them.
func chooseVictims(of []*taskState, n *nodeState, free, d scheduler.Resources) []*taskState {
	slices.SortFunc(of, (*taskState).compareAsVictim)
	for i, x := range of {
		if d.Fits(free) {
			return of[:i]
		}
		free = free.Add(x.demand.Sub(occupiedWhenSuspended(x.demand, n)))
	}
	if !d.Fits(free) {
		return nil
	}
	return of
}
