package node

import (
	"sync"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
)

// spareIO gives what is charged to no attempt more of the disk while it works for
// suspended tasks: dumps, restores and dumps on their way. Else that has the
// node's reserve, a tenth of the disk, and a dump of 1 GB would hold up for
// minutes what the room was taken back for. On top of it now comes what is handed
// out to nobody at that moment, so the sum never exceeds what was measured.
type spareIO struct {
	d *daemon

	mu    sync.Mutex
	users int // dumps and restores under way
}

// SystemLimiter is what an Enforcer can do besides that limits what is charged to
// no attempt.
type SystemLimiter interface {
	// LimitSystem allows so many bytes per second of reads, and as much of writes,
	// on each disk.
	LimitSystem(io int64) error
}

// during widens the limit while f runs. That it cannot be widened only makes f
// slower.
func (s *spareIO) during(f func() error) error {
	s.change(1)
	defer s.change(-1)
	return f()
}

func (s *spareIO) change(by int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.users += by
	s.setLocked()
}

// resize is to be called before a limit of an attempt is written: what it is
// given may have been lent.
func (s *spareIO) resize() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.users > 0 {
		s.setLocked()
	}
}

func (s *spareIO) setLocked() {
	e, ok := s.d.cfg.Enforcer.(SystemLimiter)
	measured := s.d.cfg.Info.GetMeasured().GetIo()
	if !ok || measured <= 0 {
		return
	}
	io := measured - s.d.cfg.Info.GetAllocatable().GetIo()
	if s.users > 0 {
		io = max(io, measured-s.d.handedOutIO())
	}
	if err := e.LimitSystem(io); err != nil {
		s.d.log.Warn("the disk's limit for what is charged to nobody stays as it is", "want", io, "err", err)
	}
}

// handedOutIO is the disk I/O of all attempts that may be at work, in bytes per
// second.
func (d *daemon) handedOutIO() (sum int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, a := range d.attempts {
		w, spec := a.goal()
		if w != nil && w.GetGoal() != droverv1.Goal_GOAL_KEEP && w.GetLevel() <= droverv1.Level_LEVEL_RUNNING {
			sum += spec.GetDemand().GetIo()
		}
	}
	return sum
}
