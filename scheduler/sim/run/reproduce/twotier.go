package reproduce

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/backfill"
	"github.com/drover-run/drover/scheduler/sim/trace"
)

// The two-tier paper's evaluation (5.1, Table 6) has one pool of total capacities with five
// resources, and every job runs exactly as long as declared. Therefore the simulation is the plan.
const (
	twoTierProjects  = 1000
	twoTierResources = 5
)

// twoTierMeans are the means of one simulation, in the paper's time units.
type twoTierMeans struct {
	jta, pta, wait, running float64
	high, low               float64 // project turn-around
}

// twoTierCache caches the means of simulations that several figures share.
type twoTierCache struct {
	mu    sync.Mutex
	byKey map[twoTierKey]*twoTierResult
}

type twoTierKey struct {
	cfg  backfill.Config
	seed uint64
	ita  float64
	n    int
}

type twoTierResult struct {
	once  sync.Once
	means twoTierMeans
	err   error
}

// twoTier returns the means of one configuration, from the cache if possible.
func (e *Env) twoTier(cfg backfill.Config, seed uint64, ita float64) (twoTierMeans, error) {
	k := twoTierKey{cfg, seed, ita, e.scaleDown(twoTierProjects)}
	e.twoTierRuns.mu.Lock()
	p := e.twoTierRuns.byKey[k]
	if p == nil {
		p = &twoTierResult{}
		if e.twoTierRuns.byKey == nil {
			e.twoTierRuns.byKey = map[twoTierKey]*twoTierResult{}
		}
		e.twoTierRuns.byKey[k] = p
	}
	e.twoTierRuns.mu.Unlock()
	p.once.Do(func() { p.means, p.err = runTwoTier(cfg, seed, k.n, ita, e.stop) })
	return p.means, p.err
}

// runTwoTier plans the projects of a seed under one configuration. It ends with the error of stop,
// if stop is not nil.
func runTwoTier(cfg backfill.Config, seed uint64, n int, ita float64, stop func() error) (twoTierMeans, error) {
	m, projects := trace.TwoTier(seed, n, twoTierResources, ita)
	prof := &backfill.Profile{}
	prof.AddBin(m)
	p := backfill.NewPlanner(cfg, prof)
	r := &planReplay{planner: p, start: map[scheduler.JobID]scheduler.Time{}, end: map[scheduler.JobID]scheduler.Time{}}
	for i := range projects {
		if stop != nil {
			if err := stop(); err != nil {
				return twoTierMeans{}, err
			}
		}
		now := paperTime(projects[i].Arrival)
		r.advanceTo(now)
		in := paperProject(i, &projects[i])
		p.Restore(in, backfill.Guarantee{}, false, func(backfill.Key, *backfill.Need) backfill.Existing { return backfill.Existing{} })
		if _, err := p.CompletePlan(now, in.ID); err != nil {
			return twoTierMeans{}, err
		}
	}
	r.advanceTo(scheduler.Never)
	return r.means(projects)
}

func paperTime(x float64) scheduler.Time { return scheduler.Time(x * float64(time.Second)) }

// maxProjectJobs is the range of job numbers per project.
const maxProjectJobs = 1000

func paperProject(i int, in *trace.TwoTierProject) backfill.Project {
	out := backfill.Project{ID: scheduler.ProjectID(i + 1), Submitted: paperTime(in.Arrival), HighPriority: in.High}
	for k, j := range in.Jobs {
		out.Requests = append(out.Requests, backfill.Request{Job: scheduler.JobID((i+1)*maxProjectJobs + k), Tasks: []int32{0},
			Need: backfill.Need{Base: j.Q}, Bound: max(1, time.Duration(j.Te*float64(time.Second)))})
	}
	return out
}

// planReplay executes a plan.
type planReplay struct {
	planner    *backfill.Planner
	start, end map[scheduler.JobID]scheduler.Time
}

type replayStep struct {
	at    scheduler.Time
	start bool
	key   backfill.Key
}

// advanceTo starts and ends the jobs that are due before now, in order of time.
func (r *planReplay) advanceTo(now scheduler.Time) {
	var steps []replayStep
	r.planner.Scan(func(x *backfill.PlannedTask) {
		if !x.Started && x.Spot.At < now {
			steps = append(steps, replayStep{x.Spot.At, true, x.Key})
			r.start[x.Key.Job] = x.Spot.At
		}
		if x.End <= now && x.Spot.At < now {
			steps = append(steps, replayStep{x.End, false, x.Key})
			r.end[x.Key.Job] = x.End
		}
	})
	slices.SortStableFunc(steps, func(a, b replayStep) int {
		switch {
		case a.at != b.at:
			return int(max(-1, min(1, a.at-b.at)))
		case a.start != b.start && a.start:
			return 1
		case a.start != b.start:
			return -1
		}
		return a.key.Compare(b.key)
	})
	for _, s := range steps {
		if s.start {
			r.planner.Start(s.key, s.at)
		} else {
			r.planner.End(s.key, s.at)
		}
	}
}

func (r *planReplay) means(projects []trace.TwoTierProject) (twoTierMeans, error) {
	var m twoTierMeans
	high := 0
	for i := range projects {
		arrival := paperTime(projects[i].Arrival)
		first, last := scheduler.Never, scheduler.Time(0)
		for k := range projects[i].Jobs {
			id := scheduler.JobID((i+1)*maxProjectJobs + k)
			start, started := r.start[id]
			end, ended := r.end[id]
			if !started || !ended {
				return m, fmt.Errorf("two-tier: job %d never ran", id)
			}
			first, last = min(first, start), max(last, end)
			m.jta += end.Sub(arrival).Seconds() / float64(len(projects[i].Jobs)) // eq. 8: each project counts equally
		}
		turn := last.Sub(arrival).Seconds()
		m.pta += turn
		m.wait += first.Sub(arrival).Seconds()
		m.running += last.Sub(first).Seconds()
		if projects[i].High {
			m.high += turn
			high++
		} else {
			m.low += turn
		}
	}
	n := float64(len(projects))
	m.jta, m.pta, m.wait, m.running = m.jta/n, m.pta/n, m.wait/n, m.running/n
	m.high /= max(1, float64(high))
	m.low /= max(1, n-float64(high))
	return m, nil
}

// The paper takes 5 seeds. Short experiments take more: at an inter-arrival time of 160 the results
// of two seeds often differ by a factor of two.
const (
	twoTierSeeds     = 24
	twoTierLongSeeds = 5 // if thousands of jobs wait
)

func twoTierExperiments() []Experiment {
	const paper = "Two-tier"
	return []Experiment{
		{Name: "two_tier/fig8", Paper: paper, Seeds: twoTierSeeds, Cost: 25, Run: twoTierFig8, Why: whyFig8},
		{Name: "two_tier/fig9", Paper: paper, Seeds: twoTierSeeds, Cost: 1, Run: twoTierFig9, Why: whyFig9},
		{Name: "two_tier/fig10", Paper: paper, Seeds: twoTierLongSeeds, Cost: 60, Run: twoTierFig10, Why: whyFig10},
		{Name: "two_tier/fig11", Paper: paper, Seeds: twoTierSeeds, Cost: 4, Run: twoTierFig11, Why: whyFig11},
		{Name: "two_tier/fig12", Paper: paper, Seeds: twoTierSeeds, Cost: 4, Run: twoTierFig12, Why: whyFig12},
	}
}

var (
	strictConfig   = backfill.Config{Variant: backfill.Strict}
	flexibleConfig = backfill.Config{Variant: backfill.Flexible}
	slackConfig    = backfill.Config{Variant: backfill.FlexibleSF, SlackFactor: 0.5, PreemptionLimit: backfill.NoLimit}
)

// isLongSeed reports whether a seed is also run with fast arrivals.
func isLongSeed(seed uint64) bool { return seed <= twoTierLongSeeds }

// twoTierAll returns the means of several configurations on one seed.
func (e *Env) twoTierAll(seed uint64, ita float64, cfgs ...backfill.Config) ([]twoTierMeans, error) {
	var out []twoTierMeans
	for _, c := range cfgs {
		m, err := e.twoTier(c, seed, ita)
		if err != nil {
			return nil, err
		}
		out = append(out, m)
	}
	return out, nil
}

func twoTierFig8(e *Env, seed uint64) (*Sample, error) {
	s := &Sample{}
	for _, ita := range []float64{10, 160} {
		if ita == 10 && !isLongSeed(seed) {
			continue
		}
		m, err := e.twoTierAll(seed, ita, strictConfig, flexibleConfig, slackConfig)
		if err != nil {
			return nil, err
		}
		base, flex, sf, k := m[0], m[1], m[2], fmt.Sprint(ita)
		s.setClaim("jta_"+k, sf.jta/base.jta)
		s.setClaim("diff_"+k, base.jta-sf.jta)
		s.setClaim("2tfb_"+k, flex.jta/base.jta)
		s.setClaim("pta_"+k, sf.pta/base.pta)
		for i, name := range []string{"2TSB", "2TFB", "2TFB-SF"} {
			s.addPoint("mean job turn-around", name, ita, m[i].jta)
			s.addPoint("mean project turn-around", name, ita, m[i].pta)
		}
	}
	return s, nil
}

func twoTierFig9(e *Env, seed uint64) (*Sample, error) {
	s := &Sample{}
	for _, ita := range []float64{10, 160} {
		if ita == 10 && !isLongSeed(seed) {
			continue
		}
		m, err := e.twoTierAll(seed, ita, strictConfig, slackConfig)
		if err != nil {
			return nil, err
		}
		k := fmt.Sprint(ita)
		s.setClaim("wait_"+k, m[1].wait/m[0].wait)
		s.setClaim("run_"+k, m[1].running/m[0].running)
		for i, name := range []string{"2TSB", "2TFB-SF"} {
			s.addPoint("mean project waiting", name, ita, m[i].wait)
			s.addPoint("mean project running", name, ita, m[i].running)
		}
	}
	return s, nil
}

func twoTierFig10(e *Env, seed uint64) (*Sample, error) {
	s := &Sample{}
	var first, last twoTierMeans
	for _, sf := range []float64{0.2, 0.5, 1} {
		m, err := e.twoTier(backfill.Config{Variant: backfill.FlexibleSF, SlackFactor: sf, PreemptionLimit: backfill.NoLimit}, seed, 40)
		if err != nil {
			return nil, err
		}
		if sf == 0.2 {
			first = m
		}
		last = m
		s.addPoint("slack factor at ita 40", "jobs", sf, m.jta)
		s.addPoint("slack factor at ita 40", "projects", sf, m.pta)
	}
	s.setClaim("jta_falls", last.jta/first.jta-1)
	s.setClaim("pta_rises", last.pta/first.pta-1)
	return s, nil
}

// comparePriority compares 2TPB with 2TSB for all, high and low projects.
func comparePriority(e *Env, s *Sample, seed uint64, ita, sf float64, pl int, key string) error {
	if ita == 10 && !isLongSeed(seed) {
		return nil
	}
	m, err := e.twoTierAll(seed, ita, strictConfig, backfill.Config{Variant: backfill.Priority, SlackFactor: sf, PreemptionLimit: pl})
	if err != nil {
		return err
	}
	base, pb := m[0], m[1]
	if key != "" {
		s.setClaim("high_"+key, pb.high/base.high)
		s.setClaim("low_"+key, pb.low/base.low)
		s.setClaim("all_"+key, pb.pta/base.pta)
	}
	plot := fmt.Sprintf("2TPB over 2TSB, SF %g, PL %d", sf, pl)
	if pl == backfill.NoLimit {
		plot = fmt.Sprintf("2TPB over 2TSB, SF %g, no limit", sf)
	}
	s.addPoint(plot, "high", ita, pb.high/base.high)
	s.addPoint(plot, "low", ita, pb.low/base.low)
	s.addPoint(plot, "all", ita, pb.pta/base.pta)
	return nil
}

func twoTierFig11(e *Env, seed uint64) (*Sample, error) {
	s := &Sample{}
	for _, c := range []struct {
		ita, sf float64
		key     string
	}{{10, 0.2, "10"}, {160, 0.2, ""}, {10, 0.5, ""}, {160, 0.5, ""}, {10, 1, ""}, {160, 1, "160"}} {
		if err := comparePriority(e, s, seed, c.ita, c.sf, backfill.NoLimit, c.key); err != nil {
			return nil, err
		}
	}
	return s, nil
}

func twoTierFig12(e *Env, seed uint64) (*Sample, error) {
	s := &Sample{}
	for _, c := range []struct {
		ita float64
		pl  int
		key string
	}{{10, 1, "10"}, {160, 1, ""}, {10, 5, ""}, {160, 5, ""}, {10, backfill.NoLimit, ""}, {160, backfill.NoLimit, "160"}} {
		if err := comparePriority(e, s, seed, c.ita, 0.5, c.pl, c.key); err != nil {
			return nil, err
		}
	}
	return s, nil
}
