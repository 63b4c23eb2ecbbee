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
	"github.com/drover-run/drover/node/helper"
	"github.com/drover-run/drover/node/task"
)

// helperTries is how often a helper is started anew after it died or met what
// may pass; it goes on where it was.
const helperTries = 3

// helperState is one helper of an attempt, as its loop knows it.
type helperState struct {
	work    task.Work
	verdict *verdict // of one that failed
	event   helper.Event
	tries   int
	cancel  context.CancelFunc
	done    chan struct{}      // closed when it has ended
	updates chan helper.Update // holds the newest one
}

// update hands the newest state of the map outputs to the helper, in place of
// one that it has not taken yet.
func (h *helperState) update(u helper.Update) {
	if h.updates == nil {
		return
	}
	select {
	case <-h.updates:
	default:
	}
	h.updates <- u // room for one, and the loop alone sends
}

// startHelper runs a helper beside the loop. ended gives its failure a cause.
func (a *attempt) startHelper(ctx context.Context, h *helperState, spec *droverv1.TaskSpec, req *helper.Request, ended func(error) *verdict) error {
	uid, err := a.d.uid(spec)
	if err != nil {
		return err
	}
	req.Version, req.Files, req.User = helper.Version, a.d.cfg.FilesConfig, spec.GetHdfsUser()
	ctx, cancel := context.WithCancel(ctx)
	done, updates := make(chan struct{}), make(chan helper.Update, 1)
	h.work, h.cancel, h.done, h.updates = task.WorkBusy, cancel, done, updates
	emit := func(e helper.Event) { a.post(ctx, func(*attempt) { h.event = e }) }
	a.wg.Go(func() {
		err := a.d.runHelper(ctx, a.id.String(), uid, req, updates, emit)
		close(done)
		a.post(ctx, func(a *attempt) {
			cancel()
			a.helperEnded(h, err, ended)
		})
	})
	return nil
}

// helperEnded takes in how a helper ended.
func (a *attempt) helperEnded(h *helperState, err error, ended func(error) *verdict) {
	if h.work != task.WorkBusy {
		return // stopped meanwhile
	}
	h.updates = nil
	if err == nil {
		h.work = task.WorkDone
		return
	}
	h.tries++
	a.d.log.Warn("a helper failed", "attempt", a.id, "try", h.tries, "err", err)
	if passing(err) && h.tries < helperTries {
		h.work = task.WorkIdle
		return
	}
	h.work, h.verdict = task.WorkFailed, ended(err)
}

// passing tells whether a helper that is started again may fare better.
func passing(err error) bool {
	return fault.Class(err) == nil || errors.Is(err, fault.Unavailable)
}

// stopHelpers ends both helpers and waits for them.
func (a *attempt) stopHelpers(ctx context.Context) error {
	for _, h := range []*helperState{&a.fetch, &a.upload} {
		if h.work != task.WorkBusy {
			continue
		}
		h.cancel()
		select {
		case <-h.done:
		case <-ctx.Done():
			return fault.New(fault.Unavailable, "a helper does not end: %w", ctx.Err())
		}
		h.work, h.updates = task.WorkIdle, nil
	}
	return nil
}

// runHelper runs one helper to its end: inside the daemon where it would be
// charged to nobody else anyway and is allowed the same, else as a process.
func (d *daemon) runHelper(ctx context.Context, id string, uid uint32, req *helper.Request, updates <-chan helper.Update, emit func(helper.Event)) error {
	same := int(uid) == os.Geteuid()
	if d.cfg.Helper == nil || d.cfg.Enforcer == nil && same {
		if !same {
			return fault.New(fault.Unsupported, "a helper for uid %d must be a process of its own, and this node has no helper program: set Config.Helper", uid)
		}
		return helper.Run(ctx, req, helper.Tools{Files: d.files, HTTP: d.web, Updates: updates, Emit: emit})
	}
	return d.helperProcess(ctx, id, uid, req, updates, emit)
}

// helperProcess runs the helper program in leaf x of the attempt's cgroup, as
// the tenant. Ending the context kills it.
func (d *daemon) helperProcess(ctx context.Context, id string, uid uint32, req *helper.Request, updates <-chan helper.Update, emit func(helper.Event)) error {
	cmd := exec.CommandContext(ctx, d.helper, d.cfg.Helper[1:]...)
	cmd.Dir, cmd.Env, cmd.WaitDelay = "/", []string{"GOMEMLIMIT=48MiB"}, 2*time.Second
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if os.Geteuid() == 0 {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uid, Gid: uid}
	}
	if d.cfg.Enforcer != nil {
		leaf, err := d.cfg.Enforcer.HelperLeaf(id)
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
	said := &lastBytes{most: 2 << 10}
	cmd.Stderr = said
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("helper: %w", err)
	}
	err = converse(ctx, in, out, req, updates, emit)
	if werr := cmd.Wait(); err == errNoEnd {
		err = fmt.Errorf("the helper died: %w: %s", werr, said)
	}
	return err
}

// copyCharged copies a file as a process in leaf x of the attempt's cgroup.
func (d *daemon) copyCharged(ctx context.Context, id string, uid uint32, to, from *os.File) error {
	leaf, err := d.cfg.Enforcer.HelperLeaf(id)
	if err != nil {
		return fmt.Errorf("copy: %w", err)
	}
	defer leaf.Close()
	said := &lastBytes{most: 2 << 10}
	cmd := exec.CommandContext(ctx, d.helper, append(slices.Clone(d.cfg.Helper[1:]), helper.Copy)...)
	cmd.Dir, cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.WaitDelay = "/", []string{"GOMEMLIMIT=48MiB"}, from, to, said, 2*time.Second
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, UseCgroupFD: true, CgroupFD: int(leaf.Fd())}
	if os.Geteuid() == 0 {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uid, Gid: uid}
	}
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("copy: %w: %s", err, said)
	}
	return nil
}

// errNoEnd says that a helper's output ended without a last word.
var errNoEnd = errors.New("the helper said nothing of its end")

// converse feeds the helper and hears it out.
func converse(ctx context.Context, in io.WriteCloser, out io.Reader, req *helper.Request, updates <-chan helper.Update, emit func(helper.Event)) error {
	ctx, cancel := context.WithCancel(ctx)
	fed := make(chan struct{})
	go func() {
		defer close(fed)
		defer in.Close()
		feed(ctx, in, req, updates)
	}()
	defer func() { cancel(); <-fed }()
	lines := bufio.NewReader(out)
	for {
		e, err := helper.Decode(lines)
		if err != nil {
			return errNoEnd
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

// feed writes the request and then updates, until the helper or ctx ends. An
// error of a write means that the helper is gone; its output says why.
func feed(ctx context.Context, in io.Writer, req *helper.Request, updates <-chan helper.Update) {
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

// lastBytes keeps the end of what is written to it.
type lastBytes struct {
	most int
	b    []byte
}

func (l *lastBytes) Write(p []byte) (int, error) {
	l.b = append(l.b, p...)
	if over := len(l.b) - l.most; over > 0 {
		l.b = l.b[over:]
	}
	return len(p), nil
}

func (l *lastBytes) String() string { return oneLine(string(l.b)) }
