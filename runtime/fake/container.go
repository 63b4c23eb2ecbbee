package fake

import (
	"bytes"
	"context"
	"io"
	"maps"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/drover-run/drover/runtime"
)

// maxSignals is how many unread signals a program can have; more are dropped, as
// the kernel merges pending signals of one kind.
const maxSignals = 16

// container is one container, guarded by Engine.mu.
type container struct {
	engine      *Engine // that it is in, or was in when it became a dump
	spec        runtime.Spec
	fingerprint string
	phase       runtime.Phase
	pid         int
	exitCode    int
	started     time.Time
	exited      time.Time
	procs       map[*proc]bool // the first process and those of Exec
	done        chan struct{}  // closed when stopped or deleted
	thawed      chan struct{}  // closed while it may run; replaced while it is frozen or a dump
	frozen      bool
	stdout      *lockedWriter // of the first process; redirected at a restore
	stderr      *lockedWriter
	files       []*os.File // behind stdout and stderr
	shared      *shared    // the shared container that it runs in; nil for one of its own
	killed      bool       // a signal was sent to it
}

// proc is one running program.
type proc struct {
	cancel         context.CancelFunc
	signals        chan syscall.Signal
	handlesSignals bool
	fatalSignal    syscall.Signal // the signal that ended the context, 0 for none
}

func (b *container) status() runtime.Status {
	s := runtime.Status{ID: b.spec.ID, Phase: b.phase, ExitCode: b.exitCode, Started: b.started, Exited: b.exited, Shared: b.spec.Reuse != "", Labels: maps.Clone(b.spec.Labels)}
	if b.phase == runtime.PhaseRunning {
		s.PID = b.pid
	}
	return s
}

// signal delivers sig to all processes; the caller holds Engine.mu.
func (b *container) signal(sig syscall.Signal) {
	b.killed = b.killed || sig != 0
	for p := range b.procs {
		p.deliver(sig)
	}
}

func (p *proc) deliver(sig syscall.Signal) {
	if sig == 0 {
		return
	}
	if sig == syscall.SIGKILL || !p.handlesSignals {
		if p.fatalSignal == 0 {
			p.fatalSignal = sig
		}
		p.cancel()
		return
	}
	select {
	case p.signals <- sig:
	default:
	}
}

// lockedWriter serialises the writes of a program's goroutines.
type lockedWriter struct {
	mu sync.Mutex
	w  io.Writer
}

func (l *lockedWriter) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(b)
}

// startLocked runs prog as the first process of b.
func (e *Engine) startLocked(b *container, prog Program, out, errw *os.File) {
	b.engine, b.phase, b.started, b.pid = e, runtime.PhaseRunning, e.now(), e.nextPID
	e.nextPID++
	e.takeLocked(b)
	e.everStarted = append(e.everStarted, b)
	b.thawed = make(chan struct{})
	close(b.thawed)
	b.stdout, b.stderr = &lockedWriter{w: io.Discard}, &lockedWriter{w: io.Discard}
	b.redirectLogs(out, errw)
	p, ps, ctx := e.procLocked(b, b.spec.Args, b.spec.Env, bytes.NewReader(nil), b.stdout, b.stderr)
	e.wg.Add(1)
	go func() {
		defer e.wg.Done()
		code := prog(ctx, ps)
		e.mu.Lock()
		defer e.mu.Unlock()
		b.redirectLogs(nil, nil)
		b.exitCode = e.endLocked(b, p, code)
		b.phase, b.exited = runtime.PhaseStopped, e.now()
		e.returnLocked(b)
		b.signal(syscall.SIGKILL) // the first process of a PID namespace takes the others with it
		b.closeDone()
	}()
}

// procLocked registers one more process of b.
func (e *Engine) procLocked(b *container, args, env []string, in io.Reader, out, errw io.Writer) (*proc, *Process, context.Context) {
	ctx, cancel := context.WithCancel(context.Background())
	p := &proc{cancel: cancel, signals: make(chan syscall.Signal, maxSignals)}
	b.procs[p] = true
	spec := b.spec
	spec.Args, spec.Env = args, env
	return p, &Process{
		Spec: spec, Stdin: in, Stdout: lockWriter(out), Stderr: lockWriter(errw), signals: p.signals,
		handled: func() { e.mu.Lock(); p.handlesSignals = true; e.mu.Unlock() },
		gate:    func(ctx context.Context) error { return e.awaitThawed(ctx, b) },
		place:   func() Place { return e.placeOf(b) },
	}, ctx
}

// placeOf returns where a container is.
func (e *Engine) placeOf(b *container) Place {
	e.mu.Lock()
	defer e.mu.Unlock()
	return Place{Engine: b.engine, ID: b.spec.ID, Dump: b.engine.containers[b.spec.ID] != b}
}

// awaitThawed waits until the container is not frozen.
func (e *Engine) awaitThawed(ctx context.Context, b *container) error {
	for {
		e.mu.Lock()
		thawed, frozen := b.thawed, b.frozen
		e.mu.Unlock()
		if !frozen {
			return ctx.Err()
		}
		select {
		case <-thawed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// redirectLogs makes the first process write to other files, nil for none, and
// closes the previous ones.
func (b *container) redirectLogs(out, errw *os.File) {
	old := b.files
	b.files = nil
	for _, x := range []struct {
		w *lockedWriter
		f *os.File
	}{{b.stdout, out}, {b.stderr, errw}} {
		x.w.mu.Lock()
		if x.w.w = io.Discard; x.f != nil {
			x.w.w = x.f
			b.files = append(b.files, x.f)
		}
		x.w.mu.Unlock()
	}
	for _, f := range old {
		f.Close()
	}
}

// endLocked removes a finished process from b and returns its exit code.
func (e *Engine) endLocked(b *container, p *proc, code int) int {
	delete(b.procs, p)
	p.cancel()
	if p.fatalSignal != 0 {
		return 128 + int(p.fatalSignal)
	}
	return code
}

func (b *container) closeDone() {
	select {
	case <-b.done:
	default:
		close(b.done)
	}
}

func lockWriter(w io.Writer) io.Writer {
	switch x := w.(type) {
	case nil:
		return io.Discard
	case *lockedWriter:
		return x
	default:
		return &lockedWriter{w: w}
	}
}

// openLogs opens both log files for appending; nil without a folder.
func openLogs(l runtime.Log) (out, errw *os.File, err error) {
	if l.Dir == "" {
		return nil, nil, nil
	}
	open := func(name string) (*os.File, error) {
		return os.OpenFile(filepath.Join(l.Dir, name), os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o644)
	}
	if out, err = open("stdout.log"); err != nil {
		return nil, nil, err
	}
	if errw, err = open("stderr.log"); err != nil {
		out.Close()
		return nil, nil, err
	}
	return out, errw, nil
}
