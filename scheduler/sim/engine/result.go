package engine

import (
	"fmt"
	"time"

	"github.com/drover-run/drover/scheduler"
)

// Result is the outcome of a simulation. Times are offsets from second 0.
type Result struct {
	Jobs     []JobResult // in the order of Config.Jobs
	Makespan time.Duration
	// Used is the mean fraction of the capacity that attempts occupied from second 0 to Makespan.
	// UsefulCPU is the mean fraction of the CPU that successful attempts ran on.
	Used      [scheduler.NumResources]float64
	UsefulCPU float64
	Series    Series
	// LittlesLaw holds both sides of Little's law: the mean number of jobs in the system over time,
	// and their arrival rate times their mean response.
	LittlesLaw [2]float64

	Events, Placements, TasksDone               uint64
	Suspensions, Migrations, Kills              uint64
	NodesLost, OutputsLost, ViolatedGuarantees  uint64
	WorkLostCPU                                 float64 // CPU-seconds of attempts that did not succeed
	TaskExecutions                              []TaskExecution
	NodeLocal, RackLocal, WithInput, Unfinished int64
	// Waited is why tasks waited and how long; empty without Config.WaitedTimes.
	Waited []WaitedFor
	// Refused counts the jobs that can never run on the cluster, which are among the unfinished.
	// FirstRefused names the first of them and what it lacks.
	Refused      int64
	FirstRefused string
}

// JobResult is the outcome of a job.
type JobResult struct {
	Submit, Start, Finish time.Duration // Start and Finish are -1 if it never started or ended
	Admitted              time.Duration // when the scheduler saw the job
	Alone                 time.Duration // duration on the empty cluster
	Work                  float64       // task-seconds of all its tasks together, undisturbed
	UsefulCPU             float64       // CPU-seconds of its successful attempts
	LostCPU               float64       // CPU-seconds of its other attempts
	Refused               bool          // it can never run on the cluster
	Tasks                 int32
	Suspends              int32
	WithInput, NodeLocal  int32
	RackLocal             int32
	Outcome               JobOutcome // 0: it did not end
}

// Response returns the time from submission to end.
func (r *JobResult) Response() time.Duration { return r.Finish - r.Submit }

// Wait returns the time from submission to the first start.
func (r *JobResult) Wait() time.Duration { return r.Start - r.Submit }

func (r *JobResult) countLocality(l locality) {
	if l == localNone {
		return
	}
	r.WithInput++
	switch l {
	case localNode:
		r.NodeLocal++
	case localRack:
		r.RackLocal++
	}
}

// TaskExecution is one successful attempt, for a Gantt chart.
type TaskExecution struct {
	ID         scheduler.AttemptID
	Node       scheduler.NodeID
	Start, End time.Duration
}

// Series is the utilisation over time, in steps of Step from second 0. Each step holds means.
type Series struct {
	Step time.Duration
	Used [][scheduler.NumResources]float64 // fraction of the capacity present
	Jobs []float64                         // jobs in the system
	// Tenants holds, for each step, the sum over all tenants and then each tenant, if there are at
	// most maxTenantSeries. It is empty without Config.TenantSeries.
	Tenants [][]TenantStep
}

// maxSteps limits a Series: when it is full, pairs of steps are merged.
const maxSteps = 512

// usageValues are integrals: of the occupied resources, of the number of jobs, and of the capacity
// from capacityValue on.
type usageValues [2*scheduler.NumResources + 1]float64

// The positions in usageValues after the occupied resources.
const (
	jobsValue     = scheduler.NumResources
	capacityValue = jobsValue + 1
)

// usage integrates the occupied resources and the number of jobs over time.
type usage struct {
	updatedAt    scheduler.Time
	used         scheduler.Resources
	inSystem     int
	useful       float64 // CPU-seconds of successful attempts
	measuredOnly bool

	step          time.Duration
	stepEnds      scheduler.Time
	current       usageValues   // integrals of the current step
	steps         []usageValues // integrals of the complete steps
	total         usageValues
	cap           scheduler.Resources
	capacityTotal [scheduler.NumResources]float64 // integral of the capacity
	tenants       tenantSeries
}

func (u *usage) start(now scheduler.Time) {
	u.updatedAt, u.step = now, time.Second
	u.stepEnds = now.Add(u.step)
}

func (u *usage) setCapacity(c scheduler.Resources) { u.cap = c }

// advanceTo integrates until t. O(1) amortised, except for steps without an event.
func (u *usage) advanceTo(t scheduler.Time) {
	for u.updatedAt < t {
		to := min(t, u.stepEnds)
		d := to.Sub(u.updatedAt).Seconds()
		for r := range u.used {
			u.current[r] += float64(u.used[r]) * d
			u.current[capacityValue+r] += float64(u.cap[r]) * d
			u.capacityTotal[r] += float64(u.cap[r]) * d
		}
		u.current[jobsValue] += float64(u.inSystem) * d
		u.updatedAt = to
		if to == u.stepEnds {
			u.endStep()
		}
	}
}

func (u *usage) endStep() {
	for i, x := range u.current {
		u.total[i] += x
	}
	u.tenants.endStep(u.updatedAt)
	u.steps = append(u.steps, u.current)
	u.current = usageValues{}
	if len(u.steps) == maxSteps {
		for i := range maxSteps / 2 {
			for k := range u.current {
				u.steps[i][k] = u.steps[2*i][k] + u.steps[2*i+1][k]
			}
		}
		u.steps = u.steps[:maxSteps/2]
		u.tenants.mergePairs(maxSteps / 2)
		u.step *= 2
	}
	u.stepEnds = u.updatedAt.Add(u.step)
}

// fillResult computes the totals of the Result.
func (w *world) fillResult() {
	r, u := &w.res, &w.use
	r.Events = w.eventCount
	r.Makespan = sinceEpoch(w.now)
	for i, x := range u.current {
		u.total[i] += x
	}
	for k := range r.Used {
		if u.capacityTotal[k] > 0 {
			r.Used[k] = u.total[k] / u.capacityTotal[k]
		}
	}
	if u.capacityTotal[scheduler.CPU] > 0 {
		r.UsefulCPU = u.useful * 1000 / u.capacityTotal[scheduler.CPU]
	}
	w.fillSeries()
	responses := 0.0
	for i := range w.jobs {
		w.fillJobResult(&w.jobs[i])
		responses += w.jobs[i].timeInSystem(w.now).Seconds()
	}
	if s := r.Makespan.Seconds(); s > 0 {
		r.LittlesLaw = [2]float64{u.total[jobsValue] / s, responses / s}
	}
}

func (w *world) fillJobResult(j *job) {
	r := &w.res
	j.res.Submit = j.spec.Submit
	if !j.ended {
		r.Unfinished++
		j.res.Finish = -1
	}
	r.WithInput += int64(j.res.WithInput)
	r.NodeLocal += int64(j.res.NodeLocal)
	r.RackLocal += int64(j.res.RackLocal)
}

// timeInSystem returns how long a job has been in the system so far.
func (j *job) timeInSystem(now scheduler.Time) time.Duration {
	submitted := Epoch.Add(j.spec.Submit)
	switch {
	case j.refused:
		return 0
	case j.ended:
		return j.res.Response()
	case submitted >= now:
		return 0
	default:
		return now.Sub(submitted)
	}
}

func (w *world) fillSeries() {
	w.waited.set(nil, w.now)
	w.res.Waited = w.waited.list()
	u, s := &w.use, &w.res.Series
	s.Step = u.step
	seconds := u.step.Seconds()
	s.Tenants = u.tenants.fill(seconds)
	for _, x := range u.steps {
		var used [scheduler.NumResources]float64
		for k := range used {
			if c := x[capacityValue+k]; c > 0 {
				used[k] = x[k] / c
			}
		}
		s.Used = append(s.Used, used)
		s.Jobs = append(s.Jobs, x[jobsValue]/seconds)
	}
}

// JobOutcome says how a simulated job ended.
type JobOutcome uint8

// The outcomes of a simulated job.
const (
	JobSucceeded JobOutcome = iota + 1
	JobMissed               // its deadline was missed and on_miss is stop
)

// String returns the outcome's name.
func (o JobOutcome) String() string {
	switch o {
	case JobSucceeded:
		return "succeeded"
	case JobMissed:
		return "missed"
	default:
		return fmt.Sprintf("outcome(%d)", uint8(o))
	}
}
