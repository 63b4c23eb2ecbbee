package main

import (
	"fmt"
	"maps"
	"runtime"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/drover-run/drover/scheduler/sim/run"
)

func simSizeCommand() *cli.Command {
	return &cli.Command{
		Name:  "size",
		Usage: "find how many machines a workload needs so that jobs end in time: an estimate by queueing theory, and the answer by simulation",
		Flags: simFlags(&cli.StringFlag{Name: "scheduler", Usage: "policy", Value: "3dsf"},
			&cli.DurationFlag{Name: "response", Usage: "time from submission to end that a job may take (required)"},
			&cli.Float64Flag{Name: "share", Usage: "share of the jobs that must end in that time", Value: 0.95}),
		Action: func(c *cli.Context) error {
			if _, err := positionalArgs(c, 0, 0, ""); err != nil {
				return err
			}
			target := run.Target{Response: c.Duration("response"), Share: c.Float64("share")}
			if target.Response <= 0 {
				return usageErrorf("-response is missing: give the time that a job may take, such as 10m")
			}
			if !(target.Share > 0 && target.Share <= 1) {
				return usageErrorf("-share %v: it must be above 0 and at most 1", target.Share)
			}
			if c.IsSet("nodes") || c.String("cluster") != "" {
				return usageErrorf("size finds the number of machines: describe one by -cpu, -memory and -io, without -nodes and -cluster")
			}
			in, err := parseSimFlags(c)
			if err != nil {
				return err
			}
			if in.model != "tasks" {
				return usageErrorf("size works with -model tasks: a fluid server has no machines")
			}
			s := in.setup
			s.Scheduler, s.Params = c.String("scheduler"), maps.Clone(in.params)
			if err := run.CheckScheduler(s.Scheduler, s.Params); err != nil {
				return exitError{exitRefused, err}
			}
			z, err := s.Size(c.Context, s.Nodes[0], target, in.seeds, runtime.GOMAXPROCS(0))
			if err != nil {
				if c.Context.Err() != nil {
					return interruptedError(c, err)
				}
				return exitError{exitRefused, err}
			}
			if c.Bool("json") {
				return printJSON(c.App.Writer, z)
			}
			printSizing(c, z, target)
			return nil
		},
	}
}

func printSizing(c *cli.Context, z *run.Sizing, target run.Target) {
	fmt.Fprintf(c.App.Writer, "%d machines: %.1f%% of the jobs end within %v\n", z.Nodes, 100*z.Share, target.Response.Round(time.Millisecond))
	if z.Nodes > 1 {
		fmt.Fprintf(c.App.Writer, "%d machines: %.1f%%\n", z.Nodes-1, 100*z.OneLess)
	}
	fmt.Fprintf(c.App.Writer, "queueing theory estimated %d; %d sizes were simulated\n", z.Estimate, z.Simulated)
}
