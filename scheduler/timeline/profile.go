package timeline

import (
	"fmt"
	"slices"
	"time"
)

// maxDims is the largest number of resources of a bin: its base resources and two for
// each of its disks.
const maxDims = 2*MaxDisks + MaxBase

// MaxDisks is the largest number of disks of a bin.
const MaxDisks = 64

// MaxAmount bounds each part of a need or a capacity: 2^53, so that shares in float64
// are exact.
const MaxAmount = 1 << 53

// Disk is the allocatable capacity of one disk: bytes per second and bytes.
type Disk struct{ IO, Space int64 }

// MaxBase is the largest number of resources of a bin besides those of its disks.
const MaxBase = 16

// Need is what a reservation takes of a bin: Base of the bin's base resources (CPU and
// memory for a node; the totals for a pool) and, on one of its disks, IO bytes per
// second and Space bytes. Base slices may be shared between needs and must not be
// changed.
type Need struct {
	Base  []int64
	IO    int64
	Space int64
}

// IsZero reports whether all parts are zero.
func (n *Need) IsZero() bool {
	for _, v := range n.Base {
		if v != 0 {
			return false
		}
	}
	return n.IO == 0 && n.Space == 0
}

// Spot is a place in a Profile: a bin, one of its disks (-1 for none) and a start time.
type Spot struct {
	Bin  int32
	Disk int16
	At   Time
}

// Profile records the free capacity of a number of bins at every future time: two-tier
// Fig. 7 and Table 5, with a B+tree for the list. A bin is a node, or a pool of totals.
// Intervals are half-open, [start, end); the end Never means for ever. The
// zero Profile is empty and ready for use.
//
// A need fits if the bin has at least that much of each resource left, also of resources with a
// zero need: nothing fits on a node that shrank below its reservations until those have passed.
type Profile struct {
	bins    []bin
	scratch [maxDims]int64 // scratch
	log     changeLog
	// forgottenPos is the position in log up to which Forget has trimmed the changed
	// bins.
	forgottenPos uint64
}

type bin struct {
	free    timeline
	total   []int64
	base    int
	disks   int
	closed  bool
	version uint64 // incremented by each change
	within  uint64 // 1 + the version at which it was last found within capacity
}

// Grow makes space for n more bins.
func (p *Profile) Grow(n int) { p.bins = slices.Grow(p.bins, n) }

// AddBin adds a bin with the given capacities of its base resources and, for each disk,
// of its I/O and space. It returns the bin's index, from 0.
func (p *Profile) AddBin(base []int64, disks ...Disk) int32 {
	if len(base) > MaxBase || len(disks) > MaxDisks {
		panic(fmt.Sprintf("timeline: a bin of %d resources and %d disks", len(base), len(disks)))
	}
	total := capacity(base, disks)
	p.bins = append(p.bins, bin{free: newTimeline(total), total: total, base: len(base), disks: len(disks)})
	p.MarkChanged(int32(len(p.bins) - 1))
	return int32(len(p.bins) - 1)
}

func capacity(base []int64, disks []Disk) []int64 {
	total := slices.Clone(base)
	for _, d := range disks {
		total = append(total, d.IO, d.Space)
	}
	return total
}

// Resize changes a bin's capacities of its base resources; its reservations stay. O(log n)
// if they differ.
func (p *Profile) Resize(b int32, base []int64) {
	x := &p.bins[b]
	if slices.Equal(base, x.total[:x.base]) {
		return
	}
	d := p.scratch[:len(x.total)]
	clear(d)
	for i := range base {
		d[i] = base[i] - x.total[i]
	}
	copy(x.total, base)
	x.free.change(minTime, Never, d)
	p.MarkChanged(b)
}

// SetClosed sets whether searches skip the bin. Its reservations stay.
func (p *Profile) SetClosed(b int32, closed bool) {
	p.bins[b].closed = closed
	p.MarkChanged(b)
}

// MarkChanged records a change of a bin for the readers of the change log.
func (p *Profile) MarkChanged(b int32) {
	p.bins[b].version++
	p.log.add(b, len(p.bins))
}

// Closed reports whether searches skip the bin.
func (p *Profile) Closed(b int32) bool { return p.bins[b].closed }

// Bins returns the number of bins.
func (p *Profile) Bins() int32 { return int32(len(p.bins)) }

// Disks returns the number of disks of a bin.
func (p *Profile) Disks(b int32) int { return p.bins[b].disks }

// Steps returns the number of steps of a bin's timeline.
func (p *Profile) Steps(b int32) int { return p.bins[b].free.numSteps() }

// BaseSize returns the number of base resources of a bin.
func (p *Profile) BaseSize(b int32) int { return p.bins[b].base }

// CanReplace reports whether bin b has at least the capacity of another bin, with the
// same resources and disks.
func (p *Profile) CanReplace(b, other int32) bool {
	x, y := &p.bins[b], &p.bins[other]
	return x.base == y.base && x.disks == y.disks && fits(y.total, x.total)
}

// ChangePosition returns the current position in the log of changed bins, for
// ChangedSince. O(1).
func (p *Profile) ChangePosition() uint64 { return p.log.head }

// ChangedSince yields, in order, the bins that changed since the log was at a position;
// a bin may occur more than once. It returns false, and yields nothing, if the log has
// wrapped.
func (p *Profile) ChangedSince(at uint64, yield func(int32)) bool { return p.log.since(at, yield) }

// Version returns a number that each change of the bin increments.
func (p *Profile) Version(b int32) uint64 { return p.bins[b].version }

// demandVector converts a need on a disk of a bin, times sign, to the bin's vector of
// resources. It returns false if the bin can never satisfy the need. The result is
// valid until the next call.
func (p *Profile) demandVector(b int32, disk int16, n *Need, sign int64) ([]int64, bool) {
	x := &p.bins[b]
	if len(n.Base) != x.base || int(disk) >= x.disks || (disk < 0 && (n.IO != 0 || n.Space != 0)) {
		return nil, false
	}
	d := p.scratch[:x.base+2*x.disks]
	clear(d)
	for i, v := range n.Base {
		d[i] = sign * v
	}
	if disk >= 0 {
		d[x.base+2*int(disk)], d[x.base+2*int(disk)+1] = sign*n.IO, sign*n.Space
	}
	return d, true
}

// Reserve takes a need from a bin and disk in [start, end) whether it fits or not: the
// free capacity may become negative. It panics if the need's resources or the disk do
// not match the bin. O(log n).
func (p *Profile) Reserve(b int32, disk int16, start, end Time, n *Need) {
	p.Change(b, disk, start, end, n, -1)
}

// Release returns a reservation: the inverse of Reserve. A sub-interval can be released
// on its own. O(log n).
func (p *Profile) Release(b int32, disk int16, start, end Time, n *Need) {
	p.Change(b, disk, start, end, n, 1)
}

// Change is Reserve for sign -1, and Release for 1.
func (p *Profile) Change(b int32, disk int16, start, end Time, n *Need, sign int64) {
	p.ChangeUnlogged(b, disk, start, end, n, sign)
	if start < end {
		p.MarkChanged(b)
	}
}

// ChangeUnlogged is Change without a log entry, for a caller that undoes the change before any
// other reader reads the bin.
func (p *Profile) ChangeUnlogged(b int32, disk int16, start, end Time, n *Need, sign int64) {
	d, ok := p.demandVector(b, disk, n, sign)
	if !ok {
		panic(fmt.Sprintf("timeline: a need of %d resources on disk %d of bin %d", len(n.Base), disk, b))
	}
	if start < end {
		p.bins[b].free.change(start, end, d)
	}
}

// Fits reports whether the need fits during all of [start, end). O(log n).
func (p *Profile) Fits(b int32, disk int16, start, end Time, n *Need) bool {
	d, ok := p.demandVector(b, disk, n, 1)
	if !ok {
		return false
	}
	return p.bins[b].free.firstWhere(start, d, false) >= end
}

// FirstMisfit returns the first time in [start, end) at which the need does not fit, or Never.
// O(log n).
func (p *Profile) FirstMisfit(b int32, disk int16, start, end Time, n *Need) Time {
	d, ok := p.demandVector(b, disk, n, 1)
	if !ok {
		return start
	}
	if at := p.bins[b].free.firstWhere(start, d, false); at < end {
		return at
	}
	return Never
}

// FitsAt reports whether the need fits at one point in time. O(log n).
func (p *Profile) FitsAt(b int32, disk int16, at Time, n *Need) bool {
	d, ok := p.demandVector(b, disk, n, 1)
	return ok && p.bins[b].free.firstWhere(at, d, true) == at
}

// FirstFit returns the first time at or after from at which the need fits on some disk of a bin,
// if only for a moment, Never if there is none. O(disks x log n).
func (p *Profile) FirstFit(b int32, from Time, n *Need) Time {
	disks := int16(p.bins[b].disks)
	first := Never
	for disk := min(disks, 1) - 1; disk < max(disks, 1) && first > from; disk++ {
		d, ok := p.demandVector(b, disk, n, 1)
		if !ok {
			break
		}
		first = min(first, p.bins[b].free.firstWhere(from, d, true))
	}
	return first
}

// FirstOverCapacity returns the first time in [start, end) at which more than its
// capacity is reserved in a bin, or Never. O(log n).
func (p *Profile) FirstOverCapacity(b int32, start, end Time) Time {
	x := &p.bins[b]
	d := p.scratch[:len(x.total)]
	clear(d)
	if at := x.free.firstWhere(start, d, false); at < end {
		return at
	}
	return Never
}

// IsWithinCapacity reports whether no more than its capacity is reserved in a bin from
// a time on. O(1) if it held and the bin has not changed, else O(log n).
func (p *Profile) IsWithinCapacity(b int32, from Time) bool {
	x := &p.bins[b]
	if x.within != x.version+1 && p.FirstOverCapacity(b, from, Never) == Never {
		x.within = x.version + 1
	}
	return x.within == x.version+1
}

// FirstWithinCapacity returns the first time at or after at when the bin is not over
// capacity.
func (p *Profile) FirstWithinCapacity(b int32, at Time) Time {
	x := &p.bins[b]
	d := p.scratch[:len(x.total)]
	clear(d)
	return x.free.firstWhere(at, d, true)
}

// Free copies a bin's free capacity at a point in time into out and returns it: the
// base resources, then I/O and space of each disk.
func (p *Profile) Free(b int32, at Time, out []int64) []int64 {
	x := &p.bins[b]
	out = slices.Grow(out[:0], len(x.total))[:len(x.total)]
	x.free.freeAt(at, out)
	return out
}

// Each yields the steps of a bin from a time on: each time at which the free capacity
// changes, and the free capacity from then on. The slice is valid until yield returns.
func (p *Profile) Each(b int32, from Time, yield func(at Time, free []int64) bool) {
	p.bins[b].free.eachStep(from, yield)
}

// EarliestOn returns the first start in [from, before) at which the need fits on a bin
// for the whole duration, and the disk: earliestStartingTime of two-tier Table 5 for
// one bin. Ties go to the first disk. It returns false if there is no such start.
// O(disks x log n) for each change between fitting and not fitting before it.
func (p *Profile) EarliestOn(b int32, from Time, duration time.Duration, before Time, n *Need) (Spot, bool) {
	x := &p.bins[b]
	best := Spot{Bin: b, Disk: -1, At: Never}
	if x.disks == 0 {
		if d, ok := p.demandVector(b, -1, n, 1); ok {
			best.At = x.free.earliest(from, Time(duration), before, d)
		}
		return best, best.At < before
	}
	for disk := range int16(x.disks) {
		d, ok := p.demandVector(b, disk, n, 1)
		if !ok {
			break
		}
		if at := x.free.earliest(from, Time(duration), min(before, best.At), d); at < best.At {
			best.At, best.Disk = at, disk
		}
	}
	return best, best.At < before
}

// EarliestFreeUntil returns the first time at or after from since which the need fits
// continuously up to by; it returns by if the need does not fit just before it. O(log
// n).
func (p *Profile) EarliestFreeUntil(b int32, disk int16, from, by Time, n *Need) Time {
	d, ok := p.demandVector(b, disk, n, 1)
	if !ok || from >= by {
		return by
	}
	t := &p.bins[b].free
	t.growScratch()
	if end, bad := t.lastEnd(t.root, 0, from, by, Never, d, false); bad {
		return min(end, by)
	}
	return from
}

// EarliestAt is EarliestOn for one disk (-1 for none).
func (p *Profile) EarliestAt(b int32, disk int16, from Time, duration time.Duration, before Time, n *Need) (Spot, bool) {
	s := Spot{Bin: b, Disk: disk, At: Never}
	if d, ok := p.demandVector(b, disk, n, 1); ok {
		s.At = p.bins[b].free.earliest(from, Time(duration), before, d)
	}
	return s, s.At < before
}

// Earliest is EarliestOn over all bins that are not closed; ties go to the lowest bin.
// O(bins), plus the cost of EarliestOn up to the result.
func (p *Profile) Earliest(from Time, duration time.Duration, before Time, n *Need) (Spot, bool) {
	best, found := Spot{Bin: -1, Disk: -1, At: Never}, false
	for b := range p.bins {
		if p.bins[b].closed {
			continue
		}
		if s, ok := p.EarliestOn(int32(b), from, duration, before, n); ok {
			if best, found = s, true; s.At <= from {
				break
			}
			before = s.At
		}
	}
	return best, found
}

// Forget drops the steps before a time on the bins that changed since the last call;
// the others have not grown. Amortised O(log n) for each dropped step.
func (p *Profile) Forget(before Time) {
	if !p.log.since(p.forgottenPos, func(b int32) { p.bins[b].free.forget(before) }) {
		for b := range p.bins {
			p.bins[b].free.forget(before)
		}
	}
	p.forgottenPos = p.log.head
}
