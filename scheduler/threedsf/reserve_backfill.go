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
	capacity := k.currentCapacity(n)
	for _, e := range k.departures {
		if capacity.add(e.attempt); capacity.fits(g) {
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
	return boundEnd(a, g)
}

// leavesCapacity reports whether d more of a stage (with disk space on disk) does not
// delay the task that a node is reserved for. O(attempts there).
func (k *reservedNodes) leavesCapacity(n *scheduler.Node, g *scheduler.Stage, d scheduler.Resources, space int64, disk int16) bool {
	at := k.freeAt[n.Spec.ID]
	if at == scheduler.Never {
		return false
	}
	if b := g.Bound(); b > 0 && k.c.now.Add(b) <= at {
		return true
	}
	capacity := k.currentCapacity(n)
	capacity.free = capacity.free.Sub(d)
	if disk >= 0 {
		capacity.disks[disk].FreeIO -= d[scheduler.IO]
		capacity.disks[disk].FreeSpace -= space
	}
	for a := range k.c.s.Attempts().On(n.Spec.ID) {
		if k.endByBound(n, a) <= at {
			capacity.add(a)
		}
	}
	return capacity.fits(k.stageOn[n.Spec.ID])
}

// nodeCapacity is what is free on a node, now or once some tasks have ended.
type nodeCapacity struct {
	free  scheduler.Resources
	disks []scheduler.DiskUse
}

// currentCapacity returns what is free on a node now. Its disks are scratch space,
// valid until the next call.
func (k *reservedNodes) currentCapacity(n *scheduler.Node) nodeCapacity {
	k.diskScratch = append(k.diskScratch[:0], n.Disks...)
	return nodeCapacity{n.Free, k.diskScratch}
}

// add releases what an attempt occupies.
func (r *nodeCapacity) add(a *scheduler.Attempt) {
	r.free = r.free.Add(a.Occupied.Resources)
	if a.Disk >= 0 {
		r.disks[a.Disk].FreeIO += a.Occupied.Resources[scheduler.IO]
		r.disks[a.Disk].FreeSpace += a.Occupied.Disk
	}
}

// fits reports whether a task of a stage fits.
func (r *nodeCapacity) fits(g *scheduler.Stage) bool {
	d := g.Spec.Demand
	if d[scheduler.CPU] > r.free[scheduler.CPU] || d[scheduler.Memory] > r.free[scheduler.Memory] {
		return false
	}
	if len(r.disks) == 0 {
		return d[scheduler.IO] == 0 && g.Spec.Disk == 0
	}
	return slices.ContainsFunc(r.disks, func(k scheduler.DiskUse) bool { return k.FreeIO >= d[scheduler.IO] && k.FreeSpace >= g.Spec.Disk })
}
