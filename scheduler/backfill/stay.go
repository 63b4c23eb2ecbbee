package backfill

import (
	"math"
	"slices"
	"time"

	"github.com/drover-run/drover/scheduler"
)

// A task with a soft bound that cannot be made to leave its bin stays there: its capacity is
// reserved until the bin leaves, or for ever. It starts only where at least its bound is left until
// then. A task of unknown run time starts also where less is left.

// anyDisk stands for each disk of a bin.
const anyDisk = -2

// SetWindows sets when a bin will be away, in order. The profile must have nothing free there
// meanwhile. The slice must not change until it is replaced.
func (p *Planner) SetWindows(b int32, windows []scheduler.Window) {
	if s := p.bins.bin(b); !slices.Equal(s.windows, windows) {
		s.windows = windows
		p.space.profile.MarkChanged(b)
	}
}

// staysOn reports whether a task stays on a bin once it has started.
func (s *bins) staysOn(r *Request, b int32) bool {
	return r.SoftBound && (r.Stays || s.bin(b).nonPreemptible)
}

// leaves reports whether a task's reservation may end when a bin leaves.
func (s *bins) leaves(r *Request, b int32) bool {
	return len(s.bin(b).windows) > 0 && (r.Unknown || s.staysOn(r, b))
}

// durationOn returns the duration reserved for a task on a bin that does not leave.
func (s *bins) durationOn(r *Request, b int32) time.Duration {
	if s.staysOn(r, b) {
		return math.MaxInt64
	}
	return r.Bound
}

// endOn returns until when capacity is reserved for a task that starts on a bin at a time.
func (s *bins) endOn(r *Request, b int32, at scheduler.Time) scheduler.Time {
	end := at.Add(s.durationOn(r, b))
	if s.leaves(r, b) {
		for _, w := range s.states[b].windows {
			if w.From > at {
				return min(end, w.From)
			}
		}
	}
	return end
}

// leavesTooEarly reports whether a bin leaves before a task's bound has passed from a spot on.
func (s *bins) leavesTooEarly(r *Request, at *Spot) bool {
	return s.leaves(r, at.Bin) && !r.Unknown && s.endOn(r, at.Bin, at.At).Sub(at.At) < r.Bound
}

// earliestOn returns the earliest spot for a task on a bin in [from, before), on the given disk or anyDisk.
func (f *search) earliestOn(p *Planner, r *Request, b int32, disk int16, from, before scheduler.Time) (Spot, bool) {
	if !p.bins.leaves(r, b) {
		return f.earliestFor(p, r, b, disk, from, before)
	}
	least := r.Bound
	if r.Unknown {
		least = 1
	}
	for _, w := range p.bins.states[b].windows {
		by := min(before, w.From.Add(1-least))
		s, ok := f.earliestFor(p, r, b, disk, from, by)
		if u, fits := f.earliestUntil(p, r, b, disk, from, by, w.From); fits && (!ok || u.At < s.At || (u.At == s.At && u.Disk < s.Disk)) {
			s, ok = u, true
		}
		if ok {
			return s, true
		}
		from = max(from, w.To)
	}
	return f.earliestFor(p, r, b, disk, from, before)
}

// earliestFor is earliestOn for a bin that does not leave later.
func (f *search) earliestFor(p *Planner, r *Request, b int32, disk int16, from, before scheduler.Time) (Spot, bool) {
	switch {
	case from >= before:
		return Spot{Bin: b, Disk: -1, At: scheduler.Never}, false
	case disk == anyDisk:
		return p.space.profile.EarliestOn(b, from, p.bins.durationOn(r, b), before, &r.Need)
	default:
		return p.space.profile.EarliestAt(b, disk, from, p.bins.durationOn(r, b), before, &r.Need)
	}
}

// earliestUntil returns the earliest spot in [from, before) from which the need fits until end.
func (f *search) earliestUntil(p *Planner, r *Request, b int32, disk int16, from, before, end scheduler.Time) (Spot, bool) {
	best := Spot{Bin: b, Disk: -1, At: before}
	if from >= before {
		return best, false
	}
	first, last := disk, disk
	if disk == anyDisk {
		disks := int16(p.space.profile.Disks(b))
		first, last = min(disks, 1)-1, disks-1
	}
	for d := first; d <= last; d++ {
		if at := p.space.profile.EarliestFreeUntil(b, d, from, end, &r.Need); at < best.At {
			best.Disk, best.At = d, at
		}
	}
	return best, best.At < before
}
