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

// mix is a workload of PDSonQueue and 3DSF on their five machines.
type mix struct {
	jobs     int
	part     float64 // with a deadline
	task     string  // parameter: mean run time of a task, seconds
	weights  [4]float64
	unit     float64 // job unit of the throughput, seconds
	deadline string  // calibrated mean deadline over mean run time
	running  float64 // jobs that the baseline runs at once: its published throughput x unit
}

// blind tells the scheduler the memory alone, in whole steps of YARN's
// smallest container, as YARN's default calculator does.
func blind(jobs []engine.Job, step int64) []engine.Job {
	out := slices.Clone(jobs)
	for i := range out {
		out[i].Stages = slices.Clone(out[i].Stages)
		for k := range out[i].Stages {
			g := &out[i].Stages[k]
			g.Needs = g.Demand
			m := g.Demand[scheduler.Memory]
			g.Demand = scheduler.Resources{0, (m + step - 1) / step * step, 0}
		}
	}
	return out
}

// machines are the five of both papers: 8 cores, 16 GB, 3 disks.
func machines() ([]engine.Node, error) { return cluster(5, "8", "16GiB", "100MB/s", 3) }

// workload draws the jobs of a seed.
func (m mix) workload(cal *Calibration, seed uint64) (*trace.Workload, error) {
	span := float64(m.jobs) * cal.get(m.task) / m.running / cal.get("mix.load")
	rule := map[string]float64{"jobs": float64(m.jobs), "span_s": span, "job_s": cal.get(m.task), "pi": m.weights[0], "malloc": m.weights[1], "readwrite": m.weights[2], "terasort": m.weights[3],
		"cpu": cal.get("mix.cpu"), "memory_mib": cal.get("mix.memory_mib"), "io_mib_s": cal.get("mix.io_mib_s"), "lean": cal.get("mix.lean"), "deadline_part": m.part,
		"deadline_mean": cal.get(m.deadline), "deadline_sigma": cal.get(m.deadline) * cal.get("mix.deadline_sigma"), "high_part": cal.get("mix.high_part")}
	text := map[string]string{}
	for k, v := range rule {
		text[k] = fmt.Sprint(v)
	}
	return trace.Generate("benchmark", text, seed)
}

// measured is a run in the papers' metrics.
type measured struct {
	report.Numbers
	finishes []float64 // of the jobs, sorted
}

// doneBy is the part of the jobs done at an instant.
func (m *measured) doneBy(t float64) float64 {
	n, _ := slices.BinarySearch(m.finishes, t)
	return float64(n) / float64(len(m.finishes))
}

// run runs a contender; the baselines of both papers schedule memory alone.
func (m mix) run(e *Env, c contender, seed uint64) (*measured, error) {
	m.jobs = e.small(m.jobs)
	w, err := m.workload(e.Cal, seed)
	if err != nil {
		return nil, err
	}
	nodes, err := machines()
	if err != nil {
		return nil, err
	}
	p, err := newPolicy(c)
	if err != nil {
		return nil, err
	}
	models := run.DefaultModels()
	models.RackRate, models.Contention, models.Accept = 50<<20, true, true
	models.Replicas = int(e.Cal.get("mix.replicas") + 0.5)
	models.Launch = time.Duration(e.Cal.get("mix.launch_s") * float64(time.Second))
	jobs := w.Jobs
	if c.policy == "capacity" || c.policy == "fair" {
		jobs = blind(jobs, int64(e.Cal.get("mix.yarn_step_mib"))<<20)
	}
	cfg := engine.Config{Nodes: nodes, Tenants: w.Tenants, Jobs: jobs, Policy: p, Models: models, Seed: seed, MaxEvents: 50_000_000, Stop: e.stop,
		CycleInterval: time.Duration(e.Cal.get("mix.cycle_s") * float64(time.Second))}
	r, err := engine.Run(cfg)
	if err != nil {
		return nil, fmt.Errorf("%s, seed %d: %w", c.name, seed, err)
	}
	out := &measured{Numbers: report.Summarise(&cfg, r, m.unit)}
	for i := range r.Jobs {
		out.finishes = append(out.finishes, r.Jobs[i].Finish.Seconds())
	}
	slices.Sort(out.finishes)
	return out, nil
}

var mixAssumes = []string{"mix.cpu", "mix.memory_mib", "mix.io_mib_s", "mix.lean", "mix.launch_s", "mix.load", "mix.yarn_step_mib", "mix.deadline_sigma", "mix.high_part"}

var (
	dsf = contender{name: "3DSF", policy: "3dsf", params: map[string]string{"preempt": "kill"}}
	// suspending is 3DSF with Drover's own levels, reported beside it.
	suspending = contender{name: "3DSF suspending", policy: "3dsf"}
	capacity   = contender{name: "Capacity", policy: "capacity"}
	pds        = contender{name: "PDSonQueue", policy: "pdsonqueue", params: map[string]string{"preempt": "kill"}}
	yarnFair   = contender{name: "Fair", policy: "fair"}
)

// The workloads. Job times follow from the papers' throughput x unit x
// completion over jobs.
var (
	terasort = mix{jobs: 6000, part: 0.33, task: "dsf.terasort_s", weights: [4]float64{0, 0, 0, 1}, unit: 0.1, deadline: "dsf.terasort_deadline", running: 44.1}
	mixed    = mix{jobs: 18000, part: 0.33, task: "dsf.mixed_s", weights: [4]float64{1, 1, 1, 0}, unit: 0.1, deadline: "dsf.mixed_deadline", running: 49.2}
	case1    = mix{jobs: 6000, part: 0.33, task: "dsf.case1_s", weights: [4]float64{1, 1, 1, 1}, unit: 0.1, deadline: "dsf.case1_deadline", running: 53.3}
	cases    = mix{jobs: 12000, part: 0.33, task: "dsf.cases_s", weights: [4]float64{5.7, 3.6, 2.7, 0}, unit: 0.1, deadline: "dsf.cases_deadline", running: 55.6}
	pdsMixed = mix{jobs: 9000, part: 0.33, task: "pds.mixed_s", weights: [4]float64{1, 1, 1, 0}, unit: 0.01, deadline: "pds.mixed_deadline", running: 48.3}
	pdsCases = mix{jobs: 9000, part: 0.33, task: "pds.cases_s", weights: [4]float64{5.7, 3.6, 2.7, 0}, unit: 0.01, deadline: "pds.cases_deadline", running: 50.9}
)

// at is the mix with another number of jobs and part with a deadline.
func (m mix) at(jobs int, part float64) mix {
	m.jobs, m.part = jobs, part
	return m
}

// seven sets the seven numbers of READING.md's table: ours over the baseline's.
func seven(s *Sample, us, base *measured) {
	s.set("qos", us.DeadlineRate/base.DeadlineRate)
	s.set("throughput", us.Throughput/base.Throughput)
	s.set("locality", us.LocalityNode/base.LocalityNode)
	s.set("completion", us.Makespan/base.Makespan)
	s.set("cpu", us.CPU/base.CPU)
	s.set("memory", us.Memory/base.Memory)
	s.set("io", us.IO/base.IO)
}

// draw adds a run to the plots of its experiment.
func (m mix) draw(s *Sample, c contender, x *measured) {
	part := 100 * m.part
	s.point(fmt.Sprintf("QoS by part of deadline jobs, %d jobs", m.jobs), c.name, part, x.DeadlineRate)
	s.point(fmt.Sprintf("throughput by part of deadline jobs, %d jobs", m.jobs), c.name, part, x.Throughput)
	s.point(fmt.Sprintf("completion by part of deadline jobs, %d jobs", m.jobs), c.name, part, x.Makespan)
	s.point("locality", c.name, part, x.LocalityNode)
	s.point("CPU use", c.name, part, x.CPU)
	s.point("work lost, CPU-s", c.name, part, x.WorkLost)
}

// pair runs both contenders of a figure.
func (m mix) pair(e *Env, s *Sample, us, base contender, seed uint64) (*measured, *measured, error) {
	a, err := m.run(e, us, seed)
	if err != nil {
		return nil, nil, err
	}
	b, err := m.run(e, base, seed)
	if err != nil {
		return nil, nil, err
	}
	m.draw(s, us, a)
	m.draw(s, base, b)
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
	a33, b33, err := terasort.pair(e, s, dsf, capacity, seed)
	if err != nil {
		return nil, err
	}
	a75, b75, err := terasort.at(6000, 0.75).pair(e, s, dsf, capacity, seed)
	if err != nil {
		return nil, err
	}
	seven(s, a33, b33)
	s.set("capacity_qos_33", b33.DeadlineRate)
	s.set("capacity_qos_falls", b75.DeadlineRate-b33.DeadlineRate)
	s.set("qos_flat", a75.DeadlineRate-a33.DeadlineRate)
	s.set("throughput_falls", a75.Throughput/a33.Throughput-1)
	s.set("completion_6k", a33.Makespan/b33.Makespan)
	for _, n := range []int{18000, 30000} {
		a, b, err := terasort.at(n, 0.33).pair(e, s, dsf, capacity, seed)
		if err != nil {
			return nil, err
		}
		s.set(fmt.Sprintf("throughput_%dk", n/1000), a.Throughput/b.Throughput)
	}
	x, err := terasort.run(e, suspending, seed)
	if err != nil {
		return nil, err
	}
	terasort.draw(s, suspending, x)
	return s, nil
}

func dsfMixed(e *Env, seed uint64) (*Sample, error) {
	s := &Sample{}
	a33, b33, err := mixed.pair(e, s, dsf, capacity, seed)
	if err != nil {
		return nil, err
	}
	a50, b50, err := mixed.at(mixed.jobs, 0.5).pair(e, s, dsf, capacity, seed)
	if err != nil {
		return nil, err
	}
	seven(s, a33, b33)
	s.set("qos_33", a33.DeadlineRate/b33.DeadlineRate)
	s.set("qos_50", a50.DeadlineRate/b50.DeadlineRate)
	s.set("completion_18k", a33.Makespan/b33.Makespan)
	low, high := a33.Makespan, a33.Makespan
	for _, g := range [][4]float64{{4, 1, 4, 0}, {4, 4, 1, 0}, {1, 4, 4, 0}} {
		m := mixed
		m.weights = g
		x, err := m.run(e, dsf, seed)
		if err != nil {
			return nil, err
		}
		low, high = min(low, x.Makespan), max(high, x.Makespan)
	}
	s.set("groups_flat", high/low)
	return s, nil
}

func dsfCase1(e *Env, seed uint64) (*Sample, error) {
	s := &Sample{}
	a, b, err := case1.pair(e, s, dsf, capacity, seed)
	if err != nil {
		return nil, err
	}
	seven(s, a, b)
	s.set("throughput_gain", a.Throughput/b.Throughput)
	times := map[int]float64{6000: a.Makespan}
	for _, n := range []int{12000, 24000} {
		x, err := case1.at(n, 0.33).run(e, dsf, seed)
		if err != nil {
			return nil, err
		}
		times[n] = x.Makespan
		s.point("3DSF's time by number of jobs", "3DSF", float64(n), x.Makespan)
	}
	s.set("time_12k_6k", times[12000]/times[6000])
	s.set("time_24k_12k", times[24000]/times[12000])
	return s, nil
}

func dsfCases(e *Env, seed uint64) (*Sample, error) {
	s := &Sample{}
	a33, b33, err := cases.pair(e, s, dsf, capacity, seed)
	if err != nil {
		return nil, err
	}
	a50, b50, err := cases.at(cases.jobs, 0.5).pair(e, s, dsf, capacity, seed)
	if err != nil {
		return nil, err
	}
	seven(s, a33, b33)
	s.set("capacity_qos_33", b33.DeadlineRate)
	s.set("capacity_qos_50", b50.DeadlineRate)
	s.set("qos_steady", a50.DeadlineRate-a33.DeadlineRate)
	s.set("throughput_33", a33.Throughput/b33.Throughput)
	s.set("throughput_50", a50.Throughput/b50.Throughput)
	s.set("completion_12k", a33.Makespan/b33.Makespan)
	return s, nil
}

// fairDone is the part of the jobs that Fair completes "in time" (PDSonQueue
// Fig. 4): the instant is set where our Fair has completed as many.
const (
	fairDone      = 0.4731
	fairDoneCases = 0.5148
)

func pdsExperiments() []Experiment {
	return []Experiment{
		{Name: "pdsonqueue/mixed", Paper: "PDSonQueue", Seeds: 4, Cost: 8, Assumes: mixAssumes, Why: whyPDS, Run: func(e *Env, seed uint64) (*Sample, error) {
			s, a, b, a50, b50, err := pdsPairs(e, pdsMixed, seed)
			if err != nil {
				return nil, err
			}
			s.set("qos_33", a.DeadlineRate/b.DeadlineRate)
			s.set("qos_50", a50.DeadlineRate/b50.DeadlineRate)
			s.set("throughput", a.Throughput/b.Throughput)
			s.set("throughput_falls", a50.Throughput/a.Throughput)
			s.set("completion_rate", a.doneBy(b.finishes[int(fairDone*float64(len(b.finishes)))])/fairDone)
			return s, nil
		}},
		{Name: "pdsonqueue/cases", Paper: "PDSonQueue", Seeds: 4, Cost: 8, Assumes: mixAssumes, Why: whyPDS, Run: func(e *Env, seed uint64) (*Sample, error) {
			s, a, b, a50, b50, err := pdsPairs(e, pdsCases, seed)
			if err != nil {
				return nil, err
			}
			s.set("qos", a.DeadlineRate/b.DeadlineRate)
			s.set("throughput", a.Throughput/b.Throughput)
			s.set("throughput_33", a.Throughput/b.Throughput)
			s.set("throughput_50", a50.Throughput/b50.Throughput)
			s.set("completion", a.Makespan/b.Makespan)
			s.set("completion_rate", a.doneBy(b.finishes[int(fairDoneCases*float64(len(b.finishes)))])/fairDoneCases)
			return s, nil
		}},
	}
}

func pdsPairs(e *Env, m mix, seed uint64) (s *Sample, a, b, a50, b50 *measured, err error) {
	s = &Sample{}
	if a, b, err = m.pair(e, s, pds, yarnFair, seed); err != nil {
		return nil, nil, nil, nil, nil, err
	}
	a50, b50, err = m.at(m.jobs, 0.5).pair(e, s, pds, yarnFair, seed)
	return s, a, b, a50, b50, err
}
