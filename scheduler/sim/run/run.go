package run

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/sim/engine"
	"github.com/drover-run/drover/scheduler/sim/report"
	"github.com/drover-run/drover/scheduler/sim/trace"
)

// workloadFunc makes the jobs for a seed. The nodes are the simulated ones: the locations of the
// jobs' input refer to them.
type workloadFunc func(seed uint64, nodes []engine.Node) (*trace.Workload, error)

// Setup is a simulation without its seed.
type Setup struct {
	Nodes     []engine.Node
	Absences  []engine.Absence
	Tenants   []scheduler.TenantSpec // nil: those of the workload
	Scheduler string                 // a policy's name, or "pipe:" and the command of another process
	Params    map[string]string
	Models    engine.Models
	// Workload makes the jobs for a seed. It is called once per simulation, which does not change
	// the result.
	Workload workloadFunc
	// JobUnit is the unit of throughput in seconds; 0 is report.DefaultJobUnit.
	JobUnit           float64
	CycleInterval     time.Duration
	CycleEachEvent    bool
	maxEvents         uint64
	MaxTaskExecutions int
	// TaskLog, if not "", is the path of a CSV file with a row per attempt of the simulation of
	// TaskLogSeed, which also records its series by tenant. WriteResults gives the file that name;
	// finally DiscardTaskLogs must be called for files without their name.
	TaskLog     string
	TaskLogSeed uint64
	// WaitedTimes records why tasks waited in that simulation too.
	WaitedTimes bool
	// wrapPolicy, if not nil, wraps the policy.
	wrapPolicy func(scheduler.Policy) scheduler.Policy
}

// Outcome is one finished simulation.
type Outcome struct {
	seed     uint64
	Config   engine.Config
	Result   *engine.Result
	Numbers  report.Numbers
	wallTime time.Duration // on this machine
	taskLog  *newFile      // its attempts, until the results are written or discarded; nil without a log
}

// Simulate runs the setup for one seed until ctx ends. If the simulation fails, the Outcome holds
// everything up to that point.
func (s *Setup) Simulate(ctx context.Context, seed uint64, progress func(engine.Progress)) (*Outcome, error) {
	w, err := s.Workload(seed, s.Nodes)
	if err != nil {
		return nil, err
	}
	if err := checkNotEmpty(w); err != nil {
		return nil, err
	}
	if w, err = withTenants(w, s.Tenants); err != nil {
		return nil, err
	}
	p, closePolicy, err := s.newPolicy()
	if err != nil {
		return nil, err
	}
	stop := stopFunc(ctx, p)
	if s.wrapPolicy != nil {
		p = s.wrapPolicy(p)
	}
	c := engine.Config{Nodes: s.Nodes, Absences: s.Absences, Tenants: w.Tenants, Projects: w.Projects, Jobs: w.Jobs, Policy: p, Models: s.Models, Seed: seed,
		MaxEvents: s.maxEvents, MaxTaskExecutions: s.MaxTaskExecutions, CycleInterval: s.CycleInterval, CycleEachEvent: s.CycleEachEvent, Stop: stop, Progress: progress}
	start := time.Now()
	r, log, err := s.simulateLogged(&c)
	if closed := closePolicy(); closed != nil {
		err = closed
	}
	o := &Outcome{seed: seed, Config: c, Result: r, wallTime: time.Since(start), taskLog: log}
	if r != nil {
		o.Numbers = report.Summarise(&c, r, s.jobUnit())
	}
	if err != nil {
		return o, fmt.Errorf("%s, seed %d: %w", s.Scheduler, seed, err)
	}
	return o, nil
}

func (s *Setup) jobUnit() float64 { return cmp.Or(s.JobUnit, report.DefaultJobUnit) }

// checkNotEmpty returns an error for a workload without jobs, whose simulation would succeed and
// show nothing.
func checkNotEmpty(w *trace.Workload) error {
	if len(w.Jobs) > 0 {
		return nil
	}
	if w.Count.Lines == 0 {
		return fmt.Errorf("the workload is empty: no line of a job was found")
	}
	return fmt.Errorf("the workload has no job to simulate: of %d lines %d have nothing to run (no tasks or no run time) and %d are bad", w.Count.Lines, w.Count.Skipped, w.Count.Bad)
}

// StopFunc returns a function for engine.Config.Stop, which returns the cause of ctx's end, or nil.
func StopFunc(ctx context.Context) func() error {
	return func() error {
		if ctx.Err() == nil {
			return nil
		}
		return context.Cause(ctx)
	}
}

// SimulateSeeds runs the setup for many seeds, at most parallel of them at a time. The outcomes are
// in the order of the seeds. It returns the first error in that order, with the outcomes of the
// other seeds.
func (s *Setup) SimulateSeeds(ctx context.Context, seeds []uint64, parallel int, progress func(done, of int, p engine.Progress)) ([]*Outcome, error) {
	out, errs := make([]*Outcome, len(seeds)), make([]error, len(seeds))
	var mu sync.Mutex
	done := 0
	ForEachParallel(len(seeds), parallel, func(i int) {
		if ctx.Err() != nil {
			errs[i] = fmt.Errorf("%s, seed %d: not started: %w", s.Scheduler, seeds[i], context.Cause(ctx))
			return
		}
		var report func(engine.Progress)
		if progress != nil {
			report = func(p engine.Progress) {
				mu.Lock()
				defer mu.Unlock()
				progress(done, len(seeds), p)
			}
		}
		out[i], errs[i] = s.Simulate(ctx, seeds[i], report)
		mu.Lock()
		done++
		mu.Unlock()
	})
	for _, err := range errs {
		if err != nil {
			return out, err
		}
	}
	return out, nil
}

// ForEachParallel calls f(0) … f(n-1), at most parallel at a time, and waits for all calls.
func ForEachParallel(n, parallel int, f func(i int)) {
	next := make(chan int)
	var wg sync.WaitGroup
	for range max(1, min(n, parallel)) {
		wg.Go(func() {
			for i := range next {
				f(i)
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	wg.Wait()
}

// Seeds returns n consecutive seeds.
func Seeds(first uint64, n int) []uint64 {
	out := make([]uint64, n)
	for i := range out {
		out[i] = first + uint64(i)
	}
	return out
}

// Summary summarises the simulations of one setup. parameters describes how it was made.
func (s *Setup) Summary(outs []*Outcome, parameters map[string]string) report.Summary {
	sum := report.Summary{Scheduler: s.Scheduler, Model: "tasks", Seed: outs[0].seed, Runs: len(outs), Parameters: parameters, Jobs: len(outs[0].Result.Jobs)}
	sum.Refused, sum.FirstRefused = outs[0].Result.Refused, outs[0].Result.FirstRefused
	var runs []report.Numbers
	var tenants [][]report.TenantNumbers
	took := time.Duration(0)
	for _, o := range outs {
		runs = append(runs, o.Numbers)
		tenants = append(tenants, report.SummariseTenants(&o.Config, o.Result))
		sum.Events += o.Result.Events
		took += o.wallTime
	}
	sum.Numbers, sum.CI95 = report.MeanOf(runs)
	sum.Tenants = report.MeanOfTenants(tenants)
	if len(runs) < 2 {
		sum.CI95 = nil
	}
	sum.EventsPerS = float64(sum.Events) / max(took.Seconds(), 1e-9)
	return sum
}
