package policies

import (
	"math"
	"time"

	"github.com/drover-run/drover/scheduler"
)

var lasInfo = Info{
	Name:   "las",
	Help:   "least attained service first: the job with the fewest container-seconds so far",
	Params: append([]Param{reserveParam}, containerParams...),
	new: func(v paramValues) (scheduler.Policy, error) {
		unit := containerUnit(v)
		return &ordered{name: "las", placer: placer{reserveForMisfits: v.bool("reserve")}, key: func(s *scheduler.State, j *scheduler.Job, now scheduler.Time) jobKey {
			had, runs := attainedService(j, unit, now)
			return jobKey{had, runs}
		}}, nil
	},
}

var sjfInfo = Info{
	Name:    "sjf",
	Help:    "shortest job first, by the true size (simulations only)",
	Params:  []Param{reserveParam},
	SimOnly: true,
	new: func(v paramValues) (scheduler.Policy, error) {
		return &ordered{name: "sjf", placer: placer{reserveForMisfits: v.bool("reserve")}, key: func(_ *scheduler.State, j *scheduler.Job, _ scheduler.Time) jobKey { return jobKey{jobSize(j)} }}, nil
	},
}

var idealInfo = Info{
	Name:    "ideal",
	Help:    "shortest remaining work first, by the true size (simulations only)",
	Params:  []Param{reserveParam},
	SimOnly: true,
	new: func(v paramValues) (scheduler.Policy, error) {
		return &ordered{name: "ideal", placer: placer{reserveForMisfits: v.bool("reserve")}, key: func(_ *scheduler.State, j *scheduler.Job, now scheduler.Time) jobKey {
			had := 0.0
			for _, g := range j.Begun() {
				had += g.TaskTime(now).Seconds()
			}
			return jobKey{max(0, jobSize(j)-had)}
		}}, nil
	},
}

var edfInfo = Info{
	Name: "edf",
	Help: "earliest deadline first, then jobs without a deadline by priority; no preemption",
	Params: []Param{
		{Name: "infeasible_last", Kind: Bool, Default: "true", Help: "a job with an infeasible deadline goes behind all others"},
		reserveParam,
	},
	new: func(v paramValues) (scheduler.Policy, error) {
		last := v.bool("infeasible_last")
		return &ordered{name: "edf", deadlinesFirst: true, placer: placer{reserveForMisfits: v.bool("reserve")}, key: func(_ *scheduler.State, j *scheduler.Job, now scheduler.Time) jobKey {
			return edfKey(j, now, last)
		}}, nil
	},
}

// edfKey orders by deadline, jobs without one behind by priority, infeasible ones
// last if infeasibleLast.
func edfKey(j *scheduler.Job, now scheduler.Time, infeasibleLast bool) jobKey {
	const high, low, infeasible = math.MaxInt64, 2 * float64(math.MaxInt64), 4 * float64(math.MaxInt64)
	d := j.Spec.Deadline
	switch {
	case d == 0 && j.Spec.Priority == scheduler.PriorityHigh:
		return jobKey{high}
	case d == 0:
		return jobKey{low}
	case infeasibleLast && d.Sub(now) < remainingTime(j, now):
		return jobKey{infeasible, float64(d)}
	default:
		return jobKey{float64(d)}
	}
}

// remainingTime returns the predicted run time of a job less the time since its
// first placement, at least 0.
func remainingTime(j *scheduler.Job, now scheduler.Time) time.Duration {
	left := j.Spec.Estimate
	if j.FirstPlaced > 0 && now > j.FirstPlaced {
		left -= now.Sub(j.FirstPlaced)
	}
	return max(0, left)
}

// jobSize returns a job's total work in task-seconds: the true size in a simulation,
// else the sum of its stages' estimates.
func jobSize(j *scheduler.Job) float64 {
	if j.Spec.Size > 0 {
		return j.Spec.Size
	}
	sum := 0.0
	for _, g := range j.Stages {
		sum += float64(g.Spec.Tasks) * g.Spec.Estimate.Seconds()
	}
	return sum
}

// containerParams define the size of one container of LAS_MQ.
var containerParams = []Param{
	{Name: "unit_cpu", Kind: Int, Default: "1000", Min: 1, Max: 1e9, Help: "CPU of one container, millicores"},
	{Name: "unit_memory", Kind: Int, Default: "2147483648", Min: 1, Max: 1e15, Help: "memory of one container, bytes"},
	{Name: "unit_io", Kind: Int, Default: "1000000000", Min: 1, Max: 1e15, Help: "disk I/O of one container, bytes per second"},
}

func containerUnit(v paramValues) scheduler.Resources {
	return scheduler.Resources{int64(v.int("unit_cpu")), int64(v.int("unit_memory")), int64(v.int("unit_io"))}
}

// attainedService returns the service a job has had, in container-seconds (LAS_MQ
// 3.1; a container is max_r demand_r/unit_r), and the containers it runs on.
func attainedService(j *scheduler.Job, unit scheduler.Resources, now scheduler.Time) (had, runs float64) {
	for _, g := range j.Begun() {
		t := g.TaskTime(now)
		if t == 0 && g.Running == 0 {
			continue
		}
		c := g.Spec.Demand.DominantShare(unit)
		had += c * t.Seconds()
		runs += c * float64(g.Running)
	}
	return had, runs
}
