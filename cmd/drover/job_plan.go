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

var deadlineFlag = &cli.StringFlag{Name: "deadline", Usage: "instead of the file's: a time with its zone, or a span from now such as 2h"}

func jobPlanCommand() *cli.Command {
	return &cli.Command{
		Name:      "plan",
		Usage:     "what would become of a job: where it would run, who would make room, when it would end",
		ArgsUsage: "FILE",
		Description: "Asks the coordinator without submitting anything. The end is quoted as a time with a probability, if nothing\n" +
			"else is submitted and no machine is lost; a scheduler that guarantees departures says so.",
		Flags: []cli.Flag{
			deadlineFlag,
			&cli.Float64Flag{Name: "require-quote", Usage: "probability of the deadline that is offered instead (default 0.95)"},
			jsonFlag,
		},
		Action: planJob,
	}
}

func planJob(c *cli.Context) error {
	a, err := args(c, 1, 1, "FILE")
	if err != nil {
		return err
	}
	_, j, err := readJob(c, a[0])
	if err != nil {
		return err
	}
	if err := setDeadline(c, j); err != nil {
		return err
	}
	if _, err := localFiles(j, a[0]); err != nil {
		return err
	}
	withoutFiles(j)
	spec, err := jobspec.Encode(j)
	if err != nil {
		return err
	}
	cl, err := dial(c)
	if err != nil {
		return err
	}
	res, err := cl.PlanJob(c.Context, connect.NewRequest(&droverv1.PlanJobRequest{Spec: string(spec), RequireQuote: c.Float64("require-quote")}))
	if err != nil {
		return cl.explain(err)
	}
	if c.Bool("json") {
		return printProto(c.App.Writer, res.Msg)
	}
	printPlan(c.App.Writer, j, res.Msg)
	return nil
}

// withoutFiles leaves out what a plan does not need, so that nothing has to be
// uploaded for one.
func withoutFiles(j *jobspec.Job) {
	if j.Image != nil && j.Image.Kind == jobspec.ImageOCIArchive {
		j.Image = nil
	}
	for i := range j.Stages {
		j.Stages[i].Files = nil
	}
}

// setDeadline takes the deadline of the flag, if there is one.
func setDeadline(c *cli.Context, j *jobspec.Job) error {
	text := c.String("deadline")
	if text == "" {
		return nil
	}
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		d, spanErr := time.ParseDuration(text)
		if spanErr != nil || d <= 0 {
			return usage("-deadline %q: want a time with its zone such as 2026-12-01T06:00:00Z, or a span above zero such as 2h", text)
		}
		at = time.Now().Add(d)
	}
	at = at.UTC()
	j.Deadline = &at
	jobspec.SetDefaults(j)
	if ps := jobspec.Validate(j); len(ps) > 0 {
		return coded{exitRefused, errors.New(ps[0].String())}
	}
	return nil
}

// printPlan tells a person what would happen.
func printPlan(w io.Writer, j *jobspec.Job, r *droverv1.PlanJobResponse) {
	q := r.Quote
	fmt.Fprintf(w, "job %q under scheduler %s\n", j.Name, r.Scheduler)
	rows := make([][]string, 0, len(r.Stages))
	for _, s := range r.Stages {
		each := spanText(time.Duration(s.EstimateMs) * time.Millisecond)
		if s.EstimateMs == 0 {
			each = ""
		}
		rows = append(rows, []string{s.Name, fmt.Sprint(s.Tasks), each, s.Source, msText(s.StartMs), s.Waiting})
	}
	columns(w, []string{"stage", "tasks", "each runs", "known from", "starts", "waits"}, rows)
	printSteps(w, r.Steps)
	fmt.Fprintf(w, "\nends (%s)\n", q.Basis)
	for i, p := range q.P {
		at := msText(q.AtMs[i])
		if at == "" {
			at = "never"
		}
		fmt.Fprintf(w, "  by %s with probability %.2f\n", at, p)
	}
	if q.GuaranteedMs > 0 {
		fmt.Fprintf(w, "guaranteed by %s, if every job keeps its runtime_bound\n", msText(q.GuaranteedMs))
	}
	if q.DeadlineMs > 0 {
		fmt.Fprintf(w, "deadline %s: met with probability %.2f\n", msText(q.DeadlineMs), q.Probability)
	}
	if r.CounterOfferMs > 0 && q.DeadlineMs > 0 && r.CounterOfferMs > q.DeadlineMs {
		fmt.Fprintf(w, "the earliest deadline that holds: %s\n", time.UnixMilli(r.CounterOfferMs).UTC().Format(time.RFC3339))
	}
	for _, s := range r.Warnings {
		fmt.Fprintln(w, "warning:", s)
	}
}

// printSteps tells what the scheduler would do at once, tasks of one stage on
// one machine in one line.
func printSteps(w io.Writer, steps []*droverv1.PlannedStep) {
	if len(steps) == 0 {
		fmt.Fprintln(w, "\nnothing of it starts at once")
		return
	}
	fmt.Fprintln(w, "\nat once")
	for i := 0; i < len(steps); {
		s := steps[i]
		same := func(o *droverv1.PlannedStep) bool {
			return o.Action == s.Action && o.Job == s.Job && o.Node == s.Node && o.Level == s.Level && stageOf(o.Task) == stageOf(s.Task)
		}
		n := 1
		for i+n < len(steps) && same(steps[i+n]) {
			n++
		}
		what := s.Task
		if n > 1 {
			what = fmt.Sprintf("%d tasks of %s", n, stageOf(s.Task))
		}
		fmt.Fprintf(w, "  %s %s of job %s on %s", s.Action, what, s.Job, s.Node)
		if s.Level != "" {
			fmt.Fprintf(w, " to level %s", s.Level)
		}
		fmt.Fprintln(w)
		i += n
	}
}

func stageOf(task string) string {
	name, _, _ := strings.Cut(task, "/")
	return name
}
