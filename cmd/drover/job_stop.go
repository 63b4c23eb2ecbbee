package main

import (
	"fmt"

	"connectrpc.com/connect"
	"github.com/urfave/cli/v2"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/internal/apitext"
)

func jobStopCommand() *cli.Command {
	return &cli.Command{
		Name:      "stop",
		Usage:     "stop a job and remove its partial output",
		ArgsUsage: "JOB",
		Description: `A job whose tasks are all done, and whose result is being published, ends as that does: it has succeeded, or it is stopped if
the result cannot be published. With -json it prints the job as it was when it was told to stop.`,
		Flags: []cli.Flag{&cli.StringFlag{Name: "reason", Usage: "recorded in the event"}, jsonFlag},
		Action: func(c *cli.Context) error {
			a, err := positionalArgs(c, 1, 1, "JOB")
			if err != nil {
				return err
			}
			cl, err := dial(c)
			if err != nil {
				return err
			}
			r, err := cl.GetJob(c.Context, connect.NewRequest(&droverv1.GetJobRequest{Job: a[0]}))
			if err != nil {
				return cl.classifyError(err)
			}
			j := r.Msg.Job
			if j.EndedMs == 0 {
				number := fmt.Sprint(j.Job) // the name may be another job's by now, and a call with a number may be repeated
				if _, err := cl.StopJob(c.Context, connect.NewRequest(&droverv1.StopJobRequest{Job: number, Reason: c.String("reason")})); err != nil {
					return cl.classifyError(err)
				}
			}
			switch {
			case c.Bool("json"):
				return printProto(c.App.Writer, j)
			case j.EndedMs > 0:
				fmt.Fprintf(c.App.Writer, "job %s has ended already: %s\n", a[0], apitext.JobState(j.State))
			case j.State == droverv1.JobState_JOB_STATE_COMMITTING:
				fmt.Fprintf(c.App.Writer, "job %s is publishing its result: it is stopped only if that fails\n", a[0])
			default:
				fmt.Fprintf(c.App.Writer, "job %s is being stopped\n", a[0])
			}
			return nil
		},
	}
}
