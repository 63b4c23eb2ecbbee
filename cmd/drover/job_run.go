package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"time"

	"connectrpc.com/connect"
	"github.com/urfave/cli/v2"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/jobspec"
	"github.com/drover-run/drover/jobspec/hcl"
)

func jobRunCommand() *cli.Command {
	return &cli.Command{
		Name:      "run",
		Usage:     "submit a job and follow it to its end",
		ArgsUsage: "FILE",
		Description: "Validates the job file, uploads what it names and submits it. The view follows the job; leaving it\n" +
			"(Ctrl-C) leaves the job running. Exit codes: 0 succeeded, 1 failed, 2 wrong usage, 3 refused,\n" +
			"4 no coordinator, 5 stopped.",
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "detach", Aliases: []string{"d"}, Usage: "return once the job is accepted"},
			&cli.StringFlag{Name: "name", Usage: "submit under another name than the file's"},
			deadlineFlag,
			&cli.Float64Flag{Name: "require-quote", Usage: "refuse the job unless its deadline is met with that probability, such as 0.95"},
			&cli.StringFlag{Name: "idempotency-key", Usage: "submitting again with the same key gives the first answer"},
			jsonFlag,
		},
		Action: runJob,
	}
}

func runJob(c *cli.Context) error {
	a, err := args(c, 1, 1, "FILE")
	if err != nil {
		return err
	}
	src, j, err := readJob(c, a[0])
	if err != nil {
		return err
	}
	if n := c.String("name"); n != "" {
		j.Name = n
		if ps := jobspec.Validate(j); len(ps) > 0 {
			return coded{exitRefused, errors.New(ps[0].String())}
		}
	}
	if err := setDeadline(c, j); err != nil {
		return err
	}
	require := c.Float64("require-quote")
	switch {
	case !(require >= 0 && require <= 1):
		return usage("-require-quote %g: want a probability, 0 to 1", require)
	case require > 0 && j.Deadline == nil:
		return usage("-require-quote needs a deadline: in the job file, or with -deadline")
	}
	files, err := localFiles(j, a[0])
	if err != nil {
		return err
	}
	cl, err := dial(c)
	if err != nil {
		return err
	}
	quiet := c.Bool("json")
	say := func(format string, args ...any) {
		if !quiet {
			fmt.Fprintf(c.App.ErrWriter, format+"\n", args...)
		}
	}
	for _, h := range forgotten(j, a[0]) {
		say("%s", h)
	}
	if err := upload(c.Context, cl, files, say); err != nil {
		return err
	}
	id, err := submit(c.Context, cl, j, c.String("idempotency-key"), require, say)
	if err != nil {
		return err
	}
	if c.Bool("detach") {
		if quiet {
			return printJSON(c.App.Writer, map[string]any{"job": id, "name": j.Name})
		}
		fmt.Fprintf(c.App.Writer, "job %d (%s) accepted; follow it with `drover job wait %s`\n", id, j.Name, j.Name)
		return nil
	}
	return follow(c, cl, fmt.Sprint(id), hcl.Lines(a[0], src), a[0])
}

// slowSubmit is when a submission that has no answer says what it waits for.
const slowSubmit = 3 * time.Second

// submit sends the job; a repeated call with the same key is one submission.
func submit(ctx context.Context, cl *client, j *jobspec.Job, key string, require float64, say func(string, ...any)) (uint64, error) {
	spec, err := jobspec.Encode(j)
	if err != nil {
		return 0, err
	}
	if key == "" {
		var b [16]byte
		if _, err := rand.Read(b[:]); err != nil {
			return 0, err
		}
		key = hex.EncodeToString(b[:])
	}
	slow := time.AfterFunc(slowSubmit, func() {
		say("still waiting: the coordinator asks a node about the input and output; `drover events` says what it waits for")
	})
	defer slow.Stop()
	res, err := cl.SubmitJob(ctx, connect.NewRequest(&droverv1.SubmitJobRequest{Spec: string(spec), IdempotencyKey: key, RequireQuote: require}))
	if err != nil {
		return 0, cl.explain(err)
	}
	for _, w := range res.Msg.Warnings {
		say("warning: %s", w)
	}
	if q := res.Msg.Quote; q.GetDeadlineMs() > 0 {
		say("deadline %s: quoted %.2f (%s)", msText(q.DeadlineMs), q.Probability, q.Basis)
	}
	return res.Msg.Job, nil
}

// follow shows a job until it has ended and turns its end into an exit code.
// lines and file name the places of its job file, where known.
func follow(c *cli.Context, cl *client, job string, lines map[string]int, file string) error {
	st, err := cl.WatchJob(c.Context, connect.NewRequest(&droverv1.GetJobRequest{Job: job}))
	if err != nil {
		return cl.explain(err)
	}
	defer st.Close()
	view := newJobView(c.App.ErrWriter, c.Bool("json"))
	var last *droverv1.GetJobResponse
	for st.Receive() {
		last = st.Msg()
		view.update(last)
	}
	view.close()
	if err := st.Err(); err != nil && !errors.Is(err, io.EOF) {
		if c.Context.Err() != nil {
			fmt.Fprintf(c.App.ErrWriter, "left; the job runs on: `drover job wait %s` follows it again, `drover job stop %s` ends it\n", job, job)
			return coded{exitFailed, nil}
		}
		return cl.explain(err)
	}
	if last == nil {
		return errors.New("the coordinator closed the stream without a word; try `drover job status`")
	}
	if c.Bool("json") {
		if err := printProto(c.App.Writer, last); err != nil {
			return err
		}
	} else {
		printSummary(c.App.Writer, last, lines, file)
	}
	return ended(last)
}

// ended is the exit code of a job's end.
func ended(r *droverv1.GetJobResponse) error {
	switch r.Job.State {
	case droverv1.JobState_JOB_STATE_SUCCEEDED:
		return nil
	case droverv1.JobState_JOB_STATE_STOPPED:
		return coded{exitStopped, nil}
	default:
		return coded{exitFailed, nil}
	}
}
