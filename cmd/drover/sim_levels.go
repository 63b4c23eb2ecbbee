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
		Usage: "compare suspension with killing on an overloaded workload over a range of costs: where each level wins",
		Flags: simFlags(&cli.StringFlag{Name: "scheduler", Usage: "policy with the parameter preempt", Value: "3dsf"},
			&cli.Float64SliceFlag{Name: "cost", Usage: "cost of suspending and resuming as a multiple of the measured cost, repeatable",
				Value: cli.NewFloat64Slice(0.01, 0.1, 1, 10)},
			&cli.StringFlag{Name: "out", Usage: "folder for levels.md, levels.json and plots"}),
		Action: func(c *cli.Context) error {
			if _, err := positionalArgs(c, 0, 0, ""); err != nil {
				return err
			}
			in, err := parseSimFlags(c)
			if err != nil {
				return err
			}
			name := c.String("scheduler")
			if err := checkPreempting(in, name); err != nil {
				return err
			}
			costs := slices.Clone(c.Float64Slice("cost"))
			slices.Sort(costs)
			s := in.setup
			s.Scheduler, s.Params = name, maps.Clone(in.params)
			study, err := s.StudyLevels(c.Context, slices.Compact(costs), in.seeds, runtime.GOMAXPROCS(0), progressPrinter(c))
			clearProgressLine(c)
			if err != nil {
				if c.Context.Err() != nil {
					return interruptedError(c, err)
				}
				return exitError{exitRefused, err}
			}
			study.Parameters = in.parameters
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

// checkPreempting refuses what cannot be compared: a fluid server, and schedulers that do
// not preempt.
func checkPreempting(in *simInput, name string) error {
	if in.model != "tasks" {
		return usageErrorf("levels works with -model tasks: a fluid server has no tasks to suspend")
	}
	info, err := policies.Get(name)
	if err != nil {
		return exitError{exitRefused, err}
	}
	if !slices.ContainsFunc(info.Params, func(p policies.Param) bool { return p.Name == "preempt" }) {
		return usageErrorf("scheduler %s does not preempt: use 3dsf, pdsonqueue or another with the parameter preempt", name)
	}
	if _, ok := in.params["preempt"]; ok {
		return usageErrorf("-set preempt=… is not allowed: levels sets it itself")
	}
	if _, err := policies.New(name, in.params); err != nil {
		return exitError{exitRefused, err}
	}
	return nil
}
