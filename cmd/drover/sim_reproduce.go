package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/drover-run/drover/scheduler/sim/run/reproduce"
	"github.com/drover-run/drover/scheduler/sim/trace"
)

func simReproduceCommand() *cli.Command {
	return &cli.Command{
		Name:      "reproduce",
		Usage:     "run the papers' evaluations again and hold them against what they claim",
		ArgsUsage: "[PAPER|FIGURE|EXPERIMENT]",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "out", Usage: "folder for report.md, report.html, results.json and plots", Required: true},
			&cli.StringFlag{Name: "fb2010", Usage: "SWIM trace `FILE` FB-2010_samples_24_times_1hr_0.tsv, which is not part of the program"},
			&cli.IntFlag{Name: "seeds", Usage: "seeds of each experiment instead of its own number"},
			&cli.IntFlag{Name: "sensitivity", Usage: "also run each experiment with each assumption at 0.8 and 1.25 times its value, for so many seeds"},
			jsonFlag,
		},
		Action: func(c *cli.Context) error {
			a, err := args(c, 0, 1, "[PAPER|FIGURE|EXPERIMENT]")
			if err != nil {
				return err
			}
			return reproducePapers(c, strings.Join(a, ""))
		},
	}
}

func reproducePapers(c *cli.Context, what string) error {
	claims, err := reproduce.Claims()
	if err != nil {
		return err
	}
	picked, err := reproduce.Select(what, claims)
	if err != nil {
		return coded{exitRefused, err}
	}
	cal, err := reproduce.LoadCalibration()
	if err != nil {
		return err
	}
	env := &reproduce.Env{Cal: cal}
	if path := c.String("fb2010"); path != "" {
		env.FB2010 = func() (io.ReadCloser, error) { return trace.Open(path) }
	}
	dir := c.String("out")
	if err := os.MkdirAll(filepath.Join(dir, "plots"), 0o755); err != nil {
		return err
	}
	var outs []*reproduce.Outcome
	for i, e := range picked {
		start := time.Now()
		o := reproduce.Run(c.Context, env, e, claims, c.Int("seeds"), runtime.GOMAXPROCS(0))
		if o.Err == nil && c.Int("sensitivity") > 0 {
			if err := reproduce.Sensitivity(c.Context, env, o, c.Int("sensitivity"), runtime.GOMAXPROCS(0)); err != nil {
				return err
			}
		}
		outs = append(outs, o)
		s := reproduce.Count(o.Verdicts)
		fmt.Fprintf(c.App.ErrWriter, "%d/%d  %-22s %2d claims, %2d with the paper's sign, %2d reproduced  (%v)\n",
			i+1, len(picked), e.Name, s.Claims, s.Signs, s.Reproduced, time.Since(start).Round(time.Second))
		if o.Err != nil {
			fmt.Fprintf(c.App.ErrWriter, "      %v\n", o.Err)
		}
	}
	report := reproduce.NewReport(outs, cal, strings.TrimSpace("drover sim reproduce "+what))
	if err := report.Write(dir); err != nil {
		return err
	}
	if c.Bool("json") {
		return printJSON(c.App.Writer, map[string]any{"summary": report.Summary(), "score": report.Score, "claims": report.Rows()})
	}
	fmt.Fprintf(c.App.Writer, "%s\nwritten to %s: report.md, report.html, results.json, plots\n", report.Summary(), dir)
	return nil
}
