package run

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/policies"
	"github.com/drover-run/drover/scheduler/sim/engine"
	"github.com/drover-run/drover/scheduler/sim/report"
	"github.com/drover-run/drover/scheduler/sim/trace"
)

// Setup is an experiment: everything but the seed.
type Setup struct {
	Nodes     []engine.Node
	Scheduler string
	Params    map[string]string
	Models    engine.Models
	// Workload makes the jobs for a seed. It is called once for each run;
	// runs change nothing of it.
	Workload func(seed uint64) (*trace.Workload, error)
	// JobUnit is the unit of throughput in seconds, 0 for report.DefaultJobUnit.
	JobUnit        float64
	CycleInterval  time.Duration
	CycleEachEvent bool
	MaxEvents      uint64
	KeepTasks      int
	// Wrap, if not nil, puts something around the policy.
	Wrap func(scheduler.Policy) scheduler.Policy
}

// Outcome is one run.
type Outcome struct {
	Seed    uint64
	Config  engine.Config
	Result  *engine.Result
	Numbers report.Numbers
	Took    time.Duration // on this machine
}

// One runs the experiment for one seed. With an error of the simulation the
// Outcome holds what happened until then. It ends when ctx does.
func (s *Setup) One(ctx context.Context, seed uint64, progress func(engine.Progress)) (*Outcome, error) {
	w, err := s.Workload(seed)
	if err != nil {
		return nil, err
	}
	p, err := policies.New(s.Scheduler, s.Params)
	if err != nil {
		return nil, err
	}
	if s.Wrap != nil {
		p = s.Wrap(p)
	}
	c := engine.Config{Nodes: s.Nodes, Tenants: w.Tenants, Projects: w.Projects, Jobs: w.Jobs, Policy: p, Models: s.Models, Seed: seed,
		MaxEvents: s.MaxEvents, KeepTasks: s.KeepTasks, CycleInterval: s.CycleInterval, CycleEachEvent: s.CycleEachEvent, Stop: Stop(ctx), Progress: progress}
	start := time.Now()
	r, err := engine.Run(c)
	o := &Outcome{Seed: seed, Config: c, Result: r, Took: time.Since(start)}
	if r != nil {
		unit := s.JobUnit
		if unit == 0 {
			unit = report.DefaultJobUnit
		}
		o.Numbers = report.Summarise(&c, r, unit)
	}
	if err != nil {
		return o, fmt.Errorf("%s, seed %d: %w", s.Scheduler, seed, err)
	}
	return o, nil
}

// Stop gives what engine.Config.Stop asks: the cause of ctx's end, or nil.
func Stop(ctx context.Context) func() error {
	return func() error {
		if ctx.Err() == nil {
			return nil
		}
		return context.Cause(ctx)
	}
}

// Many runs the experiment for many seeds, parallel of them at a time. The
// outcomes are in the order of the seeds, whatever parallel is. The first
// error in that order is returned, with the outcomes that there are.
func (s *Setup) Many(ctx context.Context, seeds []uint64, parallel int, progress func(done, of int, p engine.Progress)) ([]*Outcome, error) {
	out, errs := make([]*Outcome, len(seeds)), make([]error, len(seeds))
	var mu sync.Mutex
	done := 0
	Parallel(len(seeds), parallel, func(i int) {
		if ctx.Err() != nil {
			errs[i] = fmt.Errorf("%s, seed %d: not begun: %w", s.Scheduler, seeds[i], context.Cause(ctx))
			return
		}
		var tell func(engine.Progress)
		if progress != nil {
			tell = func(p engine.Progress) {
				mu.Lock()
				defer mu.Unlock()
				progress(done, len(seeds), p)
			}
		}
		out[i], errs[i] = s.One(ctx, seeds[i], tell)
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

// Parallel calls f(0) … f(n-1), at most parallel at a time, and waits.
func Parallel(n, parallel int, f func(i int)) {
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

// Seeds are n seeds from a first one.
func Seeds(first uint64, n int) []uint64 {
	out := make([]uint64, n)
	for i := range out {
		out[i] = first + uint64(i)
	}
	return out
}

// Summary makes the summary of runs of one experiment; parameters say how it
// was made.
func (s *Setup) Summary(outs []*Outcome, parameters map[string]string) report.Summary {
	sum := report.Summary{Scheduler: s.Scheduler, Model: "tasks", Seed: outs[0].Seed, Runs: len(outs), Parameters: parameters, Jobs: len(outs[0].Result.Jobs)}
	var runs []report.Numbers
	took := time.Duration(0)
	for _, o := range outs {
		runs = append(runs, o.Numbers)
		sum.Events += o.Result.Events
		took += o.Took
	}
	sum.Numbers, sum.CI95 = report.MeanOf(runs)
	if len(runs) < 2 {
		sum.CI95 = nil
	}
	sum.EventsPerS = float64(sum.Events) / max(took.Seconds(), 1e-9)
	return sum
}
