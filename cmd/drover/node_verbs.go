package main

import (
	"fmt"
	"strings"

	"connectrpc.com/connect"
	"github.com/urfave/cli/v2"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/jobspec"
)

func listNodes(c *cli.Context) ([]*droverv1.NodeStatus, error) {
	cl, err := dial(c)
	if err != nil {
		return nil, err
	}
	res, err := cl.ListNodes(c.Context, connect.NewRequest(&droverv1.ListNodesRequest{}))
	if err != nil {
		return nil, cl.explain(err)
	}
	return res.Msg.Nodes, nil
}

func nodeListCommand() *cli.Command {
	return &cli.Command{
		Name:  "list",
		Usage: "machines, what they have and what is in use",
		Flags: []cli.Flag{jsonFlag},
		Action: func(c *cli.Context) error {
			if _, err := args(c, 0, 0, ""); err != nil {
				return err
			}
			nodes, err := listNodes(c)
			if err != nil {
				return err
			}
			if c.Bool("json") {
				return printProto(c.App.Writer, &droverv1.ListNodesResponse{Nodes: nodes})
			}
			rows := make([][]string, 0, len(nodes))
			for _, n := range nodes {
				state := n.State
				if n.Draining && state == "up" {
					state = "draining"
				}
				al := n.Info.GetAllocatable()
				rows = append(rows, []string{n.Info.GetName(), state, n.Info.GetRack(), n.Info.GetDriver(), fmt.Sprint(n.Attempts),
					share(n.Used.GetCpu(), al.GetCpu(), jobspec.FormatCPU), share(n.Used.GetMemory(), al.GetMemory(), jobspec.FormatSize),
					share(n.Used.GetIo(), al.GetIo(), jobspec.FormatRate)})
			}
			columns(c.App.Writer, []string{"node", "state", "rack", "driver", "tasks", "cpu", "memory", "disk i/o"}, rows)
			return nil
		},
	}
}

func share(used, of int64, show func(int64) string) string { return show(used) + " of " + show(of) }

func nodeStatusCommand() *cli.Command {
	return &cli.Command{
		Name:      "status",
		Usage:     "one machine: what it measured, hands out and can do",
		ArgsUsage: "NODE",
		Flags:     []cli.Flag{jsonFlag},
		Action: func(c *cli.Context) error {
			a, err := args(c, 1, 1, "NODE")
			if err != nil {
				return err
			}
			nodes, err := listNodes(c)
			if err != nil {
				return err
			}
			names := make([]string, 0, len(nodes))
			for _, n := range nodes {
				if n.Info.GetName() == a[0] {
					if c.Bool("json") {
						return printProto(c.App.Writer, n)
					}
					printNode(c, n)
					return nil
				}
				names = append(names, n.Info.GetName())
			}
			hint := "; it has " + strings.Join(names, ", ")
			if s := jobspec.Suggest(a[0], names); s != "" {
				hint = fmt.Sprintf("; did you mean %s?", s)
			}
			return fault.New(fault.NotFound, "the cluster has no node %q%s", a[0], hint)
		},
	}
}

func printNode(c *cli.Context, n *droverv1.NodeStatus) {
	i, w := n.Info, c.App.Writer
	levels := make([]string, 0, len(i.Levels))
	for _, l := range i.Levels {
		levels = append(levels, levelText(l))
	}
	pairs(w, "node", i.Name, "state", n.State, "draining", yes(n.Draining), "because", n.Why, "tried again", msText(n.BackMs), "rack", i.Rack, "address", i.Address,
		"storage addresses", strings.Join(i.StorageAddresses, ", "), "driver", i.Driver, "limits enforced", fmt.Sprint(i.Confined),
		"emulated", yes(i.Emulated), "measured", vectorText(i.Measured), "allocatable", vectorText(i.Allocatable), "in use", vectorText(n.Used),
		"swap", jobspec.FormatSize(i.Swap), "levels", strings.Join(levels, ", "), "missing levels", strings.Join(i.LevelNotes, "; "), "last report", msText(n.LastReportMs),
		"problems", strings.Join(n.Load.GetProblems(), "; "))
	rows := make([][]string, 0, len(i.Disks))
	for _, d := range i.Disks {
		rows = append(rows, []string{d.Name, d.Device, d.Path, jobspec.FormatRate(d.ReadBps), jobspec.FormatRate(d.WriteBps), jobspec.FormatRate(d.MixedBps), jobspec.FormatRate(d.Io), jobspec.FormatSize(d.Space), yes(d.Quota)})
	}
	fmt.Fprintln(w)
	columns(w, []string{"disk", "device", "folder", "read", "write", "mixed", "allocatable", "space", "quota"}, rows)
	fmt.Fprintln(w)
	for _, k := range sortedKeys(i.Versions) {
		pairs(w, k, i.Versions[k])
	}
}

func yes(b bool) string {
	if b {
		return "yes"
	}
	return ""
}

func nodeDrainCommand() *cli.Command {
	return &cli.Command{
		Name:      "drain",
		Usage:     "give a machine no new work; what runs there ends in peace",
		ArgsUsage: "NODE",
		Flags:     []cli.Flag{&cli.BoolFlag{Name: "off", Usage: "let it take work again"}},
		Action: func(c *cli.Context) error {
			a, err := args(c, 1, 1, "NODE")
			if err != nil {
				return err
			}
			cl, err := dial(c)
			if err != nil {
				return err
			}
			if _, err := cl.DrainNode(c.Context, connect.NewRequest(&droverv1.DrainNodeRequest{Node: a[0], Off: c.Bool("off")})); err != nil {
				return cl.explain(err)
			}
			if c.Bool("off") {
				fmt.Fprintf(c.App.Writer, "%s takes work again\n", a[0])
			} else {
				fmt.Fprintf(c.App.Writer, "%s takes no new work; `drover node status %s` shows what still runs\n", a[0], a[0])
			}
			return nil
		},
	}
}
