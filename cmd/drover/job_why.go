package main

import (
	"fmt"
	"io"
	"strings"

	"connectrpc.com/connect"
	"github.com/urfave/cli/v2"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/internal/apitext"
	"github.com/drover-run/drover/internal/plain"
)

func jobWhyCommand() *cli.Command {
	return &cli.Command{
		Name:      "why",
		Usage:     "why a job's tasks wait, until when, and what would have to give way for one to start now",
		ArgsUsage: "JOB",
		Description: "For each stage with tasks that wait: the reason of the scheduler's last decision, who goes first, and the\n" +
			"attempts and reservations of one node that would have to give way. Whether they may be preempted is the\n" +
			"scheduler's decision. Jobs that you may not read are not named.",
		Flags: []cli.Flag{jsonFlag},
		Action: func(c *cli.Context) error {
			a, err := positionalArgs(c, 1, 1, "JOB")
			if err != nil {
				return err
			}
			cl, err := dial(c)
			if err != nil {
				return err
			}
			res, err := cl.GetSchedule(c.Context, connect.NewRequest(&droverv1.GetScheduleRequest{Job: a[0], Limit: 1}))
			if err != nil {
				return cl.classifyError(err)
			}
			if c.Bool("json") {
				res.Msg.Attempts = nil // one of them says nothing
				return printProto(c.App.Writer, res.Msg)
			}
			job, err := cl.GetJob(c.Context, connect.NewRequest(&droverv1.GetJobRequest{Job: a[0]}))
			if err != nil {
				return cl.classifyError(err)
			}
			if j := job.Msg.GetJob(); j.GetEndedMs() > 0 {
				fmt.Fprintf(c.App.Writer, "job %s has ended: %s\n", a[0], apitext.JobState(j.GetState()))
				return nil
			}
			suspended := printSuspended(c.App.Writer, a[0], job.Msg.GetStages())
			if len(res.Msg.GetWaiting()) == 0 && !suspended {
				fmt.Fprintln(c.App.Writer, "none of its tasks waits")
			}
			printWhy(c.App.Writer, res.Msg)
			return nil
		},
	}
}

// printSuspended names the stages with suspended tasks, which wait for their user or for the
// scheduler. It reports whether there are any.
func printSuspended(w io.Writer, job string, stages []*droverv1.StageSummary) (found bool) {
	for _, s := range stages {
		if n := s.GetSuspended(); n > 0 {
			found = true
			fmt.Fprintf(w, "%s: %d suspended: `drover task status %s` shows them; one that a user suspended waits for `drover task resume %s %s/INDEX`\n", s.GetName(), n, job, job, s.GetName())
		}
	}
	return found
}

func printWhy(w io.Writer, m *droverv1.GetScheduleResponse) {
	jobs, nodes := map[uint64]*droverv1.ScheduleJob{}, map[int32]string{}
	for _, j := range m.GetJobs() {
		jobs[j.GetJob()] = j
	}
	for _, n := range m.GetNodes() {
		nodes[n.GetNode()] = n.GetName()
	}
	for _, s := range m.GetWaiting() {
		fmt.Fprintf(w, "%s: %d waiting: %s%s\n", plain.Line(stageOf(jobs[s.GetJob()], s.GetStage())), s.GetTasks(), plain.Line(s.GetReason()), expectedStartText(s.GetExpectedStartMs()))
		if b := s.GetBehindJob(); b != 0 {
			fmt.Fprintf(w, "  goes first: job %d\n", b)
		}
		var list []string
		for _, o := range s.GetObstacles() {
			list = append(list, obstacleText(o, jobs[o.GetJob()]))
		}
		if len(list) > 0 {
			fmt.Fprintf(w, "  to start one now on %s, would have to give way: %s\n", plain.Line(nodes[s.GetObstacles()[0].GetNode()]), plain.Line(strings.Join(list, ", ")))
		}
	}
}

// obstacleText names an attempt or a reservation. job is nil if it may not be read.
func obstacleText(o *droverv1.ScheduleObstacle, job *droverv1.ScheduleJob) string {
	whose := "a job that you may not read"
	if job != nil {
		whose = fmt.Sprintf("job %d (%s)", job.GetJob(), job.GetName())
	}
	switch {
	case o.GetReservation() != 0:
		return fmt.Sprintf("reservation %d of %s", o.GetReservation(), whose)
	case job == nil:
		return "an attempt of " + whose
	default:
		return fmt.Sprintf("%s/%d of %s", stageOf(job, o.GetKey().GetStage()), o.GetKey().GetTask(), whose)
	}
}

// stageOf returns the name of a job's stage, or its number.
func stageOf(j *droverv1.ScheduleJob, stage int32) string {
	if list := j.GetStages(); stage >= 0 && int(stage) < len(list) {
		return list[stage]
	}
	return fmt.Sprint(stage)
}
