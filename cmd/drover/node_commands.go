package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/urfave/cli/v2"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/internal/sleep"
	"github.com/drover-run/drover/jobspec"
)

func listNodes(c *cli.Context, cl *client) ([]*droverv1.NodeStatus, error) {
	res, err := cl.ListNodes(c.Context, connect.NewRequest(&droverv1.ListNodesRequest{}))
	if err != nil {
		return nil, cl.classifyError(err)
	}
	return res.Msg.Nodes, nil
}

func nodeListCommand() *cli.Command {
	return &cli.Command{
		Name:  "list",
		Usage: "nodes, their capacity and what is in use",
		Flags: []cli.Flag{jsonFlag},
		Action: func(c *cli.Context) error {
			if _, err := positionalArgs(c, 0, 0, ""); err != nil {
				return err
			}
			cl, err := dial(c)
			if err != nil {
				return err
			}
			nodes, err := listNodes(c, cl)
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
					usedOfText(n.Used.GetCpu(), al.GetCpu(), jobspec.FormatCPU), usedOfText(n.Used.GetMemory(), al.GetMemory(), jobspec.FormatSize),
					usedOfText(n.Used.GetIo(), al.GetIo(), jobspec.FormatRate)})
			}
			printList(c.App.Writer, []string{"node", "state", "rack", "driver", "tasks", "cpu", "memory", "disk i/o"}, rows, false, "driver", "rack", "disk i/o")
			if len(rows) == 0 {
				fmt.Fprintln(c.App.ErrWriter, "no node has registered yet; start `drover node` on a machine")
			}
			return nil
		},
	}
}

func usedOfText(used, of int64, show func(int64) string) string {
	return show(used) + " of " + show(of)
}

func nodeStatusCommand() *cli.Command {
	return &cli.Command{
		Name:      "status",
		Usage:     "one node: measurements, allocatable resources, suspension levels",
		ArgsUsage: "NODE",
		Flags:     []cli.Flag{jsonFlag},
		Action: func(c *cli.Context) error {
			a, err := positionalArgs(c, 1, 1, "NODE")
			if err != nil {
				return err
			}
			cl, err := dial(c)
			if err != nil {
				return err
			}
			n, err := nodeByName(c, cl, a[0])
			if err != nil {
				return err
			}
			if c.Bool("json") {
				return printProto(c.App.Writer, n)
			}
			printNode(c, n)
			return nil
		},
	}
}

// nodeByName asks for a node.
func nodeByName(c *cli.Context, cl *client, name string) (*droverv1.NodeStatus, error) {
	nodes, err := listNodes(c, cl)
	if err != nil {
		return nil, err
	}
	return findNode(nodes, name)
}

// maxNodesNamed bounds the nodes that the error of an unknown one names.
const maxNodesNamed = 10

// findNode returns a node by name.
func findNode(nodes []*droverv1.NodeStatus, name string) (*droverv1.NodeStatus, error) {
	names := make([]string, 0, len(nodes))
	for _, n := range nodes {
		if n.Info.GetName() == name {
			return n, nil
		}
		names = append(names, n.Info.GetName())
	}
	hint := "`drover node list` lists them"
	if s := jobspec.Suggest(name, names); s != "" {
		hint = fmt.Sprintf("did you mean %s?", s)
	} else if 0 < len(names) && len(names) <= maxNodesNamed {
		hint = "it has " + strings.Join(names, ", ")
	}
	return nil, fault.New(fault.NotFound, "the cluster has no node %q; %s", name, hint)
}

func printNode(c *cli.Context, n *droverv1.NodeStatus) {
	i, w := n.Info, c.App.Writer
	levels := make([]string, 0, len(i.Levels))
	for _, l := range i.Levels {
		levels = append(levels, levelText(l))
	}
	printPairs(w, "node", i.Name, "state", n.State, "tasks", tasksOnNodeText(n), "draining", yesOrEmpty(isDrained(n)), "reason", n.Reason, "retry at", unixMSText(n.RetryAtMs),
		"drain deadline", unixMSText(n.DrainDeadlineMs), "staying", strings.Join(n.Staying, "; "), "maintenance", maintenanceText(n.Maintenance), "unknown runs", unknownRunsText(n.UnknownRuns), "rack", i.Rack, "address", i.Address,
		"storage addresses", strings.Join(i.StorageAddresses, ", "), "driver", i.Driver, "limits enforced", fmt.Sprint(i.Confined),
		"emulated", yesOrEmpty(i.Emulated), "measured", vectorText(i.Measured), "allocatable", vectorText(i.Allocatable), "harness memory per task", sizeOrEmpty(i.TaskOverheadMemory), "in use", vectorText(n.Used),
		"swap", jobspec.FormatSize(i.Swap), "levels", strings.Join(levels, ", "), "missing levels", strings.Join(i.LevelNotes, "; "), "last report", unixMSText(n.LastReportMs),
		"problems", strings.Join(n.Load.GetProblems(), "; "))
	rows := make([][]string, 0, len(i.Disks))
	for _, d := range i.Disks {
		rows = append(rows, []string{d.Name, d.Device, d.Path, jobspec.FormatRate(d.ReadBps), jobspec.FormatRate(d.WriteBps), jobspec.FormatRate(d.MixedBps), jobspec.FormatRate(d.Io), jobspec.FormatSize(d.Space), yesOrEmpty(d.Quota)})
	}
	fmt.Fprintln(w)
	printTable(w, []string{"disk", "device", "folder", "read", "write", "mixed", "allocatable", "space", "quota"}, rows)
	fmt.Fprintln(w)
	for _, k := range slices.Sorted(maps.Keys(i.Versions)) {
		printPairs(w, k, i.Versions[k])
	}
}

// isDrained reports whether an operator or a maintenance window drains a node. One that is
// quarantined has NodeStatus.draining too.
func isDrained(n *droverv1.NodeStatus) bool { return n.Draining && n.RetryAtMs == 0 }

func sizeOrEmpty(n int64) string {
	if n == 0 {
		return ""
	}
	return jobspec.FormatSize(n)
}

// tasksOnNodeText formats how many tasks a node has, and how many of them are suspended.
func tasksOnNodeText(n *droverv1.NodeStatus) string {
	var suspended int32
	for _, l := range n.Suspended {
		suspended += l.Attempts
	}
	if suspended == 0 {
		return fmt.Sprint(n.Attempts)
	}
	return fmt.Sprintf("%d, %d of them suspended", n.Attempts, suspended)
}

func yesOrEmpty(b bool) string {
	if b {
		return "yes"
	}
	return ""
}

func nodeDrainCommand() *cli.Command {
	return &cli.Command{
		Name:      "drain",
		Usage:     "place no new tasks on a node; running tasks continue",
		ArgsUsage: "NODE",
		Description: "With -deadline, what still runs then is checkpointed and goes on on another node that can restore it and has free\n" +
			"capacity, now or later. What cannot be checkpointed runs on; drover node status says why it stays. With -wait the\n" +
			"command ends when nothing runs there any more; map outputs that are kept there are still read, and made again if the\n" +
			"node goes. With -json it prints the node as drover node status -json does.",
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "off", Usage: "make the node schedulable again"},
			&cli.DurationFlag{Name: "deadline", Usage: "after that, move what still runs, such as 10m; without it tasks run to their end"},
			&cli.BoolFlag{Name: "wait", Usage: "wait until no task is left there, running or suspended"},
			jsonFlag,
		},
		Action: func(c *cli.Context) error {
			a, err := positionalArgs(c, 1, 1, "NODE")
			if err != nil {
				return err
			}
			deadline := c.Duration("deadline")
			switch {
			case c.IsSet("deadline") && c.Bool("off"):
				return usageErrorf("-off and -deadline exclude each other: a node that takes tasks again keeps what runs there")
			case c.Bool("wait") && c.Bool("off"):
				return usageErrorf("-off and -wait exclude each other: a node that takes tasks again is at once schedulable")
			case c.IsSet("deadline") && deadline < time.Millisecond:
				return usageErrorf("-deadline %s: want a time from now, such as 10m", deadline)
			}
			cl, err := dial(c)
			if err != nil {
				return err
			}
			before, err := nodeByName(c, cl, a[0])
			if err != nil {
				return err
			}
			if _, err := cl.DrainNode(c.Context, connect.NewRequest(&droverv1.DrainNodeRequest{Node: a[0], Off: c.Bool("off"), DeadlineMs: deadline.Milliseconds()})); err != nil {
				return cl.classifyError(err)
			}
			switch {
			case c.Bool("json"):
			case c.Bool("off"):
				fmt.Fprintln(c.App.Writer, undrainedText(before))
			case deadline > 0:
				fmt.Fprintf(c.App.Writer, "%s gets no new tasks; what runs there in %s moves to other nodes; `drover node status %s` shows what stays\n", a[0], deadline, a[0])
			default:
				fmt.Fprintf(c.App.Writer, "%s gets no new tasks; `drover node status %s` shows how many tasks are still there\n", a[0], a[0])
			}
			if c.Bool("wait") {
				if err := waitEmpty(c, cl, a[0]); err != nil {
					return err
				}
			}
			if c.Bool("json") {
				return printNodeJSON(c, cl, a[0])
			}
			return nil
		},
	}
}

// printNodeJSON prints a node as `drover node status -json` does, after a command has changed it.
func printNodeJSON(c *cli.Context, cl *client, name string) error {
	n, err := nodeByName(c, cl, name)
	if err != nil {
		return err
	}
	return printProto(c.App.Writer, n)
}

// undrainedText says what the end of a drain changed for a node that was so before.
func undrainedText(n *droverv1.NodeStatus) string {
	name, down := n.Info.GetName(), n.State == "down"
	switch {
	case down && n.Draining:
		return name + " is no longer drained; it is down"
	case down:
		return name + " was not drained; it is down"
	case n.Draining || n.Probation:
		return name + " is schedulable again"
	default:
		return name + " was not drained"
	}
}

// drainPoll is the time between two looks at a node that is drained.
const drainPoll = time.Second

// waitEmpty waits until nothing runs on a drained node. It also ends if the node becomes
// schedulable again.
func waitEmpty(c *cli.Context, cl *client, name string) error {
	c.Context = cl.following(c.Context, sayTo(c.App.ErrWriter))
	for left := int32(-1); ; {
		n, err := nodeByName(c, cl, name)
		if c.Context.Err() != nil {
			return exitError{exitDetached, fmt.Errorf("interrupted; %s stays drained: `drover node drain -off %s` makes it schedulable again", name, name)}
		}
		if err != nil {
			return err
		}
		switch {
		case n.Attempts == 0:
			if !c.Bool("json") {
				fmt.Fprintf(c.App.Writer, "%s is empty\n", name)
			}
			return nil
		case !n.Draining:
			return fault.New(fault.Conflict, "%s is schedulable again, before it was empty: somebody ended the drain", name)
		case n.Attempts != left:
			left = n.Attempts
			fmt.Fprintf(c.App.ErrWriter, "%s left on %s\n", countText(int(left), "task"), name)
		}
		sleep.For(c.Context, drainPoll)
	}
}
