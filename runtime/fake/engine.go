package fake

import (
	"context"
	"io"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/runtime"
)

// Process is a virtual program's view of its container.
type Process struct {
	Spec    runtime.Spec // of the container; Args and Env are this process's
	Stdin   io.Reader
	Stdout  io.Writer
	Stderr  io.Writer
	signals <-chan syscall.Signal // all but SIGKILL; see Handle
	handled func()
	gate    func(ctx context.Context) error
	place   func() Place
}

// Place is where a program is: a dump that is restored continues under the ID, and in the engine,
// of its restore.
type Place struct {
	Engine *Engine
	ID     string // of its container
	Dump   bool   // it is a dump, or deleted
}

// Place returns where the program is now.
func (p *Process) Place() Place { return p.place() }

// Gate makes a program freezable: it blocks while the container is frozen or a
// dump, and returns the context's error if that ends first.
func (p *Process) Gate(ctx context.Context) error { return p.gate(ctx) }

// Handle declares that the program reads Signals: from now on only SIGKILL ends
// its context.
func (p *Process) Handle() { p.handled() }

// Program is a virtual program; it returns its exit code. Its context ends when the
// container is killed: by SIGKILL always, by other signals unless the program has
// called Handle. A program that returns after its context ended has died of that
// signal, whatever it returns.
type Program func(ctx context.Context, p *Process) int

// Verb identifies a method of a Driver for fault injection.
type Verb int

// The verbs.
const (
	Create Verb = iota + 1
	Start
	Wait
	List
	Kill
	Delete
	Has
	Import
	Remove
	Exec
	ListImages
	Freeze
	Thaw
	Frozen
	Checkpoint
	Restore
	Prepare
	Leftovers
	Continue
	CloseIdle
	ReleaseImports
)

// String names the verb.
func (v Verb) String() string {
	names := [...]string{Create: "create", Start: "start", Wait: "wait", List: "list", Kill: "kill",
		Delete: "delete", Has: "has", Import: "import", Remove: "remove", Exec: "exec", ListImages: "list images",
		Freeze: "freeze", Thaw: "thaw", Frozen: "frozen", Checkpoint: "checkpoint", Restore: "restore", Prepare: "prepare", Leftovers: "leftovers", Continue: "continue", CloseIdle: "close idle",
		ReleaseImports: "release imports"}
	if v < Create || int(v) >= len(names) {
		return "invalid verb"
	}
	return names[v]
}

// Fault is one injected failure.
type Fault struct {
	Verb Verb
	Nth  int   // which call from now on, starting at 1; 0 is every call until Heal
	Err  error // returned unchanged; nil with a Delay makes the call slow
	// ActFirst lets the method act and loses only its answer, as a broken
	// connection does.
	ActFirst bool
	delay    time.Duration // before acting; ends with the context
	// Leaves makes a failing Start or Prepare leave something on the machine, like
	// a start interrupted together with its daemon.
	Leaves bool
}

// Engine is the in-memory engine. The zero value is not usable; see New.
type Engine struct {
	now func() time.Time
	wg  sync.WaitGroup

	mu          *sync.Mutex // guards the fields below, and dumps; shared by engines that share dumps
	dumps       *dumps
	everStarted []*container // all containers ever started here; their goroutines belong to this engine
	closed      bool
	programs    map[string]Program
	containers  map[string]*container
	images      map[string]int64 // digest -> bytes
	left        map[string]bool  // containers that left something on the machine
	shared      map[*shared]bool // what containers with a Reuse key run in
	opened      int              // how many of these there were
	faults      []Fault
	calls       map[Verb]int
	nextPID     int
	downCh      chan struct{} // closed while the engine is down
	isDown      bool
}

// New makes an empty engine whose clock is now (nil: time.Now). Programs are
// looked up by Args[0].
func New(now func() time.Time, programs map[string]Program) *Engine {
	if now == nil {
		now = time.Now
	}
	e := &Engine{
		mu: &sync.Mutex{}, dumps: &dumps{parked: map[int]*container{}},
		now: now, programs: map[string]Program{}, containers: map[string]*container{},
		images: map[string]int64{}, left: map[string]bool{}, shared: map[*shared]bool{}, calls: map[Verb]int{}, nextPID: 1000, downCh: make(chan struct{}),
	}
	for name, p := range programs {
		e.programs[name] = p
	}
	return e
}

// Driver returns a new connection to the engine.
func (e *Engine) Driver() *Driver { return &Driver{e: e} }

// Inject adds a fault. Each fault counts the calls of its verb separately; the
// first due wins.
func (e *Engine) Inject(f Fault) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.faults = append(e.faults, f)
}

// Leave adds a leftover of a container with that ID to the machine.
func (e *Engine) Leave(id string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.left[id] = true
}

// Heal removes all pending faults.
func (e *Engine) Heal() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.faults = nil
}

// Down stops (true) or starts (false) the engine; programs are not affected.
func (e *Engine) Down(down bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case down && !e.isDown:
		close(e.downCh)
	case !down && e.isDown:
		e.downCh = make(chan struct{})
	}
	e.isDown = down
}

// Calls returns how often a verb was called, failed calls included.
func (e *Engine) Calls(v Verb) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.calls[v]
}

// Reboot ends all programs without notice, like a loss of power: started containers are stopped,
// and how they ended is lost. Dumps are on a disk, and stay.
func (e *Engine) Reboot() {
	e.mu.Lock()
	defer e.mu.Unlock()
	for id, b := range e.containers {
		if b.phase == runtime.PhaseCreated {
			continue
		}
		ended := &container{engine: e, spec: b.spec, fingerprint: b.fingerprint, phase: runtime.PhaseStopped, exitCode: runtime.ExitLost, started: b.started, exited: b.started, done: make(chan struct{})}
		ended.closeDone()
		e.containers[id] = ended
		b.signal(syscall.SIGKILL)
	}
	clear(e.left)
	clear(e.shared)
}

// Close kills all programs, waits for them and leaves the engine down.
func (e *Engine) Close() {
	e.Down(true)
	e.mu.Lock()
	e.closed = true
	for _, b := range e.everStarted { // including dumps and those restored in another engine
		b.signal(syscall.SIGKILL)
	}
	e.mu.Unlock()
	e.wg.Wait()
}

// beginCall counts a call and applies the faults that are due before it acts. The returned function
// returns the method's result, or the injected error instead.
func (e *Engine) beginCall(ctx context.Context, v Verb) (func(error) error, error) {
	return e.beginCallFor(ctx, v, "")
}

// beginCallFor is beginCall for a method whose failure may leave something of a container.
func (e *Engine) beginCallFor(ctx context.Context, v Verb, id string) (answer func(error) error, err error) {
	e.mu.Lock()
	e.calls[v]++
	due := e.dueLocked(v)
	down, gone := e.isDown, e.downCh
	e.mu.Unlock()
	if due.Leaves && id != "" {
		defer func() {
			if err != nil {
				e.Leave(id)
			}
		}()
	}
	if due.delay > 0 {
		t := time.NewTimer(due.delay)
		defer t.Stop()
		select {
		case <-t.C:
		case <-gone:
			down = true
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case down:
		return nil, errDown(v)
	case due.Err != nil && !due.ActFirst:
		return nil, due.Err
	}
	return func(err error) error {
		if due.ActFirst && due.Err != nil {
			return due.Err
		}
		return err
	}, nil
}

// dueLocked counts the call against every fault of the verb, removes used-up
// faults and returns the first due.
func (e *Engine) dueLocked(v Verb) (due Fault) {
	found := false
	e.faults = slices.DeleteFunc(e.faults, func(f Fault) bool { return f.Verb == v && f.Nth < 0 })
	for i := range e.faults {
		f := &e.faults[i]
		if f.Verb != v {
			continue
		}
		hit := f.Nth == 0
		if f.Nth > 0 {
			f.Nth--
			if hit = f.Nth == 0; hit {
				f.Nth = -1
			}
		}
		if hit && !found {
			due, found = *f, true
		}
	}
	return due
}

func errDown(v Verb) error {
	return fault.New(fault.Unavailable, "fake engine: down at %s", v)
}
