package harness

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
	"time"

	"github.com/drover-run/drover/internal/peakmem"
	"github.com/drover-run/drover/mapreduce"
)

// drainGrace bounds the wait for pipes that other processes still hold after the
// program has ended.
const drainGrace = 5 * time.Second

// spawner starts processes from one OS thread that lives as long as the harness,
// because the kernel sends the parent-death signal when the *thread* that forked
// ends. It knows which children of the harness are its own.
type spawner struct {
	requests chan func()
	done     sync.WaitGroup

	mu  sync.Mutex // held while a process is started: until its pid is recorded in own, it must not be reaped
	own map[int]bool
}

func newSpawner() *spawner {
	s := &spawner{requests: make(chan func()), own: map[int]bool{}}
	s.done.Go(func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		for f := range s.requests {
			f()
		}
	})
	return s
}

func (s *spawner) close() {
	close(s.requests)
	s.done.Wait()
}

func (s *spawner) startProcess(cmd *exec.Cmd) error {
	result := make(chan error)
	s.requests <- func() {
		s.mu.Lock()
		err := cmd.Start()
		if err == nil {
			s.own[cmd.Process.Pid] = true
		}
		s.mu.Unlock()
		result <- err
	}
	return <-result
}

// wait waits for a process that startProcess has started.
func (s *spawner) wait(cmd *exec.Cmd) error {
	err := cmd.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.own, cmd.Process.Pid) // another process may get the number now
	return err
}

// withoutStart calls f while no process is being started.
func (s *spawner) withoutStart(f func(isOwn func(pid int) bool)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(func(pid int) bool { return s.own[pid] })
}

// program is one execution of a user's command.
type program struct {
	argv  []string
	feed  func(ctx context.Context, stdin io.Writer) error // nil: empty stdin
	drain func(stdout io.Reader) error                     // nil: the harness's own stdout
}

// stdioPipes holds the harness's ends of the program's pipes. childEnds are
// closed after the start.
type stdioPipes struct {
	stdin, stdout, stderr *pipeEnd
	childEnds             []*os.File
}

func (p *stdioPipes) closeChildEnds() {
	for _, f := range p.childEnds {
		f.Close()
	}
	p.childEnds = nil
}

func (p *stdioPipes) closeAll() {
	p.closeChildEnds()
	for _, e := range []*pipeEnd{p.stdin, p.stdout, p.stderr} {
		if e != nil {
			e.Close()
		}
	}
}

// openPipe creates a pipe and records the program's end in childEnds.
func (p *stdioPipes) openPipe(own **pipeEnd, write bool) (child *os.File, err error) {
	*own, child, err = newPipe(write)
	if err == nil {
		p.childEnds = append(p.childEnds, child)
	}
	return child, err
}

// connectStdio sets the stdio of cmd.
func (t *task) connectStdio(cmd *exec.Cmd, p program) (*stdioPipes, error) {
	ps := &stdioPipes{}
	var err error
	file := func(own **pipeEnd, write bool) *os.File {
		if err != nil {
			return nil
		}
		var f *os.File
		f, err = ps.openPipe(own, write)
		return f
	}
	if p.feed != nil {
		cmd.Stdin = file(&ps.stdin, true)
	}
	cmd.Stdout = t.stdout
	if p.drain != nil {
		cmd.Stdout = file(&ps.stdout, false)
	}
	cmd.Stderr = file(&ps.stderr, false)
	if err != nil {
		ps.closeAll()
		return nil, err
	}
	return ps, nil
}

// runProgram executes a program to its end:
//
//  1. start it as leader of its own process group,
//  2. feed its stdin, read its stderr and drain its stdout concurrently,
//  3. kill the group on the first failure of the harness, or when ctx ends,
//  4. once it has ended, stop feeding and give other holders of its pipes
//     drainGrace,
//  5. kill the rest of the group and classify the exit.
func (t *task) runProgram(p program) error {
	cmd, ps, err := t.startProgram(p)
	if err != nil {
		return err
	}
	defer ps.closeAll()
	k := &groupKiller{pid: cmd.Process.Pid, grace: time.Duration(t.spec.GraceMS) * time.Millisecond}
	ended := make(chan struct{})
	feedCtx, stopFeed := context.WithCancel(t.ctx)
	defer stopFeed()
	var side sync.WaitGroup
	var feedErr error
	if p.feed != nil {
		side.Go(func() {
			feedErr = feedStdin(feedCtx, p.feed, ps.stdin)
			if feedErr != nil {
				k.kill()
			}
		})
	}
	side.Go(func() { t.reporter.forward(ps.stderr) })
	side.Go(func() { k.terminateOnCancel(t.ctx, ended) })
	meter := peakmem.New(cmd.Process.Pid, peakmem.HighWaterMark("self"))
	side.Go(func() { meter.Run(ended) })
	var status *os.ProcessState
	side.Go(func() {
		_ = t.spawner.wait(cmd) // the process state says how the program ended
		status = cmd.ProcessState
		close(ended)
		stopFeed()
		ps.expireAfterExit()
	})
	var drainErr error
	if p.drain != nil {
		if drainErr = p.drain(&pacedReader{r: ps.stdout}); errors.Is(drainErr, os.ErrDeadlineExceeded) {
			drainErr = classErrorf(mapreduce.ClassUserData, "program %s ended, but a process that it started still held its stdout %v later: its output may be incomplete; wait for it in the program", p.argv[0], drainGrace)
		}
		if drainErr != nil {
			k.kill()
		}
	}
	side.Wait()
	syscall.Kill(-k.pid, syscall.SIGKILL)
	t.recordUsage(status, meter)
	return t.classifyExit(p, status, feedErr, drainErr, k.wasUsed())
}

func (t *task) startProgram(p program) (*exec.Cmd, *stdioPipes, error) {
	env := environ(os.Environ(), t.spec)
	path, err := lookPath(p.argv[0], t.spec.WorkDir, env)
	if err != nil {
		t.user.exit = 127
		return nil, nil, &classifiedError{class: mapreduce.ClassUserExit, permanent: true, err: err}
	}
	cmd := &exec.Cmd{Path: path, Args: p.argv, Env: env, Dir: t.spec.WorkDir}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	ps, err := t.connectStdio(cmd, p)
	if err != nil {
		return nil, nil, fmt.Errorf("making pipes: %w", err)
	}
	err = t.spawner.startProcess(cmd)
	if err != nil {
		ps.closeAll()
		t.user.exit = 126
		if errors.Is(err, syscall.EAGAIN) || errors.Is(err, syscall.ENOMEM) {
			return nil, nil, fmt.Errorf("starting %s: %w", path, err)
		}
		return nil, nil, permanentErrorf(mapreduce.ClassUserExit, "program %s cannot be started: %s", p.argv[0], startHint(path, p.argv[0], err))
	}
	ps.closeChildEnds()
	return cmd, ps, nil
}

// feedStdin feeds and closes stdin. A program that stops reading is no failure of
// the feed; its exit status decides.
func feedStdin(ctx context.Context, feed func(context.Context, io.Writer) error, stdin *pipeEnd) error {
	err := feed(ctx, stdin)
	stdin.Close()
	if errors.Is(err, syscall.EPIPE) || errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// expireAfterExit is called once the program has ended: writes to it fail at
// once, and reads from its pipes fail after drainGrace.
func (ps *stdioPipes) expireAfterExit() {
	if ps.stdin != nil {
		ps.stdin.expireIn(0)
	}
	if ps.stdout != nil {
		ps.stdout.expireIn(drainGrace)
	}
	ps.stderr.expireIn(drainGrace)
}

// groupKiller kills a process group and remembers that it did.
type groupKiller struct {
	pid   int
	grace time.Duration

	mu    sync.Mutex
	fired bool
}

func (k *groupKiller) kill() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.fired = true
	syscall.Kill(-k.pid, syscall.SIGKILL)
}

func (k *groupKiller) wasUsed() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.fired
}

// terminateOnCancel sends SIGTERM to the group when ctx ends, and SIGKILL after
// the grace period.
func (k *groupKiller) terminateOnCancel(ctx context.Context, ended <-chan struct{}) {
	select {
	case <-ended:
		return
	case <-ctx.Done():
	}
	syscall.Kill(-k.pid, syscall.SIGTERM)
	timer := time.NewTimer(k.grace)
	defer timer.Stop()
	select {
	case <-ended:
	case <-timer.C:
		k.kill()
	}
}

// recordUsage adds the CPU time and peak memory of an ended program.
func (t *task) recordUsage(s *os.ProcessState, meter *peakmem.Meter) {
	if s == nil {
		return
	}
	t.user.cpu += s.UserTime() + s.SystemTime()
	if u, ok := s.SysUsage().(*syscall.Rusage); ok {
		t.user.peak = max(t.user.peak, meter.Peak(u.Maxrss<<10))
	}
}

// classifyExit returns the outcome of an execution. The first of these that applies wins: the
// harness was stopped; the harness killed the program because of its own failure; the program
// failed; the harness failed without affecting the program.
func (t *task) classifyExit(p program, s *os.ProcessState, feedErr, drainErr error, killed bool) error {
	own := errors.Join(feedErr, drainErr)
	switch {
	case t.ctx.Err() != nil:
		return classErrorf(mapreduce.ClassKilled, "stopped by a signal")
	case killed && own != nil:
		return own
	case s == nil:
		return classErrorf(mapreduce.ClassInternal, "no status of %s", p.argv[0])
	case s.Success():
		t.user.exit = 0
		return own
	}
	ws, ok := s.Sys().(syscall.WaitStatus)
	if ok && ws.Signaled() {
		t.user.signal = ws.Signal().String()
		return classErrorf(mapreduce.ClassUserExit, "program %s was ended by signal %d (%s)", p.argv[0], int(ws.Signal()), ws.Signal())
	}
	t.user.exit = s.ExitCode()
	hint := ""
	switch s.ExitCode() { // exit status of a shell or of env; if the program itself is missing, it does not start at all
	case 127:
		hint = ": a program that it runs was not found (standard error names it)"
	case 126:
		hint = ": a program that it runs is there but cannot be executed (standard error names it)"
	}
	return classErrorf(mapreduce.ClassUserExit, "program %s ended with exit status %d%s", p.argv[0], s.ExitCode(), hint)
}
