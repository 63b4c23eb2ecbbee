package replica

import (
	"sync/atomic"

	"github.com/hashicorp/raft"

	"github.com/drover-run/drover/coordinator/raftstore"
	"github.com/drover-run/drover/internal/fault"
)

// watchedStore remembers the error that stopped writing the log. Raft answers it
// with a change of leadership and keeps the cause to itself.
type watchedStore struct {
	*raftstore.Store
	failed atomic.Pointer[error]
	fault  func(written bool) error // of tests; nil for none
}

// StoreLog implements raft.LogStore.
func (w *watchedStore) StoreLog(l *raft.Log) error {
	return w.write(func() error { return w.Store.StoreLog(l) })
}

// StoreLogs implements raft.LogStore.
func (w *watchedStore) StoreLogs(logs []*raft.Log) error {
	return w.write(func() error { return w.Store.StoreLogs(logs) })
}

// Set implements raft.StableStore.
func (w *watchedStore) Set(key, value []byte) error { return w.note(w.Store.Set(key, value)) }

// SetUint64 implements raft.StableStore.
func (w *watchedStore) SetUint64(key []byte, value uint64) error {
	return w.note(w.Store.SetUint64(key, value))
}

// write performs a write of entries unless a test has it fail, before or after it.
func (w *watchedStore) write(do func() error) error {
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
	if err != nil {
		w.failed.Store(&err)
	}
	return err
}

// WriteError returns why the log cannot be written, nil if it can: a server whose
// log failed once does nothing more.
func (r *Replica) WriteError() error {
	if err := r.store.failed.Load(); err != nil {
		return fault.New(fault.Unavailable, "the log cannot be written: %w; nothing that was accepted is lost: make room on its disk, or mend it, and start the coordinator again", *err)
	}
	return nil
}
