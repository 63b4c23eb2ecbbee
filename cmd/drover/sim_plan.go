package main

import (
	"fmt"

	"github.com/urfave/cli/v2"

	"github.com/drover-run/drover/scheduler/sim/engine"
)

func simPlanCommand() *cli.Command {
	return &cli.Command{
		Name:  "plan",
		Usage: "what a change of cluster does to a workload: as it is, and with the change",
		Flags: simFlags(&cli.StringFlag{Name: "scheduler", Usage: "policy", Value: "3dsf"},
			&cli.IntFlag{Name: "add-nodes", Usage: "machines more, each like the last one; negative: fewer, from the end"},
			&cli.Float64Flag{Name: "speed", Usage: "factor on every machine's speed of computing", Value: 1},
			&cli.StringFlag{Name: "out", Usage: "folder for comparison.json and plots"}),
		Action: func(c *cli.Context) error {
			if _, err := args(c, 0, 0, ""); err != nil {
				return err
			}
			in, err := readSim(c)
			if err != nil {
				return err
			}
			if in.model != "tasks" {
				return usage("plan works with -model tasks: a fluid server has no machines")
			}
			before := in.setup.Nodes
			after, err := changedCluster(before, c.Int("add-nodes"), c.Float64("speed"))
			if err != nil {
				return err
			}
			var cols []column
			for i, nodes := range [][]engine.Node{before, after} {
				in.setup.Nodes = nodes
				_, outs, setup, err := in.outcomes(c, c.String("scheduler"))
				endProgress(c)
				if err != nil {
					return err
				}
				cols = append(cols, column{[]string{fmt.Sprintf("now (%d nodes)", len(nodes)), fmt.Sprintf("then (%d nodes)", len(nodes))}[i], setup, outs})
			}
			return showColumns(c, in, cols)
		},
	}
}

// changedCluster adds or drops nodes and changes their speed.
func changedCluster(nodes []engine.Node, add int, speed float64) ([]engine.Node, error) {
	if add == 0 && speed == 1 {
		return nil, usage("nothing changes: say -add-nodes N or -speed FACTOR")
	}
	if len(nodes)+add < 1 || add > 1_000_000 {
		return nil, usage("-add-nodes %d to %d nodes: at least one must be left, at most 1000000 can be added", add, len(nodes))
	}
	if speed <= 0 {
		return nil, usage("-speed %v: it must be above 0", speed)
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
