package containerd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/runtime"
)

// fakeProc has processes 7 and 8 in one cgroup, which is frozen or not; state is that of a thread of 8.
func fakeProc(t *testing.T, state, frozen string) Config {
	t.Helper()
	c := Config{proc: filepath.Join(t.TempDir(), "proc"), cgroupMount: filepath.Join(t.TempDir(), "cgroup")}
	write := func(path, text string) {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(filepath.Join(c.proc, "7", "cgroup"), "0::/drover/tasks/a/container\n")
	write(filepath.Join(c.cgroupMount, "drover/tasks/a/container/cgroup.procs"), "7\n8\n")
	write(filepath.Join(c.cgroupMount, "drover/tasks/a/container/cgroup.events"), "populated 1\nfrozen "+frozen+"\n")
	for _, id := range []string{"7/task/7", "8/task/8", "8/task/9"} {
		s := "S"
		if id == "8/task/9" {
			s = state
		}
		write(filepath.Join(c.proc, id, "stat"), fmt.Sprintf("%s (a) D b) %s 1 2 3", filepath.Base(id), s))
	}
	return c
}

func TestDumpWaitsForBlockedProcesses(t *testing.T) {
	d := &Driver{cfg: fakeProc(t, "S", "0")}
	if err := d.awaitStoppable(t.Context(), "a", 7); err != nil {
		t.Errorf("without a blocked thread: %v", err)
	}
	d.cfg = fakeProc(t, "D", "0")
	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := d.awaitStoppable(short, "a", 7); !errors.Is(err, fault.Conflict) || errors.Is(err, runtime.ErrMustRun) || !strings.Contains(err.Error(), "process 8") {
		t.Errorf("with a blocked thread: %v", err)
	}
	// It ends as soon as the thread is not blocked any more.
	done := make(chan error, 1)
	go func() { done <- d.awaitStoppable(t.Context(), "a", 7) }()
	if err := os.WriteFile(filepath.Join(d.cfg.proc, "8/task/9/stat"), []byte("9 (a) S 1"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Errorf("after it was unblocked: %v", err)
	}
}

// A process in state D that counts as frozen is a parent from vfork to the exec of its child: no wait helps.
func TestDumpDoesNotWaitForFrozenParents(t *testing.T) {
	d := &Driver{cfg: fakeProc(t, "D", "1")}
	if err := d.awaitStoppable(t.Context(), "a", 7); !errors.Is(err, fault.Conflict) || !errors.Is(err, runtime.ErrMustRun) || !strings.Contains(err.Error(), "process 8") {
		t.Errorf("with a frozen parent: %v", err)
	}
	d.cfg = fakeProc(t, "S", "1")
	if err := d.awaitStoppable(t.Context(), "a", 7); err != nil {
		t.Errorf("all frozen: %v", err)
	}
}
