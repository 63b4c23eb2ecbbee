package reproduce

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/backfill"
	"github.com/drover-run/drover/scheduler/sim/trace"
)

// The two-tier paper's evaluation (5.1, Table 6): the pool of totals with five
// resources, every job as long as it said, so the plan is what happens.
const (
	twoTierProjects  = 1000
	twoTierResources = 5
)

// twoTierMeans are the means of one run, in the paper's time units.
type twoTierMeans struct {
	jta, pta, wait, running float64
	high, low               float64 // project turn-around
}

// twoTierTries bounds the backfill times tried for one job where projects
// come so fast that thousands of jobs wait: trying each of them as Alg. 2 does
// takes hours there. Past it a job gets the earliest hole that displaces nobody.
const twoTierTries = 20

// runTwoTier plans the projects of a seed under one configuration.
func runTwoTier(cfg backfill.Config, seed uint64, ita float64) (twoTierMeans, error) {
	if ita < 80 {
		cfg.MaxTries = twoTierTries
	}
	m, projects := trace.TwoTier(seed, twoTierProjects, twoTierResources, ita)
	prof := &backfill.Profile{}
	prof.AddBin(m)
	p, err := backfill.NewPlanner(cfg, prof)
	if err != nil {
		return twoTierMeans{}, err
	}
	r := &planned{p: p, start: map[scheduler.JobID]scheduler.Time{}, end: map[scheduler.JobID]scheduler.Time{}}
	for i := range projects {
		now := paperTime(projects[i].Arrival)
		r.pass(now)
		if _, err := p.Submit(now, paperProject(i, &projects[i])); err != nil {
			return twoTierMeans{}, err
		}
	}
	r.pass(scheduler.Never)
	return r.means(projects)
}

func paperTime(x float64) scheduler.Time { return scheduler.Time(x * float64(time.Second)) }

// jobsOf bounds the jobs of a project, to number them.
const jobsOf = 1000

func paperProject(i int, in *trace.TwoTierProject) backfill.Project {
	out := backfill.Project{ID: scheduler.ProjectID(i + 1), Submitted: paperTime(in.Arrival), High: in.High}
	for k, j := range in.Jobs {
		out.Requests = append(out.Requests, backfill.Request{Job: scheduler.JobID((i+1)*jobsOf + k), Tasks: []int32{0},
			Need: backfill.Need{Base: j.Q}, Bound: max(1, time.Duration(j.Te)*time.Second)})
	}
	return out
}

// planned carries a plan out.
type planned struct {
	p          *backfill.Planner
	start, end map[scheduler.JobID]scheduler.Time
}

type step struct {
	at    scheduler.Time
	start bool
	key   backfill.Key
}

// pass starts and ends what is due before now, in order of time.
func (r *planned) pass(now scheduler.Time) {
	var steps []step
	r.p.Each(func(x backfill.Planned) bool {
		if !x.Started && x.Spot.At < now {
			steps = append(steps, step{x.Spot.At, true, x.Key})
			r.start[x.Key.Job] = x.Spot.At
		}
		if x.End <= now && x.Spot.At < now {
			steps = append(steps, step{x.End, false, x.Key})
			r.end[x.Key.Job] = x.End
		}
		return true
	})
	slices.SortStableFunc(steps, func(a, b step) int {
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
			r.p.Start(s.key, s.at)
		} else {
			r.p.End(s.key, s.at)
		}
	}
}

func (r *planned) means(projects []trace.TwoTierProject) (twoTierMeans, error) {
	var m twoTierMeans
	jobs, high := 0, 0
	for i := range projects {
		arrival := paperTime(projects[i].Arrival)
		first, last := scheduler.Never, scheduler.Time(0)
		for k := range projects[i].Jobs {
			id := scheduler.JobID((i+1)*jobsOf + k)
			start, started := r.start[id]
			end, ended := r.end[id]
			if !started || !ended {
				return m, fmt.Errorf("two-tier: job %d never ran", id)
			}
			first, last = min(first, start), max(last, end)
			m.jta += end.Sub(arrival).Seconds()
			jobs++
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
	m.jta /= float64(jobs)
	m.pta, m.wait, m.running = m.pta/n, m.wait/n, m.running/n
	m.high /= max(1, float64(high))
	m.low /= max(1, n-float64(high))
	return m, nil
}

// twoTierItas are the steps of Fig. 8 to 12; the paper states 10 and 160.
var twoTierItas = []float64{10, 40, 160}

func twoTierExperiments() []Experiment {
	const paper = "Two-tier"
	const seeds = 5 // as the paper
	fig8 := func(_ *Env, seed uint64) (*Sample, error) {
		s := &Sample{}
		for _, ita := range twoTierItas {
			if err := twoTierFig8(s, seed, ita); err != nil {
				return nil, err
			}
		}
		return s, nil
	}
	fig9 := func(_ *Env, seed uint64) (*Sample, error) {
		s := &Sample{}
		return s, errors.Join(twoTierFig8(s, seed, 10), twoTierFig8(s, seed, 160))
	}
	return []Experiment{
		{Name: "two_tier/fig8", Paper: paper, Seeds: seeds, Run: fig8, Why: map[string]string{
			"": "at ita below 80 only the first 20 backfill times are tried for a job; what a job gains by a displacement others lose, and which way the sum goes depends on details of shiftReservations that the paper does not give."}},
		{Name: "two_tier/fig9", Paper: paper, Seeds: seeds, Run: fig9, Why: map[string]string{
			"": "the paper's waiting is not defined beyond 'first job'; measured as first start less arrival."}},
		{Name: "two_tier/fig10", Paper: paper, Seeds: seeds, Run: twoTierFig10},
		{Name: "two_tier/fig11", Paper: paper, Seeds: seeds, Run: twoTierFig11, Why: map[string]string{
			"": "high-priority projects have SF 0 and low ones SF (Alg. 3 line 3), which bounds what a low one can lose."}},
		{Name: "two_tier/fig12", Paper: paper, Seeds: seeds, Run: twoTierFig12},
	}
}

func twoTierFig8(s *Sample, seed uint64, ita float64) error {
	strict, err := runTwoTier(backfill.Config{Variant: backfill.Strict}, seed, ita)
	if err != nil {
		return err
	}
	flex, err := runTwoTier(backfill.Config{Variant: backfill.Flexible}, seed, ita)
	if err != nil {
		return err
	}
	sf, err := runTwoTier(backfill.Config{Variant: backfill.FlexibleSF, SF: 0.5, PL: backfill.NoLimit}, seed, ita)
	if err != nil {
		return err
	}
	k := fmt.Sprint(ita)
	s.set("jta_"+k, sf.jta/strict.jta)
	s.set("diff_"+k, strict.jta-sf.jta)
	s.set("2tfb_"+k, flex.jta/strict.jta)
	s.set("pta_"+k, sf.pta/strict.pta)
	s.set("wait_"+k, sf.wait/strict.wait)
	s.set("run_"+k, sf.running/strict.running)
	for name, m := range map[string]twoTierMeans{"2TSB": strict, "2TFB": flex, "2TFB-SF": sf} {
		s.point("mean job turn-around", name, ita, m.jta)
		s.point("mean project turn-around", name, ita, m.pta)
		s.point("mean project waiting", name, ita, m.wait)
		s.point("mean project running", name, ita, m.running)
	}
	return nil
}

func twoTierFig10(_ *Env, seed uint64) (*Sample, error) {
	s := &Sample{}
	var first, last twoTierMeans
	for _, sf := range []float64{0.2, 0.5, 1} {
		m, err := runTwoTier(backfill.Config{Variant: backfill.FlexibleSF, SF: sf, PL: backfill.NoLimit}, seed, 40)
		if err != nil {
			return nil, err
		}
		if sf == 0.2 {
			first = m
		}
		last = m
		s.point("slack factor at ita 40", "jobs", sf, m.jta)
		s.point("slack factor at ita 40", "projects", sf, m.pta)
	}
	s.set("jta_falls", last.jta/first.jta-1)
	s.set("pta_rises", last.pta/first.pta-1)
	return s, nil
}

// priority compares 2TPB with 2TSB for all, high and low projects.
func priority(s *Sample, seed uint64, ita, sf float64, pl int, key string) error {
	strict, err := runTwoTier(backfill.Config{Variant: backfill.Strict}, seed, ita)
	if err != nil {
		return err
	}
	pb, err := runTwoTier(backfill.Config{Variant: backfill.Priority, SF: sf, PL: pl}, seed, ita)
	if err != nil {
		return err
	}
	if key != "" {
		s.set("high_"+key, pb.high/strict.high)
		s.set("low_"+key, pb.low/strict.low)
		s.set("all_"+key, pb.pta/strict.pta)
	}
	plot := fmt.Sprintf("2TPB over 2TSB, SF %g, PL %d", sf, pl)
	s.point(plot, "high", ita, pb.high/strict.high)
	s.point(plot, "low", ita, pb.low/strict.low)
	s.point(plot, "all", ita, pb.pta/strict.pta)
	return nil
}

func twoTierFig11(_ *Env, seed uint64) (*Sample, error) {
	s := &Sample{}
	for _, c := range []struct {
		ita, sf float64
		key     string
	}{{10, 0.2, "10"}, {160, 0.2, ""}, {10, 0.5, ""}, {160, 0.5, ""}, {10, 1, ""}, {160, 1, "160"}} {
		if err := priority(s, seed, c.ita, c.sf, backfill.NoLimit, c.key); err != nil {
			return nil, err
		}
	}
	return s, nil
}

func twoTierFig12(_ *Env, seed uint64) (*Sample, error) {
	s := &Sample{}
	for _, c := range []struct {
		ita float64
		pl  int
		key string
	}{{10, 1, "10"}, {160, 1, ""}, {10, 5, ""}, {160, 5, ""}, {10, backfill.NoLimit, ""}, {160, backfill.NoLimit, "160"}} {
		if err := priority(s, seed, c.ita, 0.5, c.pl, c.key); err != nil {
			return nil, err
		}
	}
	return s, nil
}
