package main

import (
	"github.com/urfave/cli/v2"
)

func jobCommand() *cli.Command {
	return &cli.Command{
		Name:  "job",
		Usage: "run jobs and see what becomes of them",
		Subcommands: []*cli.Command{
			jobRunCommand(), jobPlanCommand(), jobValidateCommand(), jobStatusCommand(), jobListCommand(),
			jobWaitCommand(), jobLogsCommand(), jobStopCommand(), jobInspectCommand(),
		},
	}
}
