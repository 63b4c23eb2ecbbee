package main

import "github.com/urfave/cli/v2"

func jobWaitCommand() *cli.Command {
	return &cli.Command{
		Name:        "wait",
		Usage:       "follow a job to its end",
		ArgsUsage:   "JOB",
		Description: "Ends with the job's exit code: 0 succeeded, 1 failed, 5 stopped. It goes on when the coordinator is restarted.",
		Flags:       []cli.Flag{jsonFlag},
		Action: func(c *cli.Context) error {
			a, err := positionalArgs(c, 1, 1, "JOB")
			if err != nil {
				return err
			}
			cl, err := dial(c)
			if err != nil {
				return err
			}
			return followJob(c, cl, a[0], nil, "")
		},
	}
}
