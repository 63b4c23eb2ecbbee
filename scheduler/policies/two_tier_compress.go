package policies

import (
	"encoding/binary"
	"hash/fnv"
	"math"
	"slices"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/backfill"
)

// compress compresses the schedule if, since the last time, capacity was released earlier than
// planned or the nodes changed. It returns the policy state that records this.
func (f *reservingPolicy) compress(s *scheduler.State, now scheduler.Time) (mark scheduler.PolicyState, compressed bool) {
	h := fnv.New64a()
	write := func(v uint64) { h.Write(binary.LittleEndian.AppendUint64(nil, v)) }
	write(s.Reservations().UnplannedReleases())
	if f.plan.margin > 0 {
		write(s.History().TaskCount()) // with a margin, an end at the bound is early too
	}
	write(uint64(s.Cluster().SchedulableNodes()))
	for _, v := range s.Cluster().Total() {
		write(uint64(v))
	}
	mark = scheduler.PolicyState{PolicyStateKey: scheduler.PolicyStateKey{Kind: scheduler.CursorState, Slot: compressStateSlot}, Value: int64(h.Sum64())}
	if old, ok := s.PolicyState(mark.PolicyStateKey); ok && old.Value == mark.Value {
		return mark, false
	}
	planClock := f.plan.planner.FreedClock()
	if _, done := f.plan.planner.Compress(now, backfill.Position{Submitted: math.MinInt64}, math.MaxInt); !done {
		f.plan.unfinished = true // the next compression begins again with the last in order
		return mark, false
	}
	f.compressed = compression{timeline: f.plan.timeline, clock: f.plan.timeline.FreeClock(), mark: mark, fresh: true,
		planClock: planClock, freed: f.compressed.freed[:0]}
	clear(f.plan.notSearched)
	for _, k := range f.plan.pinned { // all others were searched for on all nodes
		f.plan.notSearched[k] = true
	}
	return mark, true
}

// compression describes the last compression of the schedule, after which no task could start
// earlier. It only saves searches: without it the next compression considers all nodes.
type compression struct {
	timeline  *scheduler.Timeline // nil: the next compression considers all nodes
	clock     uint64              // FreeClock of the timeline at the compression
	mark      scheduler.PolicyState
	moved     []scheduler.Reservation // reservations moved by the decision
	fresh     bool                    // moved must be recorded when the decision is complete
	planClock uint64                  // FreedClock of the planner before the compression, 0 in a later round
	// freed marks the bins that planning has freed since planClock. Work that was there only while
	// a round planned was never in the State, but others were placed around it.
	freed []bool
}

// recordFreed records, at the end of a round, the bins that its planning has freed.
func (c *compression) recordFreed(planner *backfill.Planner) {
	if c.timeline == nil {
		return
	}
	planner.FreedSince(c.planClock, func(b int32) {
		if int(b) >= len(c.freed) {
			c.freed = append(c.freed, make([]bool, int(b)+1-len(c.freed))...)
		}
		c.freed[b] = true
	})
	c.planClock = 0
}

// record records which reservations the decision changes.
func (c *compression) record(s *scheduler.State, actions []scheduler.Action) {
	c.fresh = false
	for i := range actions {
		if a := &actions[i]; a.Kind == scheduler.ActReserve {
			if r := s.Reservations().Get(a.Reservation.ID); r != nil {
				c.moved = append(c.moved, *r)
			}
		}
	}
}

// isCurrent reports whether the State is as the compression left it, except for later events on the
// timeline.
func (c *compression) isCurrent(s *scheduler.State, t *scheduler.Timeline) bool {
	if c.timeline != t {
		return false
	}
	if mark, _ := s.PolicyState(c.mark.PolicyStateKey); mark.Value != c.mark.Value {
		return false
	}
	return !slices.ContainsFunc(c.moved, func(was scheduler.Reservation) bool {
		r := s.Reservations().Get(was.ID)
		return r != nil && *r != was
	})
}

// compressStateSlot is the slot of the policy state with the fingerprint of the last compression.
const compressStateSlot = 2
