package coordinator

import (
	"context"
	"sync"
)

// leadership is the term in which this server leads, if it does. Everything that only a leader may
// do (loop, calls, streams) runs in the context of its term.
type leadership struct {
	mu    sync.Mutex
	term  uint64 // 0 while another server leads
	begun chan struct{}
	done  chan struct{}
}

func newLeadership() *leadership { return &leadership{begun: make(chan struct{})} }

// begin begins a term. Everything of earlier terms must have been applied.
func (l *leadership) begin(term uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.term, l.done = term, make(chan struct{})
	close(l.begun)
}

// end ends the calls and streams of the term.
func (l *leadership) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.term != 0 {
		l.term, l.begun = 0, make(chan struct{})
		close(l.done)
	}
}

// beginning returns a channel that is closed while this server leads.
func (l *leadership) beginning() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.begun
}

// current returns the term in which this server leads, and a channel that is
// closed when it stops; 0 if it does not lead.
func (l *leadership) current() (uint64, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.term, l.done
}

// leads reports whether this server leads and answers.
func (l *leadership) leads() bool {
	term, _ := l.current()
	return term != 0
}

type termKey struct{}

// withTerm returns the context of a call that this server answers as the leader
// of a term.
func withTerm(ctx context.Context, term uint64) context.Context {
	return context.WithValue(ctx, termKey{}, term)
}

// termOf returns the term in which a call was admitted. Nodes are sent this term, and not the
// log's, which may already be that of another leader.
func termOf(ctx context.Context) uint64 {
	t, _ := ctx.Value(termKey{}).(uint64)
	return t
}
