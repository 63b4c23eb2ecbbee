// Package obstacle finds what would have to give way for a waiting task to start now: on some node,
// the attempts that would have to leave and the reservations that would have to be dropped. It is
// an explanation for users, not a decision: the policy decides whether they may be preempted.
//
// The package is pure and reads a State; callers that must not block a live one pass a copy.
package obstacle

import (
	"slices"

	"github.com/drover-run/drover/scheduler"
)

// Set is what would have to give way on one node. It is empty if nothing has to: the task fits, and
// waits for another reason.
type Set struct {
	Node         scheduler.NodeID
	Attempts     []scheduler.AttemptID
	Reservations []scheduler.ReservationID
}

func (s *Set) size() int { return len(s.Attempts) + len(s.Reservations) }

// Nearest returns the set for a task of a stage with the fewest members, ties to the lowest node.
// No member can be left out, but a smaller set of other members may exist: the search takes the
// items that free most, one by one. It returns false if no schedulable node that its job does not
// avoid is large enough. It examines no more nodes after this many attempts. O(attempts examined x
// members x disks).
func Nearest(s *scheduler.State, g *scheduler.Stage, now scheduler.Time, attempts int) (Set, bool) {
	best, found := Set{}, false
	for _, n := range s.Nodes() {
		if !n.Schedulable() || s.Cluster().Avoids(g, n.Spec.ID) {
			continue
		}
		r := newRoom(s, g, n, now)
		if attempts -= len(r.items); attempts < 0 {
			break
		}
		if set, ok := r.clear(); ok && (!found || set.size() < best.size()) {
			best, found = set, true
		}
		if found && best.size() == 0 {
			break
		}
	}
	return best, found
}

// room is the free capacity of a node for a task, and the items that occupy the rest.
type room struct {
	node  *scheduler.Node
	need  scheduler.Resources
	space int64
	free  scheduler.Resources
	disks []scheduler.DiskUse
	items []item
}

// item is an attempt or a reservation on a node.
type item struct {
	attempt     scheduler.AttemptID
	reservation scheduler.ReservationID // 0 for an attempt
	frees       scheduler.Resources
	disk        int16 // -1: none
	space       int64
	taken       bool // by clearFor
}

func newRoom(s *scheduler.State, g *scheduler.Stage, n *scheduler.Node, now scheduler.Time) *room {
	r := &room{node: n, need: g.Spec.Demand, space: g.Spec.Disk, free: n.Free, disks: slices.Clone(n.Disks)}
	for _, v := range s.Reservations().On(n.Spec.ID) {
		own := v.Job == g.Job.Spec.ID || v.Project != 0 && v.Project == g.Job.Spec.Project
		if own || v.Start > now || v.End > 0 && v.End <= now {
			continue
		}
		i := item{reservation: v.ID, frees: v.Demand, disk: v.OnDisk, space: v.Disk}
		if int(i.disk) >= len(r.disks) {
			i.disk = -1
		}
		r.change(&i, -1)
		r.items = append(r.items, i)
	}
	for a := range s.Attempts().On(n.Spec.ID) {
		if a.Occupied != (scheduler.Occupancy{}) {
			r.items = append(r.items, item{attempt: a.ID, frees: a.Occupied.Resources, disk: a.Disk, space: a.Occupied.Disk})
		}
	}
	return r
}

// change adds an item's capacity to the free capacity, or subtracts it with sign -1.
func (r *room) change(i *item, sign int64) {
	for k := range i.frees {
		r.free[k] += sign * i.frees[k]
	}
	if i.disk >= 0 {
		r.disks[i.disk].FreeIO += sign * i.frees[scheduler.IO]
		r.disks[i.disk].FreeSpace += sign * i.space
	}
}

// lack returns how much is missing for the task with its I/O and space on one disk: the sum over resources of the parts
// of the need that are not free, 0 if it fits. A node without disks counts as one that has disk 0 with nothing on it.
func (r *room) lack(disk int) float64 {
	sum := missing(r.need[scheduler.CPU], r.free[scheduler.CPU]) + missing(r.need[scheduler.Memory], r.free[scheduler.Memory])
	if len(r.disks) == 0 {
		return sum + missing(r.need[scheduler.IO], 0) + missing(r.space, 0)
	}
	return sum + missing(r.need[scheduler.IO], r.disks[disk].FreeIO) + missing(r.space, r.disks[disk].FreeSpace)
}

// diskCount returns the number of disks to call lack for, at least one.
func (r *room) diskCount() int { return max(len(r.disks), 1) }

// fits reports whether the task fits on some disk.
func (r *room) fits() bool {
	for disk := range r.diskCount() {
		if r.lack(disk) == 0 {
			return true
		}
	}
	return false
}

func missing(need, free int64) float64 {
	if need <= free {
		return 0
	}
	if need <= 0 {
		return float64(need - free) // a negative free amount must be cleared too
	}
	return float64(need-free) / float64(need)
}

// clear returns what must leave the node, false if that does not suffice. It tries each disk by itself
// and takes the one for which fewest must leave: the disk that lacks least now may never have enough.
func (r *room) clear() (Set, bool) {
	var least []int
	found := false
	for disk := range r.diskCount() {
		if out, ok := r.clearFor(disk); ok && (!found || len(out) < len(least)) {
			least, found = out, true
		}
	}
	s := Set{Node: r.node.Spec.ID}
	for _, i := range least {
		if id := r.items[i].reservation; id != 0 {
			s.Reservations = append(s.Reservations, id)
		} else {
			s.Attempts = append(s.Attempts, r.items[i].attempt)
		}
	}
	return s, found
}

// clearFor returns the items that must leave for a task on a disk, in order, false if that does not
// suffice. It restores the room afterwards.
func (r *room) clearFor(disk int) (out []int, ok bool) {
	for lack := r.lack(disk); lack > 0; {
		best, least := -1, lack
		for i := range r.items {
			if r.items[i].taken {
				continue
			}
			r.change(&r.items[i], 1)
			if l := r.lack(disk); l < least {
				best, least = i, l
			}
			r.change(&r.items[i], -1)
		}
		if best < 0 {
			break
		}
		r.take(best)
		out, lack = append(out, best), least
	}
	ok = r.lack(disk) == 0
	if ok {
		out = slices.DeleteFunc(out, func(i int) bool { // items that later ones made unnecessary, on any disk
			if r.leave(i); r.fits() {
				return true
			}
			r.take(i)
			return false
		})
	}
	for _, i := range out {
		r.leave(i)
	}
	slices.Sort(out)
	return out, ok
}

// take frees the capacity of an item, leave takes it back.
func (r *room) take(i int) {
	r.change(&r.items[i], 1)
	r.items[i].taken = true
}

func (r *room) leave(i int) {
	r.change(&r.items[i], -1)
	r.items[i].taken = false
}
