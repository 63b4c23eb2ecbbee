package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/drover-run/drover/scheduler/sim/engine"
	"github.com/drover-run/drover/scheduler/sim/run"
)

func simCommand() *cli.Command {
	return &cli.Command{
		Name:        "sim",
		Usage:       "simulate schedulers on traces and synthetic workloads, without a cluster",
		Subcommands: []*cli.Command{simRunCommand(), simCompareCommand(), simPlanCommand(), simSizeCommand(), simLevelsCommand(), simSweepCommand(), simReproduceCommand()},
	}
}

// liveCycleInterval is the coordinator's minimum time between two decisions.
const liveCycleInterval = 10 * time.Millisecond

// simFlags returns the flags that describe a simulation.
func simFlags(more ...cli.Flag) []cli.Flag {
	return append([]cli.Flag{
		&cli.StringFlag{Name: "workload", Usage: "trace `FILE` (gzip or not), or a generator's name"},
		&cli.StringFlag{Name: "format", Usage: strings.Join(run.Formats, ", ")},
		&cli.StringSliceFlag{Name: "rule", Usage: "rule that converts the workload to jobs, as key=value, repeatable; -rule help lists the keys"},
		&cli.StringSliceFlag{Name: "set", Usage: "parameter of the scheduler as key=value, repeatable"},
		&cli.StringSliceFlag{Name: "world", Usage: "setting of the simulated cluster's behaviour as key=value, repeatable; -world help lists them"},
		&cli.StringFlag{Name: "cluster", Usage: "cluster `FILE` (JSON) instead of -nodes, -cpu, -memory, -io and -rack-size"},
		&cli.IntFlag{Name: "nodes", Usage: "machines", Value: 10},
		&cli.StringFlag{Name: "cpu", Usage: "CPU of a machine", Value: "8"},
		&cli.StringFlag{Name: "memory", Usage: "memory of a machine", Value: "32GiB"},
		&cli.StringFlag{Name: "io", Usage: "disk I/O of a machine", Value: "200MiB/s"},
		&cli.IntFlag{Name: "rack-size", Usage: "machines in a rack", Value: 40},
		&cli.StringFlag{Name: "model", Usage: "tasks, or fluid: one server shared by rates", Value: "tasks"},
		&cli.Uint64Flag{Name: "seed", Usage: "random seed", Value: 1},
		&cli.IntFlag{Name: "runs", Usage: "number of simulations, with consecutive seeds", Value: 1},
		&cli.Float64Flag{Name: "job-unit", Usage: "unit of throughput in seconds", Value: 0.1},
		&cli.DurationFlag{Name: "cycle-interval", Value: liveCycleInterval, Usage: "minimum time between two decisions, as live; 0: a decision at each time that has an event; without this flag -format swf decides after each event"},
		&cli.BoolFlag{Name: "cycle-each-event", Usage: "decide after each event, not after all events of one time, as the archive's simulators do and -format swf does without -cycle-interval"},
		&cli.BoolFlag{Name: "skip-bad", Usage: "skip and count lines that cannot be parsed"},
		jsonFlag,
	}, more...)
}

// simInput holds the parsed flags and the loaded workload.
type simInput struct {
	loaded     *run.LoadedSource
	setup      run.Setup
	params     map[string]string // of the schedulers
	rules      map[string]string
	model      string
	seeds      []uint64
	parameters map[string]string // for the summary
	outcomes   []*run.Outcome    // of all simulations so far; see discardLogs
}

// discardLogs removes the attempts of simulations of which the results were not written.
func (in *simInput) discardLogs() error { return run.DiscardTaskLogs(in.outcomes) }

// parseSimFlags parses the flags of a command with an output folder, and reads the files that they
// name.
func parseSimFlags(c *cli.Context) (*simInput, error) {
	in, err := parseSimFlagsWith(c, nil)
	if err == nil {
		err = checkOutputs(c)
	}
	return in, err
}

// parseSimFlagsWith parses the flags with other values for those that vary names: nodes, cpu, memory,
// io, and set.KEY, rule.KEY, world.KEY.
func parseSimFlagsWith(c *cli.Context, vary map[string]string) (*simInput, error) {
	if err := settingsHelp(c); err != nil {
		return nil, err
	}
	if err := requireFlags(c, "workload", "format"); err != nil {
		return nil, err
	}
	if c.Bool("jsonl") && c.String("out") == "" {
		return nil, usageErrorf("-jsonl needs -out: it writes tables into that folder")
	}
	in := &simInput{model: c.String("model")}
	if in.model != "tasks" && in.model != "fluid" {
		return nil, usageErrorf("model %q: use tasks or fluid", in.model)
	}
	var err error
	if in.params, err = parseParams(c.StringSlice("set")); err != nil {
		return nil, err
	}
	if in.rules, err = parseKeyValues("rule", c.StringSlice("rule")); err != nil {
		return nil, err
	}
	world, err := parseKeyValues("world", c.StringSlice("world"))
	if err != nil {
		return nil, err
	}
	for prefix, to := range map[string]map[string]string{"set.": in.params, "rule.": in.rules, "world.": world} {
		for k, v := range vary {
			if name, ok := strings.CutPrefix(k, prefix); ok {
				to[name] = v
			}
		}
	}
	if in.setup.Models, err = run.ParseModels(world); err != nil {
		return nil, usageErrorf("%v; -world help lists the settings", err)
	}
	if n := c.Int("runs"); n < 1 || n > 100_000 {
		return nil, usageErrorf("-runs %d: 1 to 100000", n)
	}
	if u := c.Float64("job-unit"); !(u > 0 && u <= 1e9) {
		return nil, usageErrorf("-job-unit %v: it must be a number of seconds above 0, at most 1000000000", u)
	}
	if d := c.Duration("cycle-interval"); d < 0 {
		return nil, usageErrorf("-cycle-interval %v: it must not be negative; 0 decides at each event", d)
	}
	in.seeds = run.Seeds(c.Uint64("seed"), c.Int("runs"))
	in.setup.JobUnit = c.Float64("job-unit")
	if err := in.setCycles(c); err != nil {
		return nil, err
	}
	if err := in.loadWorkload(c, vary); err != nil {
		return nil, err
	}
	in.recordParameters(c, world)
	return in, nil
}

// setCycles sets when the scheduler decides: at most every 10 ms as live, or at each event with an
// interval of 0, with -cycle-each-event and, unless an interval was given, with SWF.
func (in *simInput) setCycles(c *cli.Context) error {
	interval, eachEvent := c.Duration("cycle-interval"), c.Bool("cycle-each-event")
	if eachEvent && c.IsSet("cycle-interval") && interval > 0 {
		return usageErrorf("-cycle-each-event and -cycle-interval %v exclude each other", interval)
	}
	if eachEvent || (c.String("format") == "swf" && !c.IsSet("cycle-interval")) {
		interval, eachEvent = 0, true
	}
	in.setup.CycleInterval, in.setup.CycleEachEvent = interval, eachEvent
	return nil
}

// nodeKind is the machine of the flags, with other values for those that vary names.
func nodeKind(c *cli.Context, vary map[string]string) (kind run.NodeGroup, clusterSet bool, err error) {
	kind = run.NodeGroup{Count: c.Int("nodes"), CPU: c.String("cpu"), Memory: c.String("memory"), IO: c.String("io"), RackSize: c.Int("rack-size")}
	for _, f := range []string{"nodes", "cpu", "memory", "io", "rack-size"} {
		clusterSet = clusterSet || c.IsSet(f)
	}
	for _, x := range []struct {
		name string
		to   *string
	}{{"cpu", &kind.CPU}, {"memory", &kind.Memory}, {"io", &kind.IO}} {
		if v, ok := vary[x.name]; ok {
			*x.to, clusterSet = v, true
		}
	}
	if v, ok := vary["nodes"]; ok {
		clusterSet = true
		if kind.Count, err = strconv.Atoi(v); err != nil {
			return kind, clusterSet, usageErrorf("nodes is %q: want a number", v)
		}
	}
	return kind, clusterSet, nil
}

// loadWorkload reads the cluster and the workload.
func (in *simInput) loadWorkload(c *cli.Context, vary map[string]string) error {
	kind, clusterSet, err := nodeKind(c, vary)
	if err != nil {
		return err
	}
	if kind.Count < 1 {
		return usageErrorf("-nodes %d: want at least 1", kind.Count)
	}
	if kind.RackSize < 1 {
		return usageErrorf("-rack-size %d: want at least 1", kind.RackSize)
	}
	cluster := &run.Cluster{Nodes: []run.NodeGroup{kind}}
	if path := c.String("cluster"); path != "" {
		if clusterSet {
			return usageErrorf("-cluster excludes -nodes, -cpu, -memory, -io and -rack-size")
		}
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		if cluster, err = run.ReadCluster(f); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		clusterSet = true
	}
	nodes, absences, err := cluster.BuildAll()
	if err != nil && c.String("cluster") == "" {
		return usageErrorf("machines of -cpu %s, -memory %s and -io %s: %w", kind.CPU, kind.Memory, kind.IO, cmp.Or(errors.Unwrap(err), err))
	}
	if err != nil {
		return err
	}
	if in.setup.Tenants, err = cluster.BuildTenants(); err != nil {
		return err
	}
	in.setup.Absences = absences
	var given []engine.Node
	if clusterSet {
		given = nodes
	}
	src := run.Source{Format: c.String("format"), File: c.String("workload"), Rule: in.rules, SkipBad: c.Bool("skip-bad"), Fluid: in.model == "fluid"}
	if in.loaded, err = src.Load(given, kind); err != nil {
		return exitError{exitRefused, err}
	}
	if n := in.loaded.Count; n.Bad > 0 {
		fmt.Fprintf(c.App.ErrWriter, "drover: skipped %d of %d lines; the first: %s\n", n.Bad, n.Lines, n.FirstBad)
	}
	in.setup.Nodes, in.setup.Workload = nodes, in.loaded.Workload
	if !clusterSet && in.loaded.Nodes != nil {
		in.setup.Nodes = in.loaded.Nodes
	}
	return nil
}

// recordParameters stores the parameters of the simulation for the summary.
func (in *simInput) recordParameters(c *cli.Context, world map[string]string) {
	in.parameters = map[string]string{"workload": c.String("workload"), "format": c.String("format"), "nodes": fmt.Sprint(len(in.setup.Nodes)),
		"model": in.model, "job_unit_s": fmt.Sprint(c.Float64("job-unit")), "cycle_interval": in.setup.CycleInterval.String()}
	for _, f := range []string{"cluster", "cpu", "memory", "io"} {
		if c.String("cluster") != "" == (f == "cluster") {
			in.parameters[f] = c.String(f)
		}
	}
	for k, v := range in.params {
		in.parameters["set."+k] = v
	}
	for k, v := range in.rules {
		in.parameters["rule."+k] = v
	}
	for k, v := range world {
		in.parameters["world."+k] = v
	}
}

// settingsHelp returns the help of -rule help and -world help as an error.
func settingsHelp(c *cli.Context) error {
	for _, v := range c.StringSlice("world") {
		if v == "help" {
			return exitError{exitUsage, fmt.Errorf("settings of -world:\n%s", run.ModelHelp())}
		}
	}
	for _, v := range c.StringSlice("rule") {
		if v == "help" {
			format := c.String("format")
			text := run.RuleHelp(format)
			switch {
			case text != "":
				return exitError{exitUsage, fmt.Errorf("settings of -rule for %s:\n%s", format, text)}
			case slices.Contains(run.Formats, format):
				return usageErrorf("format %s has no settings of -rule", format)
			default:
				return usageErrorf("-rule help shows the settings of one format: give -format one of %s", strings.Join(run.Formats, ", "))
			}
		}
	}
	return nil
}

// simulate runs one scheduler, written as name or name:key=value,key=value, once for each seed. If
// dir is not "", it writes the attempts of the first seed there.
func (in *simInput) simulate(c *cli.Context, scheduler, dir string) (string, []*run.Outcome, *run.Setup, error) {
	s := in.setup
	name, list, _ := strings.Cut(scheduler, ":")
	if name == "pipe" {
		name, list = scheduler, ""
	}
	s.Scheduler, s.Params = name, map[string]string{}
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
	if in.model == "fluid" {
		var outs []*run.Outcome
		for _, seed := range in.seeds {
			o, err := s.SimulateFluid(in.loaded, seed)
			if err != nil {
				return "", nil, nil, exitError{exitRefused, err}
			}
			outs = append(outs, o)
		}
		return scheduler, outs, &s, nil
	}
	if err := run.CheckScheduler(name, s.Params); err != nil {
		return "", nil, nil, exitError{exitRefused, err}
	}
	s.MaxTaskExecutions = run.MaxGanttTasks
	if dir != "" {
		s.TaskLog, s.TaskLogSeed, s.WaitedTimes = filepath.Join(dir, "tasks.csv"), in.seeds[0], c.String("html") != ""
	}
	outs, err := s.SimulateSeeds(c.Context, in.seeds, runtime.GOMAXPROCS(0), progressPrinter(c))
	in.outcomes = append(in.outcomes, outs...)
	return scheduler, outs, &s, interruptedError(c, err)
}

// interruptedError adds to an interruption that nothing was written: results are written
// only when all simulations are done.
func interruptedError(c *cli.Context, err error) error {
	if err != nil && c.Context.Err() != nil {
		return fmt.Errorf("%w; nothing was written", err)
	}
	return err
}

// progressPrinter returns a function that prints the progress on stderr: in one line that changes on
// a terminal, else in a line every ten seconds, for logs.
func progressPrinter(c *cli.Context) func(done, of int, p engine.Progress) {
	interval, format := progressInterval, "%3.0f%%  simulation %d of %d  %d of %d jobs  %d events  %s left\n"
	if isTerminal(c.App.ErrWriter) {
		interval, format = 500*time.Millisecond, "\r%3.0f%%  simulation %d of %d  %d of %d jobs  %d events  %s left \x1b[K"
	}
	return newProgressPrinter(c.App.ErrWriter, interval, format, time.Now)
}

// newProgressPrinter prints progress at most once per interval.
func newProgressPrinter(w io.Writer, interval time.Duration, format string, now func() time.Time) func(done, of int, p engine.Progress) {
	start := now()
	last := start
	return func(done, of int, p engine.Progress) {
		t := now()
		if t.Sub(last) < interval {
			return
		}
		last = t
		part := (float64(done) + float64(p.Done)/float64(max(1, p.Jobs))) / float64(of)
		left := "?"
		if part > 0.01 {
			left = time.Duration(float64(t.Sub(start)) * (1 - part) / part).Round(time.Second).String()
		}
		fmt.Fprintf(w, format, 100*part, min(done+1, of), of, p.Done, p.Jobs, p.Events, left)
	}
}

// clearProgressLine removes the progress line.
func clearProgressLine(c *cli.Context) {
	if isTerminal(c.App.ErrWriter) {
		fmt.Fprint(rawWriter(c.App.ErrWriter), "\r\x1b[K")
	}
}

// simJSONLinesFlag is the flag of run and compare for rows as JSON lines.
var simJSONLinesFlag = &cli.BoolFlag{Name: "jsonl", Usage: "also write the tables of -out as JSON lines: jobs.jsonl, tasks.jsonl, timeseries.jsonl"}

func simRunCommand() *cli.Command {
	return &cli.Command{
		Name:  "run",
		Usage: "simulate one scheduler on one workload: summary.json, CSV by job, attempt and time, plots",
		Flags: simFlags(&cli.StringFlag{Name: "scheduler", Usage: "policy", Value: "3dsf"},
			&cli.StringFlag{Name: "out", Usage: "folder for summary.json, jobs.csv, tasks.csv, timeseries.csv and plots"}, simJSONLinesFlag, simHTMLFlag, profileFlag),
		Action: profiled(func(c *cli.Context) (err error) {
			if _, err := positionalArgs(c, 0, 0, ""); err != nil {
				return err
			}
			in, err := parseSimFlags(c)
			if err != nil {
				return err
			}
			pages, err := newSimulationPages(c, in.model)
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, pages.close("Simulation", err)) }()
			defer func() { err = errors.Join(err, in.discardLogs()) }()
			dir := pages.logDir(c.String("out"), 0)
			name, outs, setup, err := in.simulate(c, c.String("scheduler"), dir)
			clearProgressLine(c)
			if err == nil {
				err = pages.add(name, outs[0])
			}
			if err != nil && !isStuck(err, outs) {
				return err
			}
			return errors.Join(writeSimulation(c, in, setup, outs), err)
		}),
	}
}

// isStuck reports whether simulations ended because nothing more could run, so that what ran is worth
// writing.
func isStuck(err error, outs []*run.Outcome) bool {
	var stuck *engine.StuckError
	return errors.As(err, &stuck) && !slices.ContainsFunc(outs, func(o *run.Outcome) bool { return o == nil || o.Result == nil })
}

func writeSimulation(c *cli.Context, in *simInput, setup *run.Setup, outs []*run.Outcome) error {
	sum := setup.Summary(outs, in.parameters)
	sum.Model = in.model
	if dir := c.String("out"); dir != "" {
		if err := run.WriteResults(dir, sum, outs[0]); err != nil {
			return err
		}
		if c.Bool("jsonl") {
			if err := run.WriteJSONLines(dir); err != nil {
				return err
			}
		}
	}
	if c.Bool("json") {
		return printJSON(c.App.Writer, sum)
	}
	sum.WriteText(c.App.Writer)
	if dir := c.String("out"); dir != "" {
		fmt.Fprintf(c.App.Writer, "written to %s: summary.json, jobs.csv, tasks.csv, timeseries.csv, utilisation, responses (SVG, PNG)\n", dir)
	}
	return nil
}
