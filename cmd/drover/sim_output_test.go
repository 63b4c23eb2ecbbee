package main

import (
	"bytes"
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/drover-run/drover/scheduler/sim/engine"
	"github.com/drover-run/drover/scheduler/sim/report"
)

// runSim runs `drover sim ARGS` and returns its standard output and error.
func runSim(t *testing.T, args ...string) (string, string, error) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	err := newApp(strings.NewReader(""), &stdout, &stderr).RunContext(context.Background(), append([]string{"drover", "sim"}, args...))
	return stdout.String(), stderr.String(), err
}

// readCSV returns the rows of a file as maps from column to value.
func readCSV(t *testing.T, text string) []map[string]string {
	t.Helper()
	all, err := csv.NewReader(strings.NewReader(text)).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	var out []map[string]string
	for _, row := range all[1:] {
		m := map[string]string{}
		for i, v := range row {
			m[all[0][i]] = v
		}
		out = append(out, m)
	}
	return out
}

// TestSimTellsTenantsApart: the tenants of the cluster file have names, weights and results of their
// own, a job that fits nowhere is counted, and every attempt has a row.
func TestSimTellsTenantsApart(t *testing.T) {
	dir := t.TempDir()
	cluster := filepath.Join(dir, "cluster.json")
	text := `{"nodes":[{"count":2,"cpu":"4","memory":"8GiB"}],
		"tenants":[{"name":"all"},{"name":"tenant-0","parent":"all","weight":3},{"name":"tenant-1","parent":"all"},{"name":"tenant-2","caps":{"task":{"cpu":"500m"}}}],
		"outages":[{"nodes":["node2"],"from":"25s","to":"60s"}]}`
	if err := os.WriteFile(cluster, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(dir, "out")
	stdout, _, err := runSim(t, "run", "-workload", "uniform", "-format", "generate", "-rule", "jobs=30", "-rule", "tenants=3", "-rule", "interval_s=0",
		"-cluster", cluster, "-scheduler", "fair", "-out", out, "-jsonl", "-json")
	if err != nil {
		t.Fatal(err)
	}
	var sum report.Summary
	if err := json.Unmarshal([]byte(stdout), &sum); err != nil {
		t.Fatal(err)
	}
	if sum.Unfinished != 10 || sum.Refused != 10 || !strings.Contains(sum.FirstRefused, `above the cpu cap of tenant "tenant-2"`) || sum.NodesLost != 1 {
		t.Errorf("%v unfinished, %d refused: %s; %v nodes lost", sum.Unfinished, sum.Refused, sum.FirstRefused, sum.NodesLost)
	}
	if n := len(sum.Tenants); n != 3 || sum.Tenants[0].Tenant != "tenant-0" || sum.Tenants[0].Parent != "all" || sum.Tenants[0].Weight != 3 || sum.Tenants[2].Unfinished != 10 {
		t.Fatalf("tenants %+v", sum.Tenants)
	}
	if a, b := sum.Tenants[0].MeanResponse, sum.Tenants[1].MeanResponse; a <= 0 || a >= b {
		t.Errorf("weight 3 waits for %v s, weight 1 for %v s", a, b)
	}
	read := func(name string) []map[string]string {
		b, err := os.ReadFile(filepath.Join(out, name))
		if err != nil {
			t.Fatal(err)
		}
		return readCSV(t, string(b))
	}
	if jobs := read("jobs.csv"); len(jobs) != 30 || jobs[1]["tenant"] != "tenant-1" || jobs[2]["outcome"] != "refused" {
		t.Errorf("jobs.csv: %d rows, %v", len(jobs), jobs[1])
	}
	lost, ended := 0, 0
	for _, a := range read("tasks.csv") {
		switch a["outcome"] {
		case "succeeded":
			ended++
		case "lost":
			lost++
			if a["ended_s"] != "25" || a["node"] != "node2" {
				t.Errorf("lost: %v", a)
			}
		}
	}
	if ended != 200 || lost == 0 {
		t.Errorf("%d attempts succeeded, want 200; %d were lost", ended, lost)
	}
	for name, rows := range map[string]int{"jobs": 30, "tasks": ended + lost, "timeseries": len(read("timeseries.csv"))} {
		b, err := os.ReadFile(filepath.Join(out, name+".jsonl"))
		if err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(strings.TrimSpace(string(b)), "\n")
		var last map[string]any
		if err := json.Unmarshal([]byte(lines[len(lines)-1]), &last); err != nil || len(lines) != rows || last["tenant"] == nil {
			t.Errorf("%s.jsonl: %d lines, want %d; the last is %v, %v", name, len(lines), rows, last, err)
		}
	}
	seen := map[string]bool{}
	for _, r := range read("timeseries.csv") {
		seen[r["tenant"]] = true
	}
	for _, name := range []string{report.AllTenants, "all", "tenant-0", "tenant-2"} {
		if !seen[name] {
			t.Errorf("timeseries.csv has no rows of %s", name)
		}
	}
}

func TestSimSweepRunsAGrid(t *testing.T) {
	stdout, _, err := runSim(t, "sweep", "-workload", "poisson", "-format", "generate", "-rule", "jobs=20", "-rule", "interval_s=1",
		"-vary", "scheduler=fifo,fair", "-vary", "nodes=1,4", "-vary", "rule.task_s=5,10", "-runs", "2")
	if err != nil {
		t.Fatal(err)
	}
	rows := readCSV(t, stdout)
	if len(rows) != 8 {
		t.Fatalf("%d rows, want 8:\n%s", len(rows), stdout)
	}
	var order []string
	by := map[string]string{}
	for _, r := range rows {
		point := fmt.Sprint(r["scheduler"], " ", r["nodes"], " ", r["rule.task_s"])
		order = append(order, point)
		by[point] = r["mean_response_s"]
		if r["runs"] != "2" || r["error"] != "" || r["mean_response_s_ci95"] == "" {
			t.Errorf("%v", r)
		}
	}
	if want := "fifo 1 5,fifo 1 10,fifo 4 5,fifo 4 10,fair 1 5,fair 1 10,fair 4 5,fair 4 10"; strings.Join(order, ",") != want {
		t.Errorf("order %v, want %s", order, want)
	}
	alone, _, err := runSim(t, "run", "-workload", "poisson", "-format", "generate", "-rule", "jobs=20", "-rule", "interval_s=1", "-rule", "task_s=10",
		"-nodes", "4", "-scheduler", "fair", "-runs", "2", "-json")
	if err != nil {
		t.Fatal(err)
	}
	var sum report.Summary
	if err := json.Unmarshal([]byte(alone), &sum); err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprintf("%.10g", sum.MeanResponse); by["fair 4 10"] != got {
		t.Errorf("the sweep has %s, a run alone %s", by["fair 4 10"], got)
	}
}

// TestSimSweepKeepsItsRows: what is in the file of -out before is there until the rows are, and points that fail do not cost the others.
func TestSimSweepKeepsItsRows(t *testing.T) {
	dir := t.TempDir()
	grid, cluster := filepath.Join(dir, "grid.csv"), filepath.Join(dir, "cluster.json")
	for name, text := range map[string]string{grid: "of yesterday", cluster: `{"nodes": [{"name": "a", "count": 2, "leave": "30s"}]}`} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	sweep := []string{"sim", "sweep", "-workload", "poisson", "-format", "generate", "-rule", "interval_s=10", "-vary", "rule.jobs=1,9", "-cluster", cluster, "-out", grid}
	if _, _, err := runNowhere(t, sweep...); err == nil || !strings.Contains(err.Error(), "nothing was written: none of 2 points is done") { // its context has ended
		t.Errorf("interrupted: %v", err)
	}
	if b, err := os.ReadFile(grid); string(b) != "of yesterday" {
		t.Errorf("an interrupted sweep left %q, %v", b, err)
	}
	if _, _, err := runSim(t, sweep[1:]...); err == nil || !strings.Contains(err.Error(), "1 of 2 points failed: see the column error") {
		t.Errorf("with a point that fails: %v", err)
	}
	b, err := os.ReadFile(grid)
	if err != nil {
		t.Fatal(err)
	}
	rows := readCSV(t, string(b))
	if len(rows) != 2 || rows[0]["error"] != "" || rows[0]["makespan_s"] == "" || !strings.Contains(rows[1]["error"], "no event is left") {
		t.Errorf("the rows are %v", rows)
	}
}

func TestSimSweepRefusesBadGrids(t *testing.T) {
	for name, c := range map[string]struct {
		vary []string
		want string
	}{
		"nothing":                    {nil, "wants at least one -vary"},
		"a word":                     {[]string{"nodes"}, `-vary "nodes": want KEY=VALUE`},
		"an unknown key":             {[]string{"node=1"}, "-vary node: use scheduler, nodes"},
		"a key twice":                {[]string{"nodes=1", "nodes=2"}, "-vary gives nodes twice"},
		"an unknown scheduler":       {[]string{"scheduler=fifo,fiffo"}, "scheduler=fiffo"},
		"a bad value of a generator": {[]string{"rule.tasks=1,0"}, `rule.tasks=0: generator "uniform": parameter "tasks"`},
		"an unknown setting":         {[]string{"world.spred=1"}, `has no setting "spred"`},
	} {
		args := []string{"sweep", "-workload", "uniform", "-format", "generate"}
		for _, v := range c.vary {
			args = append(args, "-vary", v)
		}
		if stdout, _, err := runSim(t, args...); err == nil || !strings.Contains(err.Error(), c.want) || stdout != "" {
			t.Errorf("%s: %v, want …%s…; printed %q", name, err, c.want, stdout)
		}
	}
}

// TestSimDecidesEveryTenMilliseconds: by default as live; SWF decides at each event.
func TestSimDecidesEveryTenMilliseconds(t *testing.T) {
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"by default":    {[]string{"-workload", "uniform", "-format", "generate", "-rule", "jobs=2"}, "10ms"},
		"as asked":      {[]string{"-workload", "uniform", "-format", "generate", "-rule", "jobs=2", "-cycle-interval", "0"}, "0s"},
		"at each event": {[]string{"-workload", "uniform", "-format", "generate", "-rule", "jobs=2", "-cycle-each-event"}, "0s"},
	} {
		stdout, _, err := runSim(t, append([]string{"run", "-json", "-scheduler", "fifo"}, c.args...)...)
		if err != nil {
			t.Fatal(err)
		}
		if want := `"cycle_interval": "` + c.want + `"`; !strings.Contains(stdout, want) {
			t.Errorf("%s: no %s in %s", name, want, stdout)
		}
	}
	if _, _, err := runSim(t, "run", "-workload", "uniform", "-format", "generate", "-cycle-each-event", "-cycle-interval", "1s"); err == nil || !strings.Contains(err.Error(), "exclude each other") {
		t.Errorf("both: %v", err)
	}
}

// TestFluidModelTakesItsSettings: -rule has what makes the jobs, the scheduler its queues, and what has no effect is refused.
func TestFluidModelTakesItsSettings(t *testing.T) {
	path := filepath.Join(t.TempDir(), "unsorted.tsv")
	text := "late\t10\t0\t5000000000\t0\t0\nearly\t0\t0\t1000000000\t1000000000\t0\nlast\t100\t90\t2000000000\t0\t0\n"
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	generate := []string{"-workload", "poisson", "-format", "generate", "-rule", "jobs=100", "-model", "fluid"}
	swim := []string{"-workload", path, "-format", "swim"}
	fluid := append([]string{"-model", "fluid"}, swim...)
	number := func(name string, args ...[]string) float64 {
		t.Helper()
		stdout, _, err := runSim(t, append([]string{"run", "-json"}, slices.Concat(args...)...)...)
		if err != nil {
			t.Fatalf("%v: %v", args, err)
		}
		var sum map[string]any
		if err := json.Unmarshal([]byte(stdout), &sum); err != nil {
			t.Fatal(err)
		}
		x, _ := sum[name].(float64)
		return x
	}
	if n := number("jobs", generate, []string{"-scheduler", "ps"}); n != 100 {
		t.Errorf("%v jobs of the generator, want 100", n)
	}
	few, many := number("mean_response_s", generate, []string{"-scheduler", "las_mq:queues=1"}), number("mean_response_s", generate, []string{"-scheduler", "las_mq"})
	if few == many || few != number("mean_response_s", generate, []string{"-scheduler", "las_mq", "-set", "queues=1"}) {
		t.Errorf("mean response with one queue %v, with ten %v; -set is another", few, many)
	}
	a, b := number("throughput_job_units_per_s", generate, []string{"-scheduler", "ps"}), number("throughput_job_units_per_s", generate, []string{"-scheduler", "ps", "-job-unit", "1"})
	if a < 9.99*b || a > 10.01*b {
		t.Errorf("throughput %v in units of 0.1 s, %v in those of 1 s", a, b)
	}
	// The size replaces the rule and so comes first: the load remains that of the user, and scales the sizes.
	low, high := number("mean_response_s", fluid, []string{"-scheduler", "ps", "-rule", "load=0.1", "-rule", "size=las_mq"}), number("mean_response_s", fluid, []string{"-scheduler", "ps", "-rule", "size=las_mq", "-rule", "load=0.9"})
	if low == high {
		t.Errorf("mean response %v with every load", low)
	}
	out := t.TempDir()
	number("jobs", fluid, []string{"-scheduler", "ps", "-out", out})
	jobs, err := os.ReadFile(filepath.Join(out, "jobs.csv"))
	if err != nil {
		t.Fatal(err)
	}
	rows := readCSV(t, string(jobs))
	if rows[0]["name"] != "early" || rows[0]["submit_s"] != "0" || rows[1]["name"] != "late" || rows[1]["submit_s"] != "10" {
		t.Errorf("jobs of an unsorted trace: %v", rows)
	}
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"the fluid model's rule with tasks": {append([]string{"-scheduler", "fifo", "-rule", "load=0.5"}, swim...), "load is a setting of the fluid model"},
		"a rule that makes tasks":           {append([]string{"-scheduler", "ps", "-rule", "map_rate=1MiB/s"}, fluid...), `the rule of swim has no setting "map_rate": use one of size, load`},
		"queues as a rule":                  {append([]string{"-scheduler", "las_mq", "-rule", "queues=5"}, fluid...), `the rule of swim has no setting "queues"`},
		"queues of another discipline":      {append([]string{"-scheduler", "ps:queues=5"}, generate...), `ps in the fluid model has no setting "queues"`},
		"half a queue":                      {append([]string{"-scheduler", "las_mq", "-set", "queues=1.5"}, generate...), `las_mq in the fluid model: queues is "1.5"`},
	} {
		if _, _, err := runSim(t, append([]string{"run"}, c.args...)...); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want …%s…", name, err, c.want)
		}
	}
}

// TestSimFolderHasOneSimulation: the folder of -out has what the last simulation wrote, and nothing of one that did not end.
func TestSimFolderHasOneSimulation(t *testing.T) {
	out := t.TempDir()
	names := func() (list []string) {
		t.Helper()
		err := filepath.WalkDir(out, func(path string, d os.DirEntry, err error) error {
			if err == nil && !d.IsDir() {
				list = append(list, strings.TrimPrefix(path, out+"/"))
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return list
	}
	few := []string{"-workload", "uniform", "-format", "generate", "-rule", "jobs=3", "-out", out}
	if _, _, err := runSim(t, append([]string{"run", "-scheduler", "fifo", "-jsonl"}, few...)...); err != nil {
		t.Fatal(err)
	}
	all := []string{"gantt.png", "gantt.svg", "jobs.csv", "jobs.jsonl", "responses.png", "responses.svg", "summary.json", "tasks.csv", "tasks.jsonl", "timeseries.csv", "timeseries.jsonl", "utilisation.png", "utilisation.svg"}
	if got := names(); !slices.Equal(got, all) {
		t.Errorf("a first simulation wrote %v", got)
	}
	if _, _, err := runSim(t, "run", "-scheduler", "fifo", "-workload", "uniform", "-format", "generate", "-rule", "jobs=300", "-out", out); err != nil { // too many attempts for a Gantt chart
		t.Fatal(err)
	}
	if got, want := names(), []string{"jobs.csv", "responses.png", "responses.svg", "summary.json", "tasks.csv", "timeseries.csv", "utilisation.png", "utilisation.svg"}; !slices.Equal(got, want) {
		t.Errorf("the folder has %v after another simulation, want %v", got, want)
	}
	if _, _, err := runSim(t, "run", "-scheduler", "ps", "-model", "fluid", "-workload", "uniform", "-format", "generate", "-rule", "jobs=3", "-out", out); err != nil {
		t.Fatal(err)
	}
	fluid := names()
	if slices.Contains(fluid, "tasks.csv") || slices.Contains(fluid, "timeseries.csv") {
		t.Errorf("the fluid model has no attempts, its folder has %v", fluid)
	}
	if _, _, err := runSim(t, append([]string{"compare", "-scheduler", "fifo", "-scheduler", "pipe:false"}, few...)...); err == nil {
		t.Error("a policy that ends at once was simulated")
	}
	if got := names(); !slices.Equal(got, fluid) {
		t.Errorf("a comparison that failed left %v, want %v", got, fluid)
	}
}

func TestProgressWithoutATerminal(t *testing.T) {
	var out bytes.Buffer
	now := time.Unix(0, 0)
	show := newProgressPrinter(&out, 10*time.Second, "%3.0f%%  simulation %d of %d  %d of %d jobs  %d events  %s left\n", func() time.Time { return now })
	for range 4 {
		now = now.Add(6 * time.Second)
		show(0, 2, engine.Progress{Jobs: 100, Done: 50, Events: 7})
	}
	want := " 25%  simulation 1 of 2  50 of 100 jobs  7 events  36s left\n 25%  simulation 1 of 2  50 of 100 jobs  7 events  1m12s left\n"
	if out.String() != want {
		t.Errorf("got %q, want %q", out.String(), want)
	}
}

// TestSimReplaysImports: what Slurm, YARN, Google and Alibaba recorded runs from the command line.
func TestSimReplaysImports(t *testing.T) {
	const samples = "../../scheduler/sim/trace/testdata/"
	for name, c := range map[string]struct {
		args    []string
		jobs    int
		tenants int
	}{
		"slurm":   {[]string{"-workload", samples + "sacct.txt", "-format", "slurm", "-nodes", "3", "-cpu", "32", "-memory", "128GiB"}, 4, 2},
		"alibaba": {[]string{"-workload", samples + "alibaba_batch_task.csv", "-format", "alibaba", "-nodes", "2", "-cpu", "96", "-memory", "400GiB"}, 3, 1},
		"google":  {[]string{"-workload", samples + "google_2019.jsonl", "-format", "google", "-nodes", "2", "-cpu", "96", "-memory", "400GiB"}, 2, 2},
		"rumen":   {[]string{"-workload", samples + "rumen.json", "-format", "rumen"}, 2, 2},
	} {
		stdout, _, err := runSim(t, append([]string{"run", "-json", "-scheduler", "fair"}, c.args...)...)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		var sum report.Summary
		if err := json.Unmarshal([]byte(stdout), &sum); err != nil {
			t.Fatal(err)
		}
		if sum.Jobs != c.jobs || sum.Unfinished != 0 || len(sum.Tenants) != c.tenants {
			t.Errorf("%s: %d jobs, %v unfinished, tenants %+v", name, sum.Jobs, sum.Unfinished, sum.Tenants)
		}
	}
	for format, file := range map[string]string{"slurm": "sacct.txt", "alibaba": "alibaba_batch_task.csv", "google": "google_2019.jsonl"} {
		if _, _, err := runSim(t, "run", "-workload", samples+file, "-format", format); err == nil || !strings.Contains(err.Error(), "does not state the machines' sizes") {
			t.Errorf("%s without machines: %v", format, err)
		}
	}
}

// Where the results cannot be written is said before anything is simulated, by the names that the user gave, and what to do.
func TestSimRefusesOutputsAtOnce(t *testing.T) {
	dir := t.TempDir()
	file, closed := filepath.Join(dir, "file"), filepath.Join(dir, "closed")
	if err := errors.Join(os.WriteFile(file, nil, 0o600), os.Mkdir(closed, 0o500)); err != nil {
		t.Fatal(err)
	}
	cases := map[string][]string{
		"-out " + file + ": " + file + " is a file: name a folder":                       {"-out", file},
		"-out " + file + "/x: a folder above it is a file: name another folder":          {"-out", file + "/x"},
		"-out /proc/x: cannot create files in /proc":                                     {"-out", "/proc/x"},
		"-html " + dir + ": it is a folder: name a file":                                 {"-html", dir},
		"-html " + dir + "/none/f.html: there is no folder " + dir + "/none: create it":  {"-html", dir + "/none/f.html"},
		"no temporary folder in " + dir + "/none for -html: no such file or directory: ": {"-html", dir + "/f.html"},
	}
	if os.Getuid() != 0 { // who may do everything
		cases["-out "+closed+"/x/y: cannot create files in "+closed+": permission denied: name a folder that you may write to"] = []string{"-out", closed + "/x/y"}
	} else {
		delete(cases, "-out /proc/x: cannot create files in /proc")
	}
	t.Setenv("TMPDIR", filepath.Join(dir, "none"))
	for want, args := range cases {
		stdout, stderr, err := runSim(t, append([]string{"run", "-workload", "uniform", "-format", "generate", "-rule", "jobs=20"}, args...)...)
		if err == nil || !strings.HasPrefix(err.Error(), want) || stdout != "" || stderr != "" {
			t.Errorf("%s: %v %q %q, want %s", args, err, stdout, stderr, want)
		}
	}
}
