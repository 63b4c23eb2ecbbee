package main

import (
	"fmt"
	"strings"

	"connectrpc.com/connect"
	"github.com/urfave/cli/v2"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
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
			r, err := getJob(c, a[0])
			if err != nil {
				return err
			}
			if c.Bool("json") {
				return printProto(c.App.Writer, r)
			}
			printHeading(c.App.Writer, r)
			printOrigin(c.App.Writer, r.Job)
			printBody(c.App.Writer, r, nil, "")
			if text := preemptedText(r.Preempted); text != "" {
				fmt.Fprintln(c.App.Writer, "preempted: "+text)
			}
			for _, s := range r.Stages {
				if s.Waiting != "" {
					fmt.Fprintf(c.App.Writer, "%s waits: %s%s\n", s.Name, s.Waiting, expectedStartText(s.ExpectedStartMs))
				}
			}
			return nil
		},
	}
}

// expectedStartText formats an expected start time, if known.
func expectedStartText(ms int64) string {
	if ms == 0 {
		return ""
	}
	return "; expected to start at " + unixMSText(ms)
}

func getJob(c *cli.Context, job string) (*droverv1.GetJobResponse, error) {
	cl, err := dial(c)
	if err != nil {
		return nil, err
	}
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
