package engine

import (
	"time"

	"github.com/drover-run/drover/scheduler"
)

// Result is what happened in a run. Instants are counted from second 0.
type Result struct {
	Jobs     []JobResult // as Config.Jobs
	Makespan time.Duration
	// Used is the mean part of the capacity that attempts held from second 0
	// to Makespan; Useful the mean part of the CPU that successful attempts
	// ran on.
	Used   [scheduler.NumResources]float64
	Useful float64
	Series Series
	// Little holds both sides of Little's law: the mean number of jobs in the
	// system over time, and their rate times their mean response.
	Little [2]float64

	Events, Cycles, Placements, TasksDone       uint64
	Suspensions, Migrations, Kills              uint64
	NodesLost, OutputsLost, BrokenPromises      uint64
	WorkLostCPU                                 float64 // CPU-seconds of attempts that did not succeed
	Runs                                        []TaskRun
	NodeLocal, RackLocal, WithInput, Unfinished int64
}

// JobResult is what happened to a job.
type JobResult struct {
	Submit, Start, Finish time.Duration // Start and Finish -1: never
	Admitted              time.Duration // when the scheduler saw it
	Alone                 time.Duration // on the empty cluster
	Work                  time.Duration // of its tasks together, undisturbed
	Served                time.Duration // its successful attempts ran
	LostCPU               float64       // CPU-seconds of its other attempts
	Tasks                 int32
	Suspends              int32
	WithInput, NodeLocal  int32
	RackLocal             int32
	Outcome               scheduler.JobOutcome // 0: it never ended
	Hopeless              bool
}

// Response is from submission to end.
func (r *JobResult) Response() time.Duration { return r.Finish - r.Submit }

// Wait is from submission to the first start.
func (r *JobResult) Wait() time.Duration { return r.Start - r.Submit }

func (r *JobResult) count(l locality) {
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

// TaskRun is one successful attempt, for a Gantt chart.
type TaskRun struct {
	ID         scheduler.AttemptID
	Node       scheduler.NodeID
	Start, End time.Duration
}

// Series is what was used over time, in steps of Step from second 0. A step
// holds means.
type Series struct {
	Step time.Duration
	Used [][scheduler.NumResources]float64 // part of the capacity
	Jobs []float64                         // in the system
}

// maxSteps bounds a Series: when it is full, two steps become one.
const maxSteps = 512

// usage integrates what is held and how many jobs there are over time.
type usage struct {
	last     scheduler.Time
	used     scheduler.Resources
	inSystem int
	useful   float64 // CPU-seconds of successful attempts
	masked   bool

	step     time.Duration
	stepEnds scheduler.Time
	now      [scheduler.NumResources + 1]float64   // integrals in this step
	steps    [][scheduler.NumResources + 1]float64 // integrals of whole steps
	total    [scheduler.NumResources + 1]float64
	cap      scheduler.Resources
	held     [scheduler.NumResources]float64 // capacity integrated
}

func (u *usage) begin(now scheduler.Time) {
	u.last, u.step = now, time.Second
	u.stepEnds = now.Add(u.step)
}

// add takes in what attempts hold by the State; with contention what they
// really use comes through direct instead.
func (u *usage) add(d scheduler.Resources) {
	if !u.masked {
		u.used = u.used.Add(d)
	}
}

func (u *usage) sub(d scheduler.Resources) {
	if !u.masked {
		u.used = u.used.Sub(d)
	}
}

func (u *usage) direct(d scheduler.Resources) { u.used = u.used.Add(d) }

func (u *usage) jobs(n int) { u.inSystem += n }

func (u *usage) capacity(c scheduler.Resources) { u.cap = c }

// pass integrates until t. O(1) amortised but for steps that nothing fills.
func (u *usage) pass(t scheduler.Time) {
	for u.last < t {
		to := min(t, u.stepEnds)
		d := to.Sub(u.last).Seconds()
		for r := range u.used {
			u.now[r] += float64(u.used[r]) * d
			u.held[r] += float64(u.cap[r]) * d
		}
		u.now[len(u.used)] += float64(u.inSystem) * d
		u.last = to
		if to == u.stepEnds {
			u.endStep()
		}
	}
}

func (u *usage) endStep() {
	for i, x := range u.now {
		u.total[i] += x
	}
	u.steps = append(u.steps, u.now)
	u.now = [scheduler.NumResources + 1]float64{}
	if len(u.steps) == maxSteps {
		for i := range maxSteps / 2 {
			for k := range u.now {
				u.steps[i][k] = u.steps[2*i][k] + u.steps[2*i+1][k]
			}
		}
		u.steps = u.steps[:maxSteps/2]
		u.step *= 2
	}
	u.stepEnds = u.last.Add(u.step)
}

// finish works out the sums of the Result.
func (w *world) finish() {
	r, u := &w.res, &w.use
	r.Events = w.seen
	r.Makespan = since0(w.now)
	for i, x := range u.now {
		u.total[i] += x
	}
	for k := range r.Used {
		if u.held[k] > 0 {
			r.Used[k] = u.total[k] / u.held[k]
		}
	}
	if u.held[scheduler.CPU] > 0 {
		r.Useful = u.useful * 1000 / u.held[scheduler.CPU]
	}
	w.series()
	responses := 0.0
	for i := range w.jobs {
		w.settleJob(&w.jobs[i])
		responses += w.inSystem(&w.jobs[i]).Seconds()
	}
	if s := r.Makespan.Seconds(); s > 0 {
		r.Little = [2]float64{u.total[scheduler.NumResources] / s, responses / s}
	}
}

func (w *world) settleJob(j *job) {
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

// inSystem is how long a job was in the system by now.
func (w *world) inSystem(j *job) time.Duration {
	switch {
	case j.ended:
		return j.res.Response()
	case w.at(j.spec.Submit) >= w.now:
		return 0
	default:
		return w.now.Sub(w.at(j.spec.Submit))
	}
}

func (w *world) series() {
	u, s := &w.use, &w.res.Series
	s.Step = u.step
	seconds := u.step.Seconds()
	for _, x := range u.steps {
		var used [scheduler.NumResources]float64
		for k := range used {
			if c := w.s.Total()[k]; c > 0 {
				used[k] = x[k] / seconds / float64(c)
			}
		}
		s.Used = append(s.Used, used)
		s.Jobs = append(s.Jobs, x[scheduler.NumResources]/seconds)
	}
}
