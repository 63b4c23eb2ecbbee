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

	"github.com/drover-run/drover/mapreduce"
)

// drainGrace is for pipes that others hold after the program ended.
const drainGrace = 5 * time.Second

// spawner starts processes from one thread that lives as long as the harness:
// the kernel sends the death signal when the *thread* that forked ends.
type spawner struct {
	start chan func()
	done  sync.WaitGroup
}

func newSpawner() *spawner {
	s := &spawner{start: make(chan func())}
	s.done.Go(func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		for f := range s.start {
			f()
		}
	})
	return s
}

func (s *spawner) close() {
	close(s.start)
	s.done.Wait()
}

func (s *spawner) run(cmd *exec.Cmd) error {
	result := make(chan error)
	s.start <- func() { result <- cmd.Start() }
	return <-result
}

// program is one run of a user's command.
type program struct {
	argv  []string
	feed  func(ctx context.Context, stdin io.Writer) error // nil: stdin is empty
	drain func(stdout io.Reader) error                     // nil: stdout is the harness's own
}

// pipes are our ends; theirs are closed after the start.
type pipes struct {
	stdin, stdout, stderr *pipeEnd
	theirs                []*os.File
}

func (p *pipes) closeTheirs() {
	for _, f := range p.theirs {
		f.Close()
	}
	p.theirs = nil
}

func (p *pipes) closeAll() {
	p.closeTheirs()
	for _, e := range []*pipeEnd{p.stdin, p.stdout, p.stderr} {
		if e != nil {
			e.Close()
		}
	}
}

// open makes a pipe and remembers the program's end.
func (p *pipes) open(ours **pipeEnd, write bool) (theirs *os.File, err error) {
	*ours, theirs, err = newPipe(write)
	if err == nil {
		p.theirs = append(p.theirs, theirs)
	}
	return theirs, err
}

// connect gives cmd its stdio.
func (t *task) connect(cmd *exec.Cmd, p program) (*pipes, error) {
	ps := &pipes{}
	var err error
	file := func(ours **pipeEnd, write bool) *os.File {
		if err != nil {
			return nil
		}
		var f *os.File
		f, err = ps.open(ours, write)
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

// run runs a program to its end:
//
//  1. start it as leader of its own process group,
//  2. feed its stdin, read its stderr, drain its stdout, side by side,
//  3. kill the group on the first failure of ours, or when told to stop,
//  4. when it has ended stop feeding, and give others who hold its pipes a
//     short time,
//  5. kill what is left of the group, and say who failed.
func (t *task) run(p program) error {
	cmd, ps, err := t.launch(p)
	if err != nil {
		return err
	}
	defer ps.closeAll()
	k := &killer{pid: cmd.Process.Pid, grace: time.Duration(t.spec.GraceMS) * time.Millisecond}
	ended := make(chan struct{})
	feedCtx, stopFeed := context.WithCancel(t.ctx)
	defer stopFeed()
	var side sync.WaitGroup
	var feedErr error
	if p.feed != nil {
		side.Go(func() {
			feedErr = feedAll(feedCtx, p.feed, ps.stdin)
			if feedErr != nil {
				k.kill()
			}
		})
	}
	side.Go(func() { t.rep.copy(ps.stderr) })
	side.Go(func() { k.watch(t.ctx, ended) })
	var status *os.ProcessState
	side.Go(func() {
		cmd.Wait()
		status = cmd.ProcessState
		close(ended)
		stopFeed()
		ps.leave()
	})
	var drainErr error
	if p.drain != nil {
		if drainErr = p.drain(&pacedReader{r: ps.stdout}); errors.Is(drainErr, os.ErrDeadlineExceeded) {
			drainErr = failf(mapreduce.ClassUserData, "program %s ended, but a process that it started still held its stdout %v later: its output may be incomplete; wait for it in the program", p.argv[0], drainGrace)
		}
		if drainErr != nil {
			k.kill()
		}
	}
	side.Wait()
	syscall.Kill(-k.pid, syscall.SIGKILL)
	t.account(status)
	return t.verdict(p, status, feedErr, drainErr, k.used())
}

func (t *task) launch(p program) (*exec.Cmd, *pipes, error) {
	env := Environ(os.Environ(), t.spec)
	path, err := lookPath(p.argv[0], t.spec.WorkDir, env)
	if err != nil {
		t.user.exit = 127
		return nil, nil, &failure{mapreduce.ClassUserExit, err}
	}
	cmd := &exec.Cmd{Path: path, Args: p.argv, Env: env, Dir: t.spec.WorkDir}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	ps, err := t.connect(cmd, p)
	if err != nil {
		return nil, nil, fmt.Errorf("making pipes: %w", err)
	}
	err = t.spawn.run(cmd)
	if err != nil {
		ps.closeAll()
		t.user.exit = 126
		if errors.Is(err, syscall.EAGAIN) || errors.Is(err, syscall.ENOMEM) {
			return nil, nil, fmt.Errorf("starting %s: %w", path, err)
		}
		return nil, nil, failf(mapreduce.ClassUserExit, "program %s cannot be started: %w", p.argv[0], err)
	}
	ps.closeTheirs()
	return cmd, ps, nil
}

// feedAll feeds and closes stdin. A program that does not read on is no
// failure of the feed: its exit status tells.
func feedAll(ctx context.Context, feed func(context.Context, io.Writer) error, stdin *pipeEnd) error {
	err := feed(ctx, stdin)
	stdin.Close()
	if errors.Is(err, syscall.EPIPE) || errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// leave is called when the program has ended: nothing more is written to it,
// and what is in the pipes must be read within drainGrace.
func (ps *pipes) leave() {
	if ps.stdin != nil {
		ps.stdin.expire(0)
	}
	if ps.stdout != nil {
		ps.stdout.expire(drainGrace)
	}
	ps.stderr.expire(drainGrace)
}

// killer ends a process group.
type killer struct {
	pid   int
	grace time.Duration

	mu   sync.Mutex
	done bool
}

func (k *killer) kill() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.done = true
	syscall.Kill(-k.pid, syscall.SIGKILL)
}

func (k *killer) used() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.done
}

// watch asks the group to stop when ctx ends, and kills it after the grace.
func (k *killer) watch(ctx context.Context, ended <-chan struct{}) {
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

// account adds what a program used.
func (t *task) account(s *os.ProcessState) {
	if s == nil {
		return
	}
	t.user.cpu += s.UserTime() + s.SystemTime()
	if u, ok := s.SysUsage().(*syscall.Rusage); ok {
		t.user.peak = max(t.user.peak, u.Maxrss<<10)
	}
}

// verdict says how a run ended. Order: we were told to stop; we killed it, for
// a reason of ours; it failed; we failed while it did not notice.
func (t *task) verdict(p program, s *os.ProcessState, feedErr, drainErr error, killed bool) error {
	own := errors.Join(feedErr, drainErr)
	switch {
	case t.ctx.Err() != nil:
		return failf(mapreduce.ClassKilled, "told to stop")
	case killed && own != nil:
		return own
	case s == nil:
		return failf(mapreduce.ClassInternal, "no status of %s", p.argv[0])
	case s.Success():
		t.user.exit = 0
		return own
	}
	ws, ok := s.Sys().(syscall.WaitStatus)
	if ok && ws.Signaled() {
		t.user.signal = ws.Signal().String()
		return failf(mapreduce.ClassUserExit, "program %s was ended by signal %d (%s)", p.argv[0], int(ws.Signal()), ws.Signal())
	}
	t.user.exit = s.ExitCode()
	return failf(mapreduce.ClassUserExit, "program %s ended with exit status %d", p.argv[0], s.ExitCode())
}
