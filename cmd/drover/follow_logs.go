package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"sync"
	"time"

	"connectrpc.com/connect"
	"github.com/urfave/cli/v2"
	"golang.org/x/sync/errgroup"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
)

// Limits of following the logs of a job.
const (
	maxFollowed = 200                    // streams at once; further tasks are shown as earlier ones end
	followPoll  = 300 * time.Millisecond // between two lists of tasks, or 20 times what one took
	maxPoll     = 10 * time.Second       // whatever one took: it may have waited for a new leader
	maxLogLine  = 1 << 20                // bytes; a longer line is cut
)

// logFollower shows what all tasks of a job write, line by line with the name of
// the attempt, until the job has ended.
type logFollower struct {
	c     *cli.Context
	cl    *client
	job   string
	stage string

	mu    sync.Mutex // guards the output, and the count of bytes
	out   io.Writer
	bytes int64
}

// followJobLogs follows a job. Each attempt is shown from its beginning, or with
// -tail from its last lines, once.
func followJobLogs(c *cli.Context, cl *client, job, stage string) error {
	c.Context = cl.following(c.Context, sayTo(c.App.ErrWriter))
	f := &logFollower{c: c, cl: cl, job: job, stage: stage, out: taskWriter(c.App.Writer, c.Bool("raw"))}
	streams, ctx := errgroup.WithContext(c.Context)
	streams.SetLimit(maxFollowed)
	err := f.startStreams(ctx, streams)
	if e := streams.Wait(); err == nil {
		err = e
	}
	if c.Context.Err() != nil {
		return nil // Ctrl-C ends following
	}
	if err == nil && f.bytes == 0 {
		fmt.Fprintln(c.App.ErrWriter, nothingWritten(c, cl, job, "the tasks", "job logs", job))
	}
	return err
}

// startStreams starts a stream for each attempt that has logs, until the job has
// ended.
func (f *logFollower) startStreams(ctx context.Context, streams *errgroup.Group) error {
	started := map[string]bool{}
	for {
		began := time.Now()
		res, err := f.cl.GetJob(ctx, connect.NewRequest(&droverv1.GetJobRequest{Job: f.job}))
		if err != nil {
			return f.cl.classifyError(err)
		}
		f.job = fmt.Sprint(res.Msg.Job.Job) // another job may take the name
		tasks, err := listTasks(f.c, f.cl, f.job, f.stage)
		if err != nil {
			return err
		}
		for _, t := range tasks {
			for _, a := range t.Attempts {
				name := fmt.Sprintf("%s/%d.%d", t.Stage, t.Task, a.Key.Attempt)
				id := fmt.Sprintf("%s.%d", name, a.Key.Run)
				if started[id] || !hasLogs(a) || ctx.Err() != nil {
					continue
				}
				started[id] = true
				streams.Go(func() error { return f.stream(ctx, name, a.Key) })
			}
		}
		if res.Msg.Job.EndedMs > 0 {
			return nil
		}
		pause := time.NewTimer(pollPause(time.Since(began)))
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
			return nil
		}
	}
}

// pollPause returns the pause after a list of tasks that took so long.
func pollPause(took time.Duration) time.Duration { return min(max(followPoll, 20*took), maxPoll) }

// hasLogs reports whether a node may have logs of an attempt: it runs, or it has
// ended and its node is up.
func hasLogs(a *droverv1.TaskAttempt) bool {
	phase := a.Seen.GetPhase()
	return phase == droverv1.Phase_PHASE_RUNNING || a.Retained && phase > droverv1.Phase_PHASE_RUNNING
}

// stream copies one attempt's output with its name before each line. An output
// that cannot be read, for example of a node that is lost, is a note, not an
// error; one that can no longer be written ends all.
func (f *logFollower) stream(ctx context.Context, name string, key *droverv1.AttemptKey) error {
	w := &linePrefixer{f: f, prefix: name + " | "}
	which := "stdout"
	if f.c.Bool("stderr") {
		which = "stderr"
	}
	st, err := f.cl.Logs(ctx, connect.NewRequest(&droverv1.LogsRequest{Key: key, Stream: which, Tail: f.c.Int64("tail"), Follow: true}))
	if err == nil {
		defer st.Close()
		for st.Receive() {
			noteLost(f.c, name, st.Msg())
			if err := w.write(st.Msg().Data); err != nil {
				return err
			}
		}
		err = st.Err()
	}
	if e := w.close(); e != nil {
		return e
	}
	if err != nil && ctx.Err() == nil {
		fmt.Fprintf(f.c.App.ErrWriter, "%s: its output cannot be read further: %v\n", name, f.cl.classifyError(err))
	}
	return nil
}

// noteLost says what an output has lost because its reader was too slow, or away for too
// long.
func noteLost(c *cli.Context, name string, m *droverv1.LogsResponse) {
	if m.GetLost() > 0 {
		fmt.Fprintf(c.App.ErrWriter, "%s: %d bytes of its output are missing here: they were rotated away\n", name, m.GetLost())
	}
}

// linePrefixer writes whole lines of one attempt.
type linePrefixer struct {
	f      *logFollower
	prefix string
	part   []byte // start of a line
}

func (p *linePrefixer) write(b []byte) error {
	p.part = append(p.part, b...)
	end := bytes.LastIndexByte(p.part, '\n') + 1
	if end == 0 && len(p.part) >= maxLogLine {
		end = len(p.part)
	}
	if end == 0 {
		return nil
	}
	err := p.f.print(p.prefix, p.part[:end])
	p.part = append(p.part[:0], p.part[end:]...)
	return err
}

// close writes a last line without newline.
func (p *linePrefixer) close() error {
	if len(p.part) == 0 {
		return nil
	}
	return p.f.print(p.prefix, p.part)
}

// print writes lines, each with the prefix and a newline.
func (f *logFollower) print(prefix string, lines []byte) error {
	var b bytes.Buffer
	for line := range bytes.SplitSeq(bytes.TrimSuffix(lines, []byte{'\n'}), []byte{'\n'}) {
		b.WriteString(prefix)
		b.Write(line)
		b.WriteByte('\n')
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.bytes += int64(len(lines))
	_, err := f.out.Write(b.Bytes())
	return err
}
