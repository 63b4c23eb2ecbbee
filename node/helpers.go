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

	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/node/blob"
	"github.com/drover-run/drover/node/helper"
)

// maxHelperTries is how often a helper is started if it dies or fails with a retryable error; each
// start resumes where the previous one ended. The failure of the last one ends the attempt, since
// no helper has told the harness.
const maxHelperTries = 3

// helperRunner starts helpers: inside the daemon, or as processes in the cgroups of their attempts.
// It keeps no state, so that helpers of several attempts run at once.
type helperRunner struct {
	enforcer Enforcer     // nil: there are no cgroups to charge helpers to
	argv     []string     // of the helper program as configured; nil: helpers run inside the daemon
	program  string       // the stored copy of argv[0] that is run
	tools    helper.Tools // of helpers inside the daemon
	warn     func(string) // logs the first warning of all helpers
}

// chargesCopies reports whether files can be copied by a process in the attempt's cgroup.
func (r *helperRunner) chargesCopies() bool { return r.enforcer != nil && r.program != "" }

// run runs one helper to its end: inside the daemon if there are no
// cgroups to charge it to and it runs as the daemon's user, otherwise as a
// process.
func (r *helperRunner) run(ctx context.Context, id string, uid uint32, req *helper.Request, updates <-chan helper.Update, emit func(helper.Event)) error {
	same := int(uid) == os.Geteuid()
	if r.argv == nil || r.enforcer == nil && same {
		if !same {
			return fault.New(fault.Unsupported, "a helper for uid %d must be a separate process, but this node has no helper program: set Config.Helper", uid)
		}
		tools := r.tools
		tools.Updates, tools.Emit = updates, emit
		return helper.Run(ctx, req, tools)
	}
	return r.runProcess(ctx, id, uid, req, updates, emit)
}

// runProcess runs the helper program in the helpers leaf of the attempt's
// cgroup, as the tenant. Ending the context kills it.
func (r *helperRunner) runProcess(ctx context.Context, id string, uid uint32, req *helper.Request, updates <-chan helper.Update, emit func(helper.Event)) error {
	cmd := exec.CommandContext(ctx, r.program, r.argv[1:]...)
	cmd.Dir, cmd.Env, cmd.WaitDelay = "/", []string{"GOMEMLIMIT=48MiB"}, 2*time.Second
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if os.Geteuid() == 0 {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uid, Gid: uid}
	}
	if r.enforcer != nil {
		leaf, err := r.openLeaf(id)
		if err != nil {
			return err
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
	err = exchangeWithHelper(ctx, in, out, req, updates, r.splitWarnings(emit))
	if werr := cmd.Wait(); err == errNoFinalEvent {
		err = fmt.Errorf("helper died: %w: %s", werr, stderr)
	}
	return err
}

// splitWarnings returns a function that logs events with a warning and passes on the others.
func (r *helperRunner) splitWarnings(emit func(helper.Event)) func(helper.Event) {
	return func(e helper.Event) {
		if e.Warning != "" {
			r.warn(e.Warning)
			return
		}
		emit(e)
	}
}

// openLeaf opens the helpers leaf of the attempt's cgroup. Its error has no class, because a
// missing leaf says nothing about the task's input or files.
func (r *helperRunner) openLeaf(id string) (*os.File, error) {
	leaf, err := r.enforcer.OpenHelperLeaf(id)
	if err != nil {
		return nil, fault.New(fault.Unavailable, "cannot start a helper: %v", err)
	}
	return leaf, nil
}

// copyCharged copies a file by a process in the helpers leaf of the attempt's cgroup.
func (r *helperRunner) copyCharged(ctx context.Context, id string, uid uint32, to *os.File, from *blob.File, digest string) error {
	leaf, err := r.openLeaf(id)
	if err != nil {
		return err
	}
	defer leaf.Close()
	stderr := &tailBuffer{limit: 2 << 10}
	cmd := exec.CommandContext(ctx, r.program, append(slices.Clone(r.argv[1:]), helper.VerbCopy, digest)...)
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

// writeToHelper writes the request and then updates, until the helper or ctx ends. A failed write
// means that the helper is gone; its output says why.
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
