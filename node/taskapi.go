package node

import (
	"context"
	"io"
	"sync"
	"time"

	"connectrpc.com/connect"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/api/wire"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/node/store"
	"github.com/drover-run/drover/runtime"
)

// taskAPI serves logs and exec to the coordinator on behalf of users.
type taskAPI struct{ d *daemon }

// Limits of the task API.
const (
	logChunk       = 32 << 10
	followInterval = 200 * time.Millisecond
)

// Logs implements droverv1connect.TaskServiceHandler.
func (t *taskAPI) Logs(ctx context.Context, r *connect.Request[droverv1.LogsRequest], out *connect.ServerStream[droverv1.LogsResponse]) error {
	id := store.IDOf(r.Msg.GetKey())
	stream := orDefault(r.Msg.GetStream(), "stdout")
	if stream != "stdout" && stream != "stderr" {
		return wire.Error(fault.New(fault.Invalid, "stream %q: want stdout or stderr", stream))
	}
	a, files, err := t.openLogs(r.Msg, id, stream)
	if err != nil {
		return wire.Error(err)
	}
	defer func() { files.close() }()
	if err := files.seek(r.Msg); err != nil {
		return wire.Error(err)
	}
	out.ResponseHeader().Set(wire.Position, files.position())
	if err := out.Send(nil); err != nil { // the header alone: data may come late
		return err
	}
	send := func(b []byte, lost int64) error {
		return out.Send(&droverv1.LogsResponse{Data: b, Position: files.position(), Lost: lost})
	}
	for {
		// Checked before the files are read, so that they contain everything written
		// before the end.
		ended := a == nil || a.mail.snapshot().GetPhase() > droverv1.Phase_PHASE_RUNNING || !t.isCurrent(a)
		if err := files.copy(send); err != nil {
			return wire.Error(err)
		}
		if dir := t.d.pastLogs.Folder(id.String()); a != nil && ended && dir != "" {
			// The attempt left meanwhile: the kept copy has what was removed before it was read.
			if files, err = files.continueIn(folder(dir)); err != nil {
				return wire.Error(err)
			}
			a = nil
			continue
		}
		if !r.Msg.GetFollow() || ended {
			return nil
		}
		timer := time.NewTimer(followInterval)
		select {
		case <-timer.C:
		case <-ctx.Done(): // the caller left, or this daemon stops: the output has not ended
			timer.Stop()
			return wire.Error(fault.New(fault.Unavailable, "the node daemon stops: ask again"))
		}
	}
}

// openLogs opens the logs of an attempt. The attempt is nil if it has left.
func (t *taskAPI) openLogs(r *droverv1.LogsRequest, id store.ID, stream string) (*attempt, *logFiles, error) {
	own := folder("")
	a, absent := t.find(id)
	if absent == nil {
		own = a.dir
	}
	files, left, err := jobLogs{t.d.attempts, t.d.pastLogs}.open(id, own, stream)
	switch {
	case err != nil:
		return nil, nil, err
	case left:
		return nil, files, nil
	case absent == nil:
		return a, files, nil
	case t.d.pastLogs.Failed(id.String()):
		return nil, nil, fault.New(fault.NotFound, "the logs of attempt %s are lost: node %s could not keep them when the attempt left, and its own log says why", id, t.d.cfg.Info.GetName())
	case !r.GetFollow() && t.d.attempts.jobsInUse()[r.GetKey().GetJob()]:
		return nil, files, nil // all logs of the job are kept, so the attempt wrote nothing
	default:
		return nil, nil, absent
	}
}

func (t *taskAPI) find(id store.ID) (*attempt, error) {
	a := t.d.attempts.find(id)
	if a == nil {
		return nil, fault.New(fault.NotFound, "attempt %s is not on node %s (any more), and its logs are not kept there: the newest %d MiB of the last %d hours are, of attempts that wrote any (-keep-logs-size and -keep-logs-age of the node)",
			id, t.d.cfg.Info.GetName(), max(t.d.cfg.KeepLogBytes, 0)>>20, int(t.d.cfg.KeepLogAge.Hours()))
	}
	return a, nil
}

func (t *taskAPI) isCurrent(a *attempt) bool { return t.d.attempts.get(a.id) == a }

// Exec implements droverv1connect.TaskServiceHandler.
func (t *taskAPI) Exec(ctx context.Context, s *connect.BidiStream[droverv1.ExecRequest, droverv1.ExecResponse]) error {
	first, err := s.Receive()
	if err != nil {
		return wire.Error(fault.New(fault.Invalid, "exec: no first message: %w", err))
	}
	id := store.IDOf(first.GetKey())
	a, err := t.find(id)
	if err != nil {
		return wire.Error(err)
	}
	x, ok := t.d.cfg.Driver.(runtime.Execer)
	if !ok {
		return wire.Error(fault.New(fault.Unsupported, "driver %s cannot run a second command in a task", t.d.cfg.Driver.Name()))
	}
	if phase := a.mail.snapshot().GetPhase(); phase != droverv1.Phase_PHASE_RUNNING {
		return wire.Error(fault.New(fault.Conflict, "attempt %s is not running: exec needs a running one", id))
	}
	if len(first.GetCommand()) == 0 {
		return wire.Error(fault.New(fault.Invalid, "exec: no command"))
	}
	in, feed := io.Pipe()
	defer in.Close() // unblocks a write of the reader below
	var mu sync.Mutex
	write := func(m func([]byte) *droverv1.ExecResponse) io.Writer {
		return writerFunc(func(p []byte) (int, error) {
			mu.Lock()
			defer mu.Unlock()
			return len(p), s.Send(m(append([]byte(nil), p...)))
		})
	}
	// A Receive ends only with the stream, that is when this handler returns. The
	// goroutine ends then, and the daemon waits for it.
	t.d.execInputs.Go(func() { feedStdin(s, first, feed) })
	code, err := x.Exec(ctx, id.String(), runtime.ExecSpec{
		Args: first.GetCommand(), Dir: t.d.cfg.workDir(a.dir), Stdin: in,
		Stdout: write(func(b []byte) *droverv1.ExecResponse { return &droverv1.ExecResponse{Stdout: b} }),
		Stderr: write(func(b []byte) *droverv1.ExecResponse { return &droverv1.ExecResponse{Stderr: b} }),
	})
	if err != nil {
		return wire.Error(err)
	}
	mu.Lock()
	defer mu.Unlock()
	return s.Send(&droverv1.ExecResponse{Ended: true, ExitCode: int32(code)})
}

// feedStdin copies standard input from the stream to feed.
func feedStdin(s *connect.BidiStream[droverv1.ExecRequest, droverv1.ExecResponse], first *droverv1.ExecRequest, feed *io.PipeWriter) {
	defer feed.Close()
	for m := first; ; {
		if len(m.GetStdin()) > 0 {
			if _, err := feed.Write(m.GetStdin()); err != nil {
				return
			}
		}
		if m.GetStdinEnd() {
			return
		}
		var err error
		if m, err = s.Receive(); err != nil {
			return
		}
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }
