package threedsf

import "github.com/drover-run/drover/scheduler"

// swapDemand is the memory of preemptible tasks on a node that leaves it only for swap, since the node or
// the task cannot be checkpointed. A guarantee counts on memory that can leave. What is swapped out already
// is included, so that swapping and resuming change nothing here.
type swapDemand struct {
	sum     int64 // bytes
	largest int64 // of one task
	unit    int64 // the greatest common divisor of the tasks' memory
	swapped int64 // bytes of sum that are in swap
	stays   int64 // bytes of tasks that cannot be swapped
}

// add counts a task that leaves memory by the given levels.
func (d *swapDemand) add(levels scheduler.LevelSet, memory, swapped int64) {
	switch all := memory + swapped; {
	case all <= 0 || levels.Has(scheduler.LevelCheckpointed):
	case levels.Has(scheduler.LevelSwapped) || swapped > 0:
		d.sum, d.largest, d.unit = d.sum+all, max(d.largest, all), greatestCommonDivisor(d.unit, all)
		d.swapped += swapped
	default:
		d.stays += all
	}
}

// addAttempt counts an attempt on a node.
func (d *swapDemand) addAttempt(n *scheduler.Node, a *scheduler.Attempt) {
	d.add(n.Spec.Levels&^a.RefusedLevels, a.Occupied.Resources[scheduler.Memory], a.Occupied.Swap)
}

// beyond returns how much of the memory may have to stay if so many bytes of swap are free. Tasks are
// swapped out in any order, each as a whole, until none fits: what is left of the room is then less than
// the memory of some task that stays, and differs from the whole room by a multiple of the unit.
func (d *swapDemand) beyond(free int64) int64 {
	room := max(free, 0) + d.swapped
	if d.sum <= room {
		return d.stays
	}
	return d.stays + min(d.sum, d.sum-room+min(room, d.largest-d.unit+room%d.unit))
}

func greatestCommonDivisor(a, b int64) int64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// swapHasRoom reports whether swap of a node has room for the memory of all tasks there, and so many bytes
// more. O(1).
func swapHasRoom(n *scheduler.Node, memory int64) bool {
	return n.Used()[scheduler.Memory]+memory <= n.SwapFree
}

// freesMemory reports whether a node can free the memory of all tasks there, and so many bytes more, whatever
// tasks they are. O(1).
func freesMemory(n *scheduler.Node, memory int64) bool {
	return n.Spec.Levels.Has(scheduler.LevelCheckpointed) || swapHasRoom(n, memory)
}

// stayingMemory returns how much of an attempt's memory guarantees cannot count on, though it is
// preemptible: its part of what swap has no room for. Those that were placed first have the first parts.
// O(1) where all of it can leave, else O(attempts on the node).
func stayingMemory(s *scheduler.State, a *scheduler.Attempt) int64 {
	n := s.Node(a.Node)
	levels := n.Spec.Levels &^ a.RefusedLevels
	if levels.Has(scheduler.LevelCheckpointed) || (levels.Has(scheduler.LevelSwapped) && swapHasRoom(n, 0)) {
		return 0
	}
	var own, before, all swapDemand
	own.addAttempt(n, a)
	for b := range s.Attempts().On(n.Spec.ID) {
		if b == a {
			before = all
		}
		if !s.StageOf(b).Job.IsNonPreemptible() {
			all.addAttempt(n, b)
		}
	}
	all.stays = 0 // each task has its own: only what swap lacks room for is divided
	return own.stays + min(max(all.beyond(n.SwapFree)-before.sum, 0), own.sum)
}
