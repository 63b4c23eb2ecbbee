package process

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/runtime"
)

// Config configures the driver.
type Config struct {
	StateDir    string // for the records of running processes; made if missing
	cgroupMount string // of cgroup2; "" means that no cgroup is entered
	SwitchUser  bool   // run as the Spec's UID and GID; needs root
}

// Driver implements runtime.Driver, Execer, HostPaths and Freezer.
type Driver struct {
	cfg    Config
	bootID string
	wg     sync.WaitGroup // one per process

	started *sync.Cond // of mu: a start has ended

	mu         sync.Mutex // guards the fields below; not held while a process is started
	closed     bool
	containers map[string]*container
}

// container is one container, guarded by Driver.mu.
type container struct {
	spec        runtime.Spec
	fingerprint string
	phase       runtime.Phase
	starting    bool // Start is about to make its process
	pid         int  // also its session and process group
	reaped      bool // the first process has ended: its PID may be another's, and nothing more is started
	exitCode    int
	started     time.Time
	exited      time.Time
	cpu         time.Duration // of the first process and those that it waited for
	peak        int64         // bytes, of the largest of them
	execs       map[int]bool  // process groups of Exec
	done        chan struct{} // closed when stopped or deleted
}

var (
	_ runtime.Driver    = (*Driver)(nil)
	_ runtime.Execer    = (*Driver)(nil)
	_ runtime.HostPaths = (*Driver)(nil)
)

// New makes the driver and kills what a killed daemon left running.
func New(cfg Config) (*Driver, error) {
	if cfg.SwitchUser && os.Geteuid() != 0 {
		return nil, fault.New(fault.Unsupported, "process driver: switching users needs root: run as root, or without user switching")
	}
	if err := os.MkdirAll(cfg.StateDir, 0o700); err != nil {
		return nil, fmt.Errorf("process driver: %w", err)
	}
	if err := killOrphans(cfg.StateDir); err != nil {
		return nil, fmt.Errorf("process driver: %w", err)
	}
	d := &Driver{cfg: cfg, bootID: bootID(), containers: map[string]*container{}}
	d.started = sync.NewCond(&d.mu)
	return d, nil
}

// Close kills all processes and waits for them.
func (d *Driver) Close() error {
	d.mu.Lock()
	d.closed = true
	for _, b := range d.containers {
		for b.starting {
			d.started.Wait()
		}
		b.signal(syscall.SIGKILL)
	}
	d.mu.Unlock()
	d.wg.Wait()
	return nil
}

// Name implements runtime.Driver.
func (d *Driver) Name() string { return "process" }

// HostPaths implements runtime.HostPaths.
func (d *Driver) HostPaths() bool { return true }

// Create implements runtime.Driver.
func (d *Driver) Create(_ context.Context, s runtime.Spec) error {
	if err := s.Validate(); err != nil {
		return err
	}
	if s.Image != "" || s.Rootfs != "" {
		return fault.New(fault.Unsupported, "task %s: plain processes have no image or root of their own: leave image out, or run on nodes with containerd", s.ID)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if b, ok := d.containers[s.ID]; ok {
		if b.fingerprint == s.Fingerprint() {
			return nil
		}
		return fault.New(fault.Exists, "container %s exists with another spec: delete it first", s.ID)
	}
	d.containers[s.ID] = &container{spec: s, fingerprint: s.Fingerprint(), phase: runtime.PhaseCreated, execs: map[int]bool{}, done: make(chan struct{})}
	return nil
}

// Wait implements runtime.Driver.
func (d *Driver) Wait(ctx context.Context, id string) (runtime.Status, error) {
	d.mu.Lock()
	b, err := d.findLocked(id)
	d.mu.Unlock()
	if err != nil {
		return runtime.Status{}, err
	}
	select {
	case <-b.done:
	case <-ctx.Done():
		return runtime.Status{}, ctx.Err()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.containers[id] != b {
		return runtime.Status{}, fault.New(fault.NotFound, "container %s was deleted", id)
	}
	return b.status(), nil
}

// List implements runtime.Driver.
func (d *Driver) List(context.Context) ([]runtime.Status, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	var all []runtime.Status
	for _, id := range slices.Sorted(maps.Keys(d.containers)) {
		all = append(all, d.containers[id].status())
	}
	return all, nil
}

// Kill implements runtime.Driver.
func (d *Driver) Kill(_ context.Context, id string, sig syscall.Signal) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if b := d.lookUpLocked(id); b != nil {
		return b.signal(sig)
	}
	return nil
}

// Delete implements runtime.Driver.
func (d *Driver) Delete(ctx context.Context, id string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	b := d.lookUpLocked(id)
	if b == nil {
		return nil
	}
	if err := b.signal(syscall.SIGKILL); err != nil {
		return err
	}
	if b.phase == runtime.PhaseRunning {
		if err := d.awaitEndUnlocked(ctx, b); err != nil {
			return err
		}
	}
	if d.containers[id] == b {
		delete(d.containers, id)
		b.closeDone()
	}
	return nil
}

// awaitEndUnlocked waits until a running container has ended, without mu, which the caller holds.
// One that does not run yet may not be waited for: a start could come between.
func (d *Driver) awaitEndUnlocked(ctx context.Context, b *container) error {
	d.mu.Unlock()
	defer d.mu.Lock()
	select {
	case <-b.done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// lookUpLocked returns the container when no start of it is in progress, nil if there is none. It
// releases mu while it waits for a start.
func (d *Driver) lookUpLocked(id string) *container {
	for {
		b := d.containers[id]
		if b == nil || !b.starting {
			return b
		}
		d.started.Wait()
	}
}

// findLocked returns what lookUpLocked does, or fault.NotFound.
func (d *Driver) findLocked(id string) (*container, error) {
	b := d.lookUpLocked(id)
	if b == nil {
		return nil, fault.New(fault.NotFound, "container %s: not found", id)
	}
	return b, nil
}

func (b *container) status() runtime.Status {
	s := runtime.Status{ID: b.spec.ID, Phase: b.phase, ExitCode: b.exitCode, Started: b.started, Exited: b.exited, Labels: maps.Clone(b.spec.Labels), CPU: b.cpu, PeakMemory: b.peak}
	if b.runs() {
		s.PID = b.pid
	}
	return s
}

// runs reports whether the first process can be signalled: it is in the running phase, which lasts
// until its output has ended, and its PID is still its own.
func (b *container) runs() bool { return b.phase == runtime.PhaseRunning && !b.reaped }

// state returns the phase for messages.
func (b *container) state() string {
	if b.reaped && b.phase == runtime.PhaseRunning {
		return "ending"
	}
	return b.phase.String()
}

// signal signals the process groups of the container; the caller holds mu.
func (b *container) signal(sig syscall.Signal) error {
	if !b.runs() {
		return nil
	}
	errs := []error{signalGroup(b.pid, sig)}
	for pgid := range b.execs {
		errs = append(errs, signalGroup(pgid, sig))
	}
	return errors.Join(errs...)
}

func signalGroup(pgid int, sig syscall.Signal) error {
	if err := syscall.Kill(-pgid, sig); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("signal %d to process group %d: %w", int(sig), pgid, err)
	}
	return nil
}

func (b *container) closeDone() {
	select {
	case <-b.done:
	default:
		close(b.done)
	}
}
