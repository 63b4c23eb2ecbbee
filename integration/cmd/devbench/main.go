// Command devbench measures `drover dev` natively on this machine, compared with the same programs
// without Drover, and checks its targets:
//
//	devbench -drover bin/drover [-quick]
//
// It prints a table and exits with code 1 if a target is missed. CPU is user and system time of the
// whole process tree: the client, the coordinator, the node, the harnesses and the programs.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/drover-run/drover/internal/median"
)

// The targets: seconds of wall time, and a ratio of CPU times.
const (
	targetOneTask = 0.025
	targetBuiltin = 3.0
	targetRatio   = 1.03
	targetCombine = 1.08
	targetHDFS    = 0.5
)

// figure is one measured value; target 0 means that there is no target.
type figure struct {
	name   string
	value  float64
	unit   string
	target float64
	note   string
}

func main() {
	drover := flag.String("drover", "bin/drover", "path of the drover binary")
	quick := flag.Bool("quick", false, "an eighth of the data and no targets, to test the benchmark itself")
	text := flag.String("text", "", "pattern of text files to repeat; default: generated words")
	runs := flag.Int("runs", 3, "runs of each measurement; the median is reported")
	parts := flag.String("parts", "", "parts to measure, separated by commas: start, one, many, words, sort, streaming, hdfs (inside `testbed hdfs`); default: all")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	rows, err := measure(ctx, *drover, *text, *parts, *quick, max(1, *runs))
	if err != nil {
		fmt.Fprintln(os.Stderr, "devbench:", err)
		os.Exit(1)
	}
	if !printTable(rows, *quick) {
		os.Exit(1)
	}
}

// printTable prints the table and reports whether every target is met.
func printTable(rows []figure, quick bool) bool {
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "measurement\tvalue\ttarget\t\tnote\n")
	allMet := true
	for _, r := range rows {
		target, status := "", ""
		if r.target > 0 && !quick {
			target, status = fmt.Sprintf("%g %s", r.target, r.unit), "met"
			if r.value > r.target {
				status, allMet = "MISSED", false
			}
		}
		fmt.Fprintf(w, "%s\t%.3g %s\t%s\t%s\t%s\n", r.name, r.value, r.unit, target, status, r.note)
	}
	return w.Flush() == nil && allMet
}

func measure(ctx context.Context, drover, text, parts string, quick bool, runs int) ([]figure, error) {
	drover, err := filepath.Abs(drover)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "drover-devbench-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	divide := 1
	if quick {
		divide = 8
	}
	b := &bench{ctx: ctx, drover: drover, dir: dir, runs: runs, divide: divide}
	const mib = 1 << 20
	if err := errors.Join(makeText(b.path("small.txt"), text, int64(64*mib/divide)), makeText(b.path("large.txt"), text, int64(512*mib/divide))); err != nil {
		return nil, err
	}
	var rows []figure
	for _, part := range []struct {
		name    string
		measure func() ([]figure, error)
	}{{"start", b.measureStart}, {"one", b.measureOneTask}, {"many", b.measureManyTasks}, {"words", b.measureBuiltin}, {"sort", b.measureSort}, {"streaming", b.measureStreaming}, {"hdfs", b.measureHDFS}} {
		if parts != "" && !slices.Contains(strings.Split(parts, ","), part.name) {
			continue
		}
		more, err := part.measure()
		if err != nil {
			return nil, err
		}
		rows = append(rows, more...)
	}
	return rows, nil
}

// bench is the environment of one run of the benchmark.
type bench struct {
	ctx    context.Context
	drover string
	dir    string
	runs   int
	divide int // all amounts of work are divided by it
}

func (b *bench) path(name string) string { return filepath.Join(b.dir, name) }

// measureOneTask measures a job of one task from the start of `drover job run` to its end.
func (b *bench) measureOneTask() ([]figure, error) {
	const times = 20
	var walls []float64
	_, err := b.withDev(func(run func(file string) error) error {
		for range times {
			start := time.Now()
			if err := run(b.writeJobFile("one", `stage "run" { command = ["true"] }`)); err != nil {
				return err
			}
			walls = append(walls, time.Since(start).Seconds())
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return []figure{{"job of one task, submit to done", median.Of(walls), "s", targetOneTask,
		fmt.Sprintf("median of %d, %.3f to %.3f; including the start of the client", times, slices.Min(walls), slices.Max(walls))}}, nil
}

// resourceUse is the time of a measurement in seconds.
type resourceUse struct{ wall, cpu float64 }

// medianOf repeats a measurement and returns the median of each value, and a text with the range of
// the wall times.
func (b *bench) medianOf(work func() (resourceUse, error)) (resourceUse, string, error) {
	var all []resourceUse
	for range b.runs {
		u, err := work()
		if err != nil {
			return resourceUse{}, "", err
		}
		all = append(all, u)
	}
	return resourceUse{medianBy(all, wallOf), medianBy(all, cpuOf)}, spreadText(all), nil
}

// spreadText states the number of runs behind a median, and the range of their wall times.
func spreadText(all []resourceUse) string {
	least, most := all[0].wall, all[0].wall
	for _, u := range all {
		least, most = min(least, u.wall), max(most, u.wall)
	}
	return fmt.Sprintf("median of %d, %.1f to %.1f s", len(all), least, most)
}

func (b *bench) measureBuiltin() ([]figure, error) {
	u, spread, err := b.medianOf(func() (resourceUse, error) {
		return b.wordCount("large.txt", `stage "map" { kind = "map"  builtin = ["wordcount"]  resources { memory = "256MiB" } }
  stage "reduce" { kind = "reduce"  tasks = 2  builtin = ["sum"]  combiner = true  resources { memory = "256MiB" } }`)
	})
	if err != nil {
		return nil, err
	}
	size, err := sizeMB(b.path("large.txt"))
	if err != nil {
		return nil, err
	}
	what := fmt.Sprintf("built-in word count of %.0f MB", size)
	return []figure{
		{what + ", wall", u.wall, "s", targetBuiltin, fmt.Sprintf("%s, %d cores", spread, runtime.NumCPU())},
		{what + ", CPU", u.cpu, "s", 0, ""},
		{what + ", rate", size / u.cpu, "MB/s per core", 0, "input bytes per second of CPU time"},
	}, nil
}

func (b *bench) measureStreaming() ([]figure, error) {
	if _, err := exec.LookPath("python3"); err != nil {
		fmt.Fprintln(os.Stderr, "devbench: python3 not found: skipping the streaming word count")
		return nil, nil
	}
	if err := errors.Join(os.WriteFile(b.path("map.py"), []byte(mapperScript), 0o755), os.WriteFile(b.path("reduce.py"), []byte(reducerScript), 0o755)); err != nil {
		return nil, err
	}
	stages := func(reduce string) string {
		return `stage "map" { kind = "map"  command = ["python3", "map.py"]
    file "map.py" { source = "map.py" }
    resources { memory = "256MiB" } }
  stage "reduce" { kind = "reduce"  tasks = 2  command = ["python3", "reduce.py"] ` + reduce + `
    file "reduce.py" { source = "reduce.py" }
    resources { memory = "256MiB" } }`
	}
	plain, combined, err := b.besideOne(b.runPipeline,
		func() (resourceUse, error) { return b.wordCount("small.txt", stages("")) },
		func() (resourceUse, error) { return b.wordCount("small.txt", stages("combiner = true")) })
	if err != nil {
		return nil, err
	}
	size, err := sizeMB(b.path("small.txt"))
	if err != nil {
		return nil, err
	}
	what := fmt.Sprintf("Python word count of %.0f MB, ", size)
	return []figure{
		{what + "without Drover, wall", medianBy(plain.theirs, wallOf), "s", 0, "map | sort | reduce, LC_ALL=C; " + spreadText(plain.theirs)},
		{what + "without Drover, CPU", medianBy(plain.theirs, cpuOf), "s", 0, ""},
		{what + "wall", plain.median(wallOf), "s", 0, spreadText(plain.ours)},
		{what + "CPU", plain.median(cpuOf), "s", 0, ""},
		{what + "CPU over that without Drover", plain.ratio(cpuOf), "times", targetRatio, plain.ratioSpread(cpuOf)},
		{what + "combiner, wall", combined.median(wallOf), "s", 0, spreadText(combined.ours)},
		{what + "combiner, CPU over that without Drover", combined.ratio(cpuOf), "times", targetCombine, combined.ratioSpread(cpuOf)},
	}, nil
}

func sizeMB(file string) (float64, error) {
	st, err := os.Stat(file)
	if err != nil {
		return 0, err
	}
	return float64(st.Size()) / 1e6, nil
}
