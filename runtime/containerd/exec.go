package containerd

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/cio"

	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/runtime"
)

// outputLimit bounds how long processes left by an Exec may hold its output open.
const outputLimit = 5 * time.Second

// Exec implements runtime.Execer. The process has the user, limits, seccomp
// profile and lack of capabilities of the container.
func (d *Driver) Exec(ctx context.Context, id string, x runtime.ExecSpec) (int, error) {
	if len(x.Args) == 0 {
		return 0, fault.New(fault.Invalid, "exec in container %s: no command", id)
	}
	c, err := d.c.LoadContainer(ctx, id)
	if err != nil {
		return 0, engineError(ctx, "exec", id, err)
	}
	task, err := c.Task(ctx, nil)
	if err == nil {
		var st client.Status
		if st, err = task.Status(ctx); err == nil && st.Status != client.Running {
			return 0, fault.New(fault.Conflict, "container %s is %s: exec needs a running one", id, st.Status)
		}
	}
	if e := engineError(ctx, "exec", id, err); e != nil {
		if fault.Class(e) == fault.NotFound {
			return 0, fault.New(fault.Conflict, "container %s is not running: exec needs a running one", id)
		}
		return 0, e
	}
	spec, err := c.Spec(ctx)
	if err != nil {
		return 0, engineError(ctx, "exec", id, err)
	}
	p := *spec.Process
	p.Args, p.Env, p.Terminal = x.Args, environment(p.Env, x.Env), false
	if x.Dir != "" {
		p.Cwd = x.Dir
	}
	pipes := filepath.Join(d.cfg.stateDir, id, "exec")
	if err := os.MkdirAll(pipes, 0o700); err != nil {
		return 0, fmt.Errorf("exec in container %s: %w", id, err)
	}
	in := &eofReader{r: x.Stdin, ended: make(chan struct{})}
	var stdin io.Reader
	if x.Stdin != nil {
		stdin = in
	}
	proc, err := task.Exec(ctx, "x-"+rand.Text(), &p, cio.NewCreator(cio.WithStreams(stdin, orDiscard(x.Stdout), orDiscard(x.Stderr)), cio.WithFIFODir(pipes)))
	if err != nil {
		return 0, commandError(ctx, id, err)
	}
	return d.runExec(ctx, id, proc, in)
}

// runExec starts the process, closes its input when in ends, and waits for it.
func (d *Driver) runExec(ctx context.Context, id string, proc client.Process, in *eofReader) (code int, err error) {
	// For calls that must also work after ctx has ended.
	apart, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer func() {
		after, cancel := context.WithTimeout(apart, stopLimit+outputLimit)
		defer cancel()
		held := time.AfterFunc(outputLimit, func() { proc.IO().Cancel(); proc.IO().Close() })
		defer held.Stop()
		if _, derr := proc.Delete(after, client.WithProcessKill); derr != nil && err == nil {
			err = engineError(after, "end of exec", id, derr)
		}
	}()
	ended, err := proc.Wait(apart)
	if err != nil {
		return 0, engineError(ctx, "exec", id, err)
	}
	if err := proc.Start(ctx); err != nil {
		return 0, commandError(ctx, id, err)
	}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		select {
		case <-in.ended:
			// The FIFO has no writer once this copy is closed, but the shim holds it.
			_ = proc.CloseIO(apart, client.WithStdinCloser)
		case <-stop:
		}
	})
	defer wg.Wait()
	defer close(stop)
	select {
	case st := <-ended:
		if st.Error() != nil {
			return 0, engineError(ctx, "exec", id, st.Error())
		}
		return int(st.ExitCode()), nil
	case <-ctx.Done():
		return 0, ctx.Err() // the deferred Delete kills it
	}
}

// eofReader closes ended when its reader has ended.
type eofReader struct {
	r     io.Reader
	once  sync.Once
	ended chan struct{}
}

func (s *eofReader) Read(b []byte) (int, error) {
	n, err := s.r.Read(b)
	if err != nil {
		s.once.Do(func() { close(s.ended) })
	}
	return n, err
}

func orDiscard(w io.Writer) io.Writer {
	if w == nil {
		return io.Discard
	}
	return w
}
