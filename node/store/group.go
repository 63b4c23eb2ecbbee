package store

import (
	"runtime"
	"sync"

	"go.etcd.io/bbolt"
)

// group commits changes of records in shared transactions: the first caller commits at once, and
// changes that arrive meanwhile share the next transaction. A single change waits for nobody. The
// slower the disk, the more changes a transaction has.
type group struct {
	write func(func(*bbolt.Tx) error) error // a transaction

	mu         sync.Mutex // guards the fields below
	committing bool
	waiting    []*change
}

// change is one change of a record. turn receives a value when its caller must commit
// the next transaction, and is closed when the change has been committed.
type change struct {
	apply func(*bbolt.Tx) error
	turn  chan struct{}
	err   error
}

// commit returns when the change is durable. If a transaction fails, all its changes get the error,
// which means that the file cannot be written.
func (g *group) commit(apply func(*bbolt.Tx) error) error {
	c := &change{apply: apply, turn: make(chan struct{}, 1)}
	g.mu.Lock()
	g.waiting = append(g.waiting, c)
	leads := !g.committing
	g.committing = true
	g.mu.Unlock()
	if !leads {
		if _, leads = <-c.turn; !leads {
			return c.err
		}
	}
	runtime.Gosched() // on a fast disk nobody would wait: let goroutines join that are ready
	g.mu.Lock()
	all := g.waiting
	g.waiting = nil
	g.mu.Unlock()
	err := g.write(func(tx *bbolt.Tx) error {
		for _, c := range all {
			if err := c.apply(tx); err != nil {
				return err
			}
		}
		return nil
	})
	for _, c := range all {
		c.err = err
		close(c.turn)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.committing = len(g.waiting) > 0; g.committing {
		g.waiting[0].turn <- struct{}{} // its caller commits the waiting changes, including its own
	}
	return err
}
