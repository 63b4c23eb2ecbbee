package replica

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/drover-run/drover/internal/fault"
)

// A server whose disk fails at the term of its own election ends by itself with the cause: raft
// panics where a term cannot be written. Nothing that it accepted is lost.
func TestATermThatCannotBeWrittenEndsTheServer(t *testing.T) {
	for _, failsWritten := range []bool{false, true} {
		var full atomic.Bool
		c := Config{Dir: t.TempDir(), ID: "c1", NoSync: true, LogFault: func(written bool) error {
			if full.Load() && written == failsWritten {
				return syscall.ENOSPC
			}
			return nil
		}}
		r := open(t, c)
		until(t, "it leads", r.Leads)
		if _, err := r.Propose(context.Background(), tenant(1)); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(r.WriteError(), r.Close()); err != nil {
			t.Fatal(err)
		}
		full.Store(true)
		r = open(t, c)
		select {
		case <-r.Broken():
		case <-time.After(time.Minute):
			t.Fatal("it goes on")
		}
		err := r.WriteError()
		if !errors.Is(err, fault.Unavailable) || !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), "the log cannot be written in "+c.Dir) || !strings.Contains(err.Error(), "make room") {
			t.Errorf("failing after the write %v: %v", failsWritten, err)
		}
		full.Store(false) // also then it writes nothing
		if err := r.store.Set([]byte("k"), nil); !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("a write after one that failed: %v", err)
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
		r = open(t, c)
		until(t, "it leads and has everything", func() bool { return r.Leads() && count(r) == 1 })
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}
}

// A server that is to join writes its first term while raft is being started, when nothing can end raft yet: at whichever write its disk
// fails, its start ends with the cause.
func TestADiskThatFailsWhileRaftStarts(t *testing.T) {
	c := newTestCluster(t)
	c.stop(2)
	for good := range 6 {
		writes := 0
		c.dirs[2], c.logFault = t.TempDir(), func(bool) error {
			if writes++; writes > good {
				return syscall.ENOSPC
			}
			return nil
		}
		done := make(chan error, 1)
		go func() { done <- c.start(2, nil) }()
		select {
		case err := <-done:
			switch {
			case err == nil && writes > good:
				t.Errorf("the disk fails after %d writes, and the server starts", good)
			case err == nil:
				c.stop(2)
			case !errors.Is(err, syscall.ENOSPC):
				t.Errorf("the disk fails after %d writes: %v", good, err)
			}
		case <-time.After(time.Minute):
			t.Fatalf("the disk fails after %d writes, and the start does not end", good)
		}
	}
}

// A deletion of entries that fails ends the server as a write does: what a snapshot has replaced would stay before the
// entries after it.
func TestAFailedDeletionEndsTheServer(t *testing.T) {
	var full atomic.Bool
	r := open(t, Config{Dir: t.TempDir(), ID: "c1", NoSync: true, LogFault: func(bool) error {
		if full.Load() {
			return syscall.ENOSPC
		}
		return nil
	}})
	until(t, "it leads", r.Leads)
	full.Store(true)
	if err := r.store.DeleteRange(1, 1); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("%v", err)
	}
	select {
	case <-r.Broken():
	case <-time.After(time.Minute):
		t.Fatal("it goes on")
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
}
