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
		Usage:     "a job's stages, what they wait for and how it ended",
		ArgsUsage: "JOB",
		Flags:     []cli.Flag{jsonFlag},
		Action: func(c *cli.Context) error {
			a, err := args(c, 1, 1, "JOB")
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
			printSummary(c.App.Writer, r, nil, "")
			if text := preemptedText(r.Preempted); text != "" {
				fmt.Fprintln(c.App.Writer, "taken back: "+text)
			}
			for _, s := range r.Stages {
				if s.Waiting != "" {
					fmt.Fprintf(c.App.Writer, "%s waits: %s%s\n", s.Name, s.Waiting, startText(s.ExpectedStartMs))
				}
			}
			return nil
		},
	}
}

// startText says when something is expected to start, if that is known.
func startText(ms int64) string {
	if ms == 0 {
		return ""
	}
	return "; expected to start at " + msText(ms)
}

func getJob(c *cli.Context, job string) (*droverv1.GetJobResponse, error) {
	cl, err := dial(c)
	if err != nil {
		return nil, err
	}
	res, err := cl.GetJob(c.Context, connect.NewRequest(&droverv1.GetJobRequest{Job: job}))
	if err != nil {
		return nil, cl.explain(err)
	}
	return res.Msg, nil
}

func splitLines(s string) []string { return strings.Split(strings.TrimRight(s, "\n"), "\n") }

func joinOr(s []string, otherwise string) string {
	if len(s) == 0 {
		return otherwise
	}
	return strings.Join(s, "; ")
}
