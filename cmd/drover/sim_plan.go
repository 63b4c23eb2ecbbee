package main

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/urfave/cli/v2"

	"github.com/drover-run/drover/scheduler/sim/engine"
)

func simPlanCommand() *cli.Command {
	return &cli.Command{
		Name:  "plan",
		Usage: "simulate a workload on the current and on a changed cluster",
		Flags: simFlags(&cli.StringFlag{Name: "scheduler", Usage: "policy", Value: "3dsf"},
			&cli.IntFlag{Name: "add-nodes", Usage: "machines to add, each like the last one; negative: remove from the end"},
			&cli.Float64Flag{Name: "speed", Usage: "factor on every machine's computing speed", Value: 1},
			&cli.StringFlag{Name: "out", Usage: "folder for comparison.json and plots"}),
		Action: func(c *cli.Context) (err error) {
			if _, err := positionalArgs(c, 0, 0, ""); err != nil {
				return err
			}
			in, err := parseSimFlags(c)
			if err != nil {
				return err
			}
			if in.model != "tasks" {
				return usageErrorf("plan works with -model tasks: a fluid server has no machines")
			}
			defer func() { err = errors.Join(err, in.discardLogs()) }()
			before := in.setup.Nodes
			after, err := resizeCluster(before, c.Int("add-nodes"), c.Float64("speed"))
			if err != nil {
				return err
			}
			var cols []comparedSetup
			for i, nodes := range [][]engine.Node{before, after} {
				in.setup.Nodes = nodes
				in.setup.Absences = slices.DeleteFunc(slices.Clone(in.setup.Absences), func(a engine.Absence) bool { return int(a.Node) >= len(nodes) })
				_, outs, setup, err := in.simulate(c, c.String("scheduler"), columnDir(c.String("out"), i, c.String("scheduler")))
				clearProgressLine(c)
				if err != nil {
					return err
				}
				cols = append(cols, comparedSetup{[]string{fmt.Sprintf("before (%d nodes)", len(nodes)), fmt.Sprintf("after (%d nodes)", len(nodes))}[i], setup, outs})
			}
			return printComparison(c, in, cols)
		},
	}
}

// resizeCluster adds or removes nodes and changes their speed.
func resizeCluster(nodes []engine.Node, add int, speed float64) ([]engine.Node, error) {
	if add == 0 && speed == 1 {
		return nil, usageErrorf("nothing changes: set -add-nodes or -speed")
	}
	if len(nodes)+add < 1 || add > 1_000_000 {
		return nil, usageErrorf("-add-nodes %d to %d nodes: at least one must remain, at most 1000000 can be added", add, len(nodes))
	}
	if !(speed > 0) || math.IsInf(speed, 0) { // NaN is above nothing
		return nil, usageErrorf("-speed %v: it must be a number above 0", speed)
	}
	out := append([]engine.Node(nil), nodes[:min(len(nodes), len(nodes)+add)]...)
	for i := range max(0, add) {
		n := nodes[len(nodes)-1]
		n.Name = fmt.Sprintf("%s+%d", n.Name, i+1)
		out = append(out, n)
	}
	for i := range out {
		if out[i].Speed == 0 {
			out[i].Speed = 1
		}
		out[i].Speed *= speed
	}
	return out, nil
}
