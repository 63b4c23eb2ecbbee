package main

import (
	"log/slog"

	"github.com/urfave/cli/v2"
)

// defaultScheduler decides unless an operator says otherwise.
const defaultScheduler = "3dsf"

// schedulerFlags choose the policy of a coordinator.
var schedulerFlags = []cli.Flag{
	&cli.StringFlag{Name: "scheduler", Value: defaultScheduler, Usage: "policy until an operator sets another (drover scheduler status lists them)"},
	&cli.StringSliceFlag{Name: "set", Usage: "parameter of the policy as key=value, repeatable"},
}

// daemonLog writes a daemon's log to standard error, warnings only unless
// verbose.
func daemonLog(c *cli.Context, verbose bool) *slog.Logger {
	level := slog.LevelWarn
	if verbose {
		level = slog.LevelInfo
	}
	return slog.New(slog.NewTextHandler(c.App.ErrWriter, &slog.HandlerOptions{Level: level}))
}
