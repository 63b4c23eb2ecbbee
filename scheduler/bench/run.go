package bench

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/policies"
)

// measure measures one case.
func measure(c Config, m Meter) (Result, error) {
	c = c.defaults()
	w, err := newWorld(c)
	if err != nil {
		return Result{}, err
	}
	p, err := newPolicy(c)
	if err != nil {
		return Result{}, err
	}
	if err := w.fillToLoad(p); err != nil {
		return Result{}, err
	}
	if c.Features == FeaturesAll {
		if err := w.reserveForProjects(p); err != nil {
			return Result{}, err
		}
	}
	w.nodeLocal, w.withInput, w.deadlinePlacements, w.reservedPlacements, w.suspensions, w.resumes = 0, 0, 0, 0, 0, 0
	r := Result{Nodes: c.Nodes, Features: c.Features, Policy: c.Policy, Tenants: c.Tenants, Tasks: c.WaitingTasks, Seed: c.Seed}
	if err := w.measureSteady(p, m, &r); err != nil {
		return Result{}, err
	}
	if err := w.measureIdle(p, m, &r); err != nil {
		return Result{}, err
	}
	r.Load, r.WaitingTasks, r.RSSBytes = w.currentLoad(), w.pendingTasks, m.RSS()
	if w.withInput > 0 {
		r.NodeLocal = float64(w.nodeLocal) / float64(w.withInput)
	}
	r.ReservationsWaiting = len(w.s.Reservations().All())
	r.Packing, err = measurePacking(c)
	return r, err
}

// newPolicy makes the policy of a case. It disables the policy's own guarantees unless Planning is
// set.
func newPolicy(c Config) (scheduler.Policy, error) {
	const planning = "guarantees"
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

// reserveForProjects submits the projects and lets the policy plan them. If a policy that honours
// guarantees does not reserve for all of them, World does. Other policies never meet a guarantee: a
// change of scheduler drops the reservations of the former one.
func (w *world) reserveForProjects(p scheduler.Policy) error {
	if err := w.submitProjects(); err != nil {
		return err
	}
	for range 100 {
		before := len(w.s.Reservations().All())
		d, err := scheduler.Cycle(w.s, p, w.now, w.maxActions, scheduler.AcceptAll)
		if err != nil {
			return err
		}
		w.recordPlacements(&d)
		if err := w.reportActions(&d); err != nil {
			return err
		}
		if len(w.s.Reservations().All()) == before {
			break
		}
	}
	if d := scheduler.DeadlineServiceOf(p); (d.Preempts || d.Guarantees) && len(w.s.Reservations().All()) < 5*w.projects {
		return w.makeReservations()
	}
	return nil
}

// cycleInterval returns the time in which one cycle's ends occur if each task runs for the
// predicted minute and a node runs about 20.
func (w *world) cycleInterval() time.Duration {
	return time.Minute * time.Duration(w.maxActions) / time.Duration(max(w.maxActions, 20*w.Nodes))
}

// measureSteady measures cycles with ends and placements at the load.
func (w *world) measureSteady(p scheduler.Policy, m Meter, r *Result) error {
	var clockSpent time.Duration
	var allocs uint64
	var ends []scheduler.AttemptID
	var shares shareEvaluator
	var match matchingEvaluator
	var cpuSpent time.Duration
	cycleMS := make([]float64, 0, 1+2*w.Placements/w.maxActions)
	cycleCPUMS := make([]float64, 0, cap(cycleMS))
	maxCycles := 1000 + 100*w.Placements/w.maxActions
	for cycle := range maxCycles {
		if r.Placements >= w.Placements {
			break
		}
		ends = w.pickEnds(w.maxActions, ends[:0])
		w.now = w.now.Add(w.cycleInterval())
		allocsBefore, cpuBefore, clockBefore := m.Allocs(), m.CPU(), m.Clock()
		if err := w.endAttempts(ends); err != nil {
			return err
		}
		clockEnds, cpuEnds, allocsEnds := m.Clock(), m.CPU(), m.Allocs()
		if err := w.submit(w.WaitingTasks); err != nil {
			return err
		}
		if w.Features == FeaturesAll {
			shares.beforeDecision(w.s)
			if cycle%matchingInterval == 0 {
				match.beforeDecision(w.s)
			}
		}
		allocsSubmit, cpuSubmit, clockSubmit := m.Allocs(), m.CPU(), m.Clock()
		d, err := scheduler.Cycle(w.s, p, w.now, w.maxActions, scheduler.AcceptAll)
		if err != nil {
			return err
		}
		clockCycle, cpuCycle, allocsCycle := m.Clock(), m.CPU(), m.Allocs()
		if w.Features == FeaturesAll {
			r.UnexplainedStages += countUnexplained(w.s, &d)
			match.afterDecision(w.s, &d)
			r.ShareErrorTasks = max(r.ShareErrorTasks, shares.largestError(w.s, &d))
		}
		w.recordPlacements(&d)
		if err := w.reportActions(&d); err != nil {
			return err
		}
		if cycle < 10 {
			continue
		}
		took, cpu := clockEnds-clockBefore+clockCycle-clockSubmit, cpuEnds-cpuBefore+cpuCycle-cpuSubmit
		clockSpent += took
		cpuSpent += cpu
		allocs += allocsEnds - allocsBefore + allocsCycle - allocsSubmit
		cycleMS = append(cycleMS, float64(took.Microseconds())/1000)
		cycleCPUMS = append(cycleCPUMS, float64(cpu.Microseconds())/1000)
		r.Placements += countPlacements(&d)
	}
	r.DeadlinePlacements, r.ReservedPlacements, r.Suspensions, r.Resumes = w.deadlinePlacements, w.reservedPlacements, w.suspensions, w.resumes
	r.MatchingGap, r.MatchingGapFound = match.gap(), match.gapFound()
	if r.Placements == 0 {
		return fmt.Errorf("%s placed nothing in %d cycles", p.Name(), maxCycles)
	}
	slices.Sort(cycleMS)
	r.Cycles = len(cycleMS)
	r.PlacementsPerS = float64(r.Placements) / clockSpent.Seconds()
	r.CycleP50MS, r.CycleP99MS = cycleMS[len(cycleMS)/2], cycleMS[len(cycleMS)*99/100]
	slices.Sort(cycleCPUMS)
	r.PlacementsPerCPUS = float64(r.Placements) / max(cpuSpent.Seconds(), 1e-6)
	r.CycleCPUP50MS, r.CycleCPUP99MS = cycleCPUMS[len(cycleCPUMS)/2], cycleCPUMS[len(cycleCPUMS)*99/100]
	r.AllocsPerPlacement = float64(allocs) / float64(r.Placements)
	return nil
}

// measureIdle measures cycles in which nothing changed.
func (w *world) measureIdle(p scheduler.Policy, m Meter, r *Result) error {
	for range 100_000 { // until the policy has nothing more to do
		d, err := scheduler.Cycle(w.s, p, w.now, w.maxActions, scheduler.AcceptAll)
		if err != nil {
			return err
		}
		w.recordPlacements(&d)
		if err := w.reportActions(&d); err != nil {
			return err
		}
		if d.Empty() {
			break
		}
	}
	const rounds = 1000
	allocsBefore, clockBefore := m.Allocs(), m.Clock()
	for range rounds {
		if d, err := scheduler.Cycle(w.s, p, w.now, w.maxActions, scheduler.AcceptAll); err != nil || !d.Empty() {
			return fmt.Errorf("%s: nothing changed, yet it decides: %v", p.Name(), err)
		}
	}
	clockAfter, allocsAfter := m.Clock(), m.Allocs()
	r.IdleCycleUS = float64((clockAfter - clockBefore).Nanoseconds()) / 1000 / rounds
	r.IdleAllocs = float64(allocsAfter-allocsBefore) / rounds
	return nil
}
