package reuse

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/runtime"
	"github.com/drover-run/drover/runtime/reuse/taskinit"
)

// sharedPrefix begins the engine's IDs of containers that tasks share.
const sharedPrefix = "reused-"

// Mount points of what process 1 needs at its start. They are unmounted before a task runs. They stand
// beside all others, and not below one: in one that is only to be read they could not be made.
const (
	initTarget   = "/.drover-init"
	socketTarget = "/.drover-socket"
)

// connectLimit bounds how long a new process 1 may take to connect.
const connectLimit = time.Minute

// container is a container of the engine that tasks share.
type container struct {
	id     string
	key    string // of Specs that may use it
	pid    int    // of process 1, in the host's namespace
	home   string // cgroup of process 1 between tasks
	conn   *net.UnixConn
	opened time.Time
	state  processState // of process 1 when it was made
	mounts string       // its mounts when it was given to the last task

	replies chan taskinit.Reply // to the request in progress; closed when process 1 is gone

	turn sync.Mutex // held while process 1 is in a task's cgroup, and while that is emptied; before mu

	mu      sync.Mutex
	current *task            // that runs in it
	command int              // its process, in the container
	exited  bool             // the command has ended: its end is known, whatever happens to process 1
	extra   map[int]chan int // processes of Exec: their exit codes
	ran     int              // tasks
	idle    time.Time        // since when no task needs it
	doomed  bool             // it is not used again
}

// keyOf returns what Specs must have in common to share a container.
func keyOf(s runtime.Spec) string {
	mounts := slices.Clone(s.Mounts)
	for i := range mounts {
		if !mounts[i].ReadOnly {
			mounts[i].Source = ""
		}
	}
	b, err := json.Marshal(runtime.Spec{Reuse: s.Reuse, Image: s.Image, Rootfs: s.Rootfs, UID: s.UID, GID: s.GID, Mounts: mounts})
	if err != nil {
		panic("reuse: a Spec that JSON cannot hold: " + err.Error())
	}
	h := sha256.Sum256(b)
	return hex.EncodeToString(h[:])
}

// take returns an idle container for a task, or nil.
func (d *Driver) take(s runtime.Spec) *container {
	key := keyOf(s)
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, c := range d.containers {
		if c.key == key && c.takeIfIdle(0) {
			return c
		}
	}
	return nil
}

// takeIfIdle makes the caller the only user of a container that has been idle for that long.
func (c *container) takeIfIdle(least time.Duration) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.doomed || c.idle.IsZero() || time.Since(c.idle) < least {
		return false
	}
	c.idle = time.Time{}
	return true
}

// isDead reports whether no task runs in the container, and none will.
func (c *container) isDead() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.doomed && c.current == nil
}

func (c *container) isDoomed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.doomed
}

// open has the engine make a container and waits for its process 1.
func (d *Driver) open(ctx context.Context, s runtime.Spec) (*container, error) {
	defer runtime.StartPart(ctx, "container to be used again")()
	id := sharedPrefix + strings.ToLower(rand.Text()[:16])
	defer d.setOpening(id)() // first, or CloseIdle would take it for one that an earlier driver has left
	dir := filepath.Join(d.cfg.socketsDir(), id)
	if err := os.Mkdir(dir, 0o755); err != nil { // the folders around it are the daemon's alone
		return nil, err
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(dir, taskinit.SocketName), Net: "unix"})
	if err != nil {
		return nil, err
	}
	defer l.Close()
	c, err := d.connect(ctx, l, dir, id, s)
	if err == nil {
		return c, nil
	}
	undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoLimit)
	defer cancel()
	return nil, errors.Join(err, d.deleteShared(undo, id))
}

// setOpening marks a container as being made, until the function that it returns is called.
func (d *Driver) setOpening(id string) (done func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.opening[id] = true
	return func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		delete(d.opening, id)
	}
}

// connect makes the engine's container and takes its connection.
func (d *Driver) connect(ctx context.Context, l *net.UnixListener, dir, id string, s runtime.Spec) (*container, error) {
	if err := os.Chmod(l.Addr().String(), 0o666); err != nil {
		return nil, err
	}
	c := &container{id: id, key: keyOf(s), home: filepath.Join(d.cfg.Cgroup, id), opened: time.Now(), extra: map[int]chan int{}, replies: make(chan taskinit.Reply, 1)}
	own := runtime.Spec{
		ID: id, Image: s.Image, Rootfs: s.Rootfs, UID: s.UID, GID: s.GID, Cgroup: c.home, Hostname: "task", Labels: map[string]string{labelReused: "yes"}, NeverDumped: true,
		Args: append(append([]string{initTarget}, d.cfg.Init[1:]...), taskinit.Verb, socketTarget),
		Mounts: append(slices.Clone(s.Mounts), runtime.Mount{Source: d.cfg.Init[0], Target: initTarget, ReadOnly: true},
			runtime.Mount{Source: dir, Target: socketTarget, ReadOnly: true}),
	}
	if err := d.Engine.Create(ctx, own); err != nil {
		return nil, err
	}
	if err := d.Engine.Start(ctx, id); err != nil {
		return nil, err
	}
	if err := d.accept(ctx, l, c); err != nil {
		return nil, err
	}
	err := c.prepare(d.cfg, s)
	if err == nil {
		err = os.RemoveAll(dir)
	}
	if err != nil {
		c.conn.Close()
		return nil, err
	}
	d.mu.Lock()
	d.containers[id] = c
	d.opened++
	d.mu.Unlock()
	d.wg.Go(func() { d.follow(c) })
	return c, nil
}

// accept waits for the connection and checks that process 1 has made it.
func (d *Driver) accept(ctx context.Context, l *net.UnixListener, c *container) error {
	limit := time.Now().Add(connectLimit)
	if at, ok := ctx.Deadline(); ok && at.Before(limit) {
		limit = at
	}
	if err := l.SetDeadline(limit); err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { l.Close() })()
	conn, err := l.AcceptUnix()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		return fault.New(fault.Unavailable, "container %s: its first process does not connect: %w", c.id, err)
	}
	c.conn = conn
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var peer *unix.Ucred
	var perr error
	if err := raw.Control(func(fd uintptr) { peer, perr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); err != nil {
		return err
	}
	if perr != nil {
		return perr
	}
	c.pid = int(peer.Pid)
	group, err := cgroupOf(c.pid)
	if err != nil {
		return fault.New(fault.Unavailable, "container %s: process %d, which has connected: %w", c.id, c.pid, err)
	}
	if group != c.home {
		return fault.New(fault.Denied, "container %s: process %d in cgroup %s connects, not its own", c.id, c.pid, group)
	}
	return nil
}

// prepare limits process 1 and remembers what must stay as it is.
func (c *container) prepare(cfg Config, s runtime.Spec) error {
	if err := cfg.limitHome(c.home); err != nil {
		return err
	}
	mounts, err := readMounts(c.pid)
	if err != nil {
		return err
	}
	if err := checkNoLinks(s.ID, mounts, mountTargets(s)); err != nil {
		return err
	}
	err = inContainer(c.pid, func() error {
		for _, target := range []string{socketTarget, initTarget} {
			if err := unix.Unmount(target, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
				return fmt.Errorf("unmount of %s: %w", target, err)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	c.state, err = readProcessState(c.pid)
	return err
}

// follow reads what process 1 says, until the connection ends.
func (d *Driver) follow(c *container) {
	defer close(c.replies)
	for {
		length := make([]byte, 4)
		var r taskinit.Reply
		_, err := io.ReadFull(c.conn, length)
		if err == nil {
			err = taskinit.Decode(c.conn, length, &r)
		}
		if err != nil || !d.heard(c, r) {
			d.lost(c)
			return
		}
	}
}

// heard handles one reply. It returns false for one that process 1 would not give.
func (d *Driver) heard(c *container, r taskinit.Reply) bool {
	if r.Event != taskinit.Exited {
		c.mu.Lock()
		if r.Event == taskinit.Started && c.current != nil && c.command == 0 {
			c.command = r.PID // here: the next reply may be its end
		} else if r.Event == taskinit.Started && c.doomed { // its Exec was given up: it was born outside of the task's cgroup
			d.wg.Go(func() { _ = c.kill(r.PID) }) // without a connection it ends with process 1
		} else if r.Event == taskinit.Started {
			c.extra[r.PID] = make(chan int, 1)
		}
		c.mu.Unlock()
		select {
		case c.replies <- r:
			return true
		default:
			return false
		}
	}
	c.mu.Lock()
	t, extra := c.current, c.extra[r.PID]
	isCommand := t != nil && c.command == r.PID && !c.exited
	c.exited = c.exited || isCommand
	c.mu.Unlock()
	switch {
	case isCommand:
		d.wg.Go(func() { d.finish(c, t, r.Code) })
	case extra != nil:
		select {
		case extra <- r.Code:
		default:
			return false
		}
	}
	return true // even if nobody waits for the process, because its Exec was cancelled
}

// lost is called when the connection has ended: process 1 is dead, or this driver ends.
func (d *Driver) lost(c *container) {
	c.conn.Close()
	c.mu.Lock()
	c.doomed, c.idle = true, time.Time{}
	t := c.current
	if c.exited {
		t = nil // its finish is under way
	}
	for pid, code := range c.extra {
		close(code)
		delete(c.extra, pid)
	}
	c.mu.Unlock()
	d.mu.Lock()
	closed := d.closed
	d.mu.Unlock()
	if t != nil && !closed { // otherwise the next driver waits for the task
		d.wg.Go(func() { d.finish(c, t, runtime.ExitLost) })
	}
}

// discard deletes a container.
func (d *Driver) discard(ctx context.Context, c *container) error {
	c.mu.Lock()
	c.doomed, c.idle = true, time.Time{}
	c.mu.Unlock()
	c.conn.Close()
	if err := d.deleteShared(ctx, c.id); err != nil {
		return err
	}
	d.mu.Lock()
	delete(d.containers, c.id)
	d.mu.Unlock()
	return nil
}
