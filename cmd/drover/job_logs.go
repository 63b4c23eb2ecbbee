package main

import (
	"fmt"

	"connectrpc.com/connect"
	"github.com/urfave/cli/v2"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
)

var logFlags = []cli.Flag{
	&cli.BoolFlag{Name: "stderr", Usage: "standard error instead of standard output"},
	&cli.Int64Flag{Name: "tail", Aliases: []string{"n"}, Usage: "only the last lines"},
	&cli.BoolFlag{Name: "follow", Aliases: []string{"f"}, Usage: "go on as more is written"},
}

func jobLogsCommand() *cli.Command {
	return &cli.Command{
		Name:      "logs",
		Usage:     "what a job's tasks wrote, one task after the other",
		ArgsUsage: "JOB",
		Flags:     append([]cli.Flag{&cli.StringFlag{Name: "stage", Usage: "only this stage"}}, logFlags...),
		Action: func(c *cli.Context) error {
			a, err := args(c, 1, 1, "JOB")
			if err != nil {
				return err
			}
			cl, err := dial(c)
			if err != nil {
				return err
			}
			tasks, err := listTasks(c, cl, a[0], c.String("stage"))
			if err != nil {
				return err
			}
			shown, bytes := 0, int64(0)
			for _, t := range tasks {
				at := lastAttempt(t)
				if at == nil || (!at.Kept && at.Seen.GetPhase() != droverv1.Phase_PHASE_RUNNING) {
					continue
				}
				shown++
				fmt.Fprintf(c.App.Writer, "== %s/%d attempt %d on %s\n", t.Stage, t.Task, at.Key.Attempt, at.Node)
				n, err := copyLogs(c, cl, at.Key)
				if err != nil {
					return err
				}
				bytes += n
			}
			switch {
			case shown > 0 && bytes == 0 && !c.Bool("stderr"):
				fmt.Fprintf(c.App.ErrWriter, "they wrote nothing to standard output; what they wrote to standard error: drover job logs -stderr %s\n", a[0])
			case shown == 0:
				fmt.Fprintln(c.App.ErrWriter, "no logs to show: no task has started, or the job ended longer ago than its nodes keep logs (those of failed attempts stay longer: keep_failed)")
			}
			return nil
		},
	}
}

func lastAttempt(t *droverv1.TaskStatus) *droverv1.TaskAttempt {
	if len(t.Attempts) == 0 {
		return nil
	}
	return t.Attempts[len(t.Attempts)-1]
}

// copyLogs writes one attempt's stream to standard output and counts its bytes.
func copyLogs(c *cli.Context, cl *client, key *droverv1.AttemptKey) (n int64, err error) {
	stream := "stdout"
	if c.Bool("stderr") {
		stream = "stderr"
	}
	st, err := cl.Logs(c.Context, connect.NewRequest(&droverv1.LogsRequest{Key: key, Stream: stream, Tail: c.Int64("tail"), Follow: c.Bool("follow")}))
	if err != nil {
		return 0, cl.explain(err)
	}
	defer st.Close()
	for st.Receive() {
		n += int64(len(st.Msg().Data))
		if _, err := c.App.Writer.Write(st.Msg().Data); err != nil {
			return n, nil // the reader has had enough
		}
	}
	return n, cl.explain(st.Err())
}
