// Command devbench measures `drover dev` natively on this machine, beside the
// same programs by hand, and holds the figures against their bars:
//
//	devbench -drover bin/drover [-quick]
//
// It prints a table and ends with code 1 where a bar is missed. CPU is user
// and system time of the whole tree of processes: the coordinator, the node,
// the harnesses and the programs.
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
	"text/tabwriter"
	"time"
)

// The bars: seconds of wall time, and a ratio of CPU times.
const (
	barOneTask = 0.3
	barBuiltin = 13.0
	barRatio   = 1.3
)

// row is one measured figure; bar 0 means that none is set for it.
type row struct {
	what  string
	value float64
	unit  string
	bar   float64
	note  string
}

func main() {
	drover := flag.String("drover", "bin/drover", "the program to measure")
	quick := flag.Bool("quick", false, "an eighth of the data, without bars, to try the benchmark itself")
	text := flag.String("text", "", "real text to multiply, a pattern; default: words made up by a generator")
	runs := flag.Int("runs", 3, "runs of each word count; the median counts")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	rows, err := measure(ctx, *drover, *text, *quick, max(1, *runs))
	if err != nil {
		fmt.Fprintln(os.Stderr, "devbench:", err)
		os.Exit(1)
	}
	if !print(rows, *quick) {
		os.Exit(1)
	}
}

// print writes the table and tells whether every bar holds.
func print(rows []row, quick bool) bool {
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "what\tfigure\tbar\t\tnote\n")
	all := true
	for _, r := range rows {
		bar, verdict := "", ""
		if r.bar > 0 && !quick {
			bar, verdict = fmt.Sprintf("%g %s", r.bar, r.unit), "held"
			if r.value > r.bar {
				verdict, all = "MISSED", false
			}
		}
		fmt.Fprintf(w, "%s\t%.3g %s\t%s\t%s\t%s\n", r.what, r.value, r.unit, bar, verdict, r.note)
	}
	return w.Flush() == nil && all
}

func measure(ctx context.Context, drover, text string, quick bool, runs int) ([]row, error) {
	drover, err := filepath.Abs(drover)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "drover-devbench-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	b := &bench{ctx: ctx, drover: drover, dir: dir, runs: runs}
	divide := 1
	if quick {
		divide = 8
	}
	const mib = 1 << 20
	if err := errors.Join(makeText(b.path("small.txt"), text, int64(64*mib/divide)), makeText(b.path("large.txt"), text, int64(512*mib/divide))); err != nil {
		return nil, err
	}
	var rows []row
	for _, part := range []func() ([]row, error){b.oneTask, b.builtin, b.streaming} {
		more, err := part()
		if err != nil {
			return nil, err
		}
		rows = append(rows, more...)
	}
	return rows, nil
}

// bench is the place of one run.
type bench struct {
	ctx    context.Context
	drover string
	dir    string
	runs   int
}

func (b *bench) path(name string) string { return filepath.Join(b.dir, name) }

// oneTask measures a job of one task from before `drover job run` starts until
// after it has ended.
func (b *bench) oneTask() ([]row, error) {
	const times = 20
	var walls []float64
	_, err := b.withDev(func(run func(file string) error) error {
		for range times {
			start := time.Now()
			if err := run(b.job("one", `stage "run" { command = ["true"] }`)); err != nil {
				return err
			}
			walls = append(walls, time.Since(start).Seconds())
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return []row{{"job of one task, submit to done", median(walls), "s", barOneTask,
		fmt.Sprintf("median of %d, %.3f to %.3f; with the start of the client", times, slices.Min(walls), slices.Max(walls))}}, nil
}

// use is what a piece of work took.
type use struct{ wall, cpu float64 }

// repeat does a piece of work several times and gives the median of each
// figure, and the spread of the first.
func (b *bench) repeat(work func() (use, error)) (use, string, error) {
	var walls, cpus []float64
	for range b.runs {
		u, err := work()
		if err != nil {
			return use{}, "", err
		}
		walls, cpus = append(walls, u.wall), append(cpus, u.cpu)
	}
	return use{median(walls), median(cpus)}, fmt.Sprintf("median of %d, %.1f to %.1f s", b.runs, slices.Min(walls), slices.Max(walls)), nil
}

func (b *bench) builtin() ([]row, error) {
	u, spread, err := b.repeat(func() (use, error) {
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
	return []row{
		{what + ", wall", u.wall, "s", barBuiltin, fmt.Sprintf("%s, %d cores", spread, runtime.NumCPU())},
		{what + ", CPU", u.cpu, "s", 0, ""},
		{what + ", rate", size / u.cpu, "MB/s per core", 0, "bytes of input by seconds of CPU"},
	}, nil
}

func (b *bench) streaming() ([]row, error) {
	if _, err := exec.LookPath("python3"); err != nil {
		fmt.Fprintln(os.Stderr, "devbench: no python3: the streaming word count is left out")
		return nil, nil
	}
	if err := errors.Join(os.WriteFile(b.path("map.py"), []byte(mapper), 0o755), os.WriteFile(b.path("reduce.py"), []byte(reducer), 0o755)); err != nil {
		return nil, err
	}
	hand, handSpread, err := b.repeat(b.byHand)
	if err != nil {
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
	plain, plainSpread, err := b.repeat(func() (use, error) { return b.wordCount("small.txt", stages("")) })
	if err != nil {
		return nil, err
	}
	combined, combinedSpread, err := b.repeat(func() (use, error) { return b.wordCount("small.txt", stages("combiner = true")) })
	if err != nil {
		return nil, err
	}
	size, err := sizeMB(b.path("small.txt"))
	if err != nil {
		return nil, err
	}
	what := fmt.Sprintf("Python word count of %.0f MB, ", size)
	return []row{
		{what + "by hand, wall", hand.wall, "s", 0, "map | sort | reduce, LC_ALL=C; " + handSpread},
		{what + "by hand, CPU", hand.cpu, "s", 0, ""},
		{what + "wall", plain.wall, "s", 0, plainSpread},
		{what + "CPU", plain.cpu, "s", 0, ""},
		{what + "CPU by that by hand", plain.cpu / hand.cpu, "times", barRatio, ""},
		{what + "combiner, wall", combined.wall, "s", 0, combinedSpread},
		{what + "combiner, CPU by that by hand", combined.cpu / hand.cpu, "times", 0, ""},
	}, nil
}

func median(v []float64) float64 {
	s := slices.Sorted(slices.Values(v))
	return (s[(len(s)-1)/2] + s[len(s)/2]) / 2
}

func sizeMB(file string) (float64, error) {
	st, err := os.Stat(file)
	if err != nil {
		return 0, err
	}
	return float64(st.Size()) / 1e6, nil
}
