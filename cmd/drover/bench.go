package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"runtime"
	"runtime/metrics"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"

	"github.com/drover-run/drover/scheduler/bench"
)

func benchCommand() *cli.Command {
	return &cli.Command{Name: "bench", Usage: "measure Drover", Subcommands: []*cli.Command{benchSchedulerCommand(), benchCoordinatorCommand(), benchFloodsCommand(), benchDayCommand(), benchSuspendCommand(), benchCriuCommand(), benchTaskCommand()}}
}

func benchSchedulerCommand() *cli.Command {
	return &cli.Command{
		Name:  "scheduler",
		Usage: "placements per second of a policy on a generated cluster",
		Flags: []cli.Flag{
			&cli.IntSliceFlag{Name: "nodes", Usage: "nodes of 32 cores and 128 GiB; one case for each", Value: cli.NewIntSlice(1000)},
			&cli.IntFlag{Name: "tasks", Usage: "pending tasks in addition to those that start (20000 with all)"},
			&cli.IntFlag{Name: "tenants", Usage: "tenants (1, or 1000 with all)"},
			&cli.StringFlag{Name: "features", Usage: "plain, or all: tenant tree, data, deadlines, projects", Value: string(bench.FeaturesPlain)},
			&cli.StringFlag{Name: "policy", Usage: "scheduler (fifo, or 3dsf with all)"},
			&cli.StringSliceFlag{Name: "set", Usage: "its parameter as key=value, repeatable"},
			&cli.IntFlag{Name: "runs", Usage: "repetitions of each case; the median is shown, with -worst the longest cycle by each cycle's shortest time", Value: 1},
			&cli.BoolFlag{Name: "steps", Usage: "show how costs grow: nodes, tenants and pending tasks in steps of factor ten (up to 10000, 1000, 20000)"},
			&cli.BoolFlag{Name: "planning", Usage: "with all: include the planning of project guarantees; otherwise they are given in advance"},
			&cli.BoolFlag{Name: "worst", Usage: "the longest cycle, in ms of CPU time, with inputs that are meant to make cycles long, for -policy or all schedulers of a cluster"},
			&cli.IntFlag{Name: "placements", Usage: "placements to measure", Value: 200_000},
			&cli.Uint64Flag{Name: "seed", Usage: "seed of the generated workload", Value: 1},
			&cli.BoolFlag{Name: "json", Usage: "one JSON object per case, one per line"},
			profileFlag,
		},
		Action: profiled(func(c *cli.Context) error {
			if _, err := positionalArgs(c, 0, 0, ""); err != nil {
				return err
			}
			if err := requireAtLeast(c, map[string]float64{"nodes": 1, "tasks": 0, "tenants": 0, "runs": 1, "placements": 1}); err != nil {
				return err
			}
			params := map[string]string{}
			for _, s := range c.StringSlice("set") {
				k, v, ok := strings.Cut(s, "=")
				if !ok {
					return usageErrorf("-set %q: want key=value", s)
				}
				params[k] = v
			}
			if c.Bool("worst") {
				return runBenchWorst(c, params)
			}
			return runBenchScheduler(c, params)
		}),
	}
}

// requireAtLeast returns a usage error for the first flag, by its name, with a value
// that is less than the least one.
func requireAtLeast(c *cli.Context, least map[string]float64) error {
	for _, name := range slices.Sorted(maps.Keys(least)) {
		var values []float64
		switch v := c.Value(name).(type) {
		case int:
			values = []float64{float64(v)}
		case float64:
			values = []float64{v}
		case cli.IntSlice:
			for _, n := range v.Value() {
				values = append(values, float64(n))
			}
		}
		for _, v := range values {
			if !(v >= least[name]) { // NaN is not
				return usageErrorf("-%s %g: want at least %g", name, v, least[name])
			}
		}
	}
	return nil
}

func runBenchScheduler(c *cli.Context, params map[string]string) error {
	adviseHugePages() // as a coordinator does
	start := time.Now()
	meter := bench.Meter{Clock: func() time.Duration { return time.Since(start) }, CPU: processCPU, Allocs: heapAllocs, RSS: residentBytes}
	base := bench.Config{WaitingTasks: c.Int("tasks"), Tenants: c.Int("tenants"), Features: bench.Features(c.String("features")), Planning: c.Bool("planning"),
		Policy: c.String("policy"), Params: params, Placements: c.Int("placements"), Seed: c.Uint64("seed")}
	var cases []bench.Config
	for _, n := range c.IntSlice("nodes") {
		cases = append(cases, base)
		cases[len(cases)-1].Nodes = n
	}
	if c.Bool("steps") {
		if c.IsSet("nodes") {
			if base.Nodes = cases[0].Nodes; len(cases) > 1 {
				return usageErrorf("-steps takes one number of nodes, the largest")
			}
		}
		cases = bench.ScalingCases(base)
	}
	var rows [][]string
	for _, k := range cases {
		r, err := bench.MeasureMedian(k, c.Int("runs"), meter)
		if err != nil {
			return exitError{exitRefused, err}
		}
		if c.Bool("json") {
			if err := json.NewEncoder(c.App.Writer).Encode(r); err != nil {
				return err
			}
			continue
		}
		rows = append(rows, benchTableRow(&r, k.Planning))
	}
	if rows != nil {
		printTable(c.App.Writer, []string{"nodes", "tenants", "tasks", "features", "planning", "policy", "placements/s", "min", "max", "p50 ms", "p99 ms", "per cpu s", "allocs", "rss",
			"local", "share err", "gap", "packing", "idle us"}, rows)
	}
	return nil
}

// worstCycles is how many cycles a worst case is measured for: by then the cluster is full.
// worstLimit is the CPU time that one run of a case may take.
const (
	worstCycles = 60
	worstLimit  = 10 * time.Second
)

// runBenchWorst measures the longest cycle of each policy with each worst case, and says on
// standard error which case it is at: all together take minutes.
func runBenchWorst(c *cli.Context, params map[string]string) error {
	nodes := 10_000
	if c.IsSet("nodes") {
		nodes = c.IntSlice("nodes")[0]
	}
	setGCPercent(coordinatorGCPercent) // such cycles are a coordinator's, and what its collector has them do is in them
	adviseHugePages()
	runtime.LockOSThread() // the collector's other threads do not belong to a cycle
	defer runtime.UnlockOSThread()
	of := []string{"3dsf", "two_tier", "conservative", "drf", "pdsonqueue", "las_mq", "multifactor", "capacity", "fair", "equ", "las", "easy", "edf", "fifo"}
	if c.String("policy") != "" {
		of = []string{c.String("policy")}
	}
	var cells []*bench.WorstRuns
	for _, k := range bench.WorstCases() {
		for _, name := range of {
			cells = append(cells, &bench.WorstRuns{Case: k, Config: bench.WorstConfig{Nodes: nodes, Cycles: worstCycles, Policy: name, Params: params, Scale: 1, Limit: worstLimit}})
		}
	}
	runs := c.Int("runs")
	for run := range runs { // outermost: a machine that is slow for a minute is so for one run of a cell
		for i, cell := range cells {
			if i%len(of) == 0 {
				fmt.Fprintf(c.App.ErrWriter, "run %d of %d: %s ...\n", run+1, runs, cell.Case.Name)
			}
			if err := cell.Run(bench.Meter{CPU: threadCPU}); err != nil {
				return exitError{exitRefused, err}
			}
		}
	}
	if c.Bool("json") {
		for _, cell := range cells {
			if err := json.NewEncoder(c.App.Writer).Encode(cell.Result()); err != nil {
				return err
			}
		}
		return nil
	}
	printWorst(c.App.Writer, of, runs, cells)
	return nil
}

// printWorst prints a line for each case and a column for each policy; cells has the policies of a
// case one after another.
func printWorst(w io.Writer, policies []string, runs int, cells []*bench.WorstRuns) {
	fmt.Fprintf(w, "ms of CPU time of one thread: the longest of %d cycles, by each cycle's shortest time in %d runs; in brackets the longest cycle of any run\n\n", worstCycles, runs)
	var rows [][]string
	for ofCase := range slices.Chunk(cells, len(policies)) {
		row := []string{ofCase[0].Case.Name}
		for _, cell := range ofCase {
			r := cell.Result()
			text := fmt.Sprintf("%.1f (%.1f)", r.LongestMS, r.AnyRunMS)
			if r.Cycles < worstCycles {
				text = fmt.Sprintf("%.1f (%.1f, %d cycles)", r.LongestMS, r.AnyRunMS, r.Cycles)
			}
			row = append(row, text)
		}
		rows = append(rows, append(row, ofCase[0].Case.Help))
	}
	printTable(w, append(append([]string{"input"}, policies...), "what it is"), rows)
}

// benchTableRow formats one line of the table.
func benchTableRow(r *bench.Result, planning bool) []string {
	f := func(v float64, digits int) string { return strconv.FormatFloat(v, 'f', digits, 64) }
	return []string{strconv.Itoa(r.Nodes), strconv.Itoa(r.Tenants), strconv.Itoa(r.Tasks), string(r.Features), cmp.Or(yesOrEmpty(planning), "no"), r.Policy,
		f(r.PlacementsPerS, 0), f(r.SlowestPerS, 0), f(r.FastestPerS, 0), f(r.CycleP50MS, 2), f(r.CycleP99MS, 2), f(r.PlacementsPerCPUS, 0),
		f(r.AllocsPerPlacement, 3), fmt.Sprintf("%d MiB", r.RSSBytes>>20), f(r.NodeLocal, 3), f(r.ShareErrorTasks, 2), f(r.MatchingGap, 4), f(r.Packing, 3), f(r.IdleCycleUS, 2)}
}

// heapAllocs returns the number of heap objects that this process has allocated.
func heapAllocs() uint64 {
	s := []metrics.Sample{{Name: "/gc/heap/allocs:objects"}}
	metrics.Read(s)
	return s[0].Value.Uint64()
}

// processCPU returns the CPU time of this process, 0 if it is not available.
func processCPU() time.Duration { return cpuTime(unix.CLOCK_PROCESS_CPUTIME_ID) }

// threadCPU returns the CPU time of the calling thread, 0 if it is not available.
func threadCPU() time.Duration { return cpuTime(unix.CLOCK_THREAD_CPUTIME_ID) }

// cpuTime reads a CPU clock. getrusage would round to ticks of 4 ms on kernels that account by ticks.
func cpuTime(clock int32) time.Duration {
	var t unix.Timespec
	if unix.ClockGettime(clock, &t) != nil {
		return 0
	}
	return time.Duration(t.Nano())
}

// residentBytes returns this process's resident memory, 0 if it is not available.
func residentBytes() uint64 { return residentBytesOf(os.Getpid()) }

// residentBytesOf returns the resident memory of a process, 0 if it is not available.
func residentBytesOf(pid int) uint64 {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		return 0
	}
	words := strings.Fields(string(raw))
	if len(words) < 2 {
		return 0
	}
	pages, err := strconv.ParseUint(words[1], 10, 64)
	if err != nil {
		return 0
	}
	return pages * uint64(os.Getpagesize())
}
