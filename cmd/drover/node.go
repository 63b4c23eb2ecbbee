package main

import "github.com/urfave/cli/v2"

func nodeCommand() *cli.Command {
	return &cli.Command{Name: "node", Usage: "machines", Subcommands: []*cli.Command{nodeListCommand(), nodeStatusCommand(), nodeDrainCommand()}}
}
