package reproduce

import (
	"fmt"
	"time"

	"github.com/drover-run/drover/scheduler/policies"
	"github.com/drover-run/drover/scheduler/sim/engine"
	"github.com/drover-run/drover/scheduler/sim/report"
	"github.com/drover-run/drover/scheduler/sim/run"
	"github.com/drover-run/drover/scheduler/sim/trace"
)

// This file has the experiments of the table of all schedulers on the workloads of all papers. The
// workloads are smaller than in the figures. LAS_MQ's jobs belong to one tenant, within which each
// scheduler has its own order. YARN's two schedulers consider memory only, as in the papers.

// Sizes and seeds of the table's workloads. Heavy-tailed jobs need more seeds, since one very large job decides a seed.
const (
	tableSeeds    = 5
	heavySeeds    = 100
	tableJobs     = 3000
	tableProjects = 150
)

var (
	responseMetric   = Metric{Name: "mean response, s"}
	deadlineMetric   = Metric{Name: "deadlines met", HigherIsBetter: true}
	completionMetric = Metric{Name: "completion, s"}
	turnaroundMetric = Metric{Name: "mean project turn-around, s"}
)

func allSchedulersExperiments() []Experiment {
	exp := func(name, paper string, metrics []Metric, f func(*Env, *Sample, uint64) error) Experiment {
		for i := range metrics {
			metrics[i].Why = whyWorse
		}
		return Experiment{Name: "everyone/" + name, Paper: paper, Seeds: tableSeeds, Cost: 5, Metrics: metrics, Run: func(e *Env, seed uint64) (*Sample, error) {
			s := &Sample{}
			return s, f(e, s, seed)
		}}
	}
	las := func(name string, l lasWorkload, interval float64) Experiment {
		l.interval = interval
		return exp(name, lasPaper, []Metric{responseMetric}, l.gradeAll)
	}
	mixOf := func(name, paper string, m benchmarkMix) Experiment {
		return exp(name, paper, []Metric{deadlineMetric, completionMetric}, m.gradeAll)
	}
	heavy := exp("las_mq heavy-tailed", lasPaper, []Metric{responseMetric}, func(e *Env, s *Sample, seed uint64) error { return gradeGenerated(e, s, seed, "heavy_tailed", "6") })
	heavy.Seeds, heavy.Cost = heavySeeds, 1
	return []Experiment{
		las("las_mq testbed 80 s", privateTestbed, 80), las("las_mq testbed 50 s", privateTestbed, 50), las("las_mq EC2", ec2Testbed, 80),
		heavy,
		exp("las_mq equal jobs", lasPaper, []Metric{responseMetric}, func(e *Env, s *Sample, seed uint64) error { return gradeGenerated(e, s, seed, "uniform", "0") }),
		exp("two-tier", "Two-tier", []Metric{turnaroundMetric}, gradeTwoTier),
		mixOf("pdsonqueue mixed", "PDSonQueue", pdsMixedMix), mixOf("pdsonqueue cases 2-4", "PDSonQueue", pdsCasesMix),
		mixOf("3dsf TeraSort", "3DSF", terasortMix), mixOf("3dsf mixed", "3DSF", mixedMix), mixOf("3dsf case 1", "3DSF", case1Mix), mixOf("3dsf cases 2-4", "3DSF", cases234Mix),
	}
}

// allContenders lists every policy of the table: 3dsf with default settings, the specialists with
// node reservation for tasks that fit nowhere if they have it, as in YARN. Policies that only plan
// projects are left out unless projects is true.
func allContenders(projects bool) []contender {
	var out []contender
	for _, info := range policies.All() {
		c := contender{name: info.Name, policy: info.Name, params: map[string]string{}}
		for _, p := range info.Params {
			if p.Name == "reserve" && info.Name != composedPolicy {
				c.params["reserve"] = "true"
			}
		}
		if info.Name != twoTierPolicy || projects {
			out = append(out, c)
		}
	}
	return append(out, composedVariants...)
}

// composedVariants are 3dsf with other parameters, shown beside it because they would close gaps to
// the specialists. They do not count as specialists.
var composedVariants = []contender{
	{name: composedPolicy + ", reserve=false regular_order=fcfs", policy: composedPolicy, params: map[string]string{"reserve": "false", "regular_order": "fcfs"}},
	{name: composedPolicy + ", regular_order=fcfs", policy: composedPolicy, params: map[string]string{"regular_order": "fcfs"}},
	{name: composedPolicy + ", guarantees=false", policy: composedPolicy, params: map[string]string{"guarantees": "false"}},
}

// twoTierPolicy is the policy that plans projects.
const twoTierPolicy = "two_tier"

// gradeContenders runs all contenders on one workload.
func gradeContenders(projects bool, run func(c contender) error) error {
	for _, c := range allContenders(projects) {
		if err := run(c); err != nil {
			return err
		}
	}
	return nil
}

func (l lasWorkload) gradeAll(e *Env, s *Sample, seed uint64) error {
	l.oneTenant = true
	return gradeContenders(false, func(c contender) error {
		r, jobs, err := l.simulate(e, c, seed)
		if err != nil {
			return err
		}
		s.addGrade(responseMetric.Name, c.name, computeMeans(r, jobs).mean)
		return nil
	})
}

func (m benchmarkMix) gradeAll(e *Env, s *Sample, seed uint64) error {
	m.jobs = min(m.jobs, tableJobs)
	return gradeContenders(false, func(c contender) error {
		r, err := m.simulate(e, c, seed)
		if err != nil {
			return err
		}
		s.addGrade(deadlineMetric.Name, c.name, r.DeadlineRate)
		s.addGrade(completionMetric.Name, c.name, r.Makespan)
		return nil
	})
}

// gradeGenerated grades jobs of ten tasks on ten nodes of four cores: heavy-tailed jobs at a load
// of 0.8 to 0.9, or equal jobs that all arrive at second 0.
func gradeGenerated(e *Env, s *Sample, seed uint64, generator, interval string) error {
	w, err := trace.Generate(generator, map[string]string{"jobs": fmt.Sprint(e.scaleDown(600)), "interval_s": interval, "tasks": "10", "task_s": "20"}, seed)
	if err != nil {
		return err
	}
	nodes, err := uniformCluster(10, "4", "8GiB", "100MB/s", 1)
	if err != nil {
		return err
	}
	return gradeContenders(false, func(c contender) error {
		r, err := simulateContender(c, &engine.Config{Nodes: nodes, Tenants: w.Tenants, Jobs: w.Jobs, Seed: seed, Stop: e.stop})
		if err != nil {
			return err
		}
		s.addGrade(responseMetric.Name, c.name, r.MeanResponse)
		return nil
	})
}

// gradeTwoTier grades Table 6 on a single node with 40 units of each resource.
func gradeTwoTier(e *Env, s *Sample, seed uint64) error {
	w, err := trace.Generate("two_tier", map[string]string{"projects": fmt.Sprint(e.scaleDown(tableProjects)), "interval_s": "80"}, seed)
	if err != nil {
		return err
	}
	nodes, err := uniformCluster(1, "40", "40GiB", "40MiB/s", 1)
	if err != nil {
		return err
	}
	return gradeContenders(true, func(c contender) error {
		cfg := &engine.Config{Nodes: nodes, Tenants: w.Tenants, Projects: w.Projects, Jobs: w.Jobs, Seed: seed, Stop: e.stop}
		r, err := simulateContender(c, cfg)
		if err != nil {
			return err
		}
		s.addGrade(turnaroundMetric.Name, c.name, meanTurnaround(cfg, r.result))
		return nil
	})
}

// meanTurnaround returns the mean time from a project's submission to the end of its last job.
func meanTurnaround(cfg *engine.Config, r *engine.Result) float64 {
	last := make([]time.Duration, len(cfg.Projects))
	for i := range cfg.Jobs {
		if p := cfg.Jobs[i].Project; p > 0 {
			last[p-1] = max(last[p-1], r.Jobs[i].Finish)
		}
	}
	sum := 0.0
	for i := range last {
		sum += (last[i] - cfg.Projects[i].Submit).Seconds()
	}
	return sum / float64(max(1, len(last)))
}

type gradedRun struct {
	report.Numbers
	result *engine.Result
}

func simulateContender(c contender, cfg *engine.Config) (*gradedRun, error) {
	p, err := newPolicy(c)
	if err != nil {
		return nil, err
	}
	cfg.Policy, cfg.Models, cfg.MaxEvents = p, run.DefaultModels(), 20_000_000
	cfg.Models.Transfer = engine.TransferFree
	r, err := engine.Simulate(*cfg)
	if err != nil {
		return nil, fmt.Errorf("%s, seed %d: %w", c.name, cfg.Seed, err)
	}
	return &gradedRun{report.Summarise(cfg, r, report.DefaultJobUnit), r}, nil
}
