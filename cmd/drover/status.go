package main

import (
	"fmt"

	"connectrpc.com/connect"
	"github.com/urfave/cli/v2"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/internal/version"
)

func statusCommand() *cli.Command {
	return &cli.Command{
		Name:  "status",
		Usage: "the cluster in a few lines",
		Flags: []cli.Flag{jsonFlag},
		Action: func(c *cli.Context) error {
			if _, err := args(c, 0, 0, ""); err != nil {
				return err
			}
			cl, err := dial(c)
			if err != nil {
				return err
			}
			res, err := cl.Status(c.Context, connect.NewRequest(&droverv1.StatusRequest{}))
			if err != nil {
				return cl.explain(err)
			}
			m := res.Msg
			if c.Bool("json") {
				return printProto(c.App.Writer, m)
			}
			pairs(c.App.Writer, "cluster", m.Cluster, "leader", m.Leader, "version", m.Version, "scheduler", m.Scheduler,
				"nodes up", fmt.Sprintf("%d of %d", m.NodesUp, m.Nodes), "live jobs", fmt.Sprint(m.JobsRunning), "log index", fmt.Sprint(m.Index))
			return nil
		},
	}
}

func versionCommand() *cli.Command {
	return &cli.Command{
		Name:  "version",
		Usage: "which Drover this is",
		Flags: []cli.Flag{jsonFlag},
		Action: func(c *cli.Context) error {
			if c.Bool("json") {
				return printJSON(c.App.Writer, map[string]string{"version": version.Version})
			}
			fmt.Fprintln(c.App.Writer, "drover", version.Version)
			return nil
		},
	}
}
