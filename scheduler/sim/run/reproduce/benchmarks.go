package reproduce

import (
	"fmt"
	"slices"
	"time"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/sim/engine"
	"github.com/drover-run/drover/scheduler/sim/report"
	"github.com/drover-run/drover/scheduler/sim/run"
	"github.com/drover-run/drover/scheduler/sim/trace"
)

// benchmarkMix is a workload of PDSonQueue and 3DSF on their five machines.
type benchmarkMix struct {
	jobs             int
	deadlineFraction float64 // fraction of the jobs with a deadline
	taskTimeParam    string  // parameter: mean run time of a task, in seconds
	weights          [4]float64
	jobUnit          float64 // job unit of the throughput, in seconds
	deadlineParam    string  // parameter: mean deadline over mean run time
	baselineRunning  float64 // jobs that the baseline runs at once: its published throughput x job unit
}

// inContainers returns jobs whose tasks get containers: their memory is rounded up to YARN's
// smallest container under every scheduler, because YARN's resource manager rounds every request
// before a scheduler sees it. Tasks use what they need and no more.
func inContainers(jobs []engine.Job, step int64) []engine.Job {
	out := slices.Clone(jobs)
	for i := range out {
		out[i].Stages = slices.Clone(out[i].Stages)
		for k := range out[i].Stages {
			g := &out[i].Stages[k]
			g.ActualDemand = g.Demand
			g.Demand[scheduler.Memory] = (g.Demand[scheduler.Memory] + step - 1) / step * step
		}
	}
	return out
}

// memoryOnly returns the jobs of inContainers with demands of memory only, as YARN's default
// resource calculator sees them.
func memoryOnly(jobs []engine.Job) []engine.Job {
	out := slices.Clone(jobs)
	for i := range out {
		out[i].Stages = slices.Clone(out[i].Stages)
		for k := range out[i].Stages {
			g := &out[i].Stages[k]
			g.Demand = scheduler.Resources{0, g.Demand[scheduler.Memory], 0}
		}
	}
	return out
}

// mixCluster returns the five nodes of both papers: 8 cores, 16 GB, 3 disks.
func mixCluster() ([]engine.Node, error) { return uniformCluster(5, "8", "16GiB", "100MB/s", 3) }

// workload draws the jobs of a seed.
func (m benchmarkMix) workload(cal *Calibration, seed uint64) (*trace.Workload, error) {
	span := float64(m.jobs) * cal.get(m.taskTimeParam) / m.baselineRunning / cal.get("mix.load")
	rule := map[string]float64{"jobs": float64(m.jobs), "span_s": span, "job_s": cal.get(m.taskTimeParam), "pi": m.weights[0], "malloc": m.weights[1], "readwrite": m.weights[2], "terasort": m.weights[3],
		"cpu": cal.get("mix.cpu"), "memory_mib": cal.get("mix.memory_mib"), "io_mib_s": cal.get("mix.io_mib_s"), "lean": cal.get("mix.lean"), "deadline_part": m.deadlineFraction,
		"deadline_mean": cal.get(m.deadlineParam), "deadline_sigma": cal.get(m.deadlineParam) * cal.get("mix.deadline_sigma"), "high_part": cal.get("mix.high_part")}
	text := map[string]string{}
	for k, v := range rule {
		text[k] = fmt.Sprint(v)
	}
	return trace.Generate("benchmark", text, seed)
}

// mixResult is the result of a simulation in the papers' metrics.
type mixResult struct {
	report.Numbers
	finishes []float64 // sorted
}

// completedBy returns the fraction of the jobs completed by time t, in seconds.
func (m *mixResult) completedBy(t float64) float64 {
	n, _ := slices.BinarySearch(m.finishes, t)
	return float64(n) / float64(len(m.finishes))
}

// simulate runs a contender. All contenders get containers of the same sizes; the baselines of both
// papers see their memory only.
func (m benchmarkMix) simulate(e *Env, c contender, seed uint64) (*mixResult, error) {
	m.jobs = e.scaleDown(m.jobs)
	w, err := m.workload(e.Cal, seed)
	if err != nil {
		return nil, err
	}
	nodes, err := mixCluster()
	if err != nil {
		return nil, err
	}
	p, err := newPolicy(c)
	if err != nil {
		return nil, err
	}
	models := run.DefaultModels()
	models.RackRate, models.Contention, models.AcceptDeadlines = 50<<20, true, true
	models.Replicas = int(e.Cal.get("mix.replicas") + 0.5)
	models.Launch = time.Duration(e.Cal.get("mix.launch_s") * float64(time.Second))
	jobs := inContainers(w.Jobs, int64(e.Cal.get("mix.yarn_step_mib"))<<20)
	if c.policy == "capacity" || c.policy == "fair" {
		jobs = memoryOnly(jobs)
	}
	cfg := engine.Config{Nodes: nodes, Tenants: w.Tenants, Jobs: jobs, Policy: p, Models: models, Seed: seed, MaxEvents: 50_000_000, Stop: e.stop,
		CycleInterval: time.Duration(e.Cal.get("mix.cycle_s") * float64(time.Second))}
	r, err := engine.Simulate(cfg)
	if err != nil {
		return nil, fmt.Errorf("%s, seed %d: %w", c.name, seed, err)
	}
	out := &mixResult{Numbers: report.Summarise(&cfg, r, m.jobUnit)}
	for i := range r.Jobs {
		out.finishes = append(out.finishes, r.Jobs[i].Finish.Seconds())
	}
	slices.Sort(out.finishes)
	return out, nil
}

var mixAssumes = []string{"mix.cpu", "mix.memory_mib", "mix.io_mib_s", "mix.lean", "mix.launch_s", "mix.load", "mix.yarn_step_mib", "mix.deadline_sigma", "mix.high_part"}

var (
	contender3DSF = contender{name: "3DSF", policy: "3dsf", params: map[string]string{"regular_order": "fcfs", "reserve": "false", "aging": "0s", "preempt": "kill"}}
	// contender3DSFSuspend is 3DSF with Drover's suspend levels, reported beside it.
	contender3DSFSuspend = contender{name: "3DSF suspending", policy: "3dsf", params: map[string]string{"regular_order": "fcfs", "reserve": "false", "aging": "0s"}}
	contenderCapacity    = contender{name: "Capacity", policy: "capacity"}
	contenderPDSonQueue  = contender{name: "PDSonQueue", policy: "pdsonqueue", params: map[string]string{"preempt": "kill"}}
	contenderYARNFair    = contender{name: "Fair", policy: "fair"}
)

// The workloads. Mean task times follow from the papers' throughput x unit x completion over jobs.
var (
	terasortMix = benchmarkMix{jobs: 6000, deadlineFraction: 0.33, taskTimeParam: "dsf.terasort_s", weights: [4]float64{0, 0, 0, 1}, jobUnit: 0.1, deadlineParam: "dsf.terasort_deadline", baselineRunning: 44.1}
	mixedMix    = benchmarkMix{jobs: 18000, deadlineFraction: 0.33, taskTimeParam: "dsf.mixed_s", weights: [4]float64{1, 1, 1, 0}, jobUnit: 0.1, deadlineParam: "dsf.mixed_deadline", baselineRunning: 49.2}
	case1Mix    = benchmarkMix{jobs: 6000, deadlineFraction: 0.33, taskTimeParam: "dsf.case1_s", weights: [4]float64{1, 1, 1, 1}, jobUnit: 0.1, deadlineParam: "dsf.case1_deadline", baselineRunning: 53.3}
	cases234Mix = benchmarkMix{jobs: 12000, deadlineFraction: 0.33, taskTimeParam: "dsf.cases_s", weights: [4]float64{5.7, 3.6, 2.7, 0}, jobUnit: 0.1, deadlineParam: "dsf.cases_deadline", baselineRunning: 55.6}
	pdsMixedMix = benchmarkMix{jobs: 9000, deadlineFraction: 0.33, taskTimeParam: "pds.mixed_s", weights: [4]float64{1, 1, 1, 0}, jobUnit: 0.01, deadlineParam: "pds.mixed_deadline", baselineRunning: 48.3}
	pdsCasesMix = benchmarkMix{jobs: 9000, deadlineFraction: 0.33, taskTimeParam: "pds.cases_s", weights: [4]float64{5.7, 3.6, 2.7, 0}, jobUnit: 0.01, deadlineParam: "pds.cases_deadline", baselineRunning: 50.9}
)

// withJobs returns the mix with another number of jobs and fraction of deadline jobs.
func (m benchmarkMix) withJobs(jobs int, part float64) benchmarkMix {
	m.jobs, m.deadlineFraction = jobs, part
	return m
}

// plotRun adds a run to the plots of its experiment.
func (m benchmarkMix) plotRun(s *Sample, c contender, x *mixResult) {
	part := 100 * m.deadlineFraction
	s.addPoint(fmt.Sprintf("QoS by part of deadline jobs, %d jobs", m.jobs), c.name, part, x.DeadlineRate)
	s.addPoint(fmt.Sprintf("throughput by part of deadline jobs, %d jobs", m.jobs), c.name, part, x.Throughput)
	s.addPoint(fmt.Sprintf("completion by part of deadline jobs, %d jobs", m.jobs), c.name, part, x.Makespan)
	s.addPoint("locality", c.name, part, x.LocalityNode)
	s.addPoint("CPU use", c.name, part, x.UtilisationCPU)
	s.addPoint("work lost, CPU-s", c.name, part, x.LostCPU)
}

// runPair runs both contenders of a figure.
func (m benchmarkMix) runPair(e *Env, s *Sample, us, base contender, seed uint64) (*mixResult, *mixResult, error) {
	a, err := m.simulate(e, us, seed)
	if err != nil {
		return nil, nil, err
	}
	b, err := m.simulate(e, base, seed)
	if err != nil {
		return nil, nil, err
	}
	m.plotRun(s, us, a)
	m.plotRun(s, base, b)
	return a, b, nil
}

func dsfExperiments() []Experiment {
	exp := func(name string, f func(*Env, uint64) (*Sample, error)) Experiment {
		return Experiment{Name: "3dsf/" + name, Paper: "3DSF", Seeds: 4, Cost: 16, Assumes: mixAssumes, Run: f, Why: whyDSF}
	}
	return []Experiment{exp("terasort", dsfTerasort), exp("mixed", dsfMixed), exp("case1", dsfCase1), exp("cases234", dsfCases)}
}

func dsfTerasort(e *Env, seed uint64) (*Sample, error) {
	s := &Sample{}
	g, err := terasortMix.runGroup(e, s, contender3DSF, contenderCapacity, seed, cells([]int{6000, 18000, 30000}, 0.33, 0.5, 0.75))
	if err != nil {
		return nil, err
	}
	g.setClaims(s)
	a33, b33 := g.at(6000, 0.33)
	a75, b75 := g.at(6000, 0.75)
	s.setClaim("capacity_qos_33", b33.DeadlineRate)
	s.setClaim("capacity_qos_falls", b75.DeadlineRate-b33.DeadlineRate)
	s.setClaim("qos_flat", a75.DeadlineRate-a33.DeadlineRate)
	s.setClaim("throughput_falls", a75.Throughput/a33.Throughput-1)
	s.setClaim("completion_6k", a33.Makespan/b33.Makespan)
	for _, n := range []int{18000, 30000} {
		a, b := g.at(n, 0.33)
		s.setClaim(fmt.Sprintf("throughput_%dk", n/1000), a.Throughput/b.Throughput)
	}
	x, err := terasortMix.simulate(e, contender3DSFSuspend, seed)
	if err != nil {
		return nil, err
	}
	terasortMix.plotRun(s, contender3DSFSuspend, x)
	return s, nil
}

func dsfMixed(e *Env, seed uint64) (*Sample, error) {
	s := &Sample{}
	g, err := mixedMix.runGroup(e, s, contender3DSF, contenderCapacity, seed, cells([]int{mixedMix.jobs}, 0.33, 0.5))
	if err != nil {
		return nil, err
	}
	g.setClaims(s)
	a33, b33 := g.at(mixedMix.jobs, 0.33)
	a50, b50 := g.at(mixedMix.jobs, 0.5)
	s.setClaim("qos_33", a33.DeadlineRate/b33.DeadlineRate)
	s.setClaim("qos_50", a50.DeadlineRate/b50.DeadlineRate)
	s.setClaim("completion_18k", a33.Makespan/b33.Makespan)
	low, high := a33.Makespan, a33.Makespan
	for _, g := range [][4]float64{{4, 1, 4, 0}, {4, 4, 1, 0}, {1, 4, 4, 0}} {
		m := mixedMix
		m.weights = g
		x, err := m.simulate(e, contender3DSF, seed)
		if err != nil {
			return nil, err
		}
		low, high = min(low, x.Makespan), max(high, x.Makespan)
	}
	s.setClaim("groups_flat", high/low)
	return s, nil
}

func dsfCase1(e *Env, seed uint64) (*Sample, error) {
	s := &Sample{}
	g, err := case1Mix.runGroup(e, s, contender3DSF, contenderCapacity, seed, cells([]int{6000, 12000, 24000}, 0.33))
	if err != nil {
		return nil, err
	}
	g.setClaims(s)
	s.setClaim("throughput_gain", g.ratio(func(m *mixResult) float64 { return m.Throughput }))
	times := map[int]float64{}
	for _, c := range g.cells {
		a, _ := g.at(c.jobs, c.deadlineFraction)
		times[c.jobs] = a.Makespan
		s.addPoint("3DSF's time by number of jobs", "3DSF", float64(c.jobs), a.Makespan)
	}
	s.setClaim("time_12k_6k", times[12000]/times[6000])
	s.setClaim("time_24k_12k", times[24000]/times[12000])
	return s, nil
}

func dsfCases(e *Env, seed uint64) (*Sample, error) {
	s := &Sample{}
	g, err := cases234Mix.runGroup(e, s, contender3DSF, contenderCapacity, seed, cells([]int{cases234Mix.jobs}, 0.33, 0.5))
	if err != nil {
		return nil, err
	}
	g.setClaims(s)
	a33, b33 := g.at(cases234Mix.jobs, 0.33)
	a50, b50 := g.at(cases234Mix.jobs, 0.5)
	s.setClaim("capacity_qos_33", b33.DeadlineRate)
	s.setClaim("capacity_qos_50", b50.DeadlineRate)
	s.setClaim("qos_steady", a50.DeadlineRate-a33.DeadlineRate)
	s.setClaim("throughput_33", a33.Throughput/b33.Throughput)
	s.setClaim("throughput_50", a50.Throughput/b50.Throughput)
	s.setClaim("completion_12k", a33.Makespan/b33.Makespan)
	return s, nil
}

// The fraction of the jobs that Fair completes "in time" (PDSonQueue Fig. 4). Jobs without a
// deadline count as in time if they complete before our Fair has completed this fraction.
const (
	fairCompleted      = 0.4731
	fairCompletedCases = 0.5148
)

func pdsExperiments() []Experiment {
	exp := func(name string, f func(*Env, uint64) (*Sample, error)) Experiment {
		return Experiment{Name: "pdsonqueue/" + name, Paper: "PDSonQueue", Seeds: 4, Cost: 8, Assumes: mixAssumes, Why: whyPDS, Run: f}
	}
	return []Experiment{exp("mixed", pdsMixed), exp("cases", pdsCases)}
}

func pdsMixed(e *Env, seed uint64) (*Sample, error) {
	s := &Sample{}
	g, err := pdsMixedMix.runGroup(e, s, contenderPDSonQueue, contenderYARNFair, seed, cells([]int{pdsMixedMix.jobs}, 0.33, 0.5))
	if err != nil {
		return nil, err
	}
	a, b := g.at(pdsMixedMix.jobs, 0.33)
	a50, b50 := g.at(pdsMixedMix.jobs, 0.5)
	s.setClaim("qos_33", a.DeadlineRate/b.DeadlineRate)
	s.setClaim("qos_50", a50.DeadlineRate/b50.DeadlineRate)
	s.setClaim("throughput", g.ratio(func(m *mixResult) float64 { return m.Throughput }))
	s.setClaim("throughput_falls", a50.Throughput/a.Throughput)
	s.setClaim("completion_rate", g.completionRate(fairCompleted))
	return s, nil
}

func pdsCases(e *Env, seed uint64) (*Sample, error) {
	s := &Sample{}
	g, err := pdsCasesMix.runGroup(e, s, contenderPDSonQueue, contenderYARNFair, seed, cells([]int{pdsCasesMix.jobs}, 0.33, 0.5))
	if err != nil {
		return nil, err
	}
	a, b := g.at(pdsCasesMix.jobs, 0.33)
	a50, b50 := g.at(pdsCasesMix.jobs, 0.5)
	s.setClaim("qos", g.ratio(func(m *mixResult) float64 { return m.DeadlineRate }))
	s.setClaim("throughput", g.ratio(func(m *mixResult) float64 { return m.Throughput }))
	s.setClaim("throughput_33", a.Throughput/b.Throughput)
	s.setClaim("throughput_50", a50.Throughput/b50.Throughput)
	s.setClaim("completion", g.completionRatio())
	s.setClaim("completion_rate", g.completionRate(fairCompletedCases))
	return s, nil
}
