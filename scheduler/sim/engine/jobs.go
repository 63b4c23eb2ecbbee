package engine

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/estimate"
)

// admission takes jobs from their submission, through the backlog if too many are admitted, to their
// end.
type admission struct {
	backlog  []int32 // jobs that wait for admission
	admitted int     // jobs that the scheduler sees
	jobsDone int     // jobs that have ended
	// open holds the present project of each open one, by position in Config.Projects. begun counts all projects.
	open  []scheduler.ProjectSpec
	begun int
}

// initJob computes the properties of job i that do not change during the simulation.
func (a *admission) initJob(w *world, i int) error {
	spec := &w.Jobs[i]
	j := &w.jobs[i]
	*j = job{spec: spec, id: scheduler.JobID(i + 1), res: &w.res.Jobs[i]}
	j.res.Start, j.res.Submit = -1, spec.Submit
	if spec.Tenant < 0 || int(spec.Tenant) >= len(w.Tenants) {
		return fmt.Errorf("job %d (%s): tenant %d of %d tenants", i+1, spec.Name, spec.Tenant, len(w.Tenants))
	}
	r := j.res
	r.Alone, r.Work = w.cluster.aloneTime(w, spec)
	for k := range spec.Stages {
		r.Tasks += spec.Stages[k].Tasks
	}
	return nil
}

// submitJob submits job i, and its project with the project's first job, and schedules the next
// submission.
func (a *admission) submitJob(w *world, i int) error {
	if i+1 < len(w.Jobs) {
		w.events.schedule(w.timeAt(w.Jobs[i+1].Submit), evSubmit, int32(i+1))
	}
	if w.jobs[i].refused {
		a.jobsDone++
		return nil
	}
	w.use.countWork(&w.jobs[i], +1, 0, 0)
	if w.MaxAdmittedJobs > 0 && a.admitted >= w.MaxAdmittedJobs {
		a.backlog = append(a.backlog, int32(i))
		return nil
	}
	return a.admitJob(w, i)
}

// admitJob submits job i to the scheduler.
func (a *admission) admitJob(w *world, i int) error {
	a.admitted++
	j := &w.jobs[i]
	j.res.Admitted = sinceEpoch(w.now)
	if j.spec.Project > 0 {
		if err := a.joinProject(w, j); err != nil {
			return err
		}
	}
	spec := a.jobSpec(w, j)
	stages := make([]scheduler.StageSpec, len(j.spec.Stages))
	j.stages = make([]stage, len(stages))
	estimate := w.Models.estimateFactor(w.Seed, j)
	for k := range stages {
		g := &j.spec.Stages[k]
		stages[k] = a.stageSpec(w, j, g, estimate)
		j.tasksLeft += g.Tasks
		j.stages[k].hasInputs = stages[k].Inputs != nil
		if w.Models.MTBF > 0 || len(w.Absences) > 0 {
			j.stages[k].ranOn = make([]scheduler.NodeID, g.Tasks)
		}
	}
	w.use.countWork(j, 0, 0, int64(j.tasksLeft))
	if estimate > 0 {
		spec.Estimate = min(scale(j.res.Alone, estimate), scheduler.MaxRunTime)
	}
	if w.BeforeSubmit != nil {
		if err := w.BeforeSubmit(w.s, w.now, &spec, stages); err != nil {
			return err
		}
	}
	if err := w.s.Events().SubmitJob(spec, stages); err != nil {
		return err
	}
	if j.tasksLeft == 0 {
		return a.endJob(w, j, JobSucceeded)
	}
	return nil
}

func (a *admission) jobSpec(w *world, j *job) scheduler.JobSpec {
	in := j.spec
	spec := scheduler.JobSpec{ID: j.id, Name: in.Name, Tenant: in.Tenant, Priority: in.Priority, Submitted: w.now,
		Bound: min(in.Bound, scheduler.MaxRunTime), OnMiss: in.OnMiss, Project: j.project, Size: in.Size}
	if spec.Priority == 0 {
		spec.Priority = scheduler.PriorityLow
	}
	if in.Deadline > 0 {
		spec.Deadline, spec.AcceptedByQuote = w.timeAt(in.Deadline), w.Models.AcceptDeadlines
	}
	if spec.Size == 0 {
		spec.Size = j.res.Work
	}
	return spec
}

func (a *admission) stageSpec(w *world, j *job, g *Stage, estimate float64) scheduler.StageSpec {
	spec := scheduler.StageSpec{Name: g.Name, Kind: g.Kind, After: g.After, Tasks: g.Tasks, Demand: g.Demand, Disk: g.Disk,
		MaxParallel: g.MaxParallel, SlowStart: g.SlowStart, Inputs: g.Inputs}
	if spec.Kind == 0 {
		spec.Kind = scheduler.KindGroup
	}
	if estimate > 0 {
		spec.Estimate = min(scale(w.Models.nominalTaskTime(g), estimate), scheduler.MaxRunTime)
	}
	if in := j.spec; in.Deadline > 0 && !w.Models.AcceptDeadlines && in.Bound == 0 && in.Project == 0 {
		spec.Bound = min(w.Models.taskBound(g, spec.Estimate), scheduler.MaxRunTime)
	}
	if spec.Inputs == nil && g.InputBytes > 0 && g.BlockBytes > 0 {
		spec.Inputs = w.cluster.placeBlocks(w, j, g)
	}
	return spec
}

// joinProject adds a job that is submitted now to its project, and submits the project with its first job.
func (a *admission) joinProject(w *world, j *job) error {
	p := &w.Projects[j.spec.Project-1]
	j.project = scheduler.ProjectID(j.spec.Project)
	spec := scheduler.ProjectSpec{ID: j.project, Name: p.Name, Tenant: p.Tenant, Priority: cmp.Or(p.Priority, scheduler.PriorityLow), Submitted: w.now, Jobs: p.Jobs}
	if p.Open {
		spec = a.joinOpenProject(w, j, spec)
		j.project = spec.ID
	} else if w.s.Project(spec.ID) != nil {
		return nil
	}
	return w.s.Events().PutProject(spec)
}

// joinOpenProject returns the open project of a job, with the job added. spec describes a new project.
func (a *admission) joinOpenProject(w *world, j *job, spec scheduler.ProjectSpec) scheduler.ProjectSpec {
	if a.open == nil {
		a.open = make([]scheduler.ProjectSpec, len(w.Projects))
	}
	o := &a.open[j.spec.Project-1]
	if w.s.Project(o.ID) == nil {
		a.begun++
		*o = spec
		o.ID, o.Priority, o.Jobs = scheduler.ProjectID(len(w.Projects)+a.begun), cmp.Or(j.spec.Priority, scheduler.PriorityLow), 0
	}
	o.Jobs++
	return *o
}

// taskBound returns how long a guarantee reserves capacity for a task with an estimate, as in a
// coordinator that knows the errors of estimates and how much tasks of a stage differ. It does not
// know slow nodes, slow attempts and busy links.
func (m *Models) taskBound(g *Stage, prediction time.Duration) time.Duration {
	e, s := m.EstimateError, m.Spread
	errors := estimate.ErrorQuantiles{Stage: estimate.Normal(e*e/2, e), Task: estimate.Normal(-s*s/2, s)}
	bound := errors.UpperRunTime(prediction, int(max(1, g.Tasks)))
	if n := len(g.WorkPerTask); n > 0 {
		if mean := meanDuration(g.WorkPerTask); mean > 0 {
			bound = scale(bound, float64(slices.Max(g.WorkPerTask))/float64(mean))
		}
	}
	return bound
}

// estimateFactor returns estimate over truth for a job; 0 for no estimate.
func (m *Models) estimateFactor(seed uint64, j *job) float64 {
	if m.NoEstimates {
		return 0
	}
	return lognormal(hash(seed, drawEstimate, uint64(j.id)), m.EstimateError)
}

func scale(d time.Duration, f float64) time.Duration {
	if f == 1 {
		return d
	}
	return time.Duration(min(float64(longest), float64(d)*f))
}

// longest limits a duration: the sum of this and of any time before the end of the simulation (see
// world.loop) still fits into a Time.
const longest = 4_000_000_000 * time.Second

// repeated returns n times d, at most longest.
func repeated(n int64, d time.Duration) time.Duration {
	if d > 0 && n > int64(longest/d) {
		return longest
	}
	return time.Duration(n) * d
}

// endJob removes a job that has completed, failed or been stopped, and admits the next one.
func (a *admission) endJob(w *world, j *job, o JobOutcome) error {
	if err := w.s.Events().EndJob(j.id); err != nil {
		return err
	}
	j.ended = true
	j.stages = nil
	a.jobsDone++
	w.use.countWork(j, -1, 0, -int64(j.tasksLeft))
	j.res.Finish, j.res.Outcome = sinceEpoch(w.now), o
	a.admitted--
	if len(a.backlog) > 0 {
		next := a.backlog[0]
		a.backlog = a.backlog[1:]
		if err := a.admitJob(w, int(next)); err != nil {
			return err
		}
	}
	if p := j.spec.Project; p > 0 {
		q := w.s.Project(j.project)
		if q != nil && len(q.Jobs) == 0 && (w.Projects[p-1].Open || a.allJobsEnded(w, p)) {
			return w.s.Events().DropProject(q.Spec.ID)
		}
	}
	return nil
}

// allJobsEnded reports whether all jobs of project p have ended.
func (a *admission) allJobsEnded(w *world, p int) bool {
	left := w.Projects[p-1].Jobs
	for i := range w.jobs {
		if w.jobs[i].spec.Project == p && w.jobs[i].ended {
			left--
		}
	}
	return left <= 0
}

// handlePolicyState handles the policy states that affect the simulation. It counts violated
// guarantees, stops a job with an infeasible deadline if the job requests that, and accepts a job
// whose guarantee was refused without one, as a coordinator does; the policy then decides again.
func (a *admission) handlePolicyState(w *world, n *scheduler.PolicyState) error {
	switch n.Kind {
	case scheduler.InfeasibleState:
		if j := &w.jobs[n.Job-1]; j.spec.OnMiss == scheduler.OnMissStop && !j.ended {
			return a.stopJob(w, j, JobMissed)
		}
	case scheduler.ViolatedState:
		w.res.ViolatedGuarantees++
	case scheduler.RefusedState:
		if j := w.s.Job(n.Job); j != nil && j.Spec.Deadline > 0 && !j.Spec.AcceptedByQuote {
			spec := j.Spec
			spec.AcceptedByQuote = true // without a guarantee
			w.dirty = true
			return w.s.Events().UpdateJob(spec)
		}
	}
	return nil
}

// stopJob kills all attempts of a job and ends it.
func (a *admission) stopJob(w *world, j *job, o JobOutcome) error {
	if err := w.s.Events().StopJob(j.id); err != nil {
		return err
	}
	for _, g := range w.s.Job(j.id).Stages {
		for i := range g.Spec.Tasks {
			first, second := w.s.Attempts().Slots(g.Task(i))
			for _, slot := range [...]int32{second, first} { // the speculative attempt first
				if slot < 0 {
					continue
				}
				if err := w.removeAttempt(slot, scheduler.OutcomeKilled); err != nil {
					return err
				}
			}
		}
	}
	w.dirty = true
	return a.endJob(w, j, o)
}
