package coordinator

import "time"

// standstill detects that the loop did not run for a while: the process was stopped, its machine
// was suspended or moved, its disk stalled, or the clock was set forward. Reports of nodes waited
// unread meanwhile, so their leases must not end because of it.
type standstill struct {
	lastLook time.Time // zero before the first look
}

// lookEvery returns the longest time between two looks at the leases.
func lookEvery(lease time.Duration) time.Duration { return max(lease/4, time.Millisecond) }

// observe records a look at the leases, and returns how long the loop stood still before it, 0 if
// it did not. Being late by a quarter of a lease does not count: nodes report five times in a
// lease.
func (s *standstill) observe(now time.Time, lease time.Duration) time.Duration {
	gap := now.Sub(s.lastLook)
	first := s.lastLook.IsZero()
	s.lastLook = now
	if first || gap <= 2*lookEvery(lease) {
		return 0
	}
	return gap
}

// renewAll grants every node with a session a full lease from now on.
func (s *sessions) renewAll(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, n := range s.nodes {
		if n.lastReport.Before(now) {
			n.leaseFrom = now
		}
	}
}

// leaseEnd returns when the node's lease ends unless it reports.
func (n *nodeSession) leaseEnd(lease time.Duration) time.Time {
	from := n.lastReport
	if n.leaseFrom.After(from) {
		from = n.leaseFrom
	}
	return from.Add(lease)
}
