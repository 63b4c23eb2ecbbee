package runtimetest

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"syscall"
	"time"

	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/runtime"
)

// usedAgain runs containers with one Reuse key in order, two of them at the same time.
func usedAgain(s *suite) {
	if s.Shared == nil {
		s.t.Skip("not proved here: that containers are used again; this subject has none")
	}
	s.closeIdle()
	before, _ := s.Shared()
	n := 0
	made := func(what string, want int) {
		s.t.Helper()
		if opened, _ := s.Shared(); opened-before != want {
			s.t.Errorf("%s: %d containers were made for all until now, want %d", what, opened-before, want)
		}
	}
	start := func(args ...string) string {
		n++
		spec := s.Spec(s.t, fmt.Sprintf("shared-%d", n), args...)
		s.create(spec)
		s.start(spec.ID)
		return spec.ID
	}
	end := func(id string, code int) {
		s.t.Helper()
		if st := s.wait(id); st.ExitCode != code {
			s.t.Errorf("%s: exit code %d, want %d", id, st.ExitCode, code)
		} else if !st.Shared {
			s.t.Errorf("%s: its status does not say that it shared a container", id)
		}
		s.delete(id)
	}
	stop := s.keepClosing() // a container that is being made is not idle
	id := start("exit", "0")
	stop()
	end(id, 0)
	for range 2 {
		end(start("exit", "0"), 0)
	}
	made("three that exit with 0", 1)
	end(start("exit", "3"), 3)
	made("one that fails runs in it too", 1)
	one, two := start("sleep"), start("exit", "0")
	end(two, 0)
	made("after that another, and one for a second at the same time", 3)
	s.kill(one, syscall.SIGKILL)
	end(one, 137)
	end(start("exit", "0"), 0)
	made("a killed one spoils its container alone", 3)
	unshared := s.Spec(s.t, "shared-again", "exit", "0")
	s.create(unshared)
	unshared.Reuse = ""
	if err := s.verb("create", func(ctx context.Context) error { return s.d.Create(ctx, unshared) }); !errors.Is(err, fault.Exists) {
		s.t.Errorf("Create without a key of one that was created with it: %v, want fault.Exists", err)
	}
	s.delete(unshared.ID)
	s.closeIdle()
	if _, left := s.Shared(); left > 0 {
		s.t.Errorf("%d containers are left when none is used", left)
	}
}

// closeIdle closes all that no container uses.
func (s *suite) closeIdle() {
	s.t.Helper()
	s.must("close idle", s.verb("close idle", func(ctx context.Context) error { return s.d.(runtime.Reuser).CloseIdle(ctx, 0) }))
}

// keepClosing closes again and again what has been idle for an hour, as a node does, until stop is
// called.
func (s *suite) keepClosing() (stop func()) {
	ctx, cancel := context.WithCancel(s.t.Context())
	done := make(chan error, 1)
	go func() {
		for ctx.Err() == nil {
			if err := s.d.(runtime.Reuser).CloseIdle(ctx, time.Hour); err != nil && ctx.Err() == nil {
				done <- err
				return
			}
		}
		done <- nil
	}()
	return func() {
		s.t.Helper()
		cancel()
		if err := <-done; err != nil {
			s.t.Errorf("CloseIdle while a container is made: %v", err)
		}
	}
}

func sharedCheckpoint(s *suite) {
	c, ok := s.d.(runtime.Checkpointer)
	if s.Shared == nil || !ok {
		s.t.Skip("not proved here: that a container that is used again refuses a dump; this subject has none")
	}
	spec := s.Spec(s.t, "undumped", "sleep")
	s.create(spec)
	s.start(spec.ID)
	err := s.verb("checkpoint", func(ctx context.Context) error {
		return c.Checkpoint(ctx, spec.ID, filepath.Join(s.t.TempDir(), "dump"))
	})
	if !errors.Is(err, fault.Unsupported) {
		s.t.Errorf("Checkpoint: %v, want fault.Unsupported", err)
	}
	s.phase(spec.ID, runtime.PhaseRunning)
	s.delete(spec.ID)
}
