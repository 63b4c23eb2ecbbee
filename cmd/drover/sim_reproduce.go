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

	"github.com/drover-run/drover/internal/version"
	"github.com/drover-run/drover/scheduler/sim/run/reproduce"
	"github.com/drover-run/drover/scheduler/sim/trace"
)

func simReproduceCommand() *cli.Command {
	return &cli.Command{
		Name:      "reproduce",
		Usage:     "repeat the papers' evaluations and compare them with their claims",
		ArgsUsage: "[PAPER|FIGURE|EXPERIMENT|claims]",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "out", Usage: "folder for report.md, report.html, results.json and plots; an interrupted run resumes from it"},
			&cli.StringFlag{Name: "fb2010", Usage: "SWIM trace `FILE` FB-2010_samples_24_times_1hr_0.tsv, which is not part of the program"},
			&cli.IntFlag{Name: "seeds", Usage: "number of seeds of each experiment; default: its own"},
			&cli.IntFlag{Name: "sensitivity", Value: 1, Usage: "also repeat each experiment with each assumption low and high, with this many seeds; 0: skip"},
			&cli.BoolFlag{Name: "quick", Usage: "small workloads and two seeds: a smoke test without meaningful results"},
			&cli.BoolFlag{Name: "stored", Usage: "report what the folder has from earlier runs and simulate nothing"},
			&cli.StringFlag{Name: "docs", Usage: "source tree `DIR` in which to write docs/explanation/reproduction.md and the numbers in README.md"},
			&cli.BoolFlag{Name: "other-builds", Usage: "also reuse results of other builds of the program in the folder"},
			jsonFlag,
		},
		Action: func(c *cli.Context) error {
			a, err := positionalArgs(c, 0, 1, "[PAPER|FIGURE|EXPERIMENT|claims]")
			if err != nil {
				return err
			}
			if err := requireFlags(c, "out"); err != nil {
				return err
			}
			return runReproduce(c, strings.Join(a, ""))
		},
	}
}

func runReproduce(c *cli.Context, what string) error {
	r, err := newReproduceRunner(c, what)
	if err != nil {
		return err
	}
	if err := checkOutputs(c); err != nil {
		return err
	}
	dir := c.String("out")
	if err := os.MkdirAll(filepath.Join(dir, "plots"), 0o755); err != nil {
		return err
	}
	build, err := reproduce.BuildID()
	if err != nil {
		return err
	}
	if r.Store, err = reproduce.OpenStore(filepath.Join(dir, "samples"), build, version.Version); err != nil {
		return err
	}
	r.Store.AcceptOtherBuilds = c.Bool("other-builds")
	r.OnProgress = reproduceProgressPrinter(c.App.ErrWriter)
	outs, err := r.Run(c.Context)
	if err != nil {
		return fmt.Errorf("%w: finished samples are stored in %s; the same command resumes", err, filepath.Join(dir, "samples"))
	}
	report := reproduce.NewReport(outs, r.Env, strings.TrimSpace("drover sim reproduce "+what))
	report.FromOtherBuilds = r.Store.FromOtherBuilds()
	if err := report.Write(dir); err != nil {
		return err
	}
	if root := c.String("docs"); root != "" {
		if err := report.WriteDocs(root); err != nil {
			return exitError{exitRefused, err}
		}
	}
	for _, o := range outs {
		if o.Err != nil {
			fmt.Fprintf(c.App.ErrWriter, "%s: %v\n", o.Name, o.Err)
		}
	}
	if c.Bool("json") {
		return printJSON(c.App.Writer, map[string]any{"summary": report.Summary(), "score": report.Score, "claims": report.Rows()})
	}
	fmt.Fprintf(c.App.Writer, "%s\nwritten to %s: report.md, report.html, results.json, plots\n", report.Summary(), dir)
	return nil
}

// newReproduceRunner returns the runner for the flags.
func newReproduceRunner(c *cli.Context, what string) (*reproduce.Runner, error) {
	claims, err := reproduce.LoadClaims()
	if err != nil {
		return nil, err
	}
	picked, err := reproduce.SelectExperiments(what, claims)
	if err != nil {
		return nil, exitError{exitRefused, err}
	}
	cal, err := reproduce.LoadCalibration()
	if err != nil {
		return nil, err
	}
	env := &reproduce.Env{Cal: cal, Quick: c.Bool("quick")}
	if path := c.String("fb2010"); path != "" {
		env.FB2010 = func() (io.ReadCloser, error) { return trace.Open(path) }
	}
	r := &reproduce.Runner{Env: env, Claims: claims, Experiments: picked, Seeds: c.Int("seeds"), Sensitivity: c.Int("sensitivity"), Parallel: runtime.GOMAXPROCS(0), StoredOnly: c.Bool("stored")}
	if env.Quick && r.Seeds == 0 {
		r.Seeds = 2
	}
	if env.Quick && !c.IsSet("sensitivity") {
		r.Sensitivity = 0
	}
	return r, nil
}

// progressInterval is the minimum time between two lines of progress.
const progressInterval = 10 * time.Second

// reproduceProgressPrinter returns a function that prints the progress after each
// experiment and at least every progressInterval.
func reproduceProgressPrinter(w io.Writer) func(reproduce.Progress) {
	last := time.Now()
	return func(p reproduce.Progress) {
		if p.Finished == "" && time.Since(last) < progressInterval {
			return
		}
		last = time.Now()
		line := fmt.Sprintf("%4d/%d", p.Done, p.Total)
		if p.FromStore > 0 {
			line += fmt.Sprintf(" (%d reused)", p.FromStore)
		}
		if p.Done < p.Total {
			line += fmt.Sprintf("  about %v left", p.TimeLeft.Round(time.Second))
		}
		if p.Finished != "" {
			line += "  " + p.Finished
		}
		fmt.Fprintln(w, line)
	}
}
