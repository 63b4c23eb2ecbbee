package coordinator

import (
	"sync"

	"github.com/drover-run/drover/coordinator/facts"
)

// changeSignal wakes those who wait until facts or reports change.
type changeSignal struct {
	mu sync.Mutex
	ch chan struct{} // closed and replaced at each change
}

func newChangeSignal() *changeSignal { return &changeSignal{ch: make(chan struct{})} }

// notify wakes everything that waits for a change.
func (s *changeSignal) notify() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.ch)
	s.ch = make(chan struct{})
}

// notifyOfEnds calls notify if a job has ended or was forgotten.
func (s *changeSignal) notifyOfEnds(f *facts.Facts, changes []facts.Change) {
	for i := range changes {
		k := changes[i].Kind
		if j := f.Job(changes[i].Key.Job); k == facts.ChangeReset || k == facts.ChangeForgotten || k == facts.ChangeJob && (j == nil || j.HasEnded()) {
			s.notify()
			return
		}
	}
}

// next returns a channel that is closed at the next change.
func (s *changeSignal) next() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ch
}
