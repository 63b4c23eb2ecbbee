package engine

import (
	"fmt"
	"time"

	"github.com/drover-run/drover/scheduler"
)

// prepare works out what is known of a job before the run.
func (w *world) prepare(i int) error {
	spec := &w.Jobs[i]
	j := &w.jobs[i]
	*j = job{spec: spec, id: scheduler.JobID(i + 1), res: &w.res.Jobs[i]}
	j.res.Start, j.res.Submit = -1, spec.Submit
	if spec.Tenant < 0 || int(spec.Tenant) >= len(w.Tenants) {
		return fmt.Errorf("job %d (%s): tenant %d of %d", i+1, spec.Name, spec.Tenant, len(w.Tenants))
	}
	r := j.res
	r.Alone, r.Work = w.alone(spec)
	for k := range spec.Stages {
		r.Tasks += spec.Stages[k].Tasks
	}
	return nil
}

// submit brings in job i, and its project if it is the first of it, and plans
// the next submission.
func (w *world) submit(i int) error {
	if i+1 < len(w.Jobs) {
		w.events.plan(w.at(w.Jobs[i+1].Submit), evSubmit, int32(i+1))
	}
	w.use.jobs(+1)
	if w.Admission > 0 && w.admitted >= w.Admission {
		w.backlog = append(w.backlog, int32(i))
		return nil
	}
	return w.admit(i)
}

// admit shows job i to the scheduler.
func (w *world) admit(i int) error {
	w.admitted++
	j := &w.jobs[i]
	j.res.Admitted = since0(w.now)
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
		j.left += g.Tasks
		j.stages[k].reads = stages[k].Inputs != nil
		if w.Models.MTBF > 0 {
			j.stages[k].ran = make([]scheduler.NodeID, g.Tasks)
		}
	}
	if estimate > 0 {
		spec.Estimate = scale(j.res.Alone, estimate)
	}
	if w.Admit != nil {
		if err := w.Admit(w.s, w.now, &spec, stages); err != nil {
			return err
		}
	}
	if err := w.s.SubmitJob(spec, stages); err != nil {
		return err
	}
	if j.left == 0 {
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
		spec.Deadline, spec.Accepted = w.at(in.Deadline), w.Models.Accept
	}
	if spec.Size == 0 {
		spec.Size = j.res.Work.Seconds()
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
		spec.Estimate = scale(w.nominalTask(g), estimate)
	}
	if spec.Inputs == nil && g.Input > 0 && g.Read > 0 {
		spec.Inputs = w.layout(j, g)
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
	return w.s.PutProject(spec)
}

// estimateFactor is estimate over truth for a job; 0 for no estimate.
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
	return time.Duration(float64(d) * f)
}

// endJob takes a job out when it is complete, failed or given up.
func (w *world) endJob(j *job, o scheduler.JobOutcome) error {
	if err := w.s.EndJob(j.id, o, w.now); err != nil {
		return err
	}
	j.ended = true
	j.stages = nil
	w.done++
	w.use.jobs(-1)
	j.res.Finish, j.res.Outcome = since0(w.now), o
	w.admitted--
	if len(w.backlog) > 0 {
		next := w.backlog[0]
		w.backlog = w.backlog[1:]
		if err := w.admit(int(next)); err != nil {
			return err
		}
	}
	if p := j.spec.Project; p > 0 {
		q := w.s.Project(scheduler.ProjectID(p))
		if q != nil && len(q.Jobs) == 0 && w.lastOf(p) {
			return w.s.DropProject(q.Spec.ID)
		}
	}
	return nil
}

// lastOf tells whether no job of the project is still to come.
func (w *world) lastOf(p int) bool {
	left := w.Projects[p-1].Jobs
	for i := range w.jobs {
		if w.jobs[i].spec.Project == p && w.jobs[i].ended {
			left--
		}
	}
	return left <= 0
}

// heed acts on notes that concern the world: a deadline job whose deadline
// cannot be kept and that asked to be stopped then is stopped.
func (w *world) heed(n *scheduler.Note) error {
	switch n.Kind {
	case scheduler.NoteHopeless:
		j := &w.jobs[n.Job-1]
		j.res.Hopeless = true
		if j.spec.OnMiss == scheduler.OnMissStop && !j.ended {
			return w.stopJob(j, scheduler.JobMissed)
		}
	case scheduler.NoteBroken:
		w.res.BrokenPromises++
	}
	return nil
}

// stopJob ends all of a job's attempts and the job.
func (w *world) stopJob(j *job, o scheduler.JobOutcome) error {
	if err := w.s.StopJob(j.id); err != nil {
		return err
	}
	for _, g := range w.s.Job(j.id).Stages {
		for i := range g.Spec.Tasks {
			first, second := w.s.Slots(g.Task(i))
			for _, slot := range [...]int32{second, first} { // the later one first
				if slot < 0 {
					continue
				}
				if err := w.dropAttempt(slot, scheduler.OutcomeKilled); err != nil {
					return err
				}
			}
		}
	}
	w.dirty = true
	return w.endJob(j, o)
}

// shape is a demand that takes room on nodes.
type shape struct {
	demand scheduler.Resources
	disk   int64
}

// slots is how many tasks of a demand the empty cluster holds.
func (w *world) slots(d scheduler.Resources, disk int64) int64 {
	k := shape{d, disk}
	if n, ok := w.nominal[k]; ok {
		return n
	}
	sum := int64(0)
	for i := range w.Nodes {
		sum += slotsOn(&w.Nodes[i].NodeSpec, d, disk)
	}
	w.nominal[k] = sum
	return sum
}

func slotsOn(n *scheduler.NodeSpec, d scheduler.Resources, disk int64) int64 {
	const many = int64(1) << 40
	fit := func(room, need int64) int64 {
		if need == 0 {
			return many
		}
		return room / need
	}
	least := min(fit(n.Capacity[scheduler.CPU], d[scheduler.CPU]), fit(n.Capacity[scheduler.Memory], d[scheduler.Memory]))
	if d[scheduler.IO] == 0 && disk == 0 {
		return least
	}
	sum := int64(0)
	for _, x := range n.Disks {
		sum += min(fit(x.IO, d[scheduler.IO]), fit(x.Space, disk))
	}
	return min(least, sum)
}

// alone is how long a job takes on the empty cluster with its data local (the
// longest chain of stages, each in full waves), and its work in task time.
func (w *world) alone(j *Job) (time.Duration, time.Duration) {
	end := make([]time.Duration, len(j.Stages))
	longest, work := time.Duration(0), time.Duration(0)
	for k := range j.Stages {
		g := &j.Stages[k]
		start := time.Duration(0)
		for _, a := range g.After {
			if a >= 0 && int(a) < k {
				start = max(start, end[a])
			}
		}
		task := w.nominalTask(g)
		parallel := max(1, min(int64(max(g.Tasks, 1)), w.slots(g.Demand, g.Disk)))
		if g.MaxParallel > 0 {
			parallel = min(parallel, int64(g.MaxParallel))
		}
		waves := (int64(g.Tasks) + parallel - 1) / parallel
		end[k] = start + time.Duration(waves)*task
		longest = max(longest, end[k])
		work += time.Duration(g.Tasks) * task
	}
	return longest, work
}
