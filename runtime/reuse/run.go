package reuse

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/runtime"
	"github.com/drover-run/drover/runtime/containerd/logger"
	"github.com/drover-run/drover/runtime/reuse/taskinit"
)

// Limits of a task's start and end.
const (
	replyLimit = 30 * time.Second // for process 1 to start a command
	emptyLimit = time.Minute      // for killed processes to disappear
	readyLimit = 30 * time.Second // for the logger to open its files
)

// freezeEvery is how often it is looked whether a task is frozen, while an answer of process 1 is
// awaited.
const freezeEvery = 50 * time.Millisecond

// outputLimit bounds how long what an Exec left behind may hold its output open.
const outputLimit = 5 * time.Second

// run starts the task's command in a container that nothing else uses.
func (d *Driver) run(ctx context.Context, c *container, t *task) error {
	c.turn.Lock()
	defer c.turn.Unlock()
	s := t.rec.Spec
	mounts, err := c.furnish(s)
	if err != nil {
		return fault.New(fault.Unavailable, "container %s: %w", s.ID, err)
	}
	c.mounts = mounts
	if err := copyDeviceRules(d.cfg.group(c.home), d.cfg.group(s.Cgroup)); err != nil {
		return fault.New(fault.Unavailable, "container %s: device rules of its cgroup: %w", s.ID, err)
	}
	t.mu.Lock()
	t.rec.Container, t.rec.Started, t.c, t.killed = c.id, time.Now(), c, false
	err = t.saveLocked(d.cfg)
	t.mu.Unlock()
	if err != nil {
		return err
	}
	c.mu.Lock()
	c.current, c.command, c.exited = t, 0, false
	c.ran++
	c.mu.Unlock()
	pid, err := d.startLogged(ctx, c, s)
	if err == nil {
		err = t.setSent(d.cfg, d.cfg.hostPID(s.Cgroup, pid))
	}
	if err != nil {
		c.mu.Lock()
		c.current = nil
		c.mu.Unlock()
	}
	return err
}

// setSent records that process 1 has started the command.
func (t *task) setSent(cfg Config, pid int) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.rec.Sent, t.rec.PID = true, pid
	return t.saveLocked(cfg)
}

// startLogged starts a logger and then the command, which writes to it.
func (d *Driver) startLogged(ctx context.Context, c *container, s runtime.Spec) (pid int, err error) {
	null, err := os.Open(os.DevNull)
	if err != nil {
		return 0, err
	}
	defer null.Close()
	out, errw := null, null
	if s.Log.Dir != "" {
		if out, errw, err = d.startLogger(ctx, s); err != nil {
			return 0, fault.New(fault.Unavailable, "container %s: logs: %w", s.ID, err)
		}
		defer out.Close()
		defer errw.Close()
	} else if out, err = os.OpenFile(os.DevNull, os.O_WRONLY, 0); err == nil {
		defer out.Close()
		errw = out
	}
	if err != nil {
		return 0, err
	}
	return d.request(ctx, c, s, taskinit.Request{Args: s.Args, Env: s.Env, Dir: s.Dir}, null, out, errw)
}

// startLogger starts the program that writes the task's logs, and returns the ends
// that the task writes to. It ends when these have no writer.
func (d *Driver) startLogger(ctx context.Context, s runtime.Spec) (out, errw *os.File, err error) {
	var all []*os.File
	defer func() {
		for _, f := range all {
			f.Close()
		}
	}()
	pipe := func() (r, w *os.File) {
		if err == nil {
			r, w, err = os.Pipe()
		}
		all = append(all, r)
		return r, w
	}
	outR, out := pipe()
	errR, errw := pipe()
	readyR, readyW := pipe()
	all = append(all, readyW)
	fail := func(err error) (*os.File, *os.File, error) {
		out.Close()
		errw.Close()
		return nil, nil, err
	}
	if err != nil {
		return fail(err)
	}
	for _, w := range []*os.File{out, errw} { // or the task could not open /dev/stdout
		if err := w.Chown(int(s.UID), int(s.GID)); err != nil {
			return fail(err)
		}
	}
	uri, err := logger.URI(d.cfg.Logger, logger.Config{Dir: s.Log.Dir, MaxBytes: s.Log.MaxBytes, MaxFiles: s.Log.MaxFiles, BytesPerS: s.Log.BytesPerS})
	if err != nil {
		return fail(err)
	}
	cmd := exec.Command(d.cfg.Logger, logger.Verb, uri.Query().Get(logger.Verb))
	cmd.ExtraFiles = []*os.File{outR, errR, readyW}
	cmd.SysProcAttr = &unix.SysProcAttr{Setsid: true} // it outlives this daemon
	if err := cmd.Start(); err != nil {
		return fail(err)
	}
	go func() { _ = cmd.Wait() }() // it outlives the task by what is in the pipes, and perhaps this driver
	readyW.Close()
	limit := time.Now().Add(readyLimit)
	if at, ok := ctx.Deadline(); ok && at.Before(limit) {
		limit = at
	}
	if err := readyR.SetReadDeadline(limit); err != nil {
		return fail(err)
	}
	if _, err := readyR.Read(make([]byte, 1)); err != nil {
		return fail(fmt.Errorf("the logger does not start: %w", err))
	}
	return out, errw, nil
}

// request has process 1 start a process in the task's cgroup. The caller holds c.turn.
func (d *Driver) request(ctx context.Context, c *container, s runtime.Spec, q taskinit.Request, files ...*os.File) (pid int, err error) {
	b, err := taskinit.Encode(q)
	if err != nil {
		return 0, err
	}
	var fds []int
	for _, f := range files {
		fds = append(fds, int(f.Fd()))
	}
	if err := d.cfg.move(c.pid, s.Cgroup); err != nil {
		return 0, fault.New(fault.Unavailable, "container %s: its first process into the task's cgroup: %w", s.ID, err)
	}
	defer func() {
		if e := d.cfg.move(c.pid, c.home); e != nil {
			err = errors.Join(err, fault.New(fault.Unavailable, "container %s: its first process out of the task's cgroup: %w", s.ID, e))
		}
	}()
	if err := c.conn.SetWriteDeadline(time.Now().Add(replyLimit)); err != nil {
		return 0, err
	}
	if _, _, err = c.conn.WriteMsgUnix(b[:4], unix.UnixRights(fds...), nil); err == nil {
		_, err = c.conn.Write(b[4:])
	}
	if err != nil {
		return 0, fault.New(fault.Unavailable, "container %s: its first process: %w", s.ID, err)
	}
	r, err := d.awaitReply(ctx, c, s, q.Extra)
	switch {
	case err != nil:
		return 0, err
	case r.Event == taskinit.Refused && !r.Permanent:
		return 0, fault.New(fault.Unavailable, "container %s: cannot start a process: %s", s.ID, r.Error)
	case r.Event == taskinit.Refused:
		return 0, fault.New(fault.Invalid, "container %s: its command cannot run: %s", s.ID, r.Error)
	}
	return r.PID, nil
}

// awaitReply waits for the answer to a request. Where it gives up, the container is doomed: the
// answer could be taken for that to the next request. So it does at once if the task is frozen, and
// process 1 with it, where that is asked to start an extra process: moved out of the task's cgroup,
// it starts that there, and is told to kill it.
func (d *Driver) awaitReply(ctx context.Context, c *container, s runtime.Spec, extra bool) (taskinit.Reply, error) {
	limit := time.NewTimer(replyLimit)
	defer limit.Stop()
	look := time.NewTicker(freezeEvery)
	defer look.Stop()
	var err error
	for err == nil {
		select {
		case r, ok := <-c.replies:
			if !ok {
				return r, fault.New(fault.Unavailable, "container %s: its first process has ended", s.ID)
			}
			return r, nil
		case <-ctx.Done():
			err = ctx.Err()
		case <-limit.C:
			err = fault.New(fault.Unavailable, "container %s: its first process does not answer in %s", s.ID, replyLimit)
		case <-look.C:
			if frozen, _ := d.cfg.isFrozen(s.Cgroup); frozen && extra {
				err = fault.New(fault.Conflict, "container %s is frozen: exec needs a running one", s.ID)
			}
		}
	}
	c.doom()
	return taskinit.Reply{}, err
}

func (c *container) doom() {
	c.mu.Lock()
	c.doomed = true
	c.mu.Unlock()
}

// finish ends a task whose command has exited: everything in its cgroup is killed, and
// its container is idle or doomed.
func (d *Driver) finish(c *container, t *task, code int) {
	c.turn.Lock()
	defer c.turn.Unlock()
	c.mu.Lock()
	isCurrent := c.current == t
	c.mu.Unlock()
	if !isCurrent {
		return // it could not be started
	}
	exited := time.Now()
	ctx, cancel := context.WithTimeout(context.Background(), emptyLimit)
	defer cancel()
	err := d.killGroup(ctx, t.rec.Spec.Cgroup)
	if err == nil && code == 0 {
		err = c.check(d.cfg)
	}
	t.mu.Lock()
	clean := err == nil && code == 0 && !t.killed
	t.mu.Unlock()
	c.mu.Lock()
	c.current = nil
	if clean && !c.doomed && c.ran < maxTasks && time.Since(c.opened) < maxAge {
		c.idle = time.Now()
	} else {
		c.doomed = true
	}
	c.mu.Unlock()
	t.end(d.cfg, code, exited)
	close(t.over)
}

// check finds out whether a container is as it was before its last task.
func (c *container) check(cfg Config) error {
	if err := cfg.isAlone(c.home, c.pid); err != nil {
		return err
	}
	state, err := readProcessState(c.pid)
	if err != nil {
		return err
	}
	if err := c.state.compare(state); err != nil {
		return err
	}
	mounts, err := readMounts(c.pid)
	if err != nil {
		return err
	}
	if mounts != c.mounts {
		return errors.New("its mounts have changed")
	}
	if err := checkConnections(c.pid); err != nil {
		return err
	}
	return inContainer(c.pid, checkIPC)
}

// exec runs one more process beside the task's command.
func (d *Driver) exec(ctx context.Context, t *task, x runtime.ExecSpec) (int, error) {
	var ends [3]*os.File // of the process
	var own [3]*os.File
	for i := range ends {
		r, w, err := os.Pipe()
		if err != nil {
			return 0, err
		}
		if ends[i], own[i] = w, r; i == 0 {
			ends[i], own[i] = r, w
		}
		defer own[i].Close()
		defer ends[i].Close()
		if err := ends[i].Chown(int(t.rec.Spec.UID), int(t.rec.Spec.GID)); err != nil {
			return 0, err
		}
	}
	c, pid, exited, err := d.startExtra(ctx, t, x, ends)
	for _, f := range ends {
		f.Close()
	}
	if err != nil {
		return 0, err
	}
	var copies sync.WaitGroup
	for i, w := range []io.Writer{nil, x.Stdout, x.Stderr} {
		if i == 0 {
			go func() { // ends with x.Stdin or own[0]: the caller closes its reader
				if x.Stdin != nil {
					_, _ = io.Copy(own[0], x.Stdin)
				}
				own[0].Close()
			}()
			continue
		}
		if w == nil {
			w = io.Discard
		}
		copies.Go(func() { _, _ = io.Copy(w, own[i]) })
	}
	code := 0
	defer c.forget(pid)
	select {
	case got, ok := <-exited:
		if code = got; !ok {
			err = fault.New(fault.Unavailable, "container %s: its first process has ended", t.rec.Spec.ID)
		}
	case <-ctx.Done():
		err = errors.Join(ctx.Err(), c.kill(pid))
	}
	held := time.AfterFunc(outputLimit, func() { own[1].Close(); own[2].Close() })
	copies.Wait()
	held.Stop()
	return code, err
}

// startExtra starts a process beside the task's command.
func (d *Driver) startExtra(ctx context.Context, t *task, x runtime.ExecSpec, ends [3]*os.File) (*container, int, chan int, error) {
	if err := t.lock(ctx); err != nil { // a Kill meanwhile would reach process 1
		return nil, 0, nil, err
	}
	defer t.unlock()
	c := t.c
	if c == nil {
		return nil, 0, nil, fault.New(fault.Conflict, "container %s is not running: exec needs a running one", t.rec.Spec.ID)
	}
	c.turn.Lock()
	defer c.turn.Unlock()
	c.mu.Lock()
	runs := c.current == t && !c.doomed
	c.mu.Unlock()
	if !runs {
		return nil, 0, nil, fault.New(fault.Conflict, "container %s is not running: exec needs a running one", t.rec.Spec.ID)
	}
	s := t.rec.Spec
	if frozen, err := d.cfg.isFrozen(s.Cgroup); frozen || err != nil { // process 1 would be frozen with it
		return nil, 0, nil, errors.Join(err, fault.New(fault.Conflict, "container %s is frozen: exec needs a running one", s.ID))
	}
	q := taskinit.Request{Args: x.Args, Env: append(append([]string{}, s.Env...), x.Env...), Dir: x.Dir, Extra: true}
	if q.Dir == "" {
		q.Dir = s.Dir
	}
	pid, err := d.request(context.WithoutCancel(ctx), c, s, q, ends[:]...) // what starts must be known, to be killed
	if err != nil {
		return nil, 0, nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	exited := c.extra[pid]
	if exited == nil {
		return nil, 0, nil, fault.New(fault.Unavailable, "container %s: its first process has ended", s.ID)
	}
	return c, pid, exited, nil
}

// forget removes a process of Exec.
func (c *container) forget(pid int) {
	c.mu.Lock()
	delete(c.extra, pid)
	c.mu.Unlock()
}

// kill kills a process that process 1 has started.
func (c *container) kill(pid int) error {
	b, err := taskinit.Encode(taskinit.Request{Kill: pid})
	if err != nil {
		return err
	}
	c.turn.Lock()
	defer c.turn.Unlock()
	if err := c.conn.SetWriteDeadline(time.Now().Add(replyLimit)); err != nil { // that of the last request may be over
		return err
	}
	_, err = c.conn.Write(b)
	return err
}
