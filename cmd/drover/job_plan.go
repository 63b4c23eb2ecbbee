package main

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/urfave/cli/v2"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/jobspec"
)

// Flags that override fields of the job file.
var (
	nameFlag     = &cli.StringFlag{Name: "name", Usage: "another name than that in the job file"}
	deadlineFlag = &cli.StringFlag{Name: "deadline", Usage: "overrides the job file: a time with its zone, or a duration from now such as 2h"}
)

func jobPlanCommand() *cli.Command {
	return &cli.Command{
		Name:      "plan",
		Usage:     "dry run: where a job would run, which tasks it would preempt, when it would end",
		ArgsUsage: "FILE",
		Description: "Asks the coordinator without submitting. The end is quoted as times with probabilities, assuming that no further\n" +
			"job is submitted and no node fails. A scheduler that guarantees departures also shows the guarantee.",
		Flags: append(varFlags(), []cli.Flag{
			nameFlag,
			deadlineFlag,
			&cli.Float64Flag{Name: "require-quote", Usage: "probability of the deadline offered instead; 0: 0.95"},
			jsonFlag,
		}...),
		Action: runJobPlan,
	}
}

func runJobPlan(c *cli.Context) error {
	f, err := readSubmission(c)
	if err != nil {
		return err
	}
	j := f.job
	for _, file := range f.files { // nothing is uploaded for a dry run, which looks at sizes alone
		*file.specSize = file.size
	}
	spec, err := jobspec.Encode(j)
	if err != nil {
		return err
	}
	cl, err := dial(c)
	if err != nil {
		return err
	}
	res, err := cl.PlanJob(c.Context, connect.NewRequest(&droverv1.PlanJobRequest{Spec: string(spec), RequireQuote: f.require}))
	if err != nil {
		return cl.classifyError(err)
	}
	if c.Bool("json") {
		return printProto(c.App.Writer, res.Msg)
	}
	for _, h := range jobHints(j, f.path) {
		fmt.Fprintln(c.App.ErrWriter, h)
	}
	printPlan(c.App.Writer, j, res.Msg)
	return nil
}

// submission is what the argument and the flags of job run and job plan name.
type submission struct {
	path    string
	src     []byte // of the job file
	job     *jobspec.Job
	files   []localFile
	require float64 // the probability of -require-quote
}

// readSubmission reads the job file of the argument, with what the flags override in it, and finds
// the files that it names.
func readSubmission(c *cli.Context) (f submission, err error) {
	a, err := positionalArgs(c, 1, 1, "FILE")
	if err != nil {
		return f, err
	}
	f.path = a[0]
	if f.src, f.job, err = readJobFile(c, f.path); err != nil {
		return f, err
	}
	if err = overrideFields(c, f.job); err != nil {
		return f, err
	}
	if f.require, err = requiredQuote(c); err != nil {
		return f, err
	}
	f.files, err = collectLocalFiles(f.job, f.path)
	return f, err
}

// overrideFields applies the flags -name and -deadline, if set.
func overrideFields(c *cli.Context, j *jobspec.Job) error {
	if c.IsSet("name") {
		j.Name = c.String("name")
	}
	if text := c.String("deadline"); text != "" {
		at, err := parseDeadline(text)
		if err != nil {
			return err
		}
		j.Deadline = &at
		jobspec.SetDefaults(j)
	}
	if ps := jobspec.Validate(j); len(ps) > 0 {
		return exitError{exitRefused, errors.New(ps[0].String())}
	}
	return nil
}

// parseDeadline returns the instant of the flag -deadline, in UTC.
func parseDeadline(text string) (time.Time, error) {
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		d, spanErr := time.ParseDuration(text)
		if spanErr != nil || d <= 0 {
			return time.Time{}, usageErrorf("-deadline %q: want a time with its zone such as 2026-12-01T06:00:00Z, or a duration above zero such as 2h", text)
		}
		at = time.Now().Add(d)
	}
	return at.UTC(), nil
}

// printPlan prints the result of a dry run.
func printPlan(w io.Writer, j *jobspec.Job, r *droverv1.PlanJobResponse) {
	q := r.Quote
	fmt.Fprintf(w, "job %q under scheduler %s\n", j.Name, r.Scheduler)
	rows := make([][]string, 0, len(r.Stages))
	for _, s := range r.Stages {
		each := durationText(time.Duration(s.EstimateMs) * time.Millisecond)
		if s.EstimateMs == 0 {
			each = ""
		}
		atMost := durationText(time.Duration(s.BoundMs) * time.Millisecond)
		if s.BoundMs == 0 {
			atMost = ""
		}
		rows = append(rows, []string{s.Name, fmt.Sprint(s.Tasks), each, atMost, s.Source, unixMSText(s.StartMs), s.Waiting})
	}
	printTable(w, []string{"stage", "tasks", "task duration", "at most", "estimate from", "starts", "pending reason"}, rows)
	printPlannedSteps(w, r.Steps)
	fmt.Fprintf(w, "\nends (%s)\n", q.Basis)
	for i, p := range q.P {
		at := unixMSText(q.AtMs[i])
		if at == "" {
			at = "never"
		}
		fmt.Fprintf(w, "  by %s with probability %.2f\n", at, p)
	}
	if q.GuaranteedMs > 0 {
		fmt.Fprintf(w, "guaranteed by %s, provided that no task runs longer than its bound (at most)\n", unixMSText(q.GuaranteedMs))
	}
	if q.NoGuarantee != "" {
		fmt.Fprintf(w, "no guarantee: %s\n", q.NoGuarantee)
	}
	if q.DeadlineMs > 0 {
		fmt.Fprintf(w, "deadline %s: met with probability %.2f\n", unixMSText(q.DeadlineMs), q.Probability)
	}
	if r.CounterOfferMs > 0 && q.DeadlineMs > 0 && r.CounterOfferMs > q.DeadlineMs {
		fmt.Fprintf(w, "earliest deadline that can be met: %s\n", time.UnixMilli(r.CounterOfferMs).UTC().Format(time.RFC3339))
	}
	for _, s := range r.Warnings {
		fmt.Fprintln(w, "warning:", s)
	}
}

// printPlannedSteps prints the actions that the scheduler would take at once, one line for
// the tasks of one stage on one node.
func printPlannedSteps(w io.Writer, steps []*droverv1.PlannedStep) {
	if len(steps) == 0 {
		fmt.Fprintln(w, "\nno task starts at once")
		return
	}
	fmt.Fprintln(w, "\nat once")
	for i := 0; i < len(steps); {
		s := steps[i]
		same := func(o *droverv1.PlannedStep) bool {
			return o.Action == s.Action && o.Job == s.Job && o.Node == s.Node && o.Level == s.Level && stageOfTask(o.Task) == stageOfTask(s.Task)
		}
		n := 1
		for i+n < len(steps) && same(steps[i+n]) {
			n++
		}
		what := s.Task
		if n > 1 {
			what = fmt.Sprintf("%d tasks of %s", n, stageOfTask(s.Task))
		}
		fmt.Fprintf(w, "  %s %s of job %s on %s", s.Action, what, s.Job, s.Node)
		if s.Level != "" {
			fmt.Fprintf(w, " to level %s", s.Level)
		}
		fmt.Fprintln(w)
		i += n
	}
}

func stageOfTask(task string) string {
	name, _, _ := strings.Cut(task, "/")
	return name
}
