package node

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"strconv"
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
	var a *attempt                                  // nil: it is over
	dir := folder(t.d.pastLogs.Folder(id.String())) // it is there before the attempt's own folder goes
	if dir == "" {
		var err error
		if a, err = t.find(id); err != nil {
			return wire.Error(err)
		}
		dir = a.dir
	}
	files, err := openLogs(dir, stream)
	if err != nil {
		return wire.Error(err)
	}
	defer files.close()
	if n := r.Msg.GetTail(); n > 0 {
		if err := files.seekTail(n); err != nil {
			return wire.Error(err)
		}
	}
	send := func(b []byte) error { return out.Send(&droverv1.LogsResponse{Data: b}) }
	for {
		// Checked before the files are read, so that they contain everything written
		// before the end.
		ended := a == nil || a.snapshot().GetPhase() > droverv1.Phase_PHASE_RUNNING || !t.isCurrent(a)
		if err := files.copy(send); err != nil {
			return wire.Error(err)
		}
		if !r.Msg.GetFollow() || ended {
			return nil
		}
		timer := time.NewTimer(followInterval)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil
		}
	}
}

func (t *taskAPI) find(id store.ID) (*attempt, error) {
	t.d.mu.Lock()
	defer t.d.mu.Unlock()
	a := t.d.attempts[id]
	if a == nil || a.orphaned {
		return nil, fault.New(fault.NotFound, "attempt %s is not on node %s (any more), and its logs are not kept there: the newest %d MiB of the last %d hours are, of attempts that wrote any (-keep-logs-size and -keep-logs-age of the node)",
			id, t.d.cfg.Info.GetName(), max(t.d.cfg.KeepLogBytes, 0)>>20, int(t.d.cfg.KeepLogAge.Hours()))
	}
	return a, nil
}

func (t *taskAPI) isCurrent(a *attempt) bool {
	t.d.mu.Lock()
	defer t.d.mu.Unlock()
	return t.d.attempts[a.id] == a
}

// logFiles reads one stream across its rotations, oldest first.
type logFiles struct {
	dir    folder
	stream string
	open   []*os.File // the last one is, or was, the current file
}

const maxRotations = 100

func openLogs(dir folder, stream string) (*logFiles, error) {
	l := &logFiles{dir: dir, stream: stream}
	for i := maxRotations; i >= 0; i-- {
		f, err := os.Open(l.name(i))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			l.close()
			return nil, err
		}
		l.open = append(l.open, f)
	}
	return l, nil
}

func (l *logFiles) name(i int) string {
	suffix := ""
	if i > 0 {
		suffix = "." + strconv.Itoa(i)
	}
	return l.dir.join(nameLogs, l.stream+".log"+suffix)
}

func (l *logFiles) close() {
	for _, f := range l.open {
		f.Close()
	}
}

// copy sends what was not sent yet, and continues in the new file after a
// rotation.
func (l *logFiles) copy(send func([]byte) error) error {
	buf := make([]byte, logChunk)
	for {
		for len(l.open) > 0 {
			n, err := l.open[0].Read(buf)
			if n > 0 {
				if err := send(buf[:n]); err != nil {
					return err
				}
				continue
			}
			if err != nil && err != io.EOF {
				return err
			}
			if len(l.open) == 1 {
				break
			}
			l.open[0].Close()
			l.open = l.open[1:]
		}
		more, err := l.openNewer()
		if !more || err != nil {
			return err
		}
	}
}

// openNewer opens the files that are newer than the one being read.
func (l *logFiles) openNewer() (bool, error) {
	var newer []*os.File
	fail := func(err error) (bool, error) {
		for _, f := range newer {
			f.Close()
		}
		return false, err
	}
	for i := range maxRotations {
		f, err := os.Open(l.name(i))
		if errors.Is(err, fs.ErrNotExist) {
			break
		}
		if err != nil {
			return fail(err)
		}
		if len(l.open) > 0 && sameFile(f, l.open[0]) {
			f.Close()
			break
		}
		newer = append([]*os.File{f}, newer...)
		if len(l.open) == 0 && i == 0 {
			break // the first file has just appeared
		}
	}
	l.open = append(l.open, newer...)
	return len(newer) > 0, nil
}

func sameFile(a, b *os.File) bool {
	x, errA := a.Stat()
	y, errB := b.Stat()
	return errA == nil && errB == nil && os.SameFile(x, y)
}

// seekTail seeks to the last n lines.
func (l *logFiles) seekTail(n int64) error {
	if len(l.open) > 0 {
		last := len(l.open) - 1
		at, lines, err := tailOffset(l.open[last], n)
		if err != nil {
			return err
		}
		if _, err := l.open[last].Seek(at, io.SeekStart); err != nil {
			return err
		}
		if lines >= n || last == 0 {
			return nil
		}
		// The previous file has the remaining lines.
		rest := logFiles{dir: l.dir, stream: l.stream, open: l.open[:last]}
		if err := rest.seekTail(n - lines); err != nil {
			return err
		}
		l.open = append(rest.open, l.open[last])
		return nil
	}
	return nil
}

// tailOffset returns where the last n lines of a file begin, and how many there are.
func tailOffset(f *os.File, n int64) (at, lines int64, err error) {
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return 0, 0, err
	}
	buf := make([]byte, logChunk)
	at = size
	for at > 0 {
		k := min(int64(len(buf)), at)
		if _, err := f.ReadAt(buf[:k], at-k); err != nil && err != io.EOF {
			return 0, 0, err
		}
		for i := k - 1; i >= 0; i-- {
			if pos := at - k + i; buf[i] == '\n' && pos != size-1 {
				if lines++; lines == n {
					return pos + 1, n, nil
				}
			}
		}
		at -= k
	}
	if size > 0 {
		lines++
	}
	return 0, lines, nil
}

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
	if phase := a.snapshot().GetPhase(); phase != droverv1.Phase_PHASE_RUNNING {
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
		Args: first.GetCommand(), Dir: a.taskPaths().task, Stdin: in,
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
