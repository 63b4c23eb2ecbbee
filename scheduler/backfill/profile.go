package backfill

import (
	"fmt"
	"slices"
	"time"

	"github.com/drover-run/drover/scheduler"
)

// maxDims bounds the resources of a bin: what it has in common and two for
// each of its disks.
const maxDims = 2*scheduler.MaxDisks + MaxBase

// MaxBase bounds the resources a bin has besides those of its disks.
const MaxBase = 16

// Need is what a reservation takes of a bin: Base of the resources that the
// bin has in common (for a node CPU and memory; for a pool its totals) and, of
// one of its disks, IO bytes per second and Space bytes. Needs share their
// Base slice freely: nobody changes it.
type Need struct {
	Base  []int64
	IO    int64
	Space int64
}

// NodeNeed is the need of a task of this demand and disk space on a node.
func NodeNeed(d scheduler.Resources, space int64) Need {
	return Need{Base: []int64{d[scheduler.CPU], d[scheduler.Memory]}, IO: d[scheduler.IO], Space: space}
}

// Check tells what is wrong with a need: a part that is negative or above
// scheduler.MaxAmount, or too many parts.
func (n *Need) Check() error {
	if len(n.Base) > MaxBase {
		return fmt.Errorf("%d resources: at most %d", len(n.Base), MaxBase)
	}
	for i, v := range n.Base {
		if v < 0 || v > scheduler.MaxAmount {
			return fmt.Errorf("resource %d is %d: want 0 to %d", i, v, int64(scheduler.MaxAmount))
		}
	}
	if n.IO < 0 || n.IO > scheduler.MaxAmount || n.Space < 0 || n.Space > scheduler.MaxAmount {
		return fmt.Errorf("io is %d and space %d: want 0 to %d", n.IO, n.Space, int64(scheduler.MaxAmount))
	}
	return nil
}

// IsZero tells whether nothing is needed.
func (n *Need) IsZero() bool {
	for _, v := range n.Base {
		if v != 0 {
			return false
		}
	}
	return n.IO == 0 && n.Space == 0
}

// Spot is a place in a Profile: a bin, one of its disks (-1 without) and an
// instant.
type Spot struct {
	Bin  int32
	Disk int16
	At   scheduler.Time
}

// Profile says what is free in each of a number of bins at every instant to
// come: two-tier Fig. 7 and Table 5 with a B+tree for the list. A bin is a
// node, or a pool of totals. Times are half-open, [start, end); an end of
// scheduler.Never is for ever. The zero Profile is empty and ready for use.
//
// Room means that each resource of the bin has at least what is needed left,
// also those of which nothing is needed: a node that shrank below what it
// promised takes nothing more until that has passed.
type Profile struct {
	bins []bin
	vec  [maxDims]int64 // scratch
	log  changeLog
	// forgot is the place in log up to which bins have forgotten the past.
	forgot uint64
}

type bin struct {
	free    timeline
	total   []int64
	base    int
	disks   int
	closed  bool
	version uint64 // raised by each change
}

// AddBin adds a bin with its capacities: the resources in common and, for each
// disk, its I/O and space. It returns the bin's number, counted from 0.
func (p *Profile) AddBin(base []int64, disks ...scheduler.Disk) int32 {
	if len(base) > MaxBase || len(disks) > scheduler.MaxDisks {
		panic(fmt.Sprintf("backfill: a bin of %d resources and %d disks", len(base), len(disks)))
	}
	total := capacity(base, disks)
	p.bins = append(p.bins, bin{free: newTimeline(total), total: total, base: len(base), disks: len(disks)})
	p.touched(int32(len(p.bins) - 1))
	return int32(len(p.bins) - 1)
}

func capacity(base []int64, disks []scheduler.Disk) []int64 {
	total := slices.Clone(base)
	for _, d := range disks {
		total = append(total, d.IO, d.Space)
	}
	return total
}

// AddNode adds a node as a bin: CPU and memory in common, then its disks. A
// node that takes no work is a closed bin. Bins and nodes have the same
// numbers when nodes are added in order of id.
func (p *Profile) AddNode(n *scheduler.NodeSpec) int32 {
	b := p.AddBin([]int64{n.Capacity[scheduler.CPU], n.Capacity[scheduler.Memory]}, n.Disks...)
	p.bins[b].closed = n.Down || n.Draining
	return b
}

// Resize changes a bin's capacities, what is reserved stays. False means that
// the number of resources or disks is another: then the bin has to be made
// again.
func (p *Profile) Resize(b int32, base []int64, disks ...scheduler.Disk) bool {
	x := &p.bins[b]
	if len(base) != x.base || len(disks) != x.disks {
		return false
	}
	total := capacity(base, disks)
	d := p.vec[:len(total)]
	for i := range total {
		d[i] = total[i] - x.total[i]
	}
	if !slices.Equal(total, x.total) {
		x.total = total
		x.free.change(dawn, scheduler.Never, d)
		p.touched(b)
	}
	return true
}

// Close tells whether the searches may use the bin. What is reserved stays.
func (p *Profile) Close(b int32, closed bool) {
	p.bins[b].closed = closed
	p.touched(b)
}

// touched tells whoever follows the profile that a bin changed.
func (p *Profile) touched(b int32) {
	p.bins[b].version++
	p.log.add(b, len(p.bins))
}

// Closed tells whether the bin is closed.
func (p *Profile) Closed(b int32) bool { return p.bins[b].closed }

// Bins is the number of bins.
func (p *Profile) Bins() int32 { return int32(len(p.bins)) }

// Disks is the number of disks of a bin.
func (p *Profile) Disks(b int32) int { return p.bins[b].disks }

// Steps is the number of steps of a bin's timeline.
func (p *Profile) Steps(b int32) int { return p.bins[b].free.steps() }

// Version is raised by each change of a bin.
func (p *Profile) Version(b int32) uint64 { return p.bins[b].version }

// vector writes a need on a disk of a bin as the bin's resources; false where
// it can never be met there.
func (p *Profile) vector(b int32, disk int16, n *Need, sign int64) ([]int64, bool) {
	x := &p.bins[b]
	if len(n.Base) != x.base || int(disk) >= x.disks || (disk < 0 && (n.IO != 0 || n.Space != 0)) {
		return nil, false
	}
	d := p.vec[:x.base+2*x.disks]
	clear(d)
	for i, v := range n.Base {
		d[i] = sign * v
	}
	if disk >= 0 {
		d[x.base+2*int(disk)], d[x.base+2*int(disk)+1] = sign*n.IO, sign*n.Space
	}
	return d, true
}

// Take reserves a need on a bin and disk in [start, end), whether there is room
// or not: what is free may become negative. It panics where the bin has other
// resources or no such disk. O(log n).
func (p *Profile) Take(b int32, disk int16, start, end scheduler.Time, n *Need) {
	p.change(b, disk, start, end, n, -1)
}

// Give takes a reservation back: the inverse of Take. A part of it can be given
// back by its own times. O(log n).
func (p *Profile) Give(b int32, disk int16, start, end scheduler.Time, n *Need) {
	p.change(b, disk, start, end, n, 1)
}

func (p *Profile) change(b int32, disk int16, start, end scheduler.Time, n *Need, sign int64) {
	p.changeBriefly(b, disk, start, end, n, sign)
	if start < end {
		p.touched(b)
	}
}

// changeBriefly is change by a caller that takes it back before anybody else
// asks.
func (p *Profile) changeBriefly(b int32, disk int16, start, end scheduler.Time, n *Need, sign int64) {
	d, ok := p.vector(b, disk, n, sign)
	if !ok {
		panic(fmt.Sprintf("backfill: a need of %d resources on disk %d of bin %d", len(n.Base), disk, b))
	}
	if start < end {
		p.bins[b].free.change(start, end, d)
	}
}

// Fits tells whether there is room during [start, end). O(log n).
func (p *Profile) Fits(b int32, disk int16, start, end scheduler.Time, n *Need) bool {
	d, ok := p.vector(b, disk, n, 1)
	if !ok {
		return false
	}
	return p.bins[b].free.first(start, d, false) >= end
}

// FitsAt tells whether there is room at an instant. O(log n).
func (p *Profile) FitsAt(b int32, disk int16, at scheduler.Time, n *Need) bool {
	d, ok := p.vector(b, disk, n, 1)
	return ok && p.bins[b].free.first(at, d, true) == at
}

// Over gives the first instant in [start, end) at which more is reserved in a
// bin than it has, or Never. O(log n).
func (p *Profile) Over(b int32, start, end scheduler.Time) scheduler.Time {
	x := &p.bins[b]
	d := p.vec[:len(x.total)]
	clear(d)
	if at := x.free.first(start, d, false); at < end {
		return at
	}
	return scheduler.Never
}

// nextFit gives the first instant from at on at which a bin is not over
// capacity.
func (p *Profile) nextFit(b int32, at scheduler.Time) scheduler.Time {
	x := &p.bins[b]
	d := p.vec[:len(x.total)]
	clear(d)
	return x.free.first(at, d, true)
}

// Free copies what is free in a bin at an instant, first the resources in
// common, then I/O and space of each disk, into out, and returns it.
func (p *Profile) Free(b int32, at scheduler.Time, out []int64) []int64 {
	x := &p.bins[b]
	out = slices.Grow(out[:0], len(x.total))[:len(x.total)]
	x.free.at(at, out)
	return out
}

// Each walks a bin's steps from an instant on: each instant at which what is
// free changes and what is free from then on. free is good until yield returns.
func (p *Profile) Each(b int32, from scheduler.Time, yield func(at scheduler.Time, free []int64) bool) {
	p.bins[b].free.each(from, yield)
}

// EarliestOn gives the first instant in [from, before) from which on a bin has
// room for the need during span, and the disk: earliestStartingTime of two-tier
// Table 5 for one bin. Ties go to the first disk. False where there is none.
// O(disks x log n) for each change between room and no room before it.
func (p *Profile) EarliestOn(b int32, from scheduler.Time, span time.Duration, before scheduler.Time, n *Need) (Spot, bool) {
	x := &p.bins[b]
	best := Spot{Bin: b, Disk: -1, At: scheduler.Never}
	if x.disks == 0 {
		if d, ok := p.vector(b, -1, n, 1); ok {
			best.At = x.free.earliest(from, scheduler.Time(span), before, d)
		}
		return best, best.At < before
	}
	for disk := range int16(x.disks) {
		d, ok := p.vector(b, disk, n, 1)
		if !ok {
			break
		}
		if at := x.free.earliest(from, scheduler.Time(span), min(before, best.At), d); at < best.At {
			best.At, best.Disk = at, disk
		}
	}
	return best, best.At < before
}

// LatestOn gives the last instant in [from, by] from which on a bin has room for the
// need during span, and the disk; ties go to the first disk. False where there is
// none. O(disks x log n) for each change between room and no room behind it.
func (p *Profile) LatestOn(b int32, from scheduler.Time, span time.Duration, by scheduler.Time, n *Need) (Spot, bool) {
	x := &p.bins[b]
	best := Spot{Bin: b, Disk: -1, At: -scheduler.Never}
	if x.disks == 0 {
		if d, ok := p.vector(b, -1, n, 1); ok {
			best.At = x.free.latest(from, scheduler.Time(span), by, d)
		}
		return best, best.At >= from
	}
	for disk := int16(0); disk < int16(x.disks) && best.At < by; disk++ {
		d, ok := p.vector(b, disk, n, 1)
		if !ok {
			break
		}
		if at := x.free.latest(from, scheduler.Time(span), by, d); at > best.At {
			best.At, best.Disk = at, disk
		}
	}
	return best, best.At >= from
}

// roomBefore gives the first instant at or after from from which on there is room
// for a need up to another instant: that one where there is none just before it.
// O(log n).
func (p *Profile) roomBefore(b int32, disk int16, from, by scheduler.Time, n *Need) scheduler.Time {
	d, ok := p.vector(b, disk, n, 1)
	if !ok || from >= by {
		return by
	}
	t := &p.bins[b].free
	t.prepare()
	if end, bad := t.last(t.root, 0, from, by, scheduler.Never, d, false); bad {
		return min(end, by)
	}
	return from
}

// EarliestAt is EarliestOn for one disk (-1 where the bin has none).
func (p *Profile) EarliestAt(b int32, disk int16, from scheduler.Time, span time.Duration, before scheduler.Time, n *Need) (Spot, bool) {
	s := Spot{Bin: b, Disk: disk, At: scheduler.Never}
	if d, ok := p.vector(b, disk, n, 1); ok {
		s.At = p.bins[b].free.earliest(from, scheduler.Time(span), before, d)
	}
	return s, s.At < before
}

// Earliest is EarliestOn over all bins that are not closed; ties go to the
// lowest bin. O(bins) and what EarliestOn costs up to the answer.
func (p *Profile) Earliest(from scheduler.Time, span time.Duration, before scheduler.Time, n *Need) (Spot, bool) {
	best, found := Spot{Bin: -1, Disk: -1, At: scheduler.Never}, false
	for b := range p.bins {
		if p.bins[b].closed {
			continue
		}
		if s, ok := p.EarliestOn(int32(b), from, span, before, n); ok {
			if best, found = s, true; s.At <= from {
				break
			}
			before = s.At
		}
	}
	return best, found
}

// Forget drops what is known of the time before an instant, on the bins that
// changed since the last call: the others have grown by nothing. Amortised O(log n)
// a step dropped.
func (p *Profile) Forget(before scheduler.Time) {
	if !p.log.since(p.forgot, func(b int32) { p.bins[b].free.forget(before) }) {
		for b := range p.bins {
			p.bins[b].free.forget(before)
		}
	}
	p.forgot = p.log.head
}
