package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/urfave/cli/v2"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/jobspec"
	"github.com/drover-run/drover/jobspec/hcl"
)

func jobRunCommand() *cli.Command {
	return &cli.Command{
		Name:      "run",
		Usage:     "submit a job and follow it to its end",
		ArgsUsage: "FILE",
		Description: "Validates the job file, uploads the files it names, submits the job and follows it, also while the coordinator\n" +
			"is restarted. Ctrl-C detaches; the job keeps running.\n" +
			"Exit codes: 0 succeeded, 1 failed, 2 wrong usage, 3 refused, 4 no coordinator, 5 stopped, 6 detached by Ctrl-C.",
		Flags: append(varFlags(), []cli.Flag{
			&cli.BoolFlag{Name: "detach", Aliases: []string{"d"}, Usage: "return once the job is accepted"},
			nameFlag,
			deadlineFlag,
			&cli.Float64Flag{Name: "require-quote", Usage: "refuse the job unless it meets its deadline with this probability, such as 0.95"},
			&cli.StringFlag{Name: "idempotency-key", Usage: "a repeated submission with the same key returns the first response"},
			jsonFlag,
		}...),
		Action: runJobRun,
	}
}

func runJobRun(c *cli.Context) error {
	f, err := readSubmission(c)
	if err != nil {
		return err
	}
	j := f.job
	if f.require > 0 && j.Deadline == nil {
		return usageErrorf("-require-quote needs a deadline: in the job file, or with -deadline")
	}
	cl, err := dial(c)
	if err != nil {
		return err
	}
	quiet := c.Bool("json")
	printf := func(format string, args ...any) {
		if !quiet {
			fmt.Fprintf(c.App.ErrWriter, format+"\n", args...)
		}
	}
	for _, h := range jobHints(j, f.path) {
		printf("%s", h)
	}
	if err := uploadFiles(c.Context, cl, f.files, printf); err != nil {
		return err
	}
	id, err := submitJob(c.Context, cl, j, c.String("idempotency-key"), f.require, printf)
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
	return followJob(c, cl, fmt.Sprint(id), hcl.FieldLines(f.path, f.src), f.path)
}

// slowSubmitAfter is when a submission without a response explains the wait.
const slowSubmitAfter = 3 * time.Second

// submitJob submits the job. Calls with the same key count as one submission.
func submitJob(ctx context.Context, cl *client, j *jobspec.Job, key string, require float64, printf func(string, ...any)) (uint64, error) {
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
	slow := time.AfterFunc(slowSubmitAfter, func() {
		printf("still waiting: the coordinator is querying a node about input and output; `drover events` shows the reason")
	})
	defer slow.Stop()
	res, err := cl.SubmitJob(ctx, connect.NewRequest(&droverv1.SubmitJobRequest{Spec: string(spec), IdempotencyKey: key, RequireQuote: require}))
	if err != nil {
		return 0, cl.classifyError(err)
	}
	for _, w := range res.Msg.Warnings {
		printf("warning: %s", w)
	}
	if q := res.Msg.Quote; q.GetDeadlineMs() > 0 {
		printf("deadline %s: quoted %.2f (%s)%s", unixMSText(q.DeadlineMs), q.Probability, q.Basis, guaranteeText(q))
	}
	if by := res.Msg.AcceptedBy; by != "" {
		printf("-require-quote %g: accepted by its %s", require, by)
	}
	return res.Msg.Job, nil
}

// requiredQuote returns the probability of the flag -require-quote.
func requiredQuote(c *cli.Context) (float64, error) {
	p := c.Float64("require-quote")
	if !(p >= 0 && p <= 1) {
		return 0, usageErrorf("-require-quote %g: want a probability, 0 to 1", p)
	}
	return p, nil
}

// guaranteeText says whether a deadline is guaranteed, nothing if the coordinator, one
// of an earlier version, does not say.
func guaranteeText(q *droverv1.Quote) string {
	switch {
	case q.GuaranteedMs > 0:
		return "; guaranteed"
	case q.NoGuarantee != "":
		return "; no guarantee: " + q.NoGuarantee
	default:
		return ""
	}
}

// showFirstFailure says how an attempt of a live job has failed: its other attempts may take long,
// and fail in the same way. It reports whether it has looked for one, which is once: that lists the
// tasks.
func showFirstFailure(c *cli.Context, cl *client, view *jobView, r *droverv1.GetJobResponse) bool {
	if !slices.ContainsFunc(r.Stages, func(s *droverv1.StageSummary) bool { return s.FailedAttempts > 0 }) {
		return false
	}
	a, err := lastFailure(c, cl, r)
	if err != nil { // a lost connection: the command continues to follow the job, or ends
		return false
	}
	if a != nil {
		var text strings.Builder
		printLastFailure(&text, r, a)
		view.say(strings.TrimSuffix(text.String(), "\n"))
	}
	return true
}

// followJob shows a job until it has ended and converts its end to an exit code. lines
// and file locate the fields of its job file, if known.
func followJob(c *cli.Context, cl *client, job string, lines map[string]int, file string) error {
	view := newJobView(c.App.ErrWriter, c.Bool("json"))
	st, err := cl.WatchJob(cl.following(c.Context, view.say), connect.NewRequest(&droverv1.GetJobRequest{Job: job}))
	if err != nil {
		view.close()
		if c.Context.Err() != nil {
			return detached(c, job)
		}
		return cl.classifyError(err)
	}
	defer st.Close()
	var last *droverv1.GetJobResponse
	for failureShown := c.Bool("json"); st.Receive(); {
		last = st.Msg()
		view.update(last)
		failureShown = failureShown || showFirstFailure(c, cl, view, last)
	}
	view.close()
	if err := st.Err(); err != nil && !errors.Is(err, io.EOF) {
		if c.Context.Err() != nil {
			return detached(c, job)
		}
		err = cl.classifyError(err)
		if last != nil && errors.Is(err, fault.Unavailable) {
			return fmt.Errorf("%w; the job is not stopped by that: `drover job wait %d` follows it again", err, last.GetJob().GetJob())
		}
		return err
	}
	if last == nil {
		return errors.New("the coordinator closed the stream without an answer; try `drover job status`")
	}
	if c.Bool("json") {
		if err := printProto(c.App.Writer, last); err != nil {
			return err
		}
	} else {
		printSummary(c.App.Writer, last, failedAttempt(c, cl, last), lines, file)
	}
	return jobExitError(last)
}

// detached is what Ctrl-C of a command that follows a job returns.
func detached(c *cli.Context, job string) error {
	fmt.Fprintf(c.App.ErrWriter, "detached; the job is still running: `drover job wait %s` follows it again, `drover job stop %s` stops it\n", job, job)
	return exitError{exitDetached, nil}
}

// jobExitError returns the exit code for the final state of a job.
func jobExitError(r *droverv1.GetJobResponse) error {
	switch r.Job.State {
	case droverv1.JobState_JOB_STATE_SUCCEEDED:
		return nil
	case droverv1.JobState_JOB_STATE_STOPPED:
		return exitError{exitStopped, nil}
	default:
		return exitError{exitFailed, nil}
	}
}
