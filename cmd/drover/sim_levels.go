package main

import (
	"fmt"
	"maps"
	"runtime"
	"slices"

	"github.com/urfave/cli/v2"

	"github.com/drover-run/drover/scheduler/policies"
	"github.com/drover-run/drover/scheduler/sim/run"
)

func simLevelsCommand() *cli.Command {
	return &cli.Command{
		Name:  "levels",
		Usage: "suspension against kill on one overloaded workload, over a range of costs: where each level wins",
		Flags: simFlags(&cli.StringFlag{Name: "scheduler", Usage: "policy with the parameter preempt", Value: "3dsf"},
			&cli.Float64SliceFlag{Name: "cost", Usage: "cost of suspending and resuming as a multiple of what was measured, repeatable",
				Value: cli.NewFloat64Slice(0.01, 0.1, 1, 10)},
			&cli.StringFlag{Name: "out", Usage: "folder for levels.md, levels.json and plots"}),
		Action: func(c *cli.Context) error {
			if _, err := args(c, 0, 0, ""); err != nil {
				return err
			}
			in, err := readSim(c)
			if err != nil {
				return err
			}
			name := c.String("scheduler")
			if err := preempts(in, name); err != nil {
				return err
			}
			costs := slices.Clone(c.Float64Slice("cost"))
			slices.Sort(costs)
			s := in.setup
			s.Scheduler, s.Params = name, maps.Clone(in.params)
			study, err := s.Levels(c.Context, slices.Compact(costs), in.seeds, runtime.GOMAXPROCS(0), progress(c))
			endProgress(c)
			if err != nil {
				if c.Context.Err() != nil {
					return brokenOff(c, err)
				}
				return coded{exitRefused, err}
			}
			study.Parameters = in.shown
			if dir := c.String("out"); dir != "" {
				if err := run.WriteLevels(dir, study); err != nil {
					return err
				}
			}
			if c.Bool("json") {
				return printJSON(c.App.Writer, study)
			}
			fmt.Fprint(c.App.Writer, study.Markdown())
			return nil
		},
	}
}

// preempts refuses what cannot be compared: a fluid server, and schedulers that
// take no room back.
func preempts(in *simInput, name string) error {
	if in.model != "tasks" {
		return usage("levels works with -model tasks: a fluid server has no tasks to suspend")
	}
	info, err := policies.Get(name)
	if err != nil {
		return coded{exitRefused, err}
	}
	if !slices.ContainsFunc(info.Params, func(p policies.Param) bool { return p.Name == "preempt" }) {
		return usage("scheduler %s takes no room back: use 3dsf, pdsonqueue or another with the parameter preempt", name)
	}
	if _, ok := in.params["preempt"]; ok {
		return usage("-set preempt=…: levels sets it, to suspend and to kill")
	}
	if _, err := policies.New(name, in.params); err != nil {
		return coded{exitRefused, err}
	}
	return nil
}
