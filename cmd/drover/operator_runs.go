package main

import (
	"fmt"
	"time"

	"connectrpc.com/connect"
	"github.com/urfave/cli/v2"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/node/store"
)

// runsCommand is about unknown runs: runs on nodes from before a restore.
func runsCommand() *cli.Command {
	return &cli.Command{
		Name:  "runs",
		Usage: "what nodes run that a restored coordinator does not know",
		Description: "A run that was placed after the archive was saved is unknown to the coordinator that was restored from it. Its node freezes\n" +
			"it until it is adopted or killed. RUN is its number in the list: job.stage.task.attempt.run.",
		Subcommands: []*cli.Command{
			runsListCommand(),
			runsDecideCommand("adopt", "let an unknown run go on as the attempt of its task", "It goes on as soon as its node has the free capacity.", droverv1.UnknownRunDecision_UNKNOWN_RUN_DECISION_ADOPT),
			runsDecideCommand("kill", "kill an unknown run, of which nothing remains", "Its task, if it has one, is placed again.", droverv1.UnknownRunDecision_UNKNOWN_RUN_DECISION_KILL),
		},
	}
}

func runsListCommand() *cli.Command {
	return &cli.Command{
		Name:      "list",
		ArgsUsage: "[NODE]",
		Usage:     "list the unknown runs of all nodes or of one",
		Flags:     []cli.Flag{jsonFlag},
		Action: func(c *cli.Context) error {
			args, err := positionalArgs(c, 0, 1, "[NODE]")
			if err != nil {
				return err
			}
			req := &droverv1.ListUnknownRunsRequest{}
			if len(args) > 0 {
				req.Node = args[0]
			}
			cl, err := dial(c)
			if err != nil {
				return err
			}
			res, err := cl.operator.ListUnknownRuns(c.Context, connect.NewRequest(req))
			if err != nil {
				return cl.classifyError(err)
			}
			if c.Bool("json") {
				return printProto(c.App.Writer, res.Msg)
			}
			var rows [][]string
			for _, r := range res.Msg.Runs {
				rows = append(rows, unknownRunRow(r))
			}
			printTable(c.App.Writer, []string{"node", "run", "job", "stage", "tenant", "level", "started", "ran", "adopt"}, rows)
			if res.Msg.More > 0 {
				fmt.Fprintf(c.App.Writer, "and %d more\n", res.Msg.More)
			}
			return nil
		},
	}
}

func unknownRunRow(r *droverv1.UnknownRunInfo) []string {
	can := "possible"
	if !r.Adoptable {
		can = "no: " + r.WhyNot
	}
	ran := (time.Duration(r.RunningMs) * time.Millisecond).Round(time.Second).String()
	return []string{r.Node, store.IDOf(r.Key).String(), r.JobName, r.StageName, r.Tenant, levelText(r.Level), unixMSText(r.StartedMs), ran, can}
}

// unknownRunsText says in a node's status that it has unknown runs; "" for none.
func unknownRunsText(n int32) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf("%d frozen since the coordinator was restored: see drover operator runs list", n)
}

func runsDecideCommand(verb, usage, description string, decision droverv1.UnknownRunDecision) *cli.Command {
	return &cli.Command{
		Name:        verb,
		ArgsUsage:   "NODE RUN...",
		Usage:       usage,
		Description: description,
		Action: func(c *cli.Context) error {
			args, err := positionalArgs(c, 2, 1000, "NODE RUN...")
			if err != nil {
				return err
			}
			keys := make([]*droverv1.AttemptKey, 0, len(args)-1)
			for _, s := range args[1:] {
				key, err := store.ParseID(s)
				if err != nil {
					return fault.New(fault.Invalid, "%q is no run: `drover operator runs list` shows them, as job.stage.task.attempt.run", s)
				}
				keys = append(keys, key)
			}
			cl, err := dial(c)
			if err != nil {
				return err
			}
			for i, key := range keys {
				req := &droverv1.DecideUnknownRunRequest{Node: args[0], Key: key, Decision: decision}
				if _, err := cl.operator.DecideUnknownRun(c.Context, connect.NewRequest(req)); err != nil {
					return cl.classifyError(err)
				}
				fmt.Fprintf(c.App.Writer, "%s %s: %s\n", args[0], args[1+i], map[string]string{"adopt": "adopted", "kill": "is killed"}[verb])
			}
			return nil
		},
	}
}
