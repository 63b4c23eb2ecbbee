package main

import (
	"slices"

	"github.com/urfave/cli/v2"
)

// helpCommand returns the command help of a group with these commands: `drover help job run` and
// `drover job help run` are `drover job run -h`.
func helpCommand(commands []*cli.Command, path []string) *cli.Command {
	return &cli.Command{
		Name:            "help",
		Aliases:         []string{"h"},
		Usage:           "the help of a command",
		ArgsUsage:       "[COMMAND ...]",
		HideHelpCommand: true,
		Action: func(c *cli.Context) error {
			at := slices.Concat([]string{"drover"}, path)
			commands := commands
			for _, name := range c.Args().Slice() {
				i := slices.IndexFunc(commands, func(c *cli.Command) bool { return c.HasName(name) })
				switch {
				case i >= 0:
					at, commands = append(at, name), commands[i].Subcommands
				case len(commands) > 0:
					return c.App.RunContext(c.Context, append(at, name)) // says that it knows no such command
				}
			}
			return c.App.RunContext(c.Context, append(at, "-h"))
		},
	}
}
