package node

import (
	"sync"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
)

// unallocatedIO lends unallocated disk bandwidth to work that is charged to no
// attempt while it serves suspended tasks: dumps, restores and transfers of
// dumps. Otherwise that work has only the node's reserve, a tenth of the disk,
// and a dump of 1 GB would delay the preempting task by minutes. The loan is the
// bandwidth not allocated to running attempts, so the sum never exceeds what was
// measured.
type unallocatedIO struct {
	d *daemon

	mu    sync.Mutex
	users int // dumps, restores and transfers under way
}

// SystemLimiter is an optional ability of an Enforcer: it limits work that is
// charged to no attempt.
type SystemLimiter interface {
	// LimitSystem sets the bytes per second of reads, and the same of writes, on
	// each disk.
	LimitSystem(io int64) error
}

// lendDuring raises the limit while f runs. A failure to raise it only makes f
// slower.
func (s *unallocatedIO) lendDuring(f func() error) error {
	s.addUsers(1)
	defer s.addUsers(-1)
	return f()
}

func (s *unallocatedIO) addUsers(by int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.users += by
	s.applyLocked()
}

// refresh must be called before the limits of an attempt are written: its
// bandwidth may be lent.
func (s *unallocatedIO) refresh() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.users > 0 {
		s.applyLocked()
	}
}

func (s *unallocatedIO) applyLocked() {
	e, ok := s.d.cfg.Enforcer.(SystemLimiter)
	measured := s.d.cfg.Info.GetMeasured().GetIo()
	if !ok || measured <= 0 {
		return
	}
	io := measured - s.d.cfg.Info.GetAllocatable().GetIo()
	if s.users > 0 {
		io = max(io, measured-s.d.allocatedIO())
	}
	if err := e.LimitSystem(io); err != nil {
		s.d.log.Warn("cannot change the I/O limit of system work", "want", io, "err", err)
	}
}

// allocatedIO returns the disk bandwidth of all attempts that may be running, in
// bytes per second.
func (d *daemon) allocatedIO() (sum int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, a := range d.attempts {
		w, spec := a.wantedAndSpec()
		if w != nil && w.GetGoal() != droverv1.Goal_GOAL_KEEP && w.GetLevel() <= droverv1.Level_LEVEL_RUNNING {
			sum += spec.GetDemand().GetIo()
		}
	}
	return sum
}
