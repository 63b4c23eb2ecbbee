package main

import (
	"fmt"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/urfave/cli/v2"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
)

func nodeMaintainCommand() *cli.Command {
	return &cli.Command{
		Name:      "maintain",
		Usage:     "order a maintenance window of a node, which the scheduler plans around",
		ArgsUsage: "NODE",
		Description: "No task starts there that would not end before the window begins, by its bound or estimate. Then the node is drained, and what\n" +
			"still runs is checkpointed and moved as at the deadline of drover node drain. At the end it takes work again.\n" +
			"drover node status shows the windows of a node. With -json it prints the node as drover node status -json does.",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "from", Usage: "`WHEN` it begins: a time such as 2026-11-30T02:00:00Z, or from now such as 36h; default: now"},
			&cli.DurationFlag{Name: "for", Usage: "how long it lasts, such as 2h"},
			&cli.BoolFlag{Name: "cancel", Usage: "cancel the window that begins at -from, or all windows of the node; one that has begun ends"},
			jsonFlag,
		},
		Action: maintainNode,
	}
}

func maintainNode(c *cli.Context) error {
	a, err := positionalArgs(c, 1, 1, "NODE")
	if err != nil {
		return err
	}
	from, err := parseWhen(c.String("from"), time.Now())
	if err != nil {
		return err
	}
	length := c.Duration("for")
	if c.Bool("cancel") == (length >= time.Millisecond) {
		return usageErrorf("-for %s: give the length of the window, such as 2h, or -cancel", length)
	}
	cl, err := dial(c)
	if err != nil {
		return err
	}
	req := &droverv1.MaintainNodeRequest{Node: a[0], FromMs: from, DurationMs: length.Milliseconds(), Cancel: c.Bool("cancel")}
	if _, err := cl.MaintainNode(c.Context, connect.NewRequest(req)); err != nil {
		return cl.classifyError(err)
	}
	switch {
	case c.Bool("json"):
		return printNodeJSON(c, cl, a[0])
	case req.Cancel:
		fmt.Fprintf(c.App.Writer, "cancelled; `drover node status %s` shows what is left\n", a[0])
	case from == 0:
		fmt.Fprintf(c.App.Writer, "%s is in maintenance for %s\n", a[0], length)
	default:
		fmt.Fprintf(c.App.Writer, "%s is in maintenance from %s for %s\n", a[0], unixMSText(from), length)
	}
	return nil
}

// parseWhen returns the time that a text means in Unix ms, 0 for none.
func parseWhen(text string, now time.Time) (int64, error) {
	if text == "" {
		return 0, nil
	}
	if d, err := time.ParseDuration(text); err == nil && d >= 0 {
		return now.Add(d).UnixMilli(), nil
	}
	t, err := time.Parse(time.RFC3339, text)
	if err != nil || t.Unix() <= 0 {
		return 0, usageErrorf("-from %q: give a time such as 2026-11-30T02:00:00Z, or one from now such as 36h", text)
	}
	return t.UnixMilli(), nil
}

// maintenanceText lists the windows of a node. A beginning in this form is what -cancel -from takes.
func maintenanceText(list []*droverv1.MaintenanceWindow) string {
	texts := make([]string, 0, len(list))
	for _, w := range list {
		at := func(ms int64) string { return time.UnixMilli(ms).UTC().Format("2006-01-02T15:04:05.999Z07:00") }
		texts = append(texts, at(w.FromMs)+" to "+at(w.ToMs))
		if w.Begun {
			texts[len(texts)-1] += " (now)"
		}
	}
	return strings.Join(texts, "; ")
}
