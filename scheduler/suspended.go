package scheduler

import (
	"cmp"
	"iter"
	"slices"
	"sort"
)

// suspendedList is the attempts at a suspended level in order of suspension, ties by placement. Most of
// them do not fit on their nodes now. An entry holds the values that decide that, so that a search for
// the others reads the list in sequence, without a cache miss for each attempt and its node. (With
// 40,000 suspended attempts on 100,000 nodes those misses were a fifth of a decision of 3dsf.)
//
// The entry of an attempt that leaves stays, marked as removed, until the list is compacted: nothing moves, also in a try.
type suspendedList struct {
	entries []suspendedEntry
	live    int // entries that are not removed
	readers int // searches in progress: entries must not move
}

// suspendedEntry is an attempt in the list.
type suspendedEntry struct {
	ResumeOrder
	slot        int32 // ^slot if it is removed
	node        NodeID
	cpu, memory int64 // what it needs beyond what it occupies
}

// ResumeOrder is a suspended attempt's place in the order of resuming: by the time of its suspension, then placement.
type ResumeOrder struct {
	SuspendedAt Time
	Seq         uint64 // unique
}

// ResumeOrder returns the place of a suspended attempt. O(1).
func (a *Attempt) ResumeOrder() ResumeOrder { return ResumeOrder{a.SuspendedAt, a.Seq} }

// Compare returns a negative number if o comes before other, a positive one if after it. O(1).
func (o ResumeOrder) Compare(other ResumeOrder) int {
	return cmp.Or(cmp.Compare(o.SuspendedAt, other.SuspendedAt), cmp.Compare(o.Seq, other.Seq))
}

func newSuspendedEntry(a *Attempt, slot int32) suspendedEntry {
	more := a.Demand.Sub(a.Occupied.Resources).Max(Resources{})
	return suspendedEntry{ResumeOrder: a.ResumeOrder(), slot: slot, node: a.Node, cpu: more[CPU], memory: more[Memory]}
}

// find returns the index of the first entry not before e, and whether that entry has the order of e. O(log entries).
func (l *suspendedList) find(e *suspendedEntry) (int, bool) {
	i := sort.Search(len(l.entries), func(k int) bool { return l.entries[k].Compare(e.ResumeOrder) >= 0 })
	return i, i < len(l.entries) && l.entries[i].Compare(e.ResumeOrder) == 0
}

const minRemoved = 64 // how many removed entries a list may always have

// add adds an attempt. O(1) amortised at the end; O(log entries) for an attempt that was removed; else O(entries).
func (l *suspendedList) add(a *Attempt, slot int32) {
	e, i := newSuspendedEntry(a, slot), len(l.entries)
	l.live++
	if i > 0 && e.Compare(l.entries[i-1].ResumeOrder) <= 0 {
		var left bool
		if i, left = l.find(&e); left {
			l.entries[i] = e
			return
		}
	}
	l.entries = slices.Insert(l.entries, i, e)
	if len(l.entries) > 2*l.live+minRemoved && l.readers == 0 {
		l.entries = slices.DeleteFunc(l.entries, func(e suspendedEntry) bool { return e.slot < 0 })
	}
}

// remove removes an attempt. O(log entries).
func (l *suspendedList) remove(a *Attempt, slot int32) {
	e := newSuspendedEntry(a, slot)
	i, _ := l.find(&e)
	l.entries[i].slot = ^slot
	l.live--
}

// Suspended yields the attempts in phase AttemptSuspended that are not parked, in the order of
// their suspension. Actions may be applied meanwhile.
func (at Attempts) Suspended() iter.Seq[*Attempt] {
	return at.suspended(func(*suspendedEntry) bool { return true })
}

// Resumable yields the attempts of Suspended whose node, which may be draining, has the CPU and
// memory that they need to run again. Actions may be applied meanwhile.
func (at Attempts) Resumable() iter.Seq[*Attempt] {
	c := &at.s.cluster
	return at.suspended(func(e *suspendedEntry) bool {
		if free := &c.fit.free[e.node]; *free != unschedulable {
			return e.fits(free[0], free[1])
		}
		n := c.nodes[e.node]
		return !n.Spec.Down && e.fits(n.Free[CPU], n.Free[Memory])
	})
}

// fits reports whether the needed CPU and memory are free. A resource of which none is needed fits
// even if its free amount is negative (as in FitsBack).
func (e *suspendedEntry) fits(cpu, memory int64) bool {
	return (e.cpu == 0 || e.cpu <= cpu) && (e.memory == 0 || e.memory <= memory)
}

func (at Attempts) suspended(include func(*suspendedEntry) bool) iter.Seq[*Attempt] {
	return func(yield func(*Attempt) bool) {
		at.s.suspended.readers++
		defer func() { at.s.suspended.readers-- }()
		for i := range at.s.suspended.entries {
			if e := &at.s.suspended.entries[i]; e.slot >= 0 && include(e) {
				if a := at.at(e.slot); !a.Parked && a.Phase == AttemptSuspended && !yield(a) {
					return
				}
			}
		}
	}
}
