package reuse

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/runtime"
)

// Engine is what this package needs of an engine.
type Engine interface {
	runtime.Driver
	runtime.Images
	runtime.Execer
	runtime.Preparer
	runtime.Sweeper
	runtime.Checkpointer
	runtime.Dumper
	runtime.StoppedRestorer
}

// Config locates the driver's own files.
type Config struct {
	Dir    string   // for records and sockets, in memory
	Init   []string // argv of process 1: an absolute path, and arguments before taskinit's verb
	Logger string   // executable that takes logger's verb, as absolute path
	Mount  string   // of cgroup2
	Cgroup string   // below Mount, with a child for process 1 of each container, e.g. "/drover/reused"
}

// Limits of a container that is used again.
const (
	maxTasks = 1000
	maxAge   = time.Hour
)

// labelReused marks the engine's containers that tasks share.
const labelReused = "drover.reused"

// undoLimit bounds what must be done after a context has ended.
const undoLimit = time.Minute

// Driver is a runtime.Driver. What has no Reuse key goes to the engine.
type Driver struct {
	Engine
	cfg Config
	wg  sync.WaitGroup // of goroutines that read from containers

	mu         sync.Mutex
	tasks      map[string]*task
	containers map[string]*container // open ones, by ID
	opening    map[string]bool       // those that are being made
	closed     bool
	opened     int // containers that were made
}

var (
	_ runtime.Driver = (*Driver)(nil)
	_ runtime.Reuser = (*Driver)(nil)
)

// New returns a driver with the tasks of an earlier one in the same folder.
func New(e Engine, cfg Config) (*Driver, error) {
	for _, p := range []string{cfg.tasksDir(), cfg.socketsDir()} {
		if err := os.MkdirAll(p, 0o700); err != nil {
			return nil, err
		}
	}
	d := &Driver{Engine: e, cfg: cfg, containers: map[string]*container{}, opening: map[string]bool{}}
	var err error
	d.tasks, err = loadTasks(cfg.tasksDir())
	return d, err
}

func (c Config) tasksDir() string   { return filepath.Join(c.Dir, "tasks") }
func (c Config) socketsDir() string { return filepath.Join(c.Dir, "sockets") }

// Close closes the connections to all containers. Tasks keep running.
func (d *Driver) Close() error {
	d.mu.Lock()
	d.closed = true
	for _, c := range d.containers {
		c.conn.Close()
	}
	d.mu.Unlock()
	d.wg.Wait()
	return nil
}

// find returns a task, or nil.
func (d *Driver) find(id string) *task {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.tasks[id]
}

// Create implements runtime.Driver.
func (d *Driver) Create(ctx context.Context, s runtime.Spec) error {
	if s.Reuse == "" {
		if d.find(s.ID) != nil {
			return fault.New(fault.Exists, "container %s exists with another spec: delete it first", s.ID)
		}
		return d.Engine.Create(ctx, s)
	}
	if err := s.Validate(); err != nil {
		return err
	}
	if s.Cgroup == "" || s.Cgroup == "/" {
		return fault.New(fault.Invalid, "container %s: no cgroup: it would run without limits", s.ID)
	}
	if err := checkMounts(s); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if old := d.tasks[s.ID]; old != nil {
		if old.rec.Spec.Fingerprint() != s.Fingerprint() {
			return fault.New(fault.Exists, "container %s exists with another spec: delete it first", s.ID)
		}
		return nil
	}
	t := newTask(record{Spec: s})
	if err := t.save(d.cfg); err != nil {
		return err
	}
	d.tasks[s.ID] = t
	return nil
}

// checkMounts refuses mounts that could not be replaced one by one.
func checkMounts(s runtime.Spec) error {
	for _, m := range s.Mounts {
		for _, o := range s.Mounts {
			if strings.HasPrefix(o.Target, m.Target+"/") {
				return fault.New(fault.Invalid, "container %s: mount on %s inside of that on %s, in a container that is used again", s.ID, o.Target, m.Target)
			}
		}
		if m.Target == initTarget || m.Target == socketTarget || m.Target == shmPath || strings.HasPrefix(shmPath, m.Target+"/") {
			return fault.New(fault.Invalid, "container %s: mount on %s, in a container that is used again", s.ID, m.Target)
		}
	}
	return nil
}

// Prepare implements runtime.Preparer. There is nothing to do for a task here: process 1
// is not in its cgroup while it is made.
func (d *Driver) Prepare(ctx context.Context, id string) error {
	if d.find(id) != nil {
		return nil
	}
	return d.Engine.Prepare(ctx, id)
}

// Start implements runtime.Driver.
func (d *Driver) Start(ctx context.Context, id string) error {
	t := d.find(id)
	if t == nil {
		return d.Engine.Start(ctx, id)
	}
	if err := t.lock(ctx); err != nil {
		return err
	}
	defer t.unlock()
	if err := d.undoFailed(ctx, t); err != nil {
		return err
	}
	if t.wasStarted() {
		return nil
	}
	c := d.take(t.rec.Spec)
	if c == nil {
		var err error
		if c, err = d.open(ctx, t.rec.Spec); err != nil {
			return err
		}
	}
	err := d.run(ctx, c, t)
	if err == nil {
		return nil
	}
	t.mu.Lock()
	t.failed = c
	t.mu.Unlock()
	undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoLimit)
	defer cancel()
	return errors.Join(err, d.undoFailed(undo, t))
}

// undoFailed deletes the container in which a task did not start, if there is one. While that
// cannot be done, as the engine is away, the task is not started.
func (d *Driver) undoFailed(ctx context.Context, t *task) error {
	t.mu.Lock()
	c := t.failed
	t.mu.Unlock()
	if c == nil {
		return nil
	}
	if err := errors.Join(d.killGroup(ctx, t.rec.Spec.Cgroup), d.discard(ctx, c)); err != nil {
		return err
	}
	t.mu.Lock()
	t.rec.Container, t.rec.Sent, t.rec.PID, t.c, t.failed = "", false, 0, nil, nil
	t.mu.Unlock()
	return t.save(d.cfg)
}

// Wait implements runtime.Driver.
func (d *Driver) Wait(ctx context.Context, id string) (runtime.Status, error) {
	t := d.find(id)
	if t == nil {
		return d.Engine.Wait(ctx, id)
	}
	if inherited, container := t.inherited(); inherited {
		st, err := d.Engine.Wait(ctx, container)
		if errors.Is(err, fault.NotFound) {
			st, err = runtime.Status{ExitCode: runtime.ExitLost, Exited: time.Now()}, nil
		}
		if err != nil {
			return runtime.Status{}, err
		}
		t.end(d.cfg, st.ExitCode, st.Exited)
	}
	select {
	case <-t.done:
	case <-ctx.Done():
		return runtime.Status{}, ctx.Err()
	}
	if d.find(id) != t {
		return runtime.Status{}, fault.New(fault.NotFound, "container %s was deleted", id)
	}
	return t.status(), nil
}

// List implements runtime.Driver. It has tasks instead of the containers that they use.
func (d *Driver) List(ctx context.Context) ([]runtime.Status, error) {
	all, err := d.Engine.List(ctx)
	if err != nil {
		return nil, err
	}
	shared := map[string]runtime.Status{}
	all = slices.DeleteFunc(all, func(s runtime.Status) bool {
		if isShared(s) {
			shared[s.ID] = s
		}
		return isShared(s)
	})
	d.mu.Lock()
	tasks := make([]*task, 0, len(d.tasks))
	for _, t := range d.tasks {
		tasks = append(tasks, t)
	}
	d.mu.Unlock()
	for _, t := range tasks {
		s := t.status()
		if inherited, container := t.inherited(); inherited {
			switch of, ok := shared[container]; {
			case !ok:
				s.Phase, s.ExitCode, s.Exited = runtime.PhaseStopped, runtime.ExitLost, s.Started
			case of.Phase == runtime.PhaseStopped:
				s.Phase, s.ExitCode, s.Exited = of.Phase, t.exitCode(of.ExitCode), of.Exited
			default:
				s.Phase = of.Phase
			}
		}
		if s.Phase != runtime.PhaseRunning {
			s.PID = 0
		}
		all = append(all, s)
	}
	slices.SortFunc(all, func(a, b runtime.Status) int { return strings.Compare(a.ID, b.ID) })
	return all, nil
}

// isShared reports whether a container of the engine is one that tasks share.
func isShared(s runtime.Status) bool { return s.Labels[labelReused] != "" }

// Kill implements runtime.Driver.
func (d *Driver) Kill(ctx context.Context, id string, sig syscall.Signal) error {
	t := d.find(id)
	if t == nil {
		return d.Engine.Kill(ctx, id, sig)
	}
	if err := t.lock(ctx); err != nil { // while it starts, process 1 is in its cgroup
		return err
	}
	defer t.unlock()
	if s := t.status(); s.Phase != runtime.PhaseRunning {
		return nil
	}
	t.setKilled()
	if sig == syscall.SIGKILL {
		return d.killGroup(ctx, t.rec.Spec.Cgroup)
	}
	return d.cfg.signalGroup(t.rec.Spec.Cgroup, sig)
}

// Delete implements runtime.Driver.
func (d *Driver) Delete(ctx context.Context, id string) error {
	t := d.find(id)
	if t == nil {
		return d.Engine.Delete(ctx, id)
	}
	if err := t.lock(ctx); err != nil {
		return err
	}
	defer t.unlock()
	if err := d.deleteContainerOf(ctx, t); err != nil {
		return err
	}
	if err := t.remove(d.cfg); err != nil {
		return err
	}
	d.mu.Lock()
	if d.tasks[id] == t {
		delete(d.tasks, id)
	}
	d.mu.Unlock()
	t.closeDone()
	return nil
}

// deleteContainerOf ends the task, and deletes its container unless that can be used again.
func (d *Driver) deleteContainerOf(ctx context.Context, t *task) error {
	if err := d.undoFailed(ctx, t); err != nil {
		return err
	}
	if !t.wasStarted() {
		return nil
	}
	t.setKilled() // no matter if it has ended
	if err := d.killGroup(ctx, t.rec.Spec.Cgroup); err != nil {
		return err
	}
	if t.c != nil {
		select {
		case <-t.over:
		case <-ctx.Done():
			return ctx.Err()
		}
		if t.c.isDoomed() {
			return d.discard(ctx, t.c)
		}
		return nil
	}
	t.mu.Lock()
	t.rec.Ended = true // it does not need the container any more
	t.mu.Unlock()
	if _, needed := d.use(t.rec.Container, 0); needed {
		return nil
	}
	return d.deleteShared(ctx, t.rec.Container)
}

// Exec implements runtime.Execer.
func (d *Driver) Exec(ctx context.Context, id string, x runtime.ExecSpec) (int, error) {
	t := d.find(id)
	if t == nil {
		return d.Engine.Exec(ctx, id, x)
	}
	if len(x.Args) == 0 {
		return 0, fault.New(fault.Invalid, "exec in container %s: no command", id)
	}
	if s := t.status(); s.Phase != runtime.PhaseRunning {
		return 0, fault.New(fault.Conflict, "container %s is %s: exec needs a running one", id, s.Phase)
	}
	if inherited, _ := t.inherited(); inherited {
		return 0, fault.New(fault.Conflict, "container %s is used again, and the node daemon was restarted while its task runs: exec cannot enter it", id)
	}
	return d.exec(ctx, t, x)
}

// Checkpoint implements runtime.Checkpointer.
func (d *Driver) Checkpoint(ctx context.Context, id, dir string) error {
	if err := d.checkOwn(id); err != nil {
		return err
	}
	return d.Engine.Checkpoint(ctx, id, dir)
}

// Dump implements runtime.Dumper.
func (d *Driver) Dump(ctx context.Context, id, dir string) error {
	if err := d.checkOwn(id); err != nil {
		return err
	}
	return d.Engine.Dump(ctx, id, dir)
}

// checkOwn refuses to dump a task that shares its container.
func (d *Driver) checkOwn(id string) error {
	if d.find(id) == nil {
		return nil
	}
	return fault.New(fault.Unsupported, "container %s is used again: it can be frozen and swapped, not dumped; the task's next attempt has a container of its own", id)
}

// Restore implements runtime.Checkpointer: a restored container is never shared.
func (d *Driver) Restore(ctx context.Context, s runtime.Spec, dir string) error {
	s.Reuse = ""
	return d.Engine.Restore(ctx, s, dir)
}

// RestoreStopped implements runtime.StoppedRestorer.
func (d *Driver) RestoreStopped(ctx context.Context, s runtime.Spec, dir string) error {
	s.Reuse = ""
	return d.Engine.RestoreStopped(ctx, s, dir)
}

// Leftovers implements runtime.Sweeper; CloseIdle removes those of shared containers.
func (d *Driver) Leftovers(ctx context.Context) ([]runtime.Leftover, error) {
	all, err := d.Engine.Leftovers(ctx)
	return slices.DeleteFunc(all, func(l runtime.Leftover) bool { return strings.HasPrefix(l.ID, sharedPrefix) }), err
}
