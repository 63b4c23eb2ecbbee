package main

import (
	"errors"
	"fmt"

	"connectrpc.com/connect"
	"github.com/urfave/cli/v2"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/internal/fault"
)

var logFlags = []cli.Flag{
	&cli.BoolFlag{Name: "stderr", Usage: "standard error instead of standard output"},
	&cli.Int64Flag{Name: "tail", Aliases: []string{"n"}, Usage: "only the last lines"},
	&cli.BoolFlag{Name: "follow", Aliases: []string{"f"}, Usage: "wait for further output"},
	rawFlag,
}

// rawFlag belongs to the commands that show what a task wrote.
var rawFlag = &cli.BoolFlag{Name: "raw", Usage: "the exact bytes on a terminal too; by default control characters are shown as text there"}

// checkTail refuses a number of lines that no log has.
func checkTail(c *cli.Context) error {
	if n := c.Int64("tail"); n < 0 {
		return usageErrorf("-tail %d: want a number of lines, 0 for all", n)
	}
	return nil
}

func jobLogsCommand() *cli.Command {
	return &cli.Command{
		Name:      "logs",
		Usage:     "the output of a job's tasks, one after the other",
		ArgsUsage: "JOB",
		Description: "With -follow, what all tasks write from their start until the job has ended, as it comes, each line with the\n" +
			"name of its attempt.",
		Flags: append([]cli.Flag{&cli.StringFlag{Name: "stage", Usage: "only this stage"}}, logFlags...),
		Action: func(c *cli.Context) error {
			a, err := positionalArgs(c, 1, 1, "JOB")
			if err != nil {
				return err
			}
			if err := checkTail(c); err != nil {
				return err
			}
			cl, err := dial(c)
			if err != nil {
				return err
			}
			if c.Bool("follow") {
				return followJobLogs(c, cl, a[0], c.String("stage"))
			}
			tasks, err := listTasks(c, cl, a[0], c.String("stage"))
			if err != nil {
				return err
			}
			shown, gone, bytes, firstGone := 0, 0, int64(0), ""
			for _, t := range tasks {
				at := latestAttempt(t)
				if at == nil || !hasLogs(at) {
					continue
				}
				shown++
				n, err := streamLogs(c, cl, at.Key, fmt.Sprintf("== %s/%d attempt %d on %s\n", t.Stage, t.Task, at.Key.Attempt, at.Node))
				if errors.Is(err, fault.NotFound) {
					if gone++; gone == 1 {
						firstGone = fmt.Sprintf("%s/%d.%d", t.Stage, t.Task, at.Key.Attempt)
					}
					continue
				}
				if err != nil {
					return err
				}
				bytes += n
			}
			if gone > 0 {
				fmt.Fprintln(c.App.ErrWriter, goneText(a[0], firstGone, gone))
			}
			switch {
			case shown > gone && bytes == 0:
				fmt.Fprintln(c.App.ErrWriter, nothingWritten(c, cl, a[0], "the tasks", "job logs", a[0]))
			case shown == 0:
				fmt.Fprintln(c.App.ErrWriter, "no logs: no task has started, or the nodes where they ran are lost")
			}
			return nil
		},
	}
}

// goneText says that n attempts of a job, of which it names one, have no logs on their nodes. A
// node does not remember attempts that wrote nothing.
func goneText(job, first string, n int) string {
	more := fmt.Sprintf("`drover task logs %s %s` says more", job, first)
	if n == 1 {
		return fmt.Sprintf("no logs of %s are there: it wrote none, or its node keeps them no longer; %s", first, more)
	}
	return fmt.Sprintf("no logs of %s and %s are there: they wrote none, or their nodes keep them no longer; %s", first, countText(n-1, "other attempt"), more)
}

func latestAttempt(t *droverv1.TaskStatus) *droverv1.TaskAttempt {
	if len(t.Attempts) == 0 {
		return nil
	}
	return t.Attempts[len(t.Attempts)-1]
}

// streamLogs copies one attempt's stream to standard output, with a heading if anything is in it, and
// returns its length. Ctrl-C ends following, and is no error then.
func streamLogs(c *cli.Context, cl *client, key *droverv1.AttemptKey, heading string) (n int64, err error) {
	stream := "stdout"
	if c.Bool("stderr") {
		stream = "stderr"
	}
	ctx := c.Context
	if c.Bool("follow") {
		ctx = cl.following(ctx, sayTo(c.App.ErrWriter))
	}
	st, err := cl.Logs(ctx, connect.NewRequest(&droverv1.LogsRequest{Key: key, Stream: stream, Tail: c.Int64("tail"), Follow: c.Bool("follow")}))
	if err != nil && c.Bool("follow") && c.Context.Err() != nil {
		return 0, nil
	}
	if err != nil {
		return 0, cl.classifyError(err)
	}
	defer st.Close()
	for st.Receive() {
		noteLost(c, "the task", st.Msg())
		if n == 0 && len(st.Msg().Data) > 0 {
			fmt.Fprint(c.App.Writer, heading)
		}
		n += int64(len(st.Msg().Data))
		if _, err := taskWriter(c.App.Writer, c.Bool("raw")).Write(st.Msg().Data); err != nil {
			return n, nil // the reader closed the pipe
		}
	}
	if c.Bool("follow") && c.Context.Err() != nil {
		return n, nil
	}
	return n, cl.classifyError(st.Err())
}
