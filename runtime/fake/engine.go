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

// Process is what a virtual program sees of the container it runs in.
type Process struct {
	Spec    runtime.Spec // of the container; Args and Env are those of this process
	Stdin   io.Reader
	Stdout  io.Writer
	Stderr  io.Writer
	Signals <-chan syscall.Signal // all but SIGKILL; a program that never reads it dies of the first one (see Program)
	handled func()
	gate    func(ctx context.Context) error
}

// Gate is how a program takes part in being frozen: it waits while the
// container is, or is a dump, and fails with the context's error when that ends
// first. A program that never calls it cannot be seen to stand still.
func (p *Process) Gate(ctx context.Context) error { return p.gate(ctx) }

// Handle says that the program reads Signals: from now on only SIGKILL ends its
// context by force.
func (p *Process) Handle() { p.handled() }

// Program is a virtual program; it returns its exit code. Its context ends when
// the container is killed: by SIGKILL always, by another signal unless the
// program called Handle. A program that returns after its context ended has
// died of that signal, whatever it returns.
type Program func(ctx context.Context, p *Process) int

// Verb names one method of a Driver for fault injection.
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
)

// String names the verb.
func (v Verb) String() string {
	names := [...]string{Create: "create", Start: "start", Wait: "wait", List: "list", Kill: "kill",
		Delete: "delete", Has: "has", Import: "import", Remove: "remove", Exec: "exec", ListImages: "list images",
		Freeze: "freeze", Thaw: "thaw", Frozen: "frozen", Checkpoint: "checkpoint", Restore: "restore"}
	if v < Create || int(v) >= len(names) {
		return "invalid verb"
	}
	return names[v]
}

// Fault is one failure to come.
type Fault struct {
	Verb Verb
	Nth  int   // which call from now, 1 the next; 0 is every call until Heal
	Err  error // given back, as it is; nil with a Delay means slow but well
	// After lets the verb act first and loses only its answer, as a crash of the
	// connection does.
	After bool
	Delay time.Duration // before acting; the context cuts it short
}

// Engine is the in-memory world. The zero value is not usable; see New.
type Engine struct {
	now func() time.Time
	wg  sync.WaitGroup

	mu       *sync.Mutex // guards all below, and dumps; shared by engines that share dumps
	dumps    *dumps
	born     []*box // all that were ever started here: their goroutines are ours
	closed   bool
	programs map[string]Program
	boxes    map[string]*box
	images   map[string]int64 // digest -> bytes
	faults   []Fault
	calls    map[Verb]int
	nextPID  int
	down     chan struct{} // closed while the engine is down
	isDown   bool
}

// New makes an empty engine whose clock is now (nil: time.Now). Programs are
// looked up by Args[0].
func New(now func() time.Time, programs map[string]Program) *Engine {
	if now == nil {
		now = time.Now
	}
	e := &Engine{
		mu: &sync.Mutex{}, dumps: &dumps{parked: map[int]*box{}},
		now: now, programs: map[string]Program{}, boxes: map[string]*box{},
		images: map[string]int64{}, calls: map[Verb]int{}, nextPID: 1000, down: make(chan struct{}),
	}
	for name, p := range programs {
		e.programs[name] = p
	}
	return e
}

// Driver gives one more connection to the engine.
func (e *Engine) Driver() *Driver { return &Driver{e: e} }

// Inject adds a fault. Several of one verb count their calls side by side; the
// first that is due wins.
func (e *Engine) Inject(f Fault) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.faults = append(e.faults, f)
}

// Heal forgets all faults that are still to come.
func (e *Engine) Heal() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.faults = nil
}

// Down stops (true) or starts (false) the engine; programs are not touched.
func (e *Engine) Down(down bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case down && !e.isDown:
		close(e.down)
	case !down && e.isDown:
		e.down = make(chan struct{})
	}
	e.isDown = down
}

// Calls tells how often a verb was called, failed calls included.
func (e *Engine) Calls(v Verb) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.calls[v]
}

// Close kills all programs, waits for them and leaves an engine that is down.
func (e *Engine) Close() {
	e.Down(true)
	e.mu.Lock()
	e.closed = true
	for _, b := range e.born { // also what is a dump, or went on in another engine
		b.signal(syscall.SIGKILL)
	}
	e.mu.Unlock()
	e.wg.Wait()
}

// enter counts a call and carries out what is injected before it acts. The
// returned function gives the verb's answer, or the injected one in its place.
func (e *Engine) enter(ctx context.Context, v Verb) (func(error) error, error) {
	e.mu.Lock()
	e.calls[v]++
	due := e.dueLocked(v)
	down, gone := e.isDown, e.down
	e.mu.Unlock()
	if due.Delay > 0 {
		t := time.NewTimer(due.Delay)
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
	case due.Err != nil && !due.After:
		return nil, due.Err
	}
	return func(err error) error {
		if due.After && due.Err != nil {
			return due.Err
		}
		return err
	}, nil
}

// dueLocked counts the call against every fault of the verb, takes out those
// that are used up and gives the first due.
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
