package replica

import (
	"errors"
	"sync/atomic"

	"github.com/hashicorp/raft"

	"github.com/drover-run/drover/coordinator/raftstore"
	"github.com/drover-run/drover/internal/fault"
)

// watchedStore remembers the first error of a write, and writes nothing after it. Raft
// answers a log that cannot be written with a change of leadership, and a vote with a
// refusal; the cause it keeps to itself. A term that cannot be written makes it panic.
type watchedStore struct {
	*raftstore.Store
	failed  atomic.Pointer[error]
	broken  chan struct{}            // closed with the first error
	fault   func(written bool) error // of tests; nil for none
	running chan func() raft.Future  // nil before raft is started; then what ends it, once there is that
}

// termKey is where raft keeps its term.
const termKey = "CurrentTerm"

// StoreLog implements raft.LogStore.
func (w *watchedStore) StoreLog(l *raft.Log) error {
	return w.write(func() error { return w.Store.StoreLog(l) })
}

// StoreLogs implements raft.LogStore.
func (w *watchedStore) StoreLogs(logs []*raft.Log) error {
	return w.write(func() error { return w.Store.StoreLogs(logs) })
}

// DeleteRange implements raft.LogStore. Of an error raft says a word in its log and goes on, with
// entries that a snapshot has replaced.
func (w *watchedStore) DeleteRange(first, last uint64) error {
	return w.write(func() error { return w.Store.DeleteRange(first, last) })
}

// Set implements raft.StableStore.
func (w *watchedStore) Set(key, value []byte) error {
	return w.write(func() error { return w.Store.Set(key, value) })
}

// SetUint64 implements raft.StableStore. Where it is raft's term that cannot be written it ends
// raft and returns nil, for raft panics on an error. The term that raft then has in memory alone
// does no harm: it answers the call that it is at, and as nothing is written any more it stores no
// entry and gives no vote in that term.
func (w *watchedStore) SetUint64(key []byte, value uint64) error {
	isTerm := string(key) == termKey
	if isTerm {
		if have, err := w.Store.GetUint64(key); err == nil && have == value { // a start writes what it has read
			return nil
		}
	}
	err := w.write(func() error { return w.Store.SetUint64(key, value) })
	if err == nil || !isTerm || w.running == nil {
		return err
	}
	select {
	case end := <-w.running:
		w.running <- end
		end() // Replica.Close waits for it
	default: // raft is being started, and what starts it looks at the error
	}
	return nil
}

// write performs a write unless one has failed before, or a test has it fail, before or after it.
func (w *watchedStore) write(do func() error) error {
	if err := w.failed.Load(); err != nil {
		return *err
	}
	if w.fault == nil {
		return w.note(do())
	}
	err := w.fault(false)
	if err == nil {
		err = do()
	}
	if err == nil {
		err = w.fault(true)
	}
	return w.note(err)
}

func (w *watchedStore) note(err error) error {
	if err != nil && w.failed.CompareAndSwap(nil, &err) {
		close(w.broken)
	}
	return err
}

// Broken is closed when a write of log, vote or term has failed: see WriteError.
func (r *Replica) Broken() <-chan struct{} { return r.store.broken }

// WriteError returns why log, vote or term cannot be written, nil if they can: a server
// of which one failed does nothing more, nor does one whose log a newer program wrote.
func (r *Replica) WriteError() error {
	err := r.store.failed.Load()
	switch {
	case err == nil:
		return nil
	case errors.Is(*err, fault.Unsupported):
		return fault.New(fault.Unsupported, "%w; nothing is lost: start this coordinator with the version of drover that its cluster has, or a newer one", *err)
	default:
		return fault.New(fault.Unavailable, "the log cannot be written in %s: %w; nothing that was accepted is lost: make room on its disk, or mend it, and start the coordinator again", r.dir, *err)
	}
}
