package main

import (
	"fmt"
	"io"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/urfave/cli/v2"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/internal/plain"
)

func jobStatusCommand() *cli.Command {
	return &cli.Command{
		Name:      "status",
		Usage:     "a job's stages, why they are pending, and how it ended",
		ArgsUsage: "JOB",
		Flags:     []cli.Flag{jsonFlag},
		Action: func(c *cli.Context) error {
			a, err := positionalArgs(c, 1, 1, "JOB")
			if err != nil {
				return err
			}
			cl, err := dial(c)
			if err != nil {
				return err
			}
			r, err := getJob(c, cl, a[0])
			if err != nil {
				return err
			}
			if c.Bool("json") {
				return printProto(c.App.Writer, r)
			}
			last, err := lastFailure(c, cl, r)
			if err != nil {
				return err
			}
			printHeading(c.App.Writer, r, time.Now())
			printOrigin(c.App.Writer, r.Job)
			printBody(c.App.Writer, r, failedAttempt(c, cl, r), nil, "")
			printLastFailure(c.App.Writer, r, last)
			if text := preemptedText(r.Preempted); text != "" {
				fmt.Fprintln(c.App.Writer, "preempted: "+text)
			}
			printWaiting(c.App.Writer, r)
			return nil
		},
	}
}

// printWaiting prints why stages of a live job wait, which have suspended tasks, and what says more.
func printWaiting(w io.Writer, r *droverv1.GetJobResponse) {
	if r.Job.EndedMs > 0 {
		return
	}
	waits := false
	for _, s := range r.Stages {
		if s.Waiting != "" {
			waits = true
			fmt.Fprintf(w, "%s waits: %s%s\n", s.Name, s.Waiting, expectedStartText(s.ExpectedStartMs))
		}
	}
	if waits {
		fmt.Fprintf(w, "  what would have to give way: drover job why %d\n", r.Job.Job)
	}
	printSuspended(w, fmt.Sprint(r.Job.Job), r.Stages)
}

// expectedStartText formats an expected start time, if known.
func expectedStartText(ms int64) string {
	if ms == 0 {
		return ""
	}
	return "; expected to start at " + unixMSText(ms)
}

// searchedForFailure bounds the tasks among which the last failure of a live job is searched.
const searchedForFailure = 20_000

// lastFailure returns the attempt of a live job that failed last, nil if there is none or the job
// has too many tasks. The status of an ended job contains its failure.
func lastFailure(c *cli.Context, cl *client, r *droverv1.GetJobResponse) (last *namedAttempt, err error) {
	if r.Job.EndedMs > 0 || r.Job.Tasks > searchedForFailure {
		return nil, nil
	}
	for _, s := range r.Stages {
		if s.FailedAttempts == 0 {
			continue
		}
		tasks, err := listTasks(c, cl, fmt.Sprint(r.Job.Job), s.Name)
		if err != nil {
			return nil, err
		}
		for _, t := range tasks {
			for _, a := range t.Attempts {
				if isFailure(a) && (last == nil || a.Seen.GetEndedMs() > last.Seen.GetEndedMs()) {
					last = &namedAttempt{a, fmt.Sprintf("%s/%d.%d", t.Stage, t.Task, a.Key.Attempt)}
				}
			}
		}
	}
	return last, nil
}

// namedAttempt is an attempt with its name, STAGE/INDEX.ATTEMPT.
type namedAttempt struct {
	*droverv1.TaskAttempt
	name string
}

// printLastFailure prints how the last failed attempt of a live job ended.
func printLastFailure(w io.Writer, r *droverv1.GetJobResponse, a *namedAttempt) {
	if a == nil {
		return
	}
	fmt.Fprintf(w, "last failure: %s on %s at %s: %s\n", plain.Line(a.name), plain.Line(a.Node), unixMSText(a.Seen.GetEndedMs()), plain.Line(failureText(a.TaskAttempt)))
	if tail := splitLines(a.Seen.GetStderrTail()); tail[0] != "" || len(tail) > 1 {
		for _, l := range tail[max(0, len(tail)-liveTailLines):] {
			fmt.Fprintln(w, "  | "+plain.Text(l))
		}
	}
	fmt.Fprintf(w, "  more: drover task logs -stderr %d %s\n", r.Job.Job, plain.Line(a.name))
}

// liveTailLines bounds the lines of standard error that the status of a live job shows.
const liveTailLines = 5

func getJob(c *cli.Context, cl *client, job string) (*droverv1.GetJobResponse, error) {
	res, err := cl.GetJob(c.Context, connect.NewRequest(&droverv1.GetJobRequest{Job: job}))
	if err != nil {
		return nil, cl.classifyError(err)
	}
	return res.Msg, nil
}

func splitLines(s string) []string { return strings.Split(strings.TrimRight(s, "\n"), "\n") }

func joinOrDefault(s []string, otherwise string) string {
	if len(s) == 0 {
		return otherwise
	}
	return strings.Join(s, "; ")
}
