package harness

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"sort"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/drover-run/drover/mapreduce"
)

// randomText returns about n bytes of text: lines of up to 14 words out of 50,000,
// with a frequency distribution like that of a natural language.
func randomText(seed uint64, n int) string {
	r := rand.New(rand.NewPCG(seed, 7))
	z := rand.NewZipf(r, 1.1, 3, 49_999)
	var b strings.Builder
	b.Grow(n + 200)
	for b.Len() < n {
		for range 1 + r.IntN(14) {
			w := z.Uint64()
			for c := w*2654435761 + 12345; ; c /= 23 {
				b.WriteByte('a' + byte(c%23))
				if c < 23 || (w < 1000 && c < 23*23*23*23*23*23) {
					break
				}
			}
			b.WriteByte(' ')
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// scripts returns the example's mapper and reducer. It skips without python3.
func scripts(t testing.TB) (mapper, reducer string) {
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skip("not proved here: that the examples' Python mapper and reducer give the right counts; python3 is not installed")
	}
	dir, err := filepath.Abs("../../examples/wordcount")
	check(t, err)
	return filepath.Join(dir, "wc_map.py"), filepath.Join(dir, "wc_reduce.py")
}

// runProcess runs a task in its own process, as a node does.
func (j *testJob) runProcess(s mapreduce.TaskSpec) *mapreduce.Result {
	j.t.Helper()
	path := s.Result + ".spec"
	check(j.t, mapreduce.WriteSpec(path, &s))
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "DROVER_TEST_HARNESS_SPEC="+path)
	out, err := cmd.CombinedOutput()
	if err != nil {
		j.t.Fatalf("%v\n%s", err, out)
	}
	r, err := mapreduce.ReadResult(s.Result)
	check(j.t, err)
	return r
}

// wordcount runs a whole job with the example's scripts and returns its output
// and results.
func (j *testJob) wordcount(texts []string, reduces int, combine bool, mapper, reducer string) (string, []*mapreduce.Result) {
	m := mapreduce.Program{Argv: []string{"python3", mapper}}
	r := mapreduce.Program{Argv: []string{"python3", reducer}}
	var results []*mapreduce.Result
	var specs []mapreduce.TaskSpec
	for i, text := range texts {
		s := j.mapSpec(i, m, reduces)
		if combine {
			s.Combiner = &r
		}
		j.writeInput(&s, text)
		specs, results = append(specs, s), append(results, j.runProcess(s))
	}
	all := results
	var out strings.Builder
	for p := range reduces {
		s := j.reduceSpec(p, r, j.shuffle(p, results, specs))
		res := j.runProcess(s)
		out.WriteString(j.output(s, res))
		all = append(all, res)
	}
	return out.String(), all
}

func runByHand(t testing.TB, dir string, texts []string, mapper, reducer string) (string, time.Duration) {
	args := []string{"testdata/byhand.sh", mapper, reducer}
	for i, text := range texts {
		path := filepath.Join(dir, fmt.Sprint("text", i))
		check(t, os.WriteFile(path, []byte(text), 0o600))
		args = append(args, path)
	}
	cmd := exec.Command("sh", args...)
	var before, after syscall.Rusage
	check(t, syscall.Getrusage(syscall.RUSAGE_CHILDREN, &before))
	out, err := cmd.Output()
	check(t, err)
	check(t, syscall.Getrusage(syscall.RUSAGE_CHILDREN, &after))
	return string(out), cpuOf(&after) - cpuOf(&before)
}

func cpuOf(u *syscall.Rusage) time.Duration {
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// Real scripts and processes, several maps and reducers, with and without a
// combiner: the lines equal those of the scripts in a shell pipeline with sort.
func TestPythonWordcountMatchesPipeline(t *testing.T) {
	mapper, reducer := scripts(t)
	size := 50_000
	if testing.Short() {
		size = 10_000
	}
	texts := []string{randomText(1, size), randomText(2, size), "last line without newline"}
	want, _ := runByHand(t, t.TempDir(), texts, mapper, reducer)
	for _, c := range []struct {
		reduces int
		combine bool
	}{{1, false}, {3, false}, {3, true}} {
		t.Run(fmt.Sprintf("%d reducers, combiner %v", c.reduces, c.combine), func(t *testing.T) {
			got, _ := newTestJob(t, t.TempDir()).wordcount(texts, c.reduces, c.combine, mapper, reducer)
			if c.reduces > 1 {
				got = sortLines(got)
			}
			if got != want {
				t.Errorf("got %d bytes that differ from the %d by hand", len(got), len(want))
			}
		})
	}
}

func sortLines(s string) string {
	lines := strings.SplitAfter(strings.TrimSuffix(s, "\n")+"\n", "\n")
	lines = lines[:len(lines)-1]
	sort.SliceStable(lines, func(a, b int) bool {
		x, _, _ := strings.Cut(lines[a], "\t")
		y, _, _ := strings.Cut(lines[b], "\t")
		return x < y
	})
	return strings.Join(lines, "")
}

// BenchmarkPythonWordcount counts the words of 64 MiB (with -short 8 MiB) with
// scripts and compares the CPU time with that of a shell pipeline.
func BenchmarkPythonWordcount(b *testing.B) {
	mapper, reducer := scripts(b)
	size := 64 << 20
	if testing.Short() {
		size = 8 << 20
	}
	texts := []string{randomText(1, size/2), randomText(2, size/2)}
	b.SetBytes(int64(size))
	for b.Loop() {
		want, hand := runByHand(b, b.TempDir(), texts, mapper, reducer)
		got, results := newTestJob(b, b.TempDir()).wordcount(texts, 1, false, mapper, reducer)
		if got != want {
			b.Fatal("the outputs differ")
		}
		var user, own int64
		for _, r := range results {
			user, own = user+r.UserCPUMS, own+r.HarnessCPUMS
		}
		b.ReportMetric(hand.Seconds(), "by-hand-cpu-s")
		b.ReportMetric(float64(user)/1e3, "scripts-cpu-s")
		b.ReportMetric(float64(own)/1e3, "harness-cpu-s")
		b.ReportMetric(float64(user+own)/1e3/hand.Seconds(), "ratio")
	}
}

// BenchmarkBuiltinWordcountMap measures the built-in word count mapper.
func BenchmarkBuiltinWordcountMap(b *testing.B) {
	text := randomText(3, 128<<20)
	b.SetBytes(int64(len(text)))
	j := newTestJob(b, b.TempDir())
	s := j.mapSpec(0, mapreduce.Program{Builtin: "wordcount"}, 4)
	s.Combiner = &mapreduce.Program{Builtin: "sum"}
	j.writeInput(&s, text)
	for b.Loop() {
		r := j.runOK(s)
		b.ReportMetric(float64(r.HarnessPeakRSS>>20), "peak-MiB")
	}
}

// BenchmarkStreamingCat measures pipes, partitioning and sorting with a program
// that does nothing.
func BenchmarkStreamingCat(b *testing.B) {
	text := randomText(4, 64<<20)
	b.SetBytes(int64(len(text)))
	j := newTestJob(b, b.TempDir())
	s := j.mapSpec(0, mapreduce.Program{Argv: []string{"cat"}}, 4)
	j.writeInput(&s, text)
	for b.Loop() {
		j.runOK(s)
	}
}

// BenchmarkStreamingWords measures the harness's share of the Python word count:
// the mapper's many small records through pipes, sort, spills and merge, on to a
// reducer that does nothing.
func BenchmarkStreamingWords(b *testing.B) {
	var lines strings.Builder
	for _, w := range strings.Fields(randomText(5, 32<<20)) {
		lines.WriteString(w + "\t1\n")
	}
	b.SetBytes(int64(lines.Len()))
	j := newTestJob(b, b.TempDir())
	s := j.mapSpec(0, mapreduce.Program{Argv: []string{"cat"}}, 1)
	j.writeInput(&s, lines.String())
	var own, cats int64
	runs := 0
	for b.Loop() {
		m := j.runProcess(s)
		os.RemoveAll(j.path("r0.in.journal"))
		r := j.runProcess(j.reduceSpec(0, mapreduce.Program{Argv: []string{"cat"}}, j.shuffle(0, []*mapreduce.Result{m}, []mapreduce.TaskSpec{s})))
		own, cats, runs = own+m.HarnessCPUMS+r.HarnessCPUMS, cats+m.UserCPUMS+r.UserCPUMS, runs+1
	}
	b.ReportMetric(float64(own)/1e3/float64(runs), "harness-cpu-s")
	b.ReportMetric(float64(cats)/1e3/float64(runs), "cat-cpu-s")
}
