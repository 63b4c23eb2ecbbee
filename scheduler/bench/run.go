package bench

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/policies"
)

// Run measures one case.
func Run(c Config, m Meter) (Result, error) {
	c = c.Defaults()
	w, err := NewWorld(c)
	if err != nil {
		return Result{}, err
	}
	p, err := newPolicy(c)
	if err != nil {
		return Result{}, err
	}
	if err := w.fill(p); err != nil {
		return Result{}, err
	}
	if c.Features == FeaturesAll {
		if err := w.promise(p); err != nil {
			return Result{}, err
		}
	}
	w.local, w.withIn, w.due, w.planned, w.suspensions, w.resumes = 0, 0, 0, 0, 0, 0
	r := Result{Nodes: c.Nodes, Features: c.Features, Policy: c.Policy, Tenants: c.Tenants, Tasks: c.Tasks, Seed: c.Seed}
	if err := w.steady(p, m, &r); err != nil {
		return Result{}, err
	}
	if err := w.idle(p, m, &r); err != nil {
		return Result{}, err
	}
	r.Load, r.WaitingTasks, r.RSSBytes = w.load(), w.waiting, m.RSS()
	if w.withIn > 0 {
		r.NodeLocal = float64(w.local) / float64(w.withIn)
	}
	r.ReservationsWaiting = len(w.S.Reservations())
	r.Packing, err = Packing(c)
	return r, err
}

// newPolicy makes the policy of a case, without planning of its own unless that
// is asked for.
func newPolicy(c Config) (scheduler.Policy, error) {
	const planning = "promises"
	info, err := policies.Get(c.Policy)
	if err != nil {
		return nil, err
	}
	if _, set := c.Params[planning]; !set && !c.Planning && slices.ContainsFunc(info.Params, func(p policies.Param) bool { return p.Name == planning }) {
		c.Params = maps.Clone(c.Params)
		if c.Params == nil {
			c.Params = map[string]string{}
		}
		c.Params[planning] = "false"
	}
	return policies.New(c.Policy, c.Params)
}

// promise submits the projects and lets the policy plan them; where it makes no
// reservations the world does.
func (w *World) promise(p scheduler.Policy) error {
	if err := w.submitProjects(); err != nil {
		return err
	}
	for range 100 {
		before := len(w.S.Reservations())
		d, err := scheduler.Cycle(w.S, p, w.Now, w.MaxActions, scheduler.Identity)
		if err != nil {
			return err
		}
		w.Placed(&d)
		if err := w.report(&d); err != nil {
			return err
		}
		if len(w.S.Reservations()) == before {
			break
		}
	}
	if len(w.S.Reservations()) < 5*w.Projects {
		return w.reserve()
	}
	return nil
}

// pause is how long the ends of one cycle take to come when each task runs for
// the minute that was predicted and a node runs about 20.
func (w *World) pause() time.Duration {
	return time.Minute * time.Duration(w.MaxActions) / time.Duration(max(w.MaxActions, 20*w.Nodes))
}

// steady times cycles of ends and placements at the load.
func (w *World) steady(p scheduler.Policy, m Meter, r *Result) error {
	var spent time.Duration
	var allocs uint64
	var ends []scheduler.AttemptID
	var shares shareJudge
	var match matchJudge
	var cpuSpent time.Duration
	times := make([]float64, 0, 1+2*w.Placements/w.MaxActions)
	cpus := make([]float64, 0, cap(times))
	limit := 1000 + 100*w.Placements/w.MaxActions
	for warm := range limit {
		if r.Placements >= w.Placements {
			break
		}
		ends = w.pickEnds(w.MaxActions, ends[:0])
		w.Now = w.Now.Add(w.pause())
		a0, c0, t0 := m.Allocs(), m.CPU(), m.Clock()
		if err := w.end(ends); err != nil {
			return err
		}
		t1, c1, a1 := m.Clock(), m.CPU(), m.Allocs()
		if err := w.Submit(w.Tasks); err != nil {
			return err
		}
		if w.Features == FeaturesAll {
			shares.begin(w.S)
			if warm%matchEvery == 0 {
				match.begin(w.S)
			}
		}
		a2, c2, t2 := m.Allocs(), m.CPU(), m.Clock()
		d, err := scheduler.Cycle(w.S, p, w.Now, w.MaxActions, scheduler.Identity)
		if err != nil {
			return err
		}
		t3, c3, a3 := m.Clock(), m.CPU(), m.Allocs()
		if w.Features == FeaturesAll {
			r.UnexplainedStages += unexplained(w.S, &d)
			match.end(w.S, &d)
			r.ShareErrorTasks = max(r.ShareErrorTasks, shares.judge(w.S, &d))
		}
		w.Placed(&d)
		if err := w.report(&d); err != nil {
			return err
		}
		if warm < 10 {
			continue
		}
		took, cpu := t1-t0+t3-t2, c1-c0+c3-c2
		spent += took
		cpuSpent += cpu
		allocs += a1 - a0 + a3 - a2
		times = append(times, float64(took.Microseconds())/1000)
		cpus = append(cpus, float64(cpu.Microseconds())/1000)
		r.Placements += placements(&d)
	}
	r.DeadlinePlacements, r.ReservedPlacements, r.Suspensions, r.Resumes = w.due, w.planned, w.suspensions, w.resumes
	r.MatchingGap = match.gap()
	if r.Placements == 0 {
		return fmt.Errorf("%s placed nothing in %d cycles", p.Name(), limit)
	}
	slices.Sort(times)
	r.Cycles = len(times)
	r.PlacementsPerS = float64(r.Placements) / spent.Seconds()
	r.CycleP50MS, r.CycleP99MS = times[len(times)/2], times[len(times)*99/100]
	slices.Sort(cpus)
	r.PlacementsPerCPUS = float64(r.Placements) / max(cpuSpent.Seconds(), 1e-6)
	r.CycleCPUP50MS, r.CycleCPUP99MS = cpus[len(cpus)/2], cpus[len(cpus)*99/100]
	r.AllocsPerPlacement = float64(allocs) / float64(r.Placements)
	return nil
}

// idle times cycles in which nothing changed.
func (w *World) idle(p scheduler.Policy, m Meter, r *Result) error {
	for range 100_000 { // until nothing more is to be done
		d, err := scheduler.Cycle(w.S, p, w.Now, w.MaxActions, scheduler.Identity)
		if err != nil {
			return err
		}
		w.Placed(&d)
		if err := w.report(&d); err != nil {
			return err
		}
		if d.Empty() {
			break
		}
	}
	const rounds = 1000
	a0, t0 := m.Allocs(), m.Clock()
	for range rounds {
		if d, err := scheduler.Cycle(w.S, p, w.Now, w.MaxActions, scheduler.Identity); err != nil || !d.Empty() {
			return fmt.Errorf("%s: nothing changed and it decides otherwise: %v", p.Name(), err)
		}
	}
	t1, a1 := m.Clock(), m.Allocs()
	r.IdleCycleUS = float64((t1 - t0).Nanoseconds()) / 1000 / rounds
	r.IdleAllocs = float64(a1-a0) / rounds
	return nil
}
