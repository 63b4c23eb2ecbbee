// Command curves measures how the costs of Drover's parts grow with nodes, tasks, jobs and tenants.
// Each series runs a benchmark of drover with one number in steps. It prints each figure with its
// slope, which is the exponent of the growth since the previous row: 0 constant, 1 linear, 2
// quadratic.
//
//	curves [-drover FILE] [-quick]
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"golang.org/x/sys/unix"

	"github.com/drover-run/drover/internal/median"
	"github.com/drover-run/drover/mapreduce"
)

// figure is one column of a series.
type figure struct {
	name string
	of   func(result) float64
}

// result is the output of a benchmark.
type result map[string]any

// number returns a number of the result; the path names nested objects with dots.
func (r result) number(path string) float64 {
	var v any = map[string]any(r)
	for _, name := range strings.Split(path, ".") {
		m, ok := v.(map[string]any)
		if !ok {
			return math.NaN()
		}
		v = m[name]
	}
	if n, ok := v.(float64); ok {
		return n
	}
	return math.NaN()
}

// series is one curve.
type series struct {
	title   string
	x       string // the number that grows
	at      []int
	figures []figure
	run     func(ctx context.Context, x int) (result, error)
}

func main() {
	drover := flag.String("drover", "bin/drover", "the program")
	quick := flag.Bool("quick", false, "the first two points of each series only")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	for _, s := range allSeries(*drover) {
		if *quick {
			s.at = s.at[:2]
		}
		if err := s.print(ctx); err != nil {
			fmt.Fprintln(os.Stderr, "curves:", err)
			os.Exit(1)
		}
	}
	if err := printClusters(ctx, *quick); err != nil {
		fmt.Fprintln(os.Stderr, "curves:", err)
		os.Exit(1)
	}
}

// allSeries returns all series to measure.
func allSeries(drover string) []series {
	decide := func(args ...string) func(context.Context, int) (result, error) {
		return benchmark(drover, append([]string{"bench", "scheduler", "-json", "-features", "all", "-placements", "100000"}, args...))
	}
	live := func(args ...string) func(context.Context, int) (result, error) {
		return benchmark(drover, append([]string{"bench", "coordinator", "-json", "-alone", "20", "-submissions", "500", "-limit", "20m"}, args...))
	}
	decision := []figure{
		{"CPU µs per placement", func(r result) float64 { return 1e6 / r.number("placements_per_cpu_s") }},
		{"p99 of a cycle, CPU ms", func(r result) float64 { return r.number("cycle_cpu_p99_ms") }},
		{"memory MiB", mebibytes},
	}
	whole := []figure{
		{"CPU µs per placement", func(r result) float64 { return 1e6 / r.number("placements_per_cpu_s") }},
		{"CPU of nodes that idle, % of a core", func(r result) float64 { return 100 * r.number("idle.cpu_seconds") / r.number("idle.seconds") }},
		{"receipt p50 ms", func(r result) float64 { return r.number("receipt_p50_ms") }},
		{"memory MiB", mebibytes},
	}
	return []series{
		{"Deciding, 3dsf with all features, 20,000 waiting tasks, 1,000 tenants", "nodes", []int{100, 1000, 10_000, 100_000}, decision,
			decide("-nodes", "X", "-tasks", "20000", "-tenants", "1000")},
		{"Deciding, 10,000 nodes, 1,000 tenants", "waiting tasks", []int{10_000, 100_000, 1_000_000, 10_000_000}, decision,
			decide("-nodes", "10000", "-tasks", "X", "-tenants", "1000")},
		{"Deciding, 10,000 nodes, 20,000 waiting tasks", "tenants", []int{10, 100, 1000, 10_000}, decision,
			decide("-nodes", "10000", "-tasks", "20000", "-tenants", "X")},
		{"The whole live way, 20 jobs of 5,000 tasks: log, streams, reports", "nodes", []int{100, 1000, 4000}, whole, // beyond that, nodes that register at once are told to retry
			live("-nodes", "X", "-jobs", "20", "-tasks", "5000")},
		{"The whole live way, 1,000 nodes, jobs of 20 tasks", "jobs", []int{100, 1000, 10_000}, whole,
			live("-nodes", "1000", "-jobs", "X", "-tasks", "20")},
		{"The whole live way, 1,000 nodes, one job", "tasks", []int{10_000, 100_000, 1_000_000}, whole,
			live("-nodes", "1000", "-jobs", "1", "-tasks", "X")},
		{"Splits of a job's input, three replicas of each block", "blocks", []int{10_000, 100_000, 1_000_000}, []figure{
			{"CPU µs per block", func(r result) float64 { return r.number("us") }},
		}, planSplits},
	}
}

func mebibytes(r result) float64 { return r.number("rss_bytes") / (1 << 20) }

// benchmark returns a function that runs a command that prints one JSON object; X in the arguments is
// replaced.
func benchmark(drover string, args []string) func(context.Context, int) (result, error) {
	return func(ctx context.Context, x int) (result, error) {
		own := slices.Clone(args)
		for i, a := range own {
			if a == "X" {
				own[i] = strconv.Itoa(x)
			}
		}
		cmd := exec.CommandContext(ctx, drover, own...)
		var said strings.Builder // the command's progress, and its error at the end
		cmd.Stderr = &said
		out, err := cmd.Output()
		if err != nil {
			return nil, fmt.Errorf("%s: %w\n%s", strings.Join(own, " "), err, said.String())
		}
		r := result{}
		if err := json.Unmarshal(out, &r); err != nil {
			return nil, fmt.Errorf("%s: its output: %w", strings.Join(own, " "), err)
		}
		return r, nil
	}
}

// planSplits measures the CPU time of planning the splits of n blocks, which are spread over 1,000
// hosts.
func planSplits(_ context.Context, n int) (result, error) {
	const size = 128 << 20
	blocks := make([]mapreduce.FileBlock, n)
	for i := range blocks {
		host := func(k int) string { return fmt.Sprintf("host%d", (i*7+k*331)%1000) }
		blocks[i] = mapreduce.FileBlock{Path: fmt.Sprintf("hdfs:///in/part-%05d", i/1000), Offset: int64(i%1000) * size, Length: size,
			Hosts: []string{host(0), host(1), host(2)}}
	}
	var took []float64
	for range splitRuns {
		runtime.GC() // the garbage of the previous run must not count for this one
		start, err := processCPU()
		if err != nil {
			return nil, err
		}
		splits, err := mapreduce.PlanSplits(blocks, 0)
		if err == nil && len(splits) != n {
			err = errors.New("not one split for each block")
		}
		end, clockErr := processCPU()
		if err := errors.Join(err, clockErr); err != nil {
			return nil, err
		}
		took = append(took, float64((end-start).Nanoseconds())/1000)
	}
	return result{"us": median.Of(took) / float64(n)}, nil
}

// splitRuns is the number of runs whose median planSplits returns.
const splitRuns = 5

// processCPU returns the CPU time of this process, including the garbage collector's threads.
func processCPU() (time.Duration, error) {
	var t unix.Timespec
	err := unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &t)
	return time.Duration(t.Nano()), err
}

// print measures a series and prints its table.
func (s series) print(ctx context.Context) error {
	fmt.Println(s.title)
	var rows [][]string
	header := []string{s.x}
	for _, f := range s.figures {
		header = append(header, f.name, "slope")
	}
	rows = append(rows, header)
	var before result
	for i, x := range s.at {
		now, err := s.run(ctx, x)
		if err != nil {
			return err
		}
		row := []string{strconv.Itoa(x)}
		for _, f := range s.figures {
			slope := ""
			if i > 0 {
				slope = slopeText(float64(s.at[i-1]), f.of(before), float64(x), f.of(now))
			}
			row = append(row, strconv.FormatFloat(f.of(now), 'g', 4, 64), slope)
		}
		rows, before = append(rows, row), now
	}
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	for _, r := range rows {
		fmt.Fprintln(w, strings.Join(r, "\t"))
	}
	fmt.Fprintln(w)
	return w.Flush()
}

// slopeText returns the exponent p of y ~ x^p through two points.
func slopeText(x1, y1, x2, y2 float64) string {
	p := math.Log(y2/y1) / math.Log(x2/x1)
	if math.IsNaN(p) || math.IsInf(p, 0) {
		return "-"
	}
	return strconv.FormatFloat(p, 'f', 2, 64)
}
