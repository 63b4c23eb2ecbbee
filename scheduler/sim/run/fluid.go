package run

import (
	"fmt"
	"math"
	"time"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/sim/engine"
	"github.com/drover-run/drover/scheduler/sim/fluid"
	"github.com/drover-run/drover/scheduler/sim/report"
)

// SimulateFluid runs the jobs of a source through the fluid model. The scheduler is a discipline or
// "fair", another name of ps. SWIM traces have sizes by their rule; in other workloads a job's size is
// its work in task-seconds, served by one server.
func (s *Setup) SimulateFluid(l *LoadedSource, seed uint64) (*Outcome, error) {
	name := s.Scheduler
	if name == "fair" {
		name = "ps"
	}
	d, err := fluid.ParseDiscipline(name)
	if err != nil {
		return nil, err
	}
	q, parameters := fluid.DefaultQueues, []setting(nil)
	if d == fluid.LASMQ {
		parameters = queueSettings(&q)
	}
	if err := applySettings(fmt.Sprintf("%v in the fluid model", d), parameters, s.Params); err != nil {
		return nil, err
	}
	w, err := l.Workload(seed, nil)
	if err != nil {
		return nil, err
	}
	if err := checkNotEmpty(w); err != nil {
		return nil, err
	}
	jobs := make([]fluid.Job, len(w.Jobs))
	if l.swim != nil {
		jobs = l.swim.FluidJobs(l.fluidRule)
	} else {
		for i := range w.Jobs {
			jobs[i] = fluid.Job{Arrival: w.Jobs[i].Submit.Seconds(), Size: taskSeconds(&w.Jobs[i])}
		}
	}
	start := time.Now()
	ends, err := fluid.CompletionTimes(jobs, d, q)
	if err != nil {
		return nil, fmt.Errorf("fluid %v: %w", d, err)
	}
	o := &Outcome{seed: seed, wallTime: time.Since(start)}
	o.Config, o.Result = fluidResult(w.Jobs, jobs, ends)
	o.Numbers = report.Summarise(&o.Config, o.Result, s.jobUnit())
	return o, nil
}

func taskSeconds(j *engine.Job) float64 {
	sum := 0.0
	for k := range j.Stages {
		g := &j.Stages[k]
		if g.WorkPerTask == nil {
			sum += float64(g.Tasks) * g.Work.Seconds()
		}
		for _, d := range g.WorkPerTask {
			sum += d.Seconds()
		}
	}
	return sum
}

// fluidResult converts completion times into the form of an engine result. A fluid server has no
// start: the wait is the response minus the size.
func fluidResult(in []engine.Job, jobs []fluid.Job, ends []float64) (engine.Config, *engine.Result) {
	c := engine.Config{Jobs: make([]engine.Job, len(jobs))}
	r := &engine.Result{Jobs: make([]engine.JobResult, len(jobs)), Events: uint64(2 * len(jobs))}
	work, last, inSystem := 0.0, 0.0, 0.0
	at := func(s float64) time.Duration { return time.Duration(math.Round(s * 1e9)) }
	for i := range jobs {
		c.Jobs[i] = engine.Job{Name: in[i].Name, Tag: in[i].Tag, Tenant: in[i].Tenant, Submit: at(jobs[i].Arrival), Deadline: in[i].Deadline}
		r.Jobs[i] = engine.JobResult{Submit: at(jobs[i].Arrival), Start: at(ends[i] - jobs[i].Size), Finish: at(ends[i]), Alone: at(jobs[i].Size), Work: jobs[i].Size,
			Tasks: 1, Outcome: engine.JobSucceeded}
		work += jobs[i].Size
		inSystem += ends[i] - jobs[i].Arrival
		last = max(last, ends[i])
	}
	r.Makespan = at(last)
	if last > 0 {
		r.Used[scheduler.CPU], r.UsefulCPU = work/last, work/last
		r.LittlesLaw = [2]float64{inSystem / last, inSystem / last}
	}
	return c, r
}
