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
	"io"
	"math"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/drover-run/drover/integration/internal/cache"
	"github.com/drover-run/drover/internal/median"
)

// figure is one measured value; NaN if what it needs is absent, which the note then says.
type figure struct {
	name  string
	value float64
	unit  string
	note  string
}

func main() {
	drover := flag.String("drover", "bin/drover", "path of the drover binary")
	quick := flag.Bool("quick", false, "an eighth of the data and no targets, to test the benchmark itself")
	text := flag.String("text", "", "pattern of text files to repeat; default: generated words")
	runs := flag.Int("runs", 3, "runs of each measurement; the median is reported")
	parts := flag.String("parts", "", "parts to measure, separated by commas: start, one, many, machine, words, sort, streaming, hdfs (inside `testbed hdfs`); default: all")
	list := flag.Bool("targets", false, "measure nothing: list the targets of the parts; by default of all but hdfs")
	flag.Parse()
	if *list {
		if err := listTargets(os.Stdout, *parts); err != nil {
			fmt.Fprintln(os.Stderr, "devbench:", err)
			os.Exit(1)
		}
		return
	}
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
	w := newTable(os.Stdout)
	allMet := true
	for _, r := range rows {
		limit, status := "", ""
		if t, ok := targetOf(targets(1), r.name); ok && !quick {
			limit, status = t.text(), "met"
			switch {
			case math.IsNaN(r.value):
				status = notMeasured
			case r.value > t.most:
				status, allMet = "MISSED", false
			}
		}
		value := "-"
		if !math.IsNaN(r.value) {
			value = fmt.Sprintf("%.3g %s", r.value, r.unit)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", r.name, value, limit, status, r.note)
	}
	return w.Flush() == nil && allMet
}

// notMeasured is the status of a target whose figure was not measured.
const notMeasured = "not measured"

// newTable begins a table of figures.
func newTable(to io.Writer) *tabwriter.Writer {
	w := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "measurement\tvalue\ttarget\t\tnote\n")
	return w
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
	b := &bench{ctx: ctx, drover: drover, dir: dir, runs: runs, divide: divide, ownText: text != ""}
	if err := errors.Join(makeText(b.path("small.txt"), text, smallSize/int64(divide)), makeText(b.path("large.txt"), text, largeSize/int64(divide))); err != nil {
		return nil, err
	}
	var rows []figure
	for _, part := range []struct {
		name    string
		measure func() ([]figure, error)
	}{{"start", b.measureStart}, {"one", b.measureOneTask}, {"many", b.measureManyTasks}, {"machine", b.measureMachine}, {"words", b.measureBuiltin}, {"sort", b.measureSort}, {"streaming", b.measureStreaming}, {hdfsPart, b.measureHDFS}} {
		if parts != "" && !slices.Contains(strings.Split(parts, ","), part.name) {
			continue
		}
		more, err := part.measure()
		if err == nil {
			err = checkTargets(part.name, more, targets(divide))
		}
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

	ownText bool // the text is not generated

	entries []*cache.Entry // in use until the end, which releases them
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
	return []figure{{"job of one task, submit to done", median.Of(walls), "s",
		fmt.Sprintf("median of %d, %.3f to %.3f; including the start of the client", times, slices.Min(walls), slices.Max(walls))}}, nil
}

// resourceUse is the time of a measurement in seconds.
type resourceUse struct{ wall, cpu float64 }

// spreadText states the number of runs behind a median, and the range of their wall times.
func spreadText(all []resourceUse) string {
	least, most := all[0].wall, all[0].wall
	for _, u := range all {
		least, most = min(least, u.wall), max(most, u.wall)
	}
	return fmt.Sprintf("median of %d, %.1f to %.1f s", len(all), least, most)
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
		{what + "without Drover, wall", medianBy(plain.theirs, wallOf), "s", "map | sort | reduce, LC_ALL=C; " + spreadText(plain.theirs)},
		{what + "without Drover, CPU", medianBy(plain.theirs, cpuOf), "s", ""},
		{what + "wall", plain.median(wallOf), "s", spreadText(plain.ours)},
		{what + "CPU", plain.median(cpuOf), "s", ""},
		{what + "CPU over that without Drover", plain.ratio(cpuOf), "times", plain.ratioSpread(cpuOf)},
		{what + "combiner, wall", combined.median(wallOf), "s", spreadText(combined.ours)},
		{what + "combiner, CPU over that without Drover", combined.ratio(cpuOf), "times", combined.ratioSpread(cpuOf)},
	}, nil
}

func sizeMB(file string) (float64, error) {
	st, err := os.Stat(file)
	if err != nil {
		return 0, err
	}
	return float64(st.Size()) / 1e6, nil
}
