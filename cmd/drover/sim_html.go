package main

import (
	"cmp"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/urfave/cli/v2"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/sim/engine"
	"github.com/drover-run/drover/scheduler/sim/report"
	"github.com/drover-run/drover/scheduler/sim/run"
	"github.com/drover-run/drover/ui"
)

var simHTMLFlag = &cli.StringFlag{Name: "html", Usage: "one HTML `FILE` with the numbers and the schedule of the first seed, as the web page shows a cluster's"}

// maxSimulatedAttempts bounds the attempts in an HTML file; later ones are left out.
const maxSimulatedAttempts = 20_000

// simulationPages collects the simulations of a command for its HTML file.
type simulationPages struct {
	file string
	dir  string // temporary
	list []ui.Simulation
}

// newSimulationPages returns nil if no HTML file is wanted. The caller closes it.
func newSimulationPages(c *cli.Context, model string) (*simulationPages, error) {
	if c.String("html") == "" {
		return nil, nil
	}
	if model == "fluid" {
		return nil, usageErrorf("-html needs -model tasks: the fluid model has no attempts on nodes")
	}
	dir, err := os.MkdirTemp("", "drover-sim-")
	if err != nil {
		return nil, fmt.Errorf("no temporary folder in %s for -html: %w: set TMPDIR to a folder that you may write to, or give -out", os.TempDir(), errors.Unwrap(err))
	}
	return &simulationPages{file: c.String("html"), dir: dir}, nil
}

// logDir returns the folder into which the attempts of the first seed are written: out, or a
// temporary one if they are wanted for the HTML file only.
func (p *simulationPages) logDir(out string, column int) string {
	if p == nil || out != "" {
		return out
	}
	return filepath.Join(p.dir, strconv.Itoa(column))
}

// add adds the first simulation of a scheduler.
func (p *simulationPages) add(name string, o *run.Outcome) error {
	if p == nil {
		return nil
	}
	plan, err := simulatedPlan(o)
	if err != nil {
		return err
	}
	n := &o.Numbers
	seconds := func(v float64) string { return strconv.FormatFloat(v, 'f', 1, 64) + " s" }
	percent := func(v float64) string { return strconv.FormatFloat(100*v, 'f', 1, 64) + " %" }
	s := ui.Simulation{Name: name, Plan: plan, Numbers: []ui.SimulatedNumber{{Name: "mean response", Value: seconds(n.MeanResponse)}, {Name: "median response", Value: seconds(n.MedianResponse)},
		{Name: "95 % respond within", Value: seconds(n.P95Response)}, {Name: "mean wait", Value: seconds(n.MeanWait)}, {Name: "mean slowdown", Value: strconv.FormatFloat(n.MeanSlowdown, 'f', 2, 64)},
		{Name: "makespan", Value: seconds(n.Makespan)}, {Name: "CPU occupied", Value: percent(n.UtilisationCPU)}, {Name: "memory occupied", Value: percent(n.UtilisationMemory)}}}
	addSimulatedJobs(&s, o)
	addSimulatedSeries(&s, o)
	p.list = append(p.list, s)
	return nil
}

// maxSimulatedJobs bounds the jobs in an HTML file: those with the longest responses are in it.
const maxSimulatedJobs = 1000

func addSimulatedJobs(s *ui.Simulation, o *run.Outcome) {
	for i := range o.Result.Jobs {
		j, in := &o.Result.Jobs[i], &o.Config.Jobs[i]
		row := ui.SimulatedJob{Number: i + 1, Name: cmp.Or(in.Name, "job "+strconv.Itoa(i+1)), Tenant: report.TenantName(&o.Config, in.Tenant), Outcome: "unfinished", Tasks: int(j.Tasks), SubmitMs: in.Submit.Milliseconds(),
			WaitMs: -1, ResponseMs: -1, DeadlineMs: in.Deadline.Milliseconds(), Missed: j.Outcome != engine.JobSucceeded || j.Finish > in.Deadline, Suspensions: int(j.Suspends), NodeLocal: int(j.NodeLocal), WithInput: int(j.WithInput)}
		if j.Refused {
			row.Outcome = "refused"
		}
		if j.Start >= 0 {
			row.WaitMs = j.Wait().Milliseconds()
		}
		if j.Outcome != 0 {
			row.Outcome, row.ResponseMs = j.Outcome.String(), j.Response().Milliseconds()
			row.Slowdown = j.Response().Seconds() / max(j.Alone.Seconds(), 1e-9)
		}
		s.Jobs = append(s.Jobs, row)
	}
	order := func(j *ui.SimulatedJob) int64 { // unfinished ones first
		if j.ResponseMs < 0 {
			return math.MaxInt64
		}
		return j.ResponseMs
	}
	slices.SortStableFunc(s.Jobs, func(a, b ui.SimulatedJob) int { return cmp.Compare(order(&b), order(&a)) })
	if n := len(s.Jobs); n > maxSimulatedJobs {
		s.Jobs, s.MoreJobs = s.Jobs[:maxSimulatedJobs], n-maxSimulatedJobs
	}
}

func addSimulatedSeries(s *ui.Simulation, o *run.Outcome) {
	r := o.Result
	fractions := func(name string, of func(i int) float64, n int) ui.SimulatedSeries {
		v := newSimulatedSeries(name, of, n)
		v.Top = 1
		v.Now = fmt.Sprintf("mean %.0f %%, most %.0f %%", 100*mean(v.Values), 100*slices.Max(v.Values))
		return v
	}
	counts := func(name string, of func(i int) float64, n int) ui.SimulatedSeries {
		v := newSimulatedSeries(name, of, n)
		v.Top = slices.Max(v.Values)
		v.Now = fmt.Sprintf("mean %.1f, most %.1f", mean(v.Values), v.Top)
		return v
	}
	n := len(r.Series.Used)
	if n == 0 {
		return
	}
	s.Cluster = append(s.Cluster, fractions("CPU occupied", func(i int) float64 { return r.Series.Used[i][scheduler.CPU] }, n),
		fractions("memory occupied", func(i int) float64 { return r.Series.Used[i][scheduler.Memory] }, n),
		counts("jobs in the system", func(i int) float64 { return r.Series.Jobs[i] }, n))
	steps := r.Series.Tenants
	if len(steps) == 0 {
		return
	}
	s.Cluster = append(s.Cluster, counts("tasks waiting", func(i int) float64 { return steps[i][0].Waiting }, len(steps)))
	total := 0.0
	for i := range o.Config.Nodes {
		total += float64(o.Config.Nodes[i].Capacity[scheduler.CPU])
	}
	for t := 1; t < len(steps[0]); t++ {
		s.Tenants = append(s.Tenants, fractions(report.TenantName(&o.Config, scheduler.TenantID(t-1)), func(i int) float64 { return steps[i][t].Used[scheduler.CPU] / max(total, 1) }, len(steps)))
	}
	for _, w := range r.Waited {
		s.Reasons = append(s.Reasons, ui.SimulatedNumber{Name: w.Reason.String(), Value: strconv.FormatFloat(w.TaskSeconds/max(r.Makespan.Seconds(), 1e-9), 'f', 1, 64)})
	}
}

func newSimulatedSeries(name string, of func(i int) float64, n int) ui.SimulatedSeries {
	v := ui.SimulatedSeries{Name: name}
	for i := range n {
		v.Values = append(v.Values, of(i))
	}
	return v
}

func mean(v []float64) (sum float64) {
	for _, x := range v {
		sum += x / float64(len(v))
	}
	return sum
}

// close writes the file unless the command failed, and removes temporary files.
func (p *simulationPages) close(title string, failed error) error {
	if p == nil {
		return nil
	}
	var err error
	if failed == nil {
		err = run.WriteFile(p.file, func(w io.Writer) error { return ui.WriteSimulations(w, title, p.list) })
	}
	return errors.Join(err, os.RemoveAll(p.dir))
}

// simulatedPlan reads the attempts of a simulation as a schedule.
func simulatedPlan(o *run.Outcome) (*droverv1.GetScheduleResponse, error) {
	f, err := os.Open(o.TaskLog())
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b := planBuilder{plan: &droverv1.GetScheduleResponse{FromMs: 1}, nodes: map[string]int32{}, jobs: map[uint64]*droverv1.ScheduleJob{}, columns: map[string]int{}}
	for i := range o.Config.Nodes {
		n := &o.Config.Nodes[i]
		b.nodes[n.Name] = int32(i + 1)
		b.plan.Nodes = append(b.plan.Nodes, &droverv1.ScheduleNode{Node: int32(i + 1), Name: n.Name, Rack: n.Path, State: "up", Allocatable: &droverv1.Resources{Cpu: n.Capacity[0], Memory: n.Capacity[1], Io: n.Capacity[2]}})
	}
	r := csv.NewReader(f)
	head, err := r.Read()
	if err != nil {
		return nil, err
	}
	for i, name := range head {
		b.columns[name] = i
	}
	for {
		row, err := r.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err == nil {
			err = b.add(row)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", o.TaskLog(), err)
		}
	}
	b.plan.NowMs = b.plan.UntilMs
	return b.plan, nil
}

// planBuilder builds a schedule from rows of tasks.csv.
type planBuilder struct {
	plan    *droverv1.GetScheduleResponse
	nodes   map[string]int32
	jobs    map[uint64]*droverv1.ScheduleJob
	columns map[string]int
}

func (b *planBuilder) add(row []string) error {
	if len(b.plan.Attempts) == maxSimulatedAttempts {
		b.plan.More++
		return nil
	}
	text := func(name string) string { return row[b.columns[name]] }
	number := func(name string) (v float64) {
		v, err := strconv.ParseFloat(text(name), 64)
		if err != nil {
			return 0
		}
		return v
	}
	id := uint64(number("job"))
	j := b.jobs[id]
	if j == nil {
		j = &droverv1.ScheduleJob{Job: id, Name: text("name"), Tenant: text("tenant")}
		if j.Name == "" {
			j.Name = "job " + text("job")
		}
		b.jobs[id] = j
		b.plan.Jobs = append(b.plan.Jobs, j)
	}
	stage := int32(-1)
	for i, s := range j.Stages {
		if s == text("stage") {
			stage = int32(i)
		}
	}
	if stage < 0 {
		stage = int32(len(j.Stages))
		j.Stages = append(j.Stages, text("stage"))
	}
	a := &droverv1.ScheduleAttempt{Key: &droverv1.AttemptKey{Job: id, Stage: stage, Task: int32(number("task")), Attempt: int32(number("attempt"))}, Node: b.nodes[text("node")],
		PlacedMs: 1 + int64(1000*number("placed_s")), EndMs: 1 + int64(1000*number("ended_s")), State: text("outcome"), Occupied: &droverv1.Resources{Cpu: int64(number("cpu"))}}
	b.plan.UntilMs = max(b.plan.UntilMs, a.EndMs)
	b.plan.Attempts = append(b.plan.Attempts, a)
	return nil
}
