package main

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/drover-run/drover/scheduler/policies"
	"github.com/drover-run/drover/scheduler/sim/engine"
	"github.com/drover-run/drover/scheduler/sim/run"
)

func simCommand() *cli.Command {
	return &cli.Command{
		Name:        "sim",
		Usage:       "run the schedulers on traces and made-up workloads, without a cluster",
		Subcommands: []*cli.Command{simRunCommand(), simCompareCommand(), simPlanCommand(), simLevelsCommand(), simReproduceCommand()},
	}
}

// simFlags are the flags of run, compare and plan: what is simulated.
func simFlags(more ...cli.Flag) []cli.Flag {
	return append([]cli.Flag{
		&cli.StringFlag{Name: "workload", Usage: "trace `FILE` (gzip or not), or a generator's name"},
		&cli.StringFlag{Name: "format", Usage: strings.Join(run.Formats, ", ")},
		&cli.StringSliceFlag{Name: "rule", Usage: "how jobs are made of the workload, as key=value, repeatable; -rule help lists the keys"},
		&cli.StringSliceFlag{Name: "set", Usage: "parameter of the scheduler as key=value, repeatable"},
		&cli.StringSliceFlag{Name: "world", Usage: "setting of the simulated world as key=value, repeatable; -world help lists them"},
		&cli.StringFlag{Name: "cluster", Usage: "cluster `FILE` (JSON) instead of the next flags"},
		&cli.IntFlag{Name: "nodes", Usage: "machines", Value: 10},
		&cli.StringFlag{Name: "cpu", Usage: "CPU of a machine", Value: "8"},
		&cli.StringFlag{Name: "memory", Usage: "memory of a machine", Value: "32GiB"},
		&cli.StringFlag{Name: "io", Usage: "disk I/O of a machine", Value: "200MiB/s"},
		&cli.IntFlag{Name: "rack-size", Usage: "machines in a rack", Value: 40},
		&cli.StringFlag{Name: "model", Usage: "tasks, or fluid: one server shared by rates", Value: "tasks"},
		&cli.Uint64Flag{Name: "seed", Usage: "seed of all that is drawn", Value: 1},
		&cli.IntFlag{Name: "runs", Usage: "runs, with seeds that follow each other", Value: 1},
		&cli.Float64Flag{Name: "job-unit", Usage: "unit of throughput in seconds", Value: 0.1},
		&cli.DurationFlag{Name: "cycle-interval", Usage: "least time between two decisions (live: 10ms)"},
		&cli.BoolFlag{Name: "cycle-each-event", Usage: "decide after each event, not after all of one instant (with -format swf always, as the archive's simulators do)"},
		&cli.BoolFlag{Name: "skip-bad", Usage: "pass over lines that cannot be read, and count them"},
		jsonFlag,
	}, more...)
}

// simInput is what the flags say, read and checked.
type simInput struct {
	loaded *run.Loaded
	setup  run.Setup
	params map[string]string // of the schedulers
	rule   map[string]string
	model  string
	seeds  []uint64
	shown  map[string]string // for the summary
}

// readSim reads the flags and the files that they name.
func readSim(c *cli.Context) (*simInput, error) {
	if err := simHelp(c); err != nil {
		return nil, err
	}
	if err := need(c, "workload", "format"); err != nil {
		return nil, err
	}
	in := &simInput{model: c.String("model")}
	if in.model != "tasks" && in.model != "fluid" {
		return nil, usage("model %q: use tasks or fluid", in.model)
	}
	var err error
	if in.params, err = parseParams(c.StringSlice("set")); err != nil {
		return nil, err
	}
	if in.rule, err = parseParams(c.StringSlice("rule")); err != nil {
		return nil, err
	}
	world, err := parseParams(c.StringSlice("world"))
	if err != nil {
		return nil, err
	}
	if in.setup.Models, err = run.ParseModels(world); err != nil {
		return nil, usage("%v; -world help lists the settings", err)
	}
	if n := c.Int("runs"); n < 1 || n > 100_000 {
		return nil, usage("-runs %d: 1 to 100000", n)
	}
	if c.Float64("job-unit") <= 0 {
		return nil, usage("-job-unit %v: it must be above 0", c.Float64("job-unit"))
	}
	in.seeds = run.Seeds(c.Uint64("seed"), c.Int("runs"))
	in.setup.JobUnit, in.setup.CycleInterval = c.Float64("job-unit"), c.Duration("cycle-interval")
	in.setup.CycleEachEvent = c.Bool("cycle-each-event") || c.String("format") == "swf"
	if err := in.load(c); err != nil {
		return nil, err
	}
	in.show(c, world)
	return in, nil
}

// load reads the cluster and the workload.
func (in *simInput) load(c *cli.Context) error {
	kind := run.Machines{Count: c.Int("nodes"), CPU: c.String("cpu"), Memory: c.String("memory"), IO: c.String("io"), RackOf: c.Int("rack-size")}
	if kind.Count < 1 {
		return usage("-nodes %d: at least 1", kind.Count)
	}
	cluster := &run.Cluster{Nodes: []run.Machines{kind}}
	told := false
	for _, f := range []string{"nodes", "cpu", "memory", "io", "rack-size"} {
		told = told || c.IsSet(f)
	}
	if path := c.String("cluster"); path != "" {
		if told {
			return usage("-cluster and -nodes, -cpu, -memory, -io exclude each other")
		}
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		if cluster, err = run.ReadCluster(f); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		told = true
	}
	nodes, err := cluster.Build()
	if err != nil {
		return err
	}
	var given []engine.Node
	if told {
		given = nodes
	}
	src := run.Source{Format: c.String("format"), File: c.String("workload"), Rule: in.rule, SkipBad: c.Bool("skip-bad")}
	if in.loaded, err = src.Load(given, kind); err != nil {
		return coded{exitRefused, err}
	}
	if n := in.loaded.Count; n.Bad > 0 {
		fmt.Fprintf(c.App.ErrWriter, "drover: %d of %d lines passed over; the first: %s\n", n.Bad, n.Lines, n.FirstBad)
	}
	in.setup.Nodes, in.setup.Workload = nodes, in.loaded.Workload
	if !told && in.loaded.Nodes != nil {
		in.setup.Nodes = in.loaded.Nodes
	}
	return nil
}

// show notes how the run was made.
func (in *simInput) show(c *cli.Context, world map[string]string) {
	in.shown = map[string]string{"workload": c.String("workload"), "format": c.String("format"), "nodes": fmt.Sprint(len(in.setup.Nodes)),
		"model": in.model, "job_unit_s": fmt.Sprint(c.Float64("job-unit")), "cycle_interval": in.setup.CycleInterval.String()}
	for _, f := range []string{"cluster", "cpu", "memory", "io"} {
		if c.String("cluster") != "" == (f == "cluster") {
			in.shown[f] = c.String(f)
		}
	}
	for k, v := range in.params {
		in.shown["set."+k] = v
	}
	for k, v := range in.rule {
		in.shown["rule."+k] = v
	}
	for k, v := range world {
		in.shown["world."+k] = v
	}
}

// simHelp answers -rule help and -world help.
func simHelp(c *cli.Context) error {
	for _, v := range c.StringSlice("world") {
		if v == "help" {
			return coded{exitUsage, fmt.Errorf("settings of -world:\n%s", run.ModelHelp())}
		}
	}
	for _, v := range c.StringSlice("rule") {
		if v == "help" {
			return coded{exitUsage, fmt.Errorf("settings of -rule for %s:\n%s", c.String("format"), run.RuleHelp(c.String("format")))}
		}
	}
	return nil
}

// outcomes runs one scheduler, given as name or name:key=value,key=value.
func (in *simInput) outcomes(c *cli.Context, scheduler string) (string, []*run.Outcome, *run.Setup, error) {
	s := in.setup
	name, list, _ := strings.Cut(scheduler, ":")
	s.Scheduler, s.Params = name, map[string]string{}
	if in.model == "fluid" {
		var outs []*run.Outcome
		for _, seed := range in.seeds {
			o, err := run.Fluid(name, in.loaded, in.rule, seed)
			if err != nil {
				return "", nil, nil, coded{exitRefused, err}
			}
			outs = append(outs, o)
		}
		return scheduler, outs, &s, nil
	}
	for k, v := range in.params {
		s.Params[k] = v
	}
	if list != "" {
		own, err := parseParams(strings.Split(list, ","))
		if err != nil {
			return "", nil, nil, err
		}
		for k, v := range own {
			s.Params[k] = v
		}
	}
	if _, err := policies.New(name, s.Params); err != nil {
		return "", nil, nil, coded{exitRefused, err}
	}
	s.KeepTasks = run.GanttTasks
	outs, err := s.Many(c.Context, in.seeds, runtime.GOMAXPROCS(0), progress(c))
	return scheduler, outs, &s, brokenOff(c, err)
}

// brokenOff says what is there of runs that were interrupted: they are written
// when all of them are done.
func brokenOff(c *cli.Context, err error) error {
	if err != nil && c.Context.Err() != nil {
		return fmt.Errorf("%w; nothing was written", err)
	}
	return err
}

// progress draws how far runs are, on a terminal only.
func progress(c *cli.Context) func(done, of int, p engine.Progress) {
	if !interactive(c.App.ErrWriter) {
		return nil
	}
	start, last := time.Now(), time.Now()
	return func(done, of int, p engine.Progress) {
		if time.Since(last) < 500*time.Millisecond {
			return
		}
		last = time.Now()
		part := (float64(done) + float64(p.Done)/float64(max(1, p.Jobs))) / float64(of)
		left := "?"
		if part > 0.01 {
			left = time.Duration(float64(time.Since(start)) * (1 - part) / part).Round(time.Second).String()
		}
		fmt.Fprintf(c.App.ErrWriter, "\r%3.0f%%  run %d of %d  %d of %d jobs  %d events  %s left \x1b[K", 100*part, done+1, of, p.Done, p.Jobs, p.Events, left)
	}
}

// endProgress ends the line of progress.
func endProgress(c *cli.Context) {
	if interactive(c.App.ErrWriter) {
		fmt.Fprint(c.App.ErrWriter, "\r\x1b[K")
	}
}

func simRunCommand() *cli.Command {
	return &cli.Command{
		Name:  "run",
		Usage: "one scheduler on one workload: summary.json, jobs.csv, plots",
		Flags: simFlags(&cli.StringFlag{Name: "scheduler", Usage: "policy", Value: "3dsf"},
			&cli.StringFlag{Name: "out", Usage: "folder for summary.json, jobs.csv and plots"}),
		Action: func(c *cli.Context) error {
			if _, err := args(c, 0, 0, ""); err != nil {
				return err
			}
			in, err := readSim(c)
			if err != nil {
				return err
			}
			_, outs, setup, err := in.outcomes(c, c.String("scheduler"))
			endProgress(c)
			if len(outs) == 0 || outs[0] == nil || outs[0].Result == nil {
				return err
			}
			if err != nil {
				return err
			}
			return writeRun(c, in, setup, outs)
		},
	}
}

func writeRun(c *cli.Context, in *simInput, setup *run.Setup, outs []*run.Outcome) error {
	sum := setup.Summary(outs, in.shown)
	sum.Model = in.model
	if dir := c.String("out"); dir != "" {
		if err := run.Write(dir, sum, outs[0]); err != nil {
			return err
		}
	}
	if c.Bool("json") {
		return printJSON(c.App.Writer, sum)
	}
	sum.Text(c.App.Writer)
	if dir := c.String("out"); dir != "" {
		fmt.Fprintf(c.App.Writer, "written to %s: summary.json, jobs.csv, utilisation, responses (SVG, PNG)\n", dir)
	}
	return nil
}
