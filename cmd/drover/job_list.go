package main

import (
	"fmt"

	"connectrpc.com/connect"
	"github.com/urfave/cli/v2"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
)

func jobListCommand() *cli.Command {
	return &cli.Command{
		Name:  "list",
		Usage: "live jobs, newest first",
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "all", Aliases: []string{"a"}, Usage: "ended ones too"},
			&cli.IntFlag{Name: "limit", Value: 50, Usage: "at most this many"},
			jsonFlag,
		},
		Action: func(c *cli.Context) error {
			if _, err := args(c, 0, 0, ""); err != nil {
				return err
			}
			cl, err := dial(c)
			if err != nil {
				return err
			}
			res, err := cl.ListJobs(c.Context, connect.NewRequest(&droverv1.ListJobsRequest{All: c.Bool("all"), Limit: int32(c.Int("limit"))}))
			if err != nil {
				return cl.explain(err)
			}
			if c.Bool("json") {
				return printProto(c.App.Writer, res.Msg)
			}
			rows := make([][]string, 0, len(res.Msg.Jobs))
			for _, j := range res.Msg.Jobs {
				rows = append(rows, []string{fmt.Sprint(j.Job), j.Name, j.Tenant, stateText(j.State), j.Priority,
					fmt.Sprintf("%d/%d", j.TasksDone, j.Tasks), fmt.Sprint(j.TasksRunning), msText(j.SubmittedMs), j.Message})
			}
			columns(c.App.Writer, []string{"job", "name", "tenant", "state", "priority", "done", "running", "submitted", "message"}, rows)
			return nil
		},
	}
}
