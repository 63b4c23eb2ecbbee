package engine

import (
	"fmt"
	"time"

	"github.com/drover-run/drover/scheduler"
)

// initJob computes the properties of job i that do not change during the simulation.
func (w *world) initJob(i int) error {
	spec := &w.Jobs[i]
	j := &w.jobs[i]
	*j = job{spec: spec, id: scheduler.JobID(i + 1), res: &w.res.Jobs[i]}
	j.res.Start, j.res.Submit = -1, spec.Submit
	if spec.Tenant < 0 || int(spec.Tenant) >= len(w.Tenants) {
		return fmt.Errorf("job %d (%s): tenant %d of %d tenants", i+1, spec.Name, spec.Tenant, len(w.Tenants))
	}
	r := j.res
	r.Alone, r.Work = w.aloneTime(spec)
	for k := range spec.Stages {
		r.Tasks += spec.Stages[k].Tasks
	}
	return nil
}

// submitJob submits job i, and its project with the project's first job, and schedules the next
// submission.
func (w *world) submitJob(i int) error {
	if i+1 < len(w.Jobs) {
		w.events.schedule(w.timeAt(w.Jobs[i+1].Submit), evSubmit, int32(i+1))
	}
	if w.jobs[i].refused {
		w.jobsDone++
		return nil
	}
	w.countWork(&w.jobs[i], +1, 0, 0)
	if w.MaxAdmittedJobs > 0 && w.admitted >= w.MaxAdmittedJobs {
		w.backlog = append(w.backlog, int32(i))
		return nil
	}
	return w.admitJob(i)
}

// admitJob submits job i to the scheduler.
func (w *world) admitJob(i int) error {
	w.admitted++
	j := &w.jobs[i]
	j.res.Admitted = sinceEpoch(w.now)
	if err := w.putProject(j.spec); err != nil {
		return err
	}
	spec := w.jobSpec(j)
	stages := make([]scheduler.StageSpec, len(j.spec.Stages))
	j.stages = make([]stage, len(stages))
	estimate := w.estimateFactor(j)
	for k := range stages {
		g := &j.spec.Stages[k]
		stages[k] = w.stageSpec(j, g, estimate)
		j.tasksLeft += g.Tasks
		j.stages[k].hasInputs = stages[k].Inputs != nil
		if w.Models.MTBF > 0 || len(w.Absences) > 0 {
			j.stages[k].ranOn = make([]scheduler.NodeID, g.Tasks)
		}
	}
	w.countWork(j, 0, 0, int64(j.tasksLeft))
	if estimate > 0 {
		spec.Estimate = scale(j.res.Alone, estimate)
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
		return w.endJob(j, scheduler.JobSucceeded)
	}
	return nil
}

func (w *world) jobSpec(j *job) scheduler.JobSpec {
	in := j.spec
	spec := scheduler.JobSpec{ID: j.id, Name: in.Name, Tenant: in.Tenant, Priority: in.Priority, Submitted: w.now,
		Bound: in.Bound, OnMiss: in.OnMiss, Project: scheduler.ProjectID(in.Project), Size: in.Size}
	if spec.Priority == 0 {
		spec.Priority = scheduler.PriorityLow
	}
	if in.Deadline > 0 {
		spec.Deadline, spec.Accepted = w.timeAt(in.Deadline), w.Models.AcceptDeadlines
	}
	if spec.Size == 0 {
		spec.Size = j.res.Work
	}
	return spec
}

func (w *world) stageSpec(j *job, g *Stage, estimate float64) scheduler.StageSpec {
	spec := scheduler.StageSpec{Name: g.Name, Kind: g.Kind, After: g.After, Tasks: g.Tasks, Demand: g.Demand, Disk: g.Disk,
		MaxParallel: g.MaxParallel, SlowStart: g.SlowStart, Inputs: g.Inputs}
	if spec.Kind == 0 {
		spec.Kind = scheduler.KindGroup
	}
	if estimate > 0 {
		spec.Estimate = scale(w.nominalTaskTime(g), estimate)
	}
	if spec.Inputs == nil && g.InputBytes > 0 && g.BlockBytes > 0 {
		spec.Inputs = w.placeBlocks(j, g)
	}
	return spec
}

func (w *world) putProject(in *Job) error {
	id := scheduler.ProjectID(in.Project)
	if id == 0 || w.s.Project(id) != nil {
		return nil
	}
	p := &w.Projects[in.Project-1]
	spec := scheduler.ProjectSpec{ID: id, Name: p.Name, Tenant: p.Tenant, Priority: p.Priority, Submitted: w.now, Jobs: p.Jobs}
	if spec.Priority == 0 {
		spec.Priority = scheduler.PriorityLow
	}
	return w.s.Events().PutProject(spec)
}

// estimateFactor returns estimate over truth for a job; 0 for no estimate.
func (w *world) estimateFactor(j *job) float64 {
	if w.Models.NoEstimates {
		return 0
	}
	return lognormal(hash(w.Seed, drawEstimate, uint64(j.id)), w.Models.EstimateError)
}

func scale(d time.Duration, f float64) time.Duration {
	if f == 1 {
		return d
	}
	return time.Duration(min(float64(longest), float64(d)*f))
}

// longest limits a duration: a simulated time before the end of the simulation (see world.loop) and a
// duration of this length together still fit into a Time.
const longest = 4_000_000_000 * time.Second

// repeated returns n times d, at most longest.
func repeated(n int64, d time.Duration) time.Duration {
	if d > 0 && n > int64(longest/d) {
		return longest
	}
	return time.Duration(n) * d
}

// endJob removes a job that has completed, failed or been stopped, and admits the next one.
func (w *world) endJob(j *job, o scheduler.JobOutcome) error {
	if err := w.s.Events().EndJob(j.id, o, w.now); err != nil {
		return err
	}
	j.ended = true
	j.stages = nil
	w.jobsDone++
	w.countWork(j, -1, 0, -int64(j.tasksLeft))
	j.res.Finish, j.res.Outcome = sinceEpoch(w.now), o
	w.admitted--
	if len(w.backlog) > 0 {
		next := w.backlog[0]
		w.backlog = w.backlog[1:]
		if err := w.admitJob(int(next)); err != nil {
			return err
		}
	}
	if p := j.spec.Project; p > 0 {
		q := w.s.Project(scheduler.ProjectID(p))
		if q != nil && len(q.Jobs) == 0 && w.allJobsEnded(p) {
			return w.s.Events().DropProject(q.Spec.ID)
		}
	}
	return nil
}

// allJobsEnded reports whether all jobs of project p have ended.
func (w *world) allJobsEnded(p int) bool {
	left := w.Projects[p-1].Jobs
	for i := range w.jobs {
		if w.jobs[i].spec.Project == p && w.jobs[i].ended {
			left--
		}
	}
	return left <= 0
}

// handlePolicyState handles the policy states that affect the simulation: it counts violated
// guarantees and stops a job with an infeasible deadline if the job asks for that.
func (w *world) handlePolicyState(n *scheduler.PolicyState) error {
	switch n.Kind {
	case scheduler.InfeasibleState:
		j := &w.jobs[n.Job-1]
		j.res.Infeasible = true
		if j.spec.OnMiss == scheduler.OnMissStop && !j.ended {
			return w.stopJob(j, scheduler.JobMissed)
		}
	case scheduler.ViolatedState:
		w.res.ViolatedGuarantees++
	}
	return nil
}

// stopJob kills all attempts of a job and ends it.
func (w *world) stopJob(j *job, o scheduler.JobOutcome) error {
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
	return w.endJob(j, o)
}

// eqClass is the equivalence class of tasks with equal demands.
type eqClass struct {
	demand scheduler.Resources
	disk   int64
}

// slotsInCluster returns how many tasks with these demands fit into the empty cluster.
func (w *world) slotsInCluster(d scheduler.Resources, disk int64) int64 {
	k := eqClass{d, disk}
	if n, ok := w.clusterSlots[k]; ok {
		return n
	}
	sum := int64(0)
	for i := range w.Nodes {
		sum += slotsOnNode(&w.Nodes[i].NodeSpec, d, disk)
	}
	w.clusterSlots[k] = sum
	return sum
}

func slotsOnNode(n *scheduler.NodeSpec, d scheduler.Resources, disk int64) int64 {
	const many = int64(1) << 40
	fitCount := func(capacity, need int64) int64 {
		if need == 0 {
			return many
		}
		return capacity / need
	}
	least := min(fitCount(n.Capacity[scheduler.CPU], d[scheduler.CPU]), fitCount(n.Capacity[scheduler.Memory], d[scheduler.Memory]))
	if d[scheduler.IO] == 0 && disk == 0 {
		return least
	}
	sum := int64(0)
	for _, x := range n.Disks {
		sum += min(fitCount(x.IO, d[scheduler.IO]), fitCount(x.Space, disk))
	}
	return min(least, sum)
}

// aloneTime returns the job's duration on an empty cluster with local data (the longest chain of
// stages, each in full waves) and its work in task-seconds.
func (w *world) aloneTime(j *Job) (alone time.Duration, work float64) {
	end, exact := make([]time.Duration, len(j.Stages)), time.Duration(0)
	for k := range j.Stages {
		g := &j.Stages[k]
		start := time.Duration(0)
		for _, a := range g.After {
			if a >= 0 && int(a) < k {
				start = max(start, end[a])
			}
		}
		task := w.nominalTaskTime(g)
		parallel := max(1, min(int64(max(g.Tasks, 1)), w.slotsInCluster(g.Demand, g.Disk)))
		if g.MaxParallel > 0 {
			parallel = min(parallel, int64(g.MaxParallel))
		}
		waves := (int64(g.Tasks) + parallel - 1) / parallel
		end[k] = min(longest, start+repeated(waves, task))
		alone = max(alone, end[k])
		exact += time.Duration(g.Tasks) * task
		work += float64(g.Tasks) * task.Seconds()
	}
	if work < longest.Seconds() { // the sum of durations did not overflow
		work = exact.Seconds()
	}
	return alone, work
}
