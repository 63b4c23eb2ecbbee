package reuse

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/runtime"
)

// record is what survives the daemon of a task. It is a file in memory: a machine that
// restarts has no tasks.
type record struct {
	Spec      runtime.Spec
	Container string // in which it was started; "" before
	// Sent is set when process 1 has started the command. Without it the exit of the
	// container may be that of the task before.
	Sent    bool
	PID     int // of the command, in the host's namespace
	Started time.Time
	Ended   bool
	Code    int
	Exited  time.Time
}

// task is a container of the callers.
type task struct {
	op        chan struct{} // holds a value while a verb changes it
	done      chan struct{} // closed when it has ended or was deleted
	over      chan struct{} // closed when its container is idle or doomed
	closeOnce sync.Once

	mu     sync.Mutex
	rec    record     // changed by the holder of op, except at the end
	c      *container // nil if it was not started by this driver
	killed bool       // it did not end by itself
	failed *container // in which its start failed, until that is undone; changed by the holder of op
}

func newTask(r record) *task {
	return &task{rec: r, op: make(chan struct{}, 1), done: make(chan struct{}), over: make(chan struct{})}
}

// loadTasks reads the records of an earlier driver.
func loadTasks(dir string) (map[string]*task, error) {
	files, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	all := map[string]*task{}
	for _, f := range files {
		path := filepath.Join(dir, f.Name())
		if !strings.HasSuffix(f.Name(), recordSuffix) { // a write was interrupted
			if err := os.Remove(path); err != nil {
				return nil, err
			}
			continue
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		var r record
		if err := json.Unmarshal(b, &r); err != nil {
			return nil, fault.New(fault.Corrupt, "%s: %w: remove it", path, err)
		}
		t := newTask(r)
		if r.Ended {
			t.closeDone()
		}
		all[r.Spec.ID] = t
	}
	return all, nil
}

const recordSuffix = ".json"

func (t *task) path(c Config) string { return filepath.Join(c.tasksDir(), t.rec.Spec.ID+recordSuffix) }

// save replaces the record's file.
func (t *task) save(c Config) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.saveLocked(c)
}

func (t *task) saveLocked(c Config) error {
	b, err := json.Marshal(t.rec)
	if err != nil {
		return err
	}
	if err := os.WriteFile(t.path(c)+".new", b, 0o600); err != nil {
		return err
	}
	return os.Rename(t.path(c)+".new", t.path(c))
}

func (t *task) remove(c Config) error {
	if err := os.Remove(t.path(c)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// lock makes the caller the only one that changes the task.
func (t *task) lock(ctx context.Context) error {
	select {
	case t.op <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (t *task) unlock() { <-t.op }

func (t *task) wasStarted() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.rec.Container != ""
}

// inherited reports whether an earlier driver started the task and its end is not known yet.
func (t *task) inherited() (bool, string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.rec.Container != "" && t.c == nil && !t.rec.Ended, t.rec.Container
}

// needs reports whether the task has not ended and was started in a container.
func (t *task) needs(container string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.rec.Container == container && !t.rec.Ended
}

// exitCode returns the exit code of an inherited task whose container has exited.
func (t *task) exitCode(code int) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.rec.Sent {
		return runtime.ExitLost
	}
	return code
}

func (t *task) setKilled() {
	t.mu.Lock()
	t.killed = true
	t.mu.Unlock()
}

// end ends the task, and stores that. Where it cannot be stored, the next driver takes the task for
// one whose end it has to find out.
func (t *task) end(c Config, code int, at time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.rec.Ended {
		if t.rec.Ended, t.rec.Code, t.rec.Exited = true, code, at; !t.rec.Sent {
			t.rec.Code = runtime.ExitLost
		}
		_ = t.saveLocked(c)
	}
	t.closeDone()
}

func (t *task) closeDone() { t.closeOnce.Do(func() { close(t.done) }) }

// status returns the status as far as this driver knows it.
func (t *task) status() runtime.Status {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := runtime.Status{ID: t.rec.Spec.ID, Phase: runtime.PhaseCreated, Started: t.rec.Started, Shared: true, Labels: maps.Clone(t.rec.Spec.Labels)}
	if s.Labels == nil {
		s.Labels = map[string]string{}
	}
	switch {
	case t.rec.Ended:
		s.Phase, s.ExitCode, s.Exited = runtime.PhaseStopped, t.rec.Code, t.rec.Exited
	case t.failed == nil && (t.rec.Sent || t.rec.Container != "" && t.c == nil):
		s.Phase, s.PID = runtime.PhaseRunning, t.rec.PID
	}
	return s
}
