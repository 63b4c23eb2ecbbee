package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"connectrpc.com/connect"
	"github.com/urfave/cli/v2"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/scheduler/policies"
)

func schedulerCommand() *cli.Command {
	return &cli.Command{
		Name:        "scheduler",
		Usage:       "show and change the scheduling policy",
		Subcommands: []*cli.Command{schedulerStatusCommand(), schedulerSetCommand(), schedulerCalibrationCommand()},
	}
}

func schedulerStatusCommand() *cli.Command {
	return &cli.Command{
		Name:  "status",
		Usage: "the current policy, its parameters, and the available policies",
		Flags: []cli.Flag{jsonFlag},
		Action: func(c *cli.Context) error {
			if _, err := positionalArgs(c, 0, 0, ""); err != nil {
				return err
			}
			cl, err := dial(c)
			if err != nil {
				return err
			}
			res, err := cl.GetScheduler(c.Context, connect.NewRequest(&droverv1.GetSchedulerRequest{}))
			if err != nil {
				return cl.classifyError(err)
			}
			return printScheduler(c, res.Msg)
		},
	}
}

func printScheduler(c *cli.Context, m *droverv1.GetSchedulerResponse) error {
	if c.Bool("json") {
		return printProto(c.App.Writer, m)
	}
	printPairs(c.App.Writer, "scheduler", m.Name, "available", strings.Join(m.Available, ", "))
	info, err := policies.Get(m.Name)
	if err != nil { // of another version of the coordinator
		for _, k := range slices.Sorted(maps.Keys(m.Params)) {
			printPairs(c.App.Writer, "  "+k, m.Params[k])
		}
		return nil
	}
	rows := make([][]string, 0, len(info.Params))
	for _, p := range info.Params {
		value, set := m.Params[p.Name]
		if !set {
			value = p.Default
		}
		rows = append(rows, []string{p.Name, value, p.Default, p.Help})
	}
	printTable(c.App.Writer, []string{"parameter", "value", "default", "meaning"}, rows)
	return nil
}

func schedulerSetCommand() *cli.Command {
	return &cli.Command{
		Name:      "set",
		Usage:     "change the policy at run time",
		ArgsUsage: "NAME",
		Flags:     []cli.Flag{&cli.StringSliceFlag{Name: "set", Usage: "parameter as key=value, repeatable"}, jsonFlag},
		Action: func(c *cli.Context) error {
			a, err := positionalArgs(c, 1, 1, "NAME")
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
				return cl.classifyError(err)
			}
			return printScheduler(c, res.Msg)
		},
	}
}

func schedulerCalibrationCommand() *cli.Command {
	return &cli.Command{
		Name:  "calibration",
		Usage: "how quoted deadlines compare with reality",
		Description: "Groups the ended jobs with a quoted deadline by quoted probability. Quotes are calibrated if each group's share of\n" +
			"jobs on time agrees with its mean quote, within the 95% interval. The Brier score is the mean squared error, shown\n" +
			"with that of always quoting the base rate.",
		Flags: []cli.Flag{jsonFlag},
		Action: show(func(cl *client) method[droverv1.CalibrationRequest, droverv1.CalibrationResponse] {
			return cl.Calibration
		}, printCalibration),
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
	printTable(w, []string{"quoted", "jobs", "mean", "on time", "95% interval"}, rows)
	fmt.Fprintf(w, "\n%s ended with a quote, %d open, %d excluded (stopped, or failed for another reason)\n", countText(int(m.Jobs), "job"), m.Open, m.Excluded)
	if m.Jobs > 0 {
		fmt.Fprintf(w, "Brier score %.4f; always quoting the base rate %.3f: %.4f\n", m.Brier, m.BaseRate, m.BaseBrier)
	}
}

// parseParams parses repeated -set key=value flags.
func parseParams(list []string) (map[string]string, error) { return parseKeyValues("set", list) }

// parseKeyValues parses repeated key=value values of a flag.
func parseKeyValues(flag string, list []string) (map[string]string, error) {
	params := map[string]string{}
	for _, s := range list {
		k, v, ok := strings.Cut(s, "=")
		if !ok || k == "" {
			return nil, usageErrorf("-%s %q: want key=value", flag, s)
		}
		if _, twice := params[k]; twice {
			return nil, usageErrorf("-%s sets %s twice", flag, k)
		}
		params[k] = v
	}
	return params, nil
}
