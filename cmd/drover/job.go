package main

import (
	"github.com/urfave/cli/v2"
)

func jobCommand() *cli.Command {
	return &cli.Command{
		Name:  "job",
		Usage: "run, follow and stop jobs",
		Subcommands: []*cli.Command{
			jobRunCommand(), jobPlanCommand(), jobValidateCommand(), jobStatusCommand(), jobWhyCommand(), jobListCommand(), jobHistoryCommand(),
			jobWaitCommand(), jobLogsCommand(), jobStopCommand(), jobInspectCommand(), jobPartitionCommand(),
		},
	}
}
