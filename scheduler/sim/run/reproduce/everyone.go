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

// The table of all schedulers on the workloads of all papers. Workloads are
// smaller than in the figures, and LAS_MQ's jobs are of one tenant, for which
// each scheduler has its own order; YARN's two look at memory alone, as there.

// Sizes and seeds of the table's workloads.
const (
	everyoneSeeds    = 5
	everyoneJobs     = 3000
	everyoneProjects = 150
)

var (
	response = Metric{Name: "mean response, s"}
	inTime   = Metric{Name: "deadlines met", Higher: true}
	complete = Metric{Name: "completion, s"}
	project  = Metric{Name: "mean project turn-around, s"}
)

func everyoneExperiments() []Experiment {
	exp := func(name, paper string, metrics []Metric, f func(*Env, *Sample, uint64) error) Experiment {
		for i := range metrics {
			if metrics[i].Why = whyWorse[name+" "+metrics[i].Name]; metrics[i].Why == "" {
				metrics[i].Why = whyWorse[""]
			}
		}
		return Experiment{Name: "everyone/" + name, Paper: paper, Seeds: everyoneSeeds, Cost: 5, Metrics: metrics, Run: func(e *Env, seed uint64) (*Sample, error) {
			s := &Sample{}
			return s, f(e, s, seed)
		}}
	}
	las := func(name string, l lasWorkload, interval float64) Experiment {
		l.interval = interval
		return exp(name, lasPaper, []Metric{response}, l.everyone)
	}
	mixOf := func(name, paper string, m mix) Experiment {
		return exp(name, paper, []Metric{inTime, complete}, m.everyone)
	}
	return []Experiment{
		las("las_mq testbed 80 s", privateTestbed, 80), las("las_mq testbed 50 s", privateTestbed, 50), las("las_mq EC2", ec2Testbed, 80),
		exp("las_mq heavy-tailed", lasPaper, []Metric{response}, func(e *Env, s *Sample, seed uint64) error { return sizes(e, s, seed, "heavy_tailed", "6") }),
		exp("las_mq equal jobs", lasPaper, []Metric{response}, func(e *Env, s *Sample, seed uint64) error { return sizes(e, s, seed, "uniform", "0") }),
		exp("two-tier", "Two-tier", []Metric{project}, everyoneTwoTier),
		mixOf("pdsonqueue mixed", "PDSonQueue", pdsMixed), mixOf("pdsonqueue cases 2-4", "PDSonQueue", pdsCases),
		mixOf("3dsf TeraSort", "3DSF", terasort), mixOf("3dsf mixed", "3DSF", mixed), mixOf("3dsf case 1", "3DSF", case1), mixOf("3dsf cases 2-4", "3DSF", cases),
	}
}

// everyone lists the contenders: each policy of the table, keeping nodes for
// tasks that fit nowhere where it can. Guarantees are for projects alone.
func everyone(projects bool) []contender {
	var out []contender
	for _, info := range policies.All() {
		c := contender{name: info.Name, policy: info.Name, params: map[string]string{}}
		for _, p := range info.Params {
			if p.Name == "reserve" {
				c.params["reserve"] = "true"
			}
		}
		if info.Name != twoTierPolicy || projects {
			out = append(out, c)
		}
	}
	return append(out, compositions...)
}

// compositions are 3dsf with other parameters, shown beside it: what would close
// the gaps to the specialists. They are no specialists themselves.
var compositions = []contender{
	{name: composition + ", regular_order=las_mq", policy: composition, params: map[string]string{"reserve": "true", "regular_order": "las_mq"}},
	{name: composition + ", reserve=false", policy: composition},
	{name: composition + ", reserve=false promises=false", policy: composition, params: map[string]string{"promises": "false"}},
}

// twoTierPolicy is the policy that plans projects.
const twoTierPolicy = "two_tier"

// grades runs everyone on one workload.
func grades(s *Sample, projects bool, run func(c contender) error) error {
	for _, c := range everyone(projects) {
		if err := run(c); err != nil {
			return err
		}
	}
	return nil
}

func (l lasWorkload) everyone(e *Env, s *Sample, seed uint64) error {
	l.oneTenant = true
	return grades(s, false, func(c contender) error {
		r, jobs, err := l.run(e, c, seed)
		if err != nil {
			return err
		}
		s.grade(response.Name, c.name, meansOf(r, jobs).mean)
		return nil
	})
}

func (m mix) everyone(e *Env, s *Sample, seed uint64) error {
	m.jobs = min(m.jobs, everyoneJobs)
	return grades(s, false, func(c contender) error {
		r, err := m.run(e, c, seed)
		if err != nil {
			return err
		}
		s.grade(inTime.Name, c.name, r.DeadlineRate)
		s.grade(complete.Name, c.name, r.Makespan)
		return nil
	})
}

// sizes runs jobs of ten tasks on ten nodes of four cores: heavy-tailed ones at
// a load of 0.8 to 0.9, or equal ones all there at second 0.
func sizes(e *Env, s *Sample, seed uint64, generator, interval string) error {
	w, err := trace.Generate(generator, map[string]string{"jobs": fmt.Sprint(e.small(600)), "interval_s": interval, "tasks": "10", "task_s": "20"}, seed)
	if err != nil {
		return err
	}
	nodes, err := cluster(10, "4", "8GiB", "100MB/s", 1)
	if err != nil {
		return err
	}
	return grades(s, false, func(c contender) error {
		r, err := everyoneRun(c, &engine.Config{Nodes: nodes, Tenants: w.Tenants, Jobs: w.Jobs, Seed: seed, Stop: e.stop})
		if err != nil {
			return err
		}
		s.grade(response.Name, c.name, r.MeanResponse)
		return nil
	})
}

// everyoneTwoTier runs Table 6 on a pool: one node with 40 of each resource.
func everyoneTwoTier(e *Env, s *Sample, seed uint64) error {
	w, err := trace.Generate("two_tier", map[string]string{"projects": fmt.Sprint(e.small(everyoneProjects)), "interval_s": "80"}, seed)
	if err != nil {
		return err
	}
	nodes, err := cluster(1, "40", "40GiB", "40MiB/s", 1)
	if err != nil {
		return err
	}
	return grades(s, true, func(c contender) error {
		cfg := &engine.Config{Nodes: nodes, Tenants: w.Tenants, Projects: w.Projects, Jobs: w.Jobs, Seed: seed, Stop: e.stop}
		r, err := everyoneRun(c, cfg)
		if err != nil {
			return err
		}
		s.grade(project.Name, c.name, meanTurnaround(cfg, r.result))
		return nil
	})
}

// meanTurnaround is the mean time from a project's submission to its last end.
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

type graded struct {
	report.Numbers
	result *engine.Result
}

func everyoneRun(c contender, cfg *engine.Config) (*graded, error) {
	p, err := newPolicy(c)
	if err != nil {
		return nil, err
	}
	cfg.Policy, cfg.Models, cfg.MaxEvents = p, run.DefaultModels(), 20_000_000
	cfg.Models.Transfer = engine.TransferFree
	r, err := engine.Run(*cfg)
	if err != nil {
		return nil, fmt.Errorf("%s, seed %d: %w", c.name, cfg.Seed, err)
	}
	return &graded{report.Summarise(cfg, r, report.DefaultJobUnit), r}, nil
}
