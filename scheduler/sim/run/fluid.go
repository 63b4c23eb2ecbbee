package run

import (
	"fmt"
	"math"
	"time"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/sim/engine"
	"github.com/drover-run/drover/scheduler/sim/fluid"
	"github.com/drover-run/drover/scheduler/sim/report"
	"github.com/drover-run/drover/scheduler/sim/trace"
)

// Fluid runs jobs through the fluid model. name is a discipline; fair is
// another name of ps. SWIM traces have sizes by their rule; other workloads
// their work over what the cluster does at once (one server).
func Fluid(name string, l *Loaded, settings map[string]string, seed uint64) (*Outcome, error) {
	if name == "fair" {
		name = "ps"
	}
	d, err := fluid.Parse(name)
	if err != nil {
		return nil, err
	}
	rule := trace.SchedsimRule
	q := [4]float64{float64(fluid.DefaultQueues.K), fluid.DefaultQueues.First, fluid.DefaultQueues.Step, fluid.DefaultQueues.Weight}
	if err := apply("the fluid model", fluidSettings(&rule, &q), settings); err != nil {
		return nil, err
	}
	w, err := l.Workload(seed)
	if err != nil {
		return nil, err
	}
	jobs := make([]fluid.Job, len(w.Jobs))
	if l.Swim != nil {
		jobs = l.Swim.Fluid(rule)
	} else {
		for i := range w.Jobs {
			jobs[i] = fluid.Job{Arrival: w.Jobs[i].Submit.Seconds(), Size: taskSeconds(&w.Jobs[i])}
		}
	}
	start := time.Now()
	ends, err := fluid.Ends(jobs, d, fluid.Queues{K: int(q[0]), First: q[1], Step: q[2], Weight: q[3]})
	if err != nil {
		return nil, fmt.Errorf("fluid %v: %w", d, err)
	}
	o := &Outcome{Seed: seed, Took: time.Since(start)}
	o.Config, o.Result = fluidResult(w.Jobs, jobs, ends)
	o.Numbers = report.Summarise(&o.Config, o.Result, report.DefaultJobUnit)
	return o, nil
}

func taskSeconds(j *engine.Job) float64 {
	sum := 0.0
	for k := range j.Stages {
		g := &j.Stages[k]
		if g.Each == nil {
			sum += float64(g.Tasks) * g.Work.Seconds()
		}
		for _, d := range g.Each {
			sum += d.Seconds()
		}
	}
	return sum
}

// fluidResult puts completions into the form of an engine run. A fluid server
// has no start: the wait is the response less the size.
func fluidResult(in []engine.Job, jobs []fluid.Job, ends []float64) (engine.Config, *engine.Result) {
	c := engine.Config{Jobs: make([]engine.Job, len(jobs))}
	r := &engine.Result{Jobs: make([]engine.JobResult, len(jobs)), Events: uint64(2 * len(jobs))}
	work, last, inSystem := 0.0, 0.0, 0.0
	at := func(s float64) time.Duration { return time.Duration(math.Round(s * 1e9)) }
	for i := range jobs {
		c.Jobs[i] = engine.Job{Name: in[i].Name, Tag: in[i].Tag, Tenant: in[i].Tenant, Submit: at(jobs[i].Arrival), Deadline: in[i].Deadline}
		r.Jobs[i] = engine.JobResult{Submit: at(jobs[i].Arrival), Start: at(ends[i] - jobs[i].Size), Finish: at(ends[i]), Alone: at(jobs[i].Size), Work: at(jobs[i].Size),
			Tasks: 1, Outcome: scheduler.JobSucceeded}
		work += jobs[i].Size
		inSystem += ends[i] - jobs[i].Arrival
		last = max(last, ends[i])
	}
	r.Makespan = at(last)
	if last > 0 {
		r.Used[scheduler.CPU], r.Useful = work/last, work/last
		r.Little = [2]float64{inSystem / last, inSystem / last}
	}
	return c, r
}
