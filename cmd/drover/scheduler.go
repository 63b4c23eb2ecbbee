package main

import (
	"fmt"
	"io"
	"strings"

	"connectrpc.com/connect"
	"github.com/urfave/cli/v2"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
)

func schedulerCommand() *cli.Command {
	return &cli.Command{
		Name:        "scheduler",
		Usage:       "which policy decides",
		Subcommands: []*cli.Command{schedulerStatusCommand(), schedulerSetCommand(), schedulerCalibrationCommand()},
	}
}

func schedulerStatusCommand() *cli.Command {
	return &cli.Command{
		Name:  "status",
		Usage: "the policy in force, its parameters and those one can choose",
		Flags: []cli.Flag{jsonFlag},
		Action: func(c *cli.Context) error {
			if _, err := args(c, 0, 0, ""); err != nil {
				return err
			}
			cl, err := dial(c)
			if err != nil {
				return err
			}
			res, err := cl.GetScheduler(c.Context, connect.NewRequest(&droverv1.GetSchedulerRequest{}))
			if err != nil {
				return cl.explain(err)
			}
			return printScheduler(c, res.Msg)
		},
	}
}

func printScheduler(c *cli.Context, m *droverv1.GetSchedulerResponse) error {
	if c.Bool("json") {
		return printProto(c.App.Writer, m)
	}
	pairs(c.App.Writer, "scheduler", m.Name, "available", strings.Join(m.Available, ", "))
	for _, k := range sortedKeys(m.Params) {
		pairs(c.App.Writer, "  "+k, m.Params[k])
	}
	return nil
}

func schedulerSetCommand() *cli.Command {
	return &cli.Command{
		Name:      "set",
		Usage:     "change the policy while jobs run",
		ArgsUsage: "NAME",
		Flags:     []cli.Flag{&cli.StringSliceFlag{Name: "set", Usage: "parameter as key=value, repeatable"}, jsonFlag},
		Action: func(c *cli.Context) error {
			a, err := args(c, 1, 1, "NAME")
			if err != nil {
				return err
			}
			params, err := parseParams(c.StringSlice("set"))
			if err != nil {
				return err
			}
			cl, err := dial(c)
			if err != nil {
				return err
			}
			res, err := cl.SetScheduler(c.Context, connect.NewRequest(&droverv1.SetSchedulerRequest{Name: a[0], Params: params}))
			if err != nil {
				return cl.explain(err)
			}
			return printScheduler(c, res.Msg)
		},
	}
}

func schedulerCalibrationCommand() *cli.Command {
	return &cli.Command{
		Name:  "calibration",
		Usage: "how quoted deadlines compare with what happened",
		Description: "Sorts the ended jobs with a quoted deadline by their probability. A quote is good where the share that was on\n" +
			"time is near it: within the 95% interval of that share. Brier: the mean squared error, beside that of always\n" +
			"saying the base rate.",
		Flags: []cli.Flag{jsonFlag},
		Action: func(c *cli.Context) error {
			if _, err := args(c, 0, 0, ""); err != nil {
				return err
			}
			cl, err := dial(c)
			if err != nil {
				return err
			}
			res, err := cl.Calibration(c.Context, connect.NewRequest(&droverv1.CalibrationRequest{}))
			if err != nil {
				return cl.explain(err)
			}
			if c.Bool("json") {
				return printProto(c.App.Writer, res.Msg)
			}
			printCalibration(c.App.Writer, res.Msg)
			return nil
		},
	}
}

func printCalibration(w io.Writer, m *droverv1.CalibrationResponse) {
	var rows [][]string
	for _, b := range m.Bins {
		row := []string{fmt.Sprintf("%.2f to %.2f", b.From, b.To), fmt.Sprint(b.Jobs), "", "", ""}
		if b.Jobs > 0 {
			row[2], row[3], row[4] = fmt.Sprintf("%.3f", b.Quoted), fmt.Sprintf("%.3f", b.OnTime), fmt.Sprintf("%.3f to %.3f", b.Low, b.High)
		}
		rows = append(rows, row)
	}
	columns(w, []string{"quoted", "jobs", "mean", "on time", "95% interval"}, rows)
	fmt.Fprintf(w, "\n%s ended with a quote, %d open, %d set aside (stopped or failed for another reason)\n", count(int(m.Jobs), "job"), m.Open, m.SetAside)
	if m.Jobs > 0 {
		fmt.Fprintf(w, "Brier score %.4f; of the base rate %.3f: %.4f\n", m.Brier, m.BaseRate, m.BaseBrier)
	}
}

// parseParams reads repeated key=value flags.
func parseParams(list []string) (map[string]string, error) {
	params := map[string]string{}
	for _, s := range list {
		k, v, ok := strings.Cut(s, "=")
		if !ok || k == "" {
			return nil, usage("-set %q: want key=value", s)
		}
		if _, twice := params[k]; twice {
			return nil, usage("-set gives %s twice", k)
		}
		params[k] = v
	}
	return params, nil
}
