package main

import (
	"encoding/json"
	"fmt"

	"github.com/urfave/cli/v2"
)

func jobInspectCommand() *cli.Command {
	return &cli.Command{
		Name:        "inspect",
		Usage:       "the coordinator's specification of a job, as canonical JSON",
		ArgsUsage:   "JOB",
		Description: "The output can be submitted again: drover job inspect wc > wc.json; drover job run wc.json",
		Flags:       []cli.Flag{&cli.BoolFlag{Name: "json", Usage: "as without it: it is JSON"}},
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
			var spec json.RawMessage
			if err := json.Unmarshal([]byte(r.Spec), &spec); err != nil {
				return fmt.Errorf("the coordinator's spec of job %s is not JSON: %w", a[0], err)
			}
			return printJSON(c.App.Writer, spec)
		},
	}
}
