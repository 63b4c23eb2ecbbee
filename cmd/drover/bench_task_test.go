package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// The cost is what the machine did beyond its idle load; what the daemons did is a part
// of it, and a process that has ended is not missed.
func TestTaskCost(t *testing.T) {
	proc := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(filepath.Join(proc, name)), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(proc, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	read := func() machineCPU {
		t.Helper()
		m, err := readMachineCPU(proc)
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	write("stat", "cpu  100 10 50 9000 500 4 6 77 0 0\ncpu0 1 1 1 1\n")
	write("12/stat", "12 (containerd) S 1 12 12 0 -1 4194304 9 9 9 9 20 5 900 900 20 0 8 0 1\n")
	write("13/stat", "13 (drover) S 1 13 13 0 -1 4194304 9 9 9 9 7 3 0 0 20 0 8 0 1\n")
	write("14/stat", "14 (a ) (b) S 1 14 14 0 -1 4194304 9 9 9 9 50 50 0 0 20 0 8 0 1\n")
	if err := os.Mkdir(filepath.Join(proc, "15"), 0o700); err != nil {
		t.Fatal(err)
	}
	before := read()
	if want := (machineCPU{busy: 1700 * time.Millisecond, containerd: 250 * time.Millisecond, drover: 100 * time.Millisecond}); before != want {
		t.Errorf("%+v, want %+v", before, want)
	}
	write("stat", "cpu  200 10 150 9900 900 4 6 99 0 0\n")
	write("12/stat", "12 (containerd) S 1 12 12 0 -1 4194304 9 9 9 9 30 15 900 900 20 0 8 0 1\n")
	got := read().since(before, 3*time.Second, 10*time.Second, 0.05)
	if want := (taskCost{WallUS: 3_000_000, CPUUS: 1_500_000, ContainerdUS: 200_000}); !cmp.Equal(got, want) {
		t.Error(cmp.Diff(want, got))
	}
	write("stat", "intr 5\n")
	if _, err := readMachineCPU(proc); err == nil || !strings.Contains(err.Error(), "intr 5") {
		t.Errorf("a file of another form: %v", err)
	}
}

func TestTaskRows(t *testing.T) {
	cost := func(n int64) taskCost {
		return taskCost{WallUS: n * 1_000_000, CPUUS: n * 500_000, ContainerdUS: n * 100_000}
	}
	got := taskRows([]taskRound{{10, cost(2), cost(3), cost(1)}, {10, cost(4), cost(4), cost(1)}, {10, cost(2), cost(8), cost(2)}})
	want := [][]string{
		{"10, wall", quantileText([]int64{2_000_000}, 0.5), quantileText([]int64{4_000_000}, 0.5), "1.50", quantileText([]int64{1_000_000}, 0.5), "0.50"},
		{"10, CPU of the machine", quantileText([]int64{1_000_000}, 0.5), quantileText([]int64{2_000_000}, 0.5), "1.50", quantileText([]int64{500_000}, 0.5), "0.50"},
		{"of it containerd", quantileText([]int64{200_000}, 0.5), quantileText([]int64{400_000}, 0.5), "1.50", quantileText([]int64{100_000}, 0.5), "0.50"},
		{"of it coordinator and node", quantileText([]int64{0}, 0.5), quantileText([]int64{0}, 0.5), "", quantileText([]int64{0}, 0.5), ""},
		{"of it all others", quantileText([]int64{800_000}, 0.5), quantileText([]int64{1_600_000}, 0.5), "1.50", quantileText([]int64{400_000}, 0.5), "0.50"},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

// The job file of a round is valid, whatever the command.
func TestBenchTaskJob(t *testing.T) {
	file := filepath.Join(t.TempDir(), "job.hcl")
	image := filepath.Join(filepath.Dir(file), "image.tar")
	if err := os.WriteFile(image, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, again := range []bool{false, true} {
		if err := os.WriteFile(file, benchTaskJob("default", image, 7, []string{"sh", "-c", "echo \"a b\" > /dev/null"}, again), 0o600); err != nil {
			t.Fatal(err)
		}
		var out, errw strings.Builder
		if err := newApp(strings.NewReader(""), &out, &errw).RunContext(t.Context(), []string{"drover", "job", "validate", file}); err != nil {
			t.Errorf("%v\n%s%s", err, out.String(), errw.String())
		}
	}
}
