package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"time"

	"github.com/drover-run/drover/internal/filesystem"
	"github.com/drover-run/drover/internal/median"
)

// Each measurement here is paired with a reference in the same run. The two alternate, and the
// figure is the median of the ratios of the pairs, so that a busy machine affects both.

// alternate runs measurements in turn, and returns the runs of each.
func (b *bench) alternate(works ...func() (resourceUse, error)) ([][]resourceUse, error) {
	all := make([][]resourceUse, len(works))
	for range b.runs {
		for i, work := range works {
			u, err := work()
			if err != nil {
				return nil, err
			}
			all[i] = append(all[i], u)
		}
	}
	return all, nil
}

// pairs runs two measurements alternately.
func (b *bench) pairs(ours, theirs func() (resourceUse, error)) (pairResult, error) {
	all, err := b.alternate(ours, theirs)
	if err != nil {
		return pairResult{}, err
	}
	return pairResult{all[0], all[1]}, nil
}

// pairResult holds the runs of a pair of measurements, in the order of the runs.
type pairResult struct{ ours, theirs []resourceUse }

func wallOf(u resourceUse) float64 { return u.wall }
func cpuOf(u resourceUse) float64  { return u.cpu }

func (p pairResult) median(of func(resourceUse) float64) float64 { return medianBy(p.ours, of) }

func medianBy(all []resourceUse, of func(resourceUse) float64) float64 {
	v := make([]float64, len(all))
	for i, u := range all {
		v[i] = of(u)
	}
	return median.Of(v)
}

// ratio returns the median of ours divided by theirs, run by run.
func (p pairResult) ratio(of func(resourceUse) float64) float64 { return median.Of(p.ratios(of)) }

func (p pairResult) ratios(of func(resourceUse) float64) []float64 {
	v := make([]float64, len(p.ours))
	for i := range v {
		v[i] = of(p.ours[i]) / of(p.theirs[i])
	}
	return v
}

// ratioSpread states the number of pairs of which ratio is the median, and their range.
func (p pairResult) ratioSpread(of func(resourceUse) float64) string {
	v := p.ratios(of)
	form := "%.2f"
	if slices.Min(v) < 0.1 {
		form = "%.3g"
	}
	return fmt.Sprintf("median of %d pairs, "+form+" to "+form, len(v), slices.Min(v), slices.Max(v))
}

// pairsOf runs two measurements alternately, with one input and then with another, and returns the
// pairs of each.
func (b *bench) pairsOf(first, second string, ours, theirs func(input string) (resourceUse, error)) (p, q pairResult, err error) {
	for range b.runs {
		for _, part := range []struct {
			input string
			to    *pairResult
		}{{first, &p}, {second, &q}} {
			o, err := ours(part.input)
			if err != nil {
				return p, q, err
			}
			t, err := theirs(part.input)
			if err != nil {
				return p, q, err
			}
			part.to.ours, part.to.theirs = append(part.to.ours, o), append(part.to.theirs, t)
		}
	}
	return p, q, nil
}

// less returns, run by run, the resource use of p beyond that of q.
func (p pairResult) less(q pairResult) (rest pairResult) {
	for i := range p.ours {
		rest.ours = append(rest.ours, resourceUse{p.ours[i].wall - q.ours[i].wall, p.ours[i].cpu - q.ours[i].cpu})
		rest.theirs = append(rest.theirs, resourceUse{p.theirs[i].wall - q.theirs[i].wall, p.theirs[i].cpu - q.theirs[i].cpu})
	}
	return rest
}

// besideOne alternates two measurements of ours with one of theirs, and returns the pairs of each
// with theirs.
func (b *bench) besideOne(theirs, first, second func() (resourceUse, error)) (p, q pairResult, err error) {
	all, err := b.alternate(first, theirs, second)
	if err != nil {
		return p, q, err
	}
	return pairResult{all[0], all[1]}, pairResult{all[2], all[1]}, nil
}

// syncText describes the disk for which `drover dev` waited on a kind of file system.
func syncText(kind string) string {
	if kind == filesystem.Tmpfs {
		return "no disk: tmpfs"
	}
	return "with fsync on " + kind
}

// measureStart measures the start of a command and the time until `drover dev` is ready.
func (b *bench) measureStart() ([]figure, error) {
	const times = 20
	var starts, ready []float64
	for range times {
		start := time.Now()
		if err := exec.CommandContext(b.ctx, b.drover, "version").Run(); err != nil {
			return nil, err
		}
		starts = append(starts, time.Since(start).Seconds())
	}
	for range max(b.runs, 5) {
		start := time.Now()
		if _, err := b.withDev(func(func(string) error) error { ready = append(ready, time.Since(start).Seconds()); return nil }); err != nil {
			return nil, err
		}
	}
	kind, err := filesystem.Kind(b.dir)
	if err != nil {
		return nil, err
	}
	return []figure{
		{"start of a command", median.Of(starts), "s", fmt.Sprintf("drover version, median of %d", times)},
		{"drover dev until it is ready", median.Of(ready), "s", fmt.Sprintf("median of %d, %s", len(ready), syncText(kind))},
	}, nil
}

// measureManyTasks runs tasks of `true` in one stage, and as many by xargs.
func (b *bench) measureManyTasks() ([]figure, error) {
	tasks := manyTasks / b.divide
	p, err := b.pairs(func() (u resourceUse, err error) {
		u.cpu, err = b.withDev(func(run func(string) error) error {
			file := b.writeJobFile("many", fmt.Sprintf(`stage "run" {
    tasks = %d
    command = ["true"]
    resources {
      cpu = "10m"
      memory = "16MiB"
    }
  }`, tasks))
			start := time.Now()
			err := run(file)
			u.wall = time.Since(start).Seconds()
			return err
		})
		return u, err
	}, func() (resourceUse, error) {
		return b.shell(fmt.Sprintf("yes '' | head -n %d | xargs -d '\\n' -n 1 -P 2 true", tasks))
	})
	if err != nil {
		return nil, err
	}
	what := fmt.Sprintf("%d tasks of true in one stage, ", tasks)
	return []figure{
		{what + "tasks per second", float64(tasks) / p.median(wallOf), "/s", ""},
		{what + "wall over xargs -P 2", p.ratio(wallOf), "times", p.ratioSpread(wallOf)},
		{what + "CPU over xargs -P 2", p.ratio(cpuOf), "times", p.ratioSpread(cpuOf) + "; with start and end of drover dev"},
		{what + "CPU per task", p.median(cpuOf) / float64(tasks) * 1000, "ms", ""},
	}, nil
}

// measureSort sorts lines by an identity map and reduce, and by sort(1), and compares the results.
func (b *bench) measureSort() ([]figure, error) {
	size := largeSize / int64(b.divide)
	if err := makeLines(b.path("lines.txt"), size); err != nil {
		return nil, err
	}
	defer os.Remove(b.path("lines.txt"))
	out := b.path("sorted")
	limits := b.limits(size)
	all, err := b.alternate(append([]func() (resourceUse, error){func() (u resourceUse, err error) {
		if err := os.RemoveAll(out); err != nil {
			return u, err
		}
		u.cpu, err = b.withDev(func(run func(string) error) error {
			file := b.writeJobFile("sort", fmt.Sprintf(`input { path = "file://%s" }
  output { path = "file://%s" }
  stage "map" {
    kind = "map"
    builtin = ["identity"]
    resources { memory = "512MiB" }
  }
  stage "reduce" {
    kind = "reduce"
    tasks = 1
    builtin = ["identity"]
    resources { memory = "1GiB" }
    disk = "3GiB" # the map outputs and the result
  }`, b.path("lines.txt"), out))
			start := time.Now()
			err := run(file)
			u.wall = time.Since(start).Seconds()
			return err
		})
		return u, err
	}, func() (resourceUse, error) {
		return b.shell("sort --parallel=2 -S 1G -T . lines.txt > sorted.txt")
	}}, uses(limits)...)...)
	if err != nil {
		return nil, err
	}
	if same, err := b.shell(fmt.Sprintf("cat %s/part-* | cmp - sorted.txt", out)); err != nil {
		return nil, fmt.Errorf("Drover and sort differ (after %v s): %w", same.wall, err)
	}
	what := fmt.Sprintf("sort of %s of lines, ", mb(size))
	p := pairResult{all[0], all[1]}
	return append([]figure{
		{what + "wall", p.median(wallOf), "s", fmt.Sprintf("identity map and reduce, %d cores", runtime.NumCPU())},
		{what + "wall over sort --parallel=2 -S 1G", p.ratio(wallOf), "times", p.ratioSpread(wallOf)},
		{what + "CPU over sort --parallel=2 -S 1G", p.ratio(cpuOf), "times", p.ratioSpread(cpuOf)},
	}, rateOverLimits(what, size, p.ours, limits, all[2:])...), nil
}

// shell runs a command of the shell in the folder of the benchmark, in the C locale.
func (b *bench) shell(command string) (resourceUse, error) {
	cmd := exec.CommandContext(b.ctx, "sh", "-c", command)
	cmd.Dir, cmd.Env, cmd.Stderr = b.dir, []string{"PATH=" + os.Getenv("PATH"), "HOME=" + b.dir, "LC_ALL=C"}, os.Stderr
	start := time.Now()
	if err := cmd.Run(); err != nil {
		return resourceUse{}, fmt.Errorf("%s: %w", command, err)
	}
	return resourceUse{time.Since(start).Seconds(), cpuSeconds(cmd)}, nil
}

// makeLines writes lines of 100 bytes, a key of 10 letters, a tab and 88 digits, as sort
// benchmarks use. Keys differ, so that any stable order is the order of whole lines.
func makeLines(file string, size int64) error {
	f, err := os.Create(filepath.Clean(file))
	if err != nil {
		return err
	}
	w := bufio.NewWriterSize(f, 1<<20)
	r := rand.New(rand.NewPCG(11, uint64(size)))
	line := append(bytes.Repeat([]byte("0123456789"), 10)[:99], '\n')
	line[10] = '\t'
	for ; size >= int64(len(line)); size -= int64(len(line)) {
		for i := range 10 {
			line[i] = byte('!' + r.IntN(94))
		}
		_, _ = w.Write(line) // the bufio.Writer retains errors
	}
	return errors.Join(w.Flush(), f.Close())
}
