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
	before := machineCPU{}
	write("13/cmdline", "/data/bin/drover\x00node\x00-name\x00n1\x00")
	write("16/stat", "16 (drover) S 1 13 13 0 -1 4194304 9 9 9 9 900 900 0 0 20 0 8 0 1\n")
	write("16/cmdline", "drover\x00-address\x00unix:///x\x00job\x00run\x00node.hcl\x00")
	before = read()
	if want := (machineCPU{busy: 1700 * time.Millisecond, containerd: 250 * time.Millisecond, drover: 100 * time.Millisecond, daemons: "node"}); before != want {
		t.Errorf("%+v, want %+v", before, want)
	}
	write("stat", "cpu  200 10 150 9900 900 4 6 99 0 0\n")
	write("12/stat", "12 (containerd) S 1 12 12 0 -1 4194304 9 9 9 9 30 15 900 900 20 0 8 0 1\n")
	got := read().since(before, 3*time.Second, 10*time.Second, 0.05)
	if want := (taskCost{WallUS: 3_000_000, CPUUS: 1_500_000, ContainerdUS: 200_000, Daemons: "node"}); !cmp.Equal(got, want) {
		t.Error(cmp.Diff(want, got))
	}
	write("17/stat", "17 (drover) S 1 13 13 0 -1 4194304 9 9 9 9 1 0 0 0 20 0 8 0 1\n")
	write("17/cmdline", "drover\x00coordinator\x00")
	if got := read(); got.daemons != "coordinator and node" || got.drover != 110*time.Millisecond {
		t.Errorf("with a coordinator: %+v", got)
	}
	write("stat", "intr 5\n")
	if _, err := readMachineCPU(proc); err == nil || !strings.Contains(err.Error(), "intr 5") {
		t.Errorf("a file of another form: %v", err)
	}
}

func TestTaskRows(t *testing.T) {
	cost := func(n int64) taskCost {
		return taskCost{WallUS: n * 1_000_000, CPUUS: n * 500_000, ContainerdUS: n * 100_000, Daemons: "node"}
	}
	got := taskRows([]taskRound{{10, cost(2), cost(3), cost(1)}, {10, cost(4), cost(4), cost(1)}, {10, cost(2), cost(8), cost(2)}})
	want := [][]string{
		{"10, wall", "2s (2s to 4s)", "4s (3s to 8s)", "1.50 (1.00 to 4.00)", "1s (1s to 2s)", "0.50 (0.25 to 1.00)"},
		{"10, CPU of the machine", "1s (1s to 2s)", "2s (1.5s to 4s)", "1.50 (1.00 to 4.00)", "500ms (500ms to 1s)", "0.50 (0.25 to 1.00)"},
		{"of it containerd", "200ms (200ms to 400ms)", "400ms (300ms to 800ms)", "1.50 (1.00 to 4.00)", "100ms (100ms to 200ms)", "0.50 (0.25 to 1.00)"},
		{"of it node", "0s (0s to 0s)", "0s (0s to 0s)", "", "0s (0s to 0s)", ""},
		{"of it all others", "800ms (800ms to 1.6s)", "1.6s (1.2s to 3.2s)", "1.50 (1.00 to 4.00)", "400ms (400ms to 800ms)", "0.50 (0.25 to 1.00)"},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	got = taskRows([]taskRound{{5, cost(2), cost(3), cost(1)}, {5, cost(4), cost(4), cost(1)}})
	if want := []string{"5, wall", "3s (2s to 4s)", "3.5s (3s to 4s)", "1.25 (1.00 to 1.50)", "1s (1s to 1s)", "0.38 (0.25 to 0.50)"}; !cmp.Equal(got[0], want) {
		t.Errorf("of two rounds (-want +got):\n%s", cmp.Diff(want, got[0]))
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
