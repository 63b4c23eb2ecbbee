package policies

import (
	"math"
	"time"

	"github.com/drover-run/drover/scheduler"
)

var lasInfo = Info{
	Name:   "las",
	Help:   "least attained service first: the job that has had the fewest container-seconds",
	Params: append([]Param{reserveParam}, containerParams...),
	New: func(v Values) (scheduler.Policy, error) {
		unit := containerUnit(v)
		return &ordered{name: "las", placer: placer{reserve: v.Bool("reserve")}, key: func(s *scheduler.State, j *scheduler.Job, now scheduler.Time) key {
			had, runs := attained(j, unit, now)
			return key{had, runs}
		}}, nil
	},
}

var sjfInfo = Info{
	Name:    "sjf",
	Help:    "shortest job first, by the size that a simulation knows",
	Params:  []Param{reserveParam},
	SimOnly: true,
	New: func(v Values) (scheduler.Policy, error) {
		return &ordered{name: "sjf", placer: placer{reserve: v.Bool("reserve")}, key: func(_ *scheduler.State, j *scheduler.Job, _ scheduler.Time) key { return key{size(j)} }}, nil
	},
}

var idealInfo = Info{
	Name:    "ideal",
	Help:    "shortest remaining work first, by the size that a simulation knows",
	Params:  []Param{reserveParam},
	SimOnly: true,
	New: func(v Values) (scheduler.Policy, error) {
		return &ordered{name: "ideal", placer: placer{reserve: v.Bool("reserve")}, key: func(_ *scheduler.State, j *scheduler.Job, now scheduler.Time) key {
			had := 0.0
			for _, g := range j.Stages {
				had += g.TaskTime(now).Seconds()
			}
			return key{max(0, size(j)-had)}
		}}, nil
	},
}

var edfInfo = Info{
	Name: "edf",
	Help: "earliest deadline first; jobs without one come behind by priority; nothing is preempted",
	Params: []Param{
		{Name: "hopeless_last", Kind: Bool, Default: "true", Help: "a job that cannot make its deadline any more goes behind all others"},
		reserveParam,
	},
	New: func(v Values) (scheduler.Policy, error) {
		last := v.Bool("hopeless_last")
		return &ordered{name: "edf", placer: placer{reserve: v.Bool("reserve")}, key: func(_ *scheduler.State, j *scheduler.Job, now scheduler.Time) key {
			return edfKey(j, now, last)
		}}, nil
	},
}

// edfKey orders by deadline; without one by priority; hopeless ones last.
func edfKey(j *scheduler.Job, now scheduler.Time, hopelessLast bool) key {
	const high, low, hopeless = math.MaxInt64, 2 * float64(math.MaxInt64), 4 * float64(math.MaxInt64)
	d := j.Spec.Deadline
	switch {
	case d == 0 && j.Spec.Priority == scheduler.PriorityHigh:
		return key{high}
	case d == 0:
		return key{low}
	case hopelessLast && d.Sub(now) < remaining(j, now):
		return key{hopeless, float64(d)}
	default:
		return key{float64(d)}
	}
}

// remaining is the predicted run time of a job less the time since its first
// placement, never below 0.
func remaining(j *scheduler.Job, now scheduler.Time) time.Duration {
	left := j.Spec.Estimate
	if j.FirstPlaced > 0 && now > j.FirstPlaced {
		left -= now.Sub(j.FirstPlaced)
	}
	return max(0, left)
}

// size is a job's whole work in task-seconds: as the simulation knows it, else
// by the estimates of its stages.
func size(j *scheduler.Job) float64 {
	if j.Spec.Size > 0 {
		return j.Spec.Size
	}
	sum := 0.0
	for _, g := range j.Stages {
		sum += float64(g.Spec.Tasks) * g.Spec.Estimate.Seconds()
	}
	return sum
}

// containerParams say how large one container of LAS_MQ is.
var containerParams = []Param{
	{Name: "unit_cpu", Kind: Int, Default: "1000", Min: 1, Max: 1e9, Help: "CPU of one container, millicores"},
	{Name: "unit_memory", Kind: Int, Default: "2147483648", Min: 1, Max: 1e15, Help: "memory of one container, bytes"},
	{Name: "unit_io", Kind: Int, Default: "1000000000", Min: 1, Max: 1e15, Help: "disk I/O of one container, bytes per second"},
}

func containerUnit(v Values) scheduler.Resources {
	return scheduler.Resources{int64(v.Int("unit_cpu")), int64(v.Int("unit_memory")), int64(v.Int("unit_io"))}
}

// attained is the service a job has had in container-seconds (LAS_MQ 3.1; a
// container is max_r demand_r/unit_r) and the containers it runs on.
func attained(j *scheduler.Job, unit scheduler.Resources, now scheduler.Time) (had, runs float64) {
	for _, g := range j.Stages {
		c := g.Spec.Demand.DominantShare(unit)
		had += c * g.TaskTime(now).Seconds()
		runs += c * float64(g.Running)
	}
	return had, runs
}
