package policies

import (
	"math"

	"github.com/drover-run/drover/scheduler"
)

var lasInfo = Info{
	Name:   "las",
	Help:   "least attained service first: the job with the fewest container-seconds so far",
	Params: append([]Param{reserveParam}, containerParams...),
	new: func(v paramValues) scheduler.Policy {
		unit := containerUnit(v)
		of := func(j *scheduler.Job, at scheduler.Time) (value, rate float64) { return attainedService(j, unit, at) }
		o := &ordered{name: "las", placer: newPlacer(v), key: func(j *scheduler.Job, now scheduler.Time) jobKey {
			had, runs := of(j, now)
			return jobKey{had, runs}
		}}
		o.nextOrder = func(s *scheduler.State, now scheduler.Time) scheduler.Time { return o.nextCrossing(s, now, of) }
		return o
	},
}

var sjfInfo = Info{
	Name:    "sjf",
	Help:    "shortest job first, by the true size (simulations only)",
	Params:  []Param{reserveParam},
	SimOnly: true,
	new: func(v paramValues) scheduler.Policy {
		return &ordered{name: "sjf", placer: newPlacer(v), key: func(j *scheduler.Job, _ scheduler.Time) jobKey { return jobKey{jobSize(j)} }}
	},
}

var idealInfo = Info{
	Name:    "ideal",
	Help:    "shortest remaining work first, by the true size (simulations only)",
	Params:  []Param{reserveParam},
	SimOnly: true,
	new: func(v paramValues) scheduler.Policy {
		o := &ordered{name: "ideal", placer: newPlacer(v), key: func(j *scheduler.Job, now scheduler.Time) jobKey {
			left, _ := remainingSize(j, now)
			return jobKey{left}
		}}
		o.nextOrder = func(s *scheduler.State, now scheduler.Time) scheduler.Time {
			return o.nextCrossing(s, now, remainingSize)
		}
		return o
	},
}

var edfInfo = Info{
	Name: "edf",
	Help: "earliest deadline first, then jobs without a deadline by priority; no preemption",
	Params: []Param{
		{Name: "infeasible_last", Kind: Bool, Default: "true", Help: "a job with an infeasible deadline goes behind all others"},
		reserveParam,
	},
	new: func(v paramValues) scheduler.Policy {
		last := v.bool("infeasible_last")
		o := &ordered{name: "edf", deadlinesFirst: true, placer: newPlacer(v), key: func(j *scheduler.Job, now scheduler.Time) jobKey { return edfKey(j, now, last) }}
		if last {
			o.nextOrder = nextInfeasible
		}
		return o
	},
}

// edfKey orders by deadline, then jobs without a deadline by priority; infeasible ones are last if infeasibleLast.
func edfKey(j *scheduler.Job, now scheduler.Time, infeasibleLast bool) jobKey {
	const high, low, infeasible = math.MaxInt64, 2 * float64(math.MaxInt64), 4 * float64(math.MaxInt64)
	d := j.Spec.Deadline
	switch {
	case d == 0 && j.Spec.Priority == scheduler.PriorityHigh:
		return jobKey{high}
	case d == 0:
		return jobKey{low}
	case infeasibleLast && isLate(j, now):
		return jobKey{infeasible, float64(d)}
	default:
		return jobKey{float64(d)}
	}
}

// isLate reports whether a job's estimate, less the time since its first placement, exceeds the time to its deadline.
func isLate(j *scheduler.Job, now scheduler.Time) bool {
	left := j.Spec.Estimate
	if j.FirstPlaced > 0 && now > j.FirstPlaced {
		left -= now.Sub(j.FirstPlaced)
	}
	return j.Spec.Deadline.Sub(now) < max(0, left)
}

// nextInfeasible returns when the first deadline of a ready job becomes infeasible, Never if none does.
func nextInfeasible(s *scheduler.State, now scheduler.Time) scheduler.Time {
	first := scheduler.Never
	for j, at := s.Queue().Next(0); j != nil; j, at = s.Queue().Next(at) {
		if j.Spec.Deadline == 0 || isLate(j, now) {
			continue
		}
		latest := j.Spec.Deadline
		if j.FirstPlaced == 0 { // after the placement the remaining time shrinks as fast as the time to the deadline
			latest = latest.Add(-j.Spec.Estimate)
		}
		first = min(first, latest.Add(1))
	}
	return first
}

// jobSize returns a job's total work in task-seconds: the true size in a simulation, else the sum
// of its stages' estimates.
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

// remainingSize returns a job's remaining work, in task-seconds, and its growth per second.
func remainingSize(j *scheduler.Job, now scheduler.Time) (left, rate float64) {
	had := 0.0
	for _, g := range j.Begun() {
		had += g.TaskTime(now).Seconds()
		rate -= float64(g.Running)
	}
	if left = jobSize(j) - had; left <= 0 {
		return 0, 0
	}
	return left, rate
}

var containerParams = []Param{
	{Name: "unit_cpu", Kind: Int, Default: "1000", Min: 1, Max: 1e9, Help: "CPU of one container, millicores"},
	{Name: "unit_memory", Kind: Int, Default: "2147483648", Min: 1, Max: 1e15, Help: "memory of one container, bytes"},
	{Name: "unit_io", Kind: Int, Default: "1000000000", Min: 1, Max: 1e15, Help: "disk I/O of one container, bytes per second"},
}

func containerUnit(v paramValues) scheduler.Resources {
	return scheduler.Resources{int64(v.int("unit_cpu")), int64(v.int("unit_memory")), int64(v.int("unit_io"))}
}

// attainedService returns a job's attained service, in container-seconds (LAS_MQ 3.1; a container
// is max_r demand_r/unit_r), and the containers it runs on.
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
