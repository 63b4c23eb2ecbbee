package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// swfJob is a line of the Standard Workload Format: 30 s on 4 processors.
const swfJob = "1 5 -1 30 4 -1 -1 4 60 -1 -1 7 -1 -1 -1 -1 -1 -1\n"

// TestSimRefusesBadInput: an input that cannot be simulated gets one error that names it and its
// range, nothing is written, and no default takes its place.
func TestSimRefusesBadInput(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	generate := func(more ...string) []string {
		return append([]string{"-workload", "uniform", "-format", "generate", "-rule", "jobs=3", "-nodes", "1"}, more...)
	}
	if _, _, err := runSim(t, append([]string{"run", "-jsonl"}, generate()...)...); err == nil || !strings.Contains(err.Error(), "-jsonl needs -out") {
		t.Errorf("tables without a folder: %v", err)
	}
	files := 0
	swf := func(text string) []string {
		files++
		return []string{"-workload", file(fmt.Sprintf("%d.swf", files), text), "-format", "swf"}
	}
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"a job unit that is no number":    {generate("-job-unit", "NaN"), "-job-unit NaN: it must be a number of seconds above 0"},
		"an infinite job unit":            {generate("-job-unit", "+Inf"), "-job-unit +Inf: it must be a number of seconds above 0"},
		"a negative cycle interval":       {generate("-cycle-interval", "-5s"), "-cycle-interval -5s: it must not be negative"},
		"a negative rack size":            {generate("-rack-size", "-1"), "-rack-size -1: want at least 1"},
		"more than all jobs":              {generate("-rule", "deadline_part=2"), `"deadline_part" is "2": expected a number from 0 to 1`},
		"more tasks than an int32":        {generate("-rule", "tasks=3e9"), `"tasks" is "3e9": expected a whole number from 1 to 16777216`},
		"no tasks":                        {generate("-rule", "tasks=0"), `"tasks" is "0": expected a whole number from 1`},
		"half a task":                     {generate("-rule", "tasks=1.5"), `"tasks" is "1.5": expected a whole number from 1`},
		"an endless interval":             {generate("-rule", "interval_s=1e300"), `"interval_s" is "1e300": expected a number from 0 to 1000000000`},
		"more CPU than there is":          {generate("-rule", "cpu=1e300"), `"cpu" is "1e300": expected a number from 0 to 1000000000`},
		"a rule that is not a number":     {generate("-rule", "cpu=NaN"), `"cpu" is "NaN": expected a number`},
		"an absurd spread":                {generate("-world", "spread=50"), "spread is 50: expected a number from 0 to 5"},
		"a spread that is no number":      {generate("-world", "spread=NaN"), `spread is "NaN": expected a finite number`},
		"a report every nanosecond":       {generate("-world", "heartbeat=1ns"), "heartbeat is 1ns: expected 0 (off) or at least 1ms"},
		"a node that always fails":        {generate("-world", "mtbf=1ns"), "mtbf is 1ns: expected 0 (off) or at least 1s"},
		"a negative time":                 {generate("-world", "repair=-1s"), "repair is -1s: expected 0 (off)"},
		"a rule twice":                    {generate("-rule", "jobs=4"), "-rule sets jobs twice"},
		"a world setting twice":           {generate("-world", "launch=1s", "-world", "launch=2s"), "-world sets launch twice"},
		"a world setting without a value": {generate("-world", "launch"), `-world "launch": want key=value`},
		"nodes without processors":        {swf("; MaxNodes: 50\n" + swfJob), "has no number of processors (MaxProcs), only 50 nodes (MaxNodes): give the machine with -nodes 1 -cpu PROCESSORS"},
		"no header":                       {swf(swfJob), "has no number of processors: give the machine"},
		"an unknown number of processors": {swf("; MaxProcs: -1\n" + swfJob), "has no number of processors: give the machine"},
		"a header that is no number":      {swf("; MaxProcs: many\n" + swfJob), `MaxProcs is "many": expected a number, or -1 for unknown`},
		"an empty trace":                  {append(swf(""), "-nodes", "1"), "the workload is empty"},
		"a trace without a job to run":    {append(swf("; MaxProcs: 4\n1 5 -1 0 4 -1 -1 4 60 -1 -1 7 -1 -1 -1 -1 -1 -1\n"), "-nodes", "1"), "no job to simulate: of 2 lines 1 have nothing to run"},
		"blocks of nothing":               {[]string{"-workload", file("t.tsv", "j\t0\t0\t5\t0\t0\n"), "-format", "swim", "-rule", "block=0B"}, "block is 0"},
		"machines without memory":         {generate("-memory", "0B"), "memory is 0: no task could ever run there"},
		"a machine named twice":           {[]string{"-workload", "uniform", "-format", "generate", "-cluster", file("d.json", `{"nodes":[{"count":2},{"name":"node2"}]}`)}, `the name "node2" is used twice`},
		"a machine that hardly moves":     {[]string{"-workload", "uniform", "-format", "generate", "-cluster", file("e.json", `{"nodes":[{"speed":1e-300}]}`)}, "speed is 1e-300: expected a number from 0.000001"},
		"a negative count of machines":    {[]string{"-workload", "uniform", "-format", "generate", "-cluster", file("c.json", `{"nodes":[{"count":-3}]}`)}, "count is -3: expected 1 to"},
	} {
		t.Run(name, func(t *testing.T) {
			out := filepath.Join(t.TempDir(), "out")
			var stdout, stderr bytes.Buffer
			args := append([]string{"drover", "sim", "run", "-scheduler", "fifo", "-out", out}, c.args...)
			err := newApp(strings.NewReader(""), &stdout, &stderr).Run(args)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("error %v, want …%s…", err, c.want)
			}
			if _, err := os.Stat(out); !os.IsNotExist(err) {
				t.Errorf("something was written: %v", err)
			}
		})
	}
}

// TestSimDrawsEqualResponses: the responses of these jobs are all equal and below 1 s, which the
// logarithmic axis of the plot must hold.
func TestSimDrawsEqualResponses(t *testing.T) {
	out := filepath.Join(t.TempDir(), "out")
	var stdout, stderr bytes.Buffer
	err := newApp(strings.NewReader(""), &stdout, &stderr).Run([]string{"drover", "sim", "run", "-workload", "uniform", "-format", "generate",
		"-rule", "jobs=20", "-rule", "interval_s=100", "-rule", "task_s=0.02", "-out", out})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"summary.json", "jobs.csv", "responses.svg"} {
		if info, err := os.Stat(filepath.Join(out, name)); err != nil || info.Size() == 0 {
			t.Errorf("%s: %v, %v", name, info, err)
		}
	}
}
