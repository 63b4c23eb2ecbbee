package node

import (
	"log/slog"
	"sync"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
)

// unallocatedIO lends unallocated disk bandwidth to work that is charged to no attempt and serves
// suspended tasks: dumps, restores, transfers of dumps, and checksums of the tasks' folders.
// Otherwise that work has only the node's reserve, a tenth of the disk, and a dump of 1 GB would
// delay the preempting task by minutes. The loan is the bandwidth not allocated to running
// attempts, so the sum never exceeds what was measured.
type unallocatedIO struct {
	limiter   systemLimiter // nil: nothing can be limited
	info      *droverv1.NodeInfo
	allocated func() int64 // to running attempts, bytes per second
	log       *slog.Logger

	mu    sync.Mutex
	users int // dumps, restores and transfers under way
}

// systemLimiter is an optional ability of an Enforcer: it limits work that is
// charged to no attempt.
type systemLimiter interface {
	// LimitSystem sets the bytes per second of reads, and the same of writes, on
	// each disk.
	LimitSystem(io int64) error
}

func newUnallocatedIO(cfg *Config, allocated func() int64) *unallocatedIO {
	l, _ := cfg.Enforcer.(systemLimiter)
	return &unallocatedIO{limiter: l, info: cfg.Info, allocated: allocated, log: cfg.Log}
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

// refresh must be called before the limits of an attempt are written, because the attempt's
// bandwidth may be on loan.
func (s *unallocatedIO) refresh() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.users > 0 {
		s.applyLocked()
	}
}

func (s *unallocatedIO) applyLocked() {
	measured := s.info.GetMeasured().GetIo()
	if s.limiter == nil || measured <= 0 {
		return
	}
	io := measured - s.info.GetAllocatable().GetIo()
	if s.users > 0 {
		io = max(io, measured-s.allocated())
	}
	if err := s.limiter.LimitSystem(io); err != nil {
		s.log.Warn("cannot change the I/O limit of system work", "want", io, "err", err)
	}
}
