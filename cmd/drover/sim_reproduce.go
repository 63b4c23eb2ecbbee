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
		ArgsUsage: "[PAPER|FIGURE|EXPERIMENT|claims]",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "out", Usage: "folder for report.md, report.html, results.json and plots; what is done of a run that was broken off is kept there"},
			&cli.StringFlag{Name: "fb2010", Usage: "SWIM trace `FILE` FB-2010_samples_24_times_1hr_0.tsv, which is not part of the program"},
			&cli.IntFlag{Name: "seeds", Usage: "seeds of each experiment instead of its own number"},
			&cli.IntFlag{Name: "sensitivity", Value: 1, Usage: "also run each experiment with each assumption low and high, for so many seeds; 0: do not"},
			&cli.BoolFlag{Name: "quick", Usage: "small workloads and two seeds: shows that everything runs, not what is true"},
			&cli.BoolFlag{Name: "other-builds", Usage: "also go on from what another build of the program left in the folder"},
			jsonFlag,
		},
		Action: func(c *cli.Context) error {
			a, err := args(c, 0, 1, "[PAPER|FIGURE|EXPERIMENT|claims]")
			if err != nil {
				return err
			}
			if err := need(c, "out"); err != nil {
				return err
			}
			return reproducePapers(c, strings.Join(a, ""))
		},
	}
}

func reproducePapers(c *cli.Context, what string) error {
	r, err := reproduceRunner(c, what)
	if err != nil {
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
	if r.Store, err = reproduce.OpenStore(filepath.Join(dir, "samples"), build); err != nil {
		return err
	}
	r.Store.Others = c.Bool("other-builds")
	r.Tell = tellReproduce(c.App.ErrWriter)
	outs, err := r.Run(c.Context)
	if err != nil {
		return fmt.Errorf("%w: what is done is kept in %s; the same command goes on from there", err, filepath.Join(dir, "samples"))
	}
	report := reproduce.NewReport(outs, r.Env, strings.TrimSpace("drover sim reproduce "+what))
	report.FromOthers = r.Store.FromOthers()
	if err := report.Write(dir); err != nil {
		return err
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

// reproduceRunner makes the runner that the flags ask for.
func reproduceRunner(c *cli.Context, what string) (*reproduce.Runner, error) {
	claims, err := reproduce.Claims()
	if err != nil {
		return nil, err
	}
	picked, err := reproduce.Select(what, claims)
	if err != nil {
		return nil, coded{exitRefused, err}
	}
	cal, err := reproduce.LoadCalibration()
	if err != nil {
		return nil, err
	}
	env := &reproduce.Env{Cal: cal, Quick: c.Bool("quick")}
	if path := c.String("fb2010"); path != "" {
		env.FB2010 = func() (io.ReadCloser, error) { return trace.Open(path) }
	}
	r := &reproduce.Runner{Env: env, Claims: claims, Experiments: picked, Seeds: c.Int("seeds"), Sensitivity: c.Int("sensitivity"), Parallel: runtime.GOMAXPROCS(0)}
	if env.Quick && r.Seeds == 0 {
		r.Seeds = 2
	}
	if env.Quick && !c.IsSet("sensitivity") {
		r.Sensitivity = 0
	}
	return r, nil
}

// tellEvery is the least time between two lines of progress.
const tellEvery = 10 * time.Second

// tellReproduce tells how far the run is: when an experiment is done, and now
// and then.
func tellReproduce(w io.Writer) func(reproduce.Progress) {
	last := time.Now()
	return func(p reproduce.Progress) {
		if p.Finished == "" && time.Since(last) < tellEvery {
			return
		}
		last = time.Now()
		line := fmt.Sprintf("%4d/%d", p.Done, p.Of)
		if p.Kept > 0 {
			line += fmt.Sprintf(" (%d kept)", p.Kept)
		}
		if p.Done < p.Of {
			line += fmt.Sprintf("  about %v left", p.Left.Round(time.Second))
		}
		if p.Finished != "" {
			line += "  " + p.Finished
		}
		fmt.Fprintln(w, line)
	}
}
