package main

import (
	"fmt"
	"io"

	"github.com/urfave/cli/v2"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/internal/version"
	"github.com/drover-run/drover/jobspec"
)

func statusCommand() *cli.Command {
	return &cli.Command{
		Name:   "status",
		Usage:  "summary of the cluster",
		Flags:  []cli.Flag{jsonFlag},
		Action: show(func(cl *client) method[droverv1.StatusRequest, droverv1.StatusResponse] { return cl.Status }, printStatus),
	}
}

func printStatus(w io.Writer, m *droverv1.StatusResponse) {
	pairs := []string{"cluster", m.Cluster, "leader", m.Leader, "version", m.Version, "scheduler", m.Scheduler,
		"nodes up", fmt.Sprintf("%d of %d", m.NodesUp, m.Nodes), "live jobs", fmt.Sprint(m.JobsRunning), "log index", fmt.Sprint(m.Index),
		"disk free", fmt.Sprintf("%s (%s of it in reserve)", jobspec.FormatSize(m.DataFree), jobspec.FormatSize(m.DataReserve))}
	if m.CertificateUntilMs > 0 {
		pairs = append(pairs, "certificate", "until "+unixMSText(m.CertificateUntilMs))
	}
	printPairs(w, pairs...)
	for _, warning := range m.Warnings {
		fmt.Fprintln(w, "warning: "+warning)
	}
}

func versionCommand() *cli.Command {
	return &cli.Command{
		Name:  "version",
		Usage: "version of this program",
		Flags: []cli.Flag{jsonFlag},
		Action: func(c *cli.Context) error {
			if _, err := positionalArgs(c, 0, 0, ""); err != nil {
				return err
			}
			if c.Bool("json") {
				return printJSON(c.App.Writer, map[string]string{"version": version.Version})
			}
			fmt.Fprintln(c.App.Writer, "drover", version.Version)
			return nil
		},
	}
}
