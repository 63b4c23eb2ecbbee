package threedsf

import (
	"cmp"
	"slices"

	"github.com/drover-run/drover/scheduler"
)

// Behind a task with a reserved node (Config.ReserveNodes) other tasks may start
// there if they do not delay it by the bounds of what runs: EASY backfilling (Lifka)
// on one node. Either their bound ends before the node is free for that task, or
// they fit beside it. Without bounds nothing starts there.

// findBoundedJob returns a job that has a bound, nil if none has, and remembers it. O(1) while it has, else
// O(changes since the last call); O(jobs) after it ended.
func (k *reservedNodes) findBoundedJob() *scheduler.Job {
	s := k.c.s
	known := k.state == s
	if known && k.bounded != nil && s.Job(k.bounded.Spec.ID) == k.bounded && k.bounded.HasBounds() {
		return k.bounded
	}
	known = known && k.bounded == nil
	k.bounded = nil
	look := func(j *scheduler.Job) {
		if k.bounded == nil && j != nil && j.HasBounds() {
			k.bounded = j
		}
	}
	if !known || !s.ChangeLog().Since(k.workSeen, func(w scheduler.ChangedOwner) { look(s.Job(w.Job)) }) {
		for j := range s.Jobs() {
			if look(j); k.bounded != nil {
				break
			}
		}
	}
	k.state, k.workSeen = s, s.ChangeLog().Position()
	return k.bounded
}

// capacityAt returns when a node should fit a task of a stage by the bounds of what
// runs there, or Never. A task past its bound counts as ended at its bound, so the
// result does not move with time.
func (k *reservedNodes) capacityAt(n *scheduler.Node, g *scheduler.Stage) scheduler.Time {
	k.departures = k.departures[:0]
	if !n.Releasing.IsZero() {
		return scheduler.Never
	}
	for a := range k.c.s.Attempts().On(n.Spec.ID) {
		if end := k.endByBound(n, a); end < scheduler.Never {
			k.departures = append(k.departures, expectedDeparture{end, a})
		}
	}
	slices.SortFunc(k.departures, func(x, y expectedDeparture) int {
		return cmp.Or(cmp.Compare(x.end, y.end), x.attempt.ID.Compare(y.attempt.ID))
	})
	k.capacity.Load(n)
	for _, e := range k.departures {
		if k.release(e.attempt); k.capacity.HasRoom(g.Spec.Demand, g.Spec.Disk) {
			return e.end
		}
	}
	return scheduler.Never
}

// endByBound returns when an attempt on a node should have ended by its bound, Never
// if unknown.
func (k *reservedNodes) endByBound(n *scheduler.Node, a *scheduler.Attempt) scheduler.Time {
	g := k.c.s.StageOf(a)
	if g.Bound() <= 0 || a.Node != n.Spec.ID || a.Level != scheduler.LevelRunning || a.Target != 0 {
		return scheduler.Never
	}
	return overrunsAt(a, g)
}

// leavesCapacity reports whether d more of a stage (with disk space on disk), for a task
// that starts, or whose attempt a resumes, does not delay the task that a node is reserved for.
// O(attempts there).
func (k *reservedNodes) leavesCapacity(n *scheduler.Node, g *scheduler.Stage, d scheduler.Resources, space int64, disk int16, a *scheduler.Attempt) bool {
	at := k.freeAt[n.Spec.ID]
	if at == scheduler.Never {
		return false
	}
	if b := boundLeft(g, a); b > 0 && k.c.now.Add(b) <= at {
		return true
	}
	k.capacity.Load(n)
	k.capacity.Release(d.Times(-1), -space, disk)
	for a := range k.c.s.Attempts().On(n.Spec.ID) {
		if k.endByBound(n, a) <= at {
			k.release(a)
		}
	}
	next := &k.stageOn[n.Spec.ID].Spec
	return k.capacity.HasRoom(next.Demand, next.Disk)
}

// release adds to capacity what an attempt occupies.
func (k *reservedNodes) release(a *scheduler.Attempt) {
	k.capacity.Release(a.Occupied.Resources, a.Occupied.Disk, a.Disk)
}
