package requests

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/hdfs"
	"github.com/drover-run/drover/internal/fault"
)

// maxGathered bounds the file with a node's logs of one job, in bytes.
const maxGathered = 16 << 30

// JobLog is one stream of an attempt's output.
type JobLog struct {
	Key    *droverv1.AttemptKey
	Stream string // stdout or stderr
	// Copy writes what exists of the stream.
	Copy func(io.Writer) error
}

// LogSource provides the logs on this node.
type LogSource interface {
	// LogsOf returns the logs of a job, ordered by stage, task and attempt.
	LogsOf(job uint64) []JobLog
}

// gatherLogs writes the logs that this node has of a job into one file. It writes a temporary file
// beside it and renames that, never over an existing file, which an earlier try has written. If
// there are no logs, it makes no file.
func (d *Server) gatherLogs(ctx context.Context, g *droverv1.GatherLogsRequest, user string) error {
	list := d.logs.LogsOf(g.GetJob())
	if len(list) == 0 {
		return nil
	}
	fs, uri, err := d.openFS(g.GetPath(), user)
	if err != nil {
		return err
	}
	if _, err := fs.Stat(ctx, uri.Path); !errors.Is(err, hdfs.ErrNotExist) {
		return err // nil: it is there
	}
	dir, name := path.Split(uri.Path)
	if err := fs.Mkdir(ctx, path.Clean(dir)); err != nil {
		if errors.Is(err, hdfs.ErrPermission) {
			return fault.New(fault.Denied, "logs %s: %s may not write there: %w", uri, actor(uri, user), err)
		}
		return err
	}
	part := path.Join(dir, "_"+name+".part")
	if err := writeLogs(ctx, fs, part, g, list); err != nil {
		return err
	}
	err = fs.Rename(ctx, part, uri.Path)
	if errors.Is(err, hdfs.ErrExist) { // another try was faster
		return fs.Delete(ctx, part)
	}
	return err
}

func writeLogs(ctx context.Context, fs hdfs.FS, name string, g *droverv1.GatherLogsRequest, list []JobLog) error {
	file, err := fs.Create(ctx, name, hdfs.CreateOptions{Overwrite: true})
	if err != nil {
		return err
	}
	w := &boundedLog{to: file, left: maxGathered}
	for _, l := range list {
		if err := ctx.Err(); err != nil {
			return errors.Join(err, file.Abort())
		}
		k, stage := l.Key, fmt.Sprint(l.Key.GetStage())
		if i := int(k.GetStage()); i < len(g.GetStages()) {
			stage = g.GetStages()[i]
		}
		w.heading = fmt.Sprintf("==> %s/%d.%d.%d %s <==\n", stage, k.GetTask(), k.GetAttempt(), k.GetRun(), l.Stream)
		if err := l.Copy(w); err != nil && w.err == nil {
			fmt.Fprintf(w, "==> it could not be read: %v <==\n", err) // w keeps its error
		}
		w.endLine()
		if w.err != nil {
			return errors.Join(w.err, file.Abort())
		}
	}
	if w.cut {
		if _, err := fmt.Fprintf(file, "==> the logs of this node are longer than %d bytes: the rest is missing <==\n", int64(maxGathered)); err != nil {
			return errors.Join(err, file.Abort())
		}
	}
	return file.Commit()
}

// boundedLog passes on a limited number of bytes, and drops the rest.
type boundedLog struct {
	to      io.Writer
	left    int64
	heading string // of the next log; not written if that log is empty
	last    byte
	cut     bool
	err     error
}

// Write implements io.Writer.
func (b *boundedLog) Write(p []byte) (int, error) {
	if heading := b.heading; heading != "" && len(p) > 0 {
		b.heading = ""
		_, _ = b.Write([]byte(heading)) // the error is kept
	}
	if b.err != nil {
		return 0, b.err
	}
	n := int64(len(p))
	if n > b.left {
		p, b.cut = p[:b.left], true
	}
	b.left -= int64(len(p))
	if len(p) > 0 {
		b.last = p[len(p)-1]
		_, b.err = b.to.Write(p)
	}
	return int(n), b.err
}

// endLine ends the last line if it has no end. It does nothing before the first byte.
func (b *boundedLog) endLine() {
	if b.last != '\n' && b.last != 0 {
		_, _ = b.Write([]byte{'\n'}) // the error is kept
	}
}
