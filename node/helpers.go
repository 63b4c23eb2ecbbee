package node

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"syscall"
	"time"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/node/blob"
	"github.com/drover-run/drover/node/helper"
	"github.com/drover-run/drover/node/task"
)

// maxHelperTries is how often a helper is started if it dies or fails with a
// retryable error; each start resumes where the last one ended.
const maxHelperTries = 3

// helperState is the state of one helper of an attempt, owned by its loop.
type helperState struct {
	work     task.Work
	failure  *failure // set when work is WorkFailed
	progress helper.Event
	tries    int
	began    time.Duration // when it was started last, on the monotonic clock
	took     time.Duration // of its starts that have ended
	cancel   context.CancelFunc
	done     chan struct{}      // closed when the helper has ended
	updates  chan helper.Update // capacity 1: the newest update
}

// sendUpdate passes the newest state of the map outputs to the helper, replacing
// one that it has not received yet.
func (h *helperState) sendUpdate(u helper.Update) {
	if h.updates == nil {
		return
	}
	select {
	case <-h.updates:
	default:
	}
	h.updates <- u // does not block: only the loop sends
}

// elapsed returns how long the helper has worked, in all its starts. What it did
// before a restart of the daemon is not known.
func (h *helperState) elapsed(now time.Duration) time.Duration {
	if h.work != task.WorkBusy {
		return h.took
	}
	return h.took + now - h.began
}

// startHelper runs a helper in a goroutine. ended maps its error to a failure.
func (a *attempt) startHelper(ctx context.Context, h *helperState, spec *droverv1.TaskSpec, req *helper.Request, ended func(error) *failure) error {
	uid, err := a.d.taskUID(spec)
	if err != nil {
		return err
	}
	req.Version, req.Files, req.User = helper.Version, a.d.cfg.FilesConfig, spec.GetHdfsUser()
	ctx, cancel := context.WithCancel(ctx)
	done, updates := make(chan struct{}), make(chan helper.Update, 1)
	h.work, h.cancel, h.done, h.updates, h.began = task.WorkBusy, cancel, done, updates, a.d.clock.Monotonic()
	emit := func(e helper.Event) { a.post(ctx, func(*attempt) { h.progress = e }) }
	a.wg.Go(func() {
		err := a.d.runHelper(ctx, a.id.String(), uid, req, updates, emit)
		close(done)
		a.post(ctx, func(a *attempt) {
			cancel()
			a.handleHelperEnd(h, err, ended)
		})
	})
	return nil
}

// handleHelperEnd records how a helper ended.
func (a *attempt) handleHelperEnd(h *helperState, err error, ended func(error) *failure) {
	if h.work != task.WorkBusy {
		return // stopped in the meantime
	}
	h.took = h.elapsed(a.d.clock.Monotonic())
	h.updates = nil
	if err == nil {
		h.work = task.WorkDone
		return
	}
	h.tries++
	a.d.log.Warn("helper failed", "attempt", a.id, "try", h.tries, "err", err)
	if isRetryable(err) && h.tries < maxHelperTries {
		h.work = task.WorkIdle
		return
	}
	h.work, h.failure = task.WorkFailed, ended(err)
}

// isRetryable reports whether a restarted helper may succeed.
func isRetryable(err error) bool {
	return fault.Class(err) == nil || errors.Is(err, fault.Unavailable)
}

// stopHelpers stops both helpers and waits for them.
func (a *attempt) stopHelpers(ctx context.Context) error {
	for _, h := range []*helperState{&a.fetch, &a.upload} {
		if h.work != task.WorkBusy {
			continue
		}
		h.cancel()
		select {
		case <-h.done:
		case <-ctx.Done():
			return fault.New(fault.Unavailable, "helper does not stop: %w", ctx.Err())
		}
		h.took = h.elapsed(a.d.clock.Monotonic())
		h.work, h.updates = task.WorkIdle, nil
	}
	return nil
}

// runHelper runs one helper to its end: inside the daemon if there are no
// cgroups to charge it to and it runs as the daemon's user, otherwise as a
// process.
func (d *daemon) runHelper(ctx context.Context, id string, uid uint32, req *helper.Request, updates <-chan helper.Update, emit func(helper.Event)) error {
	same := int(uid) == os.Geteuid()
	if d.cfg.Helper == nil || d.cfg.Enforcer == nil && same {
		if !same {
			return fault.New(fault.Unsupported, "a helper for uid %d must be a separate process, but this node has no helper program: set Config.Helper", uid)
		}
		return helper.Run(ctx, req, helper.Tools{Files: d.files, HTTP: d.httpClient, Updates: updates, Emit: emit})
	}
	return d.runHelperProcess(ctx, id, uid, req, updates, emit)
}

// runHelperProcess runs the helper program in the helpers leaf of the attempt's
// cgroup, as the tenant. Ending the context kills it.
func (d *daemon) runHelperProcess(ctx context.Context, id string, uid uint32, req *helper.Request, updates <-chan helper.Update, emit func(helper.Event)) error {
	cmd := exec.CommandContext(ctx, d.helperPath, d.cfg.Helper[1:]...)
	cmd.Dir, cmd.Env, cmd.WaitDelay = "/", []string{"GOMEMLIMIT=48MiB"}, 2*time.Second
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if os.Geteuid() == 0 {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uid, Gid: uid}
	}
	if d.cfg.Enforcer != nil {
		leaf, err := d.cfg.Enforcer.OpenHelperLeaf(id)
		if err != nil {
			return fmt.Errorf("helper: %w", err)
		}
		defer leaf.Close()
		cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, int(leaf.Fd())
	}
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	stderr := &tailBuffer{limit: 2 << 10}
	cmd.Stderr = stderr
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("helper: %w", err)
	}
	err = exchangeWithHelper(ctx, in, out, req, updates, emit)
	if werr := cmd.Wait(); err == errNoFinalEvent {
		err = fmt.Errorf("helper died: %w: %s", werr, stderr)
	}
	return err
}

// copyCharged copies a file by a process in the helpers leaf of the attempt's cgroup.
func (d *daemon) copyCharged(ctx context.Context, id string, uid uint32, to *os.File, from *blob.File, digest string) error {
	leaf, err := d.cfg.Enforcer.OpenHelperLeaf(id)
	if err != nil {
		return fmt.Errorf("copy: %w", err)
	}
	defer leaf.Close()
	stderr := &tailBuffer{limit: 2 << 10}
	cmd := exec.CommandContext(ctx, d.helperPath, append(slices.Clone(d.cfg.Helper[1:]), helper.VerbCopy, digest)...)
	cmd.Dir, cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.WaitDelay = "/", []string{"GOMEMLIMIT=48MiB"}, from.File, to, stderr, 2*time.Second
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, UseCgroupFD: true, CgroupFD: int(leaf.Fd())}
	if os.Geteuid() == 0 {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uid, Gid: uid}
	}
	err = cmd.Run()
	if cmd.ProcessState.ExitCode() == helper.ExitDamaged {
		return from.Damaged(stderr.String())
	}
	if err != nil {
		return fmt.Errorf("copy: %w: %s", err, stderr)
	}
	return nil
}

// errNoFinalEvent means that a helper's output ended without a final event.
var errNoFinalEvent = errors.New("helper ended without a final event")

// exchangeWithHelper sends request and updates to the helper and handles its events.
func exchangeWithHelper(ctx context.Context, in io.WriteCloser, out io.Reader, req *helper.Request, updates <-chan helper.Update, emit func(helper.Event)) error {
	ctx, cancel := context.WithCancel(ctx)
	fed := make(chan struct{})
	go func() {
		defer close(fed)
		defer in.Close()
		writeToHelper(ctx, in, req, updates)
	}()
	defer func() { cancel(); <-fed }()
	lines := bufio.NewReader(out)
	for {
		e, err := helper.Decode(lines)
		if err != nil {
			return errNoFinalEvent
		}
		if e.Done {
			return nil
		}
		if err := e.Err(); err != nil {
			return err
		}
		emit(e)
	}
}

// writeToHelper writes the request and then updates, until the helper or ctx
// ends. A failed write means that the helper is gone; its output tells why.
func writeToHelper(ctx context.Context, in io.Writer, req *helper.Request, updates <-chan helper.Update) {
	line, err := helper.Encode(req)
	for err == nil {
		if _, err = in.Write(line); err != nil {
			return
		}
		select {
		case u := <-updates:
			line, err = helper.Encode(u)
		case <-ctx.Done():
			return
		}
	}
}

// tailBuffer keeps the last limit bytes written to it.
type tailBuffer struct {
	limit int
	b     []byte
}

func (l *tailBuffer) Write(p []byte) (int, error) {
	l.b = append(l.b, p...)
	if over := len(l.b) - l.limit; over > 0 {
		l.b = l.b[over:]
	}
	return len(p), nil
}

func (l *tailBuffer) String() string { return oneLine(string(l.b)) }
