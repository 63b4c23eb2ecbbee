package scheduler

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"
)

// SubmitJob adds a job with its stages. State keeps the stages' Inputs. A refused job leaves no trace. O(tasks/64 +
// replicas) plus the number of jobs with a later submission time.
func (e Events) SubmitJob(spec JobSpec, stages []StageSpec) error {
	what := fmt.Sprintf("job %d", spec.ID)
	spec.OnMiss = cmp.Or(spec.OnMiss, OnMissContinue)
	if err := spec.validate(); err != nil {
		return err
	}
	if e.s.jobs[spec.ID] != nil {
		return refuse(ErrInvalid, what, "a job of that id exists")
	}
	t := e.s.Tenant(spec.Tenant)
	if t == nil {
		return refuse(ErrUnknown, what, "its tenant %d is unknown", spec.Tenant)
	}
	if spec.Project != 0 && e.s.projects[spec.Project] == nil {
		return refuse(ErrUnknown, what, "its project %d is unknown", spec.Project)
	}
	if len(stages) > MaxStages {
		return refuse(ErrInvalid, what, "%d stages: at most %d", len(stages), MaxStages)
	}
	for i := range stages {
		if err := stages[i].validate(what, i); err != nil {
			return err
		}
	}
	j := &Job{Spec: spec, Phase: JobActive}
	j.Stages = j.inlineStages[:0]
	e.s.jobs[spec.ID] = j
	e.s.changeLog.grow(len(e.s.jobs))
	e.s.Queue().enqueue(j, t)
	e.s.changeLog.recordJob(j)
	for i := range stages {
		e.s.Queue().addStage(j, stages[i])
	}
	if p := e.s.projects[spec.Project]; p != nil {
		i, _ := slices.BinarySearch(p.Jobs, spec.ID)
		p.Jobs = slices.Insert(p.Jobs, i, spec.ID)
	}
	e.s.countChange()
	return nil
}

// UpdateJob replaces the spec of a job. Tenant, submission time and project must not change.
func (e Events) UpdateJob(spec JobSpec) error {
	j, err := e.eventJob(spec.ID)
	if err != nil {
		return err
	}
	if err := spec.validate(); err != nil {
		return err
	}
	old := &j.Spec
	if spec.Tenant != old.Tenant || spec.Submitted != old.Submitted || spec.Project != old.Project {
		return refuse(ErrInvalid, fmt.Sprintf("job %d", spec.ID), "tenant, submission and project cannot be changed")
	}
	spec.OnMiss = cmp.Or(spec.OnMiss, OnMissContinue)
	e.s.Queue().countSpec(j, -1)
	j.Spec = spec
	e.s.Queue().countSpec(j, 1)
	for _, g := range j.Stages {
		e.s.Queue().updateOpen(g)
	}
	e.s.links().bumpNodeVersionsOf(j)
	e.changed(j)
	return nil
}

// SetEstimate sets the predicted run time of the stage's tasks. Running attempts keep their
// own prediction (AttemptProgress changes it).
func (e Events) SetEstimate(id StageID, d time.Duration) error {
	g, err := e.eventStage(id)
	if err != nil {
		return err
	}
	if d < 0 || d > MaxRunTime {
		return refuse(ErrInvalid, "stage "+id.String(), "estimate is %v: 0 to %v", d, MaxRunTime)
	}
	if g.Spec.Estimate != d {
		e.s.cluster.bumpNodeVersion(NoNode)
	}
	g.Spec.Estimate, g.details = d, nil
	e.changed(g.Job)
	return nil
}

// SetInput replaces the locations of a task's input. local holds the bytes on each node; nil: each node holds all.
func (e Events) SetInput(id TaskID, nodes []NodeID, local []int64) error {
	g, err := e.eventStage(id.StageID())
	if err != nil {
		return err
	}
	what := "task " + id.String()
	if !g.hasTask(id.Index) || g.Spec.Inputs == nil {
		return refuse(ErrUnknown, what, "there is no such task with an input")
	}
	if len(nodes) > MaxReplicas || (local != nil && len(local) != len(nodes)) {
		return refuse(ErrInvalid, what, "%d nodes and %d local sizes", len(nodes), len(local))
	}
	for i, n := range nodes {
		if n < 0 || n >= MaxNodes || (local != nil && (local[i] < 0 || local[i] > MaxAmount)) {
			return refuse(ErrInvalid, what, "replica %d is on the invalid node %d", i, n)
		}
	}
	if g.moved == nil {
		g.moved = map[int32]movedInput{}
	}
	g.moved[id.Index] = movedInput{slices.Clone(nodes), slices.Clone(local)}
	g.tasksByNode = nil
	e.s.countChange()
	return nil
}

// StopJob reports that a user stopped the job: none of its tasks starts any more. Its attempts live
// until AttemptEnded; then the owner calls EndJob.
func (e Events) StopJob(id JobID) error {
	j, err := e.eventJob(id)
	if err != nil {
		return err
	}
	e.s.Queue().setPhase(j, JobStopping)
	e.s.countChange()
	return nil
}

// EndJob removes a job without live attempts from the State, with its policy states and its reservations.
func (e Events) EndJob(id JobID) error {
	j, err := e.eventJob(id)
	if err != nil {
		return err
	}
	what := fmt.Sprintf("job %d", id)
	if j.Live > 0 {
		return refuse(ErrInvalid, what, "it has %d live attempts: stop it and wait for them", j.Live)
	}
	e.s.Queue().setPhase(j, JobStopping)
	for _, g := range j.Stages {
		ref := g.self
		e.s.stages[ref] = nil
		e.s.freeStageIndexes = append(e.s.freeStageIndexes, ref)
	}
	e.s.Queue().dequeue(j)
	e.s.stalled = slices.DeleteFunc(e.s.stalled, func(g *Stage) bool { return g.Job == j })
	e.s.cluster.countAvoiding(j, -1)
	delete(e.s.jobs, id)
	e.s.lastJob = nil
	if p := e.s.projects[j.Spec.Project]; p != nil {
		if i, ok := slices.BinarySearch(p.Jobs, id); ok {
			p.Jobs = slices.Delete(p.Jobs, i, i+1)
		}
	}
	for _, k := range j.stateKeys {
		e.s.policyStates.drop(k)
	}
	j.stateKeys = nil
	for _, r := range j.reservations {
		i, _ := e.s.Reservations().find(r.ID)
		e.s.Reservations().drop(i)
		e.s.unplannedReleases++
	}
	e.s.countChange()
	return nil
}

// PutProject adds a project or replaces its spec.
func (e Events) PutProject(spec ProjectSpec) error {
	if err := spec.validate(); err != nil {
		return err
	}
	if e.s.Tenant(spec.Tenant) == nil {
		return refuse(ErrUnknown, fmt.Sprintf("project %d", spec.ID), "its tenant %d is unknown", spec.Tenant)
	}
	if p := e.s.projects[spec.ID]; p != nil {
		p.Spec = spec
	} else {
		e.s.projects[spec.ID] = &Project{Spec: spec}
	}
	e.s.changeLog.add(ChangedOwner{Project: spec.ID})
	e.s.countChange()
	return nil
}

// DropProject removes a project without jobs, with its policy states and reservations.
func (e Events) DropProject(id ProjectID) error {
	p := e.s.projects[id]
	what := fmt.Sprintf("project %d", id)
	if p == nil {
		return refuse(ErrUnknown, what, "there is no such project")
	}
	if len(p.Jobs) > 0 {
		return refuse(ErrInvalid, what, "%d of its jobs have not ended", len(p.Jobs))
	}
	delete(e.s.projects, id)
	e.s.changeLog.add(ChangedOwner{Project: id})
	for i := len(e.s.reservations) - 1; i >= 0; i-- {
		if r := e.s.reservations[i]; r.Project == id && r.Job == 0 {
			e.s.Reservations().drop(i)
			e.s.unplannedReleases++
		}
	}
	others := e.s.policyStates.others
	e.s.joblessStates -= len(others)
	maps.DeleteFunc(others, func(k PolicyStateKey, _ PolicyState) bool { return k.Project == id && k.Job == 0 })
	e.s.joblessStates += len(others)
	e.s.countChange()
	return nil
}

// changed logs, and counts, a change of a job.
func (e Events) changed(j *Job) {
	e.s.changeLog.recordJob(j)
	e.s.countChange()
}

func (e Events) eventJob(id JobID) (*Job, error) {
	j := e.s.jobs[id]
	if j == nil {
		return nil, refuse(ErrUnknown, fmt.Sprintf("job %d", id), "there is no such job, or it has ended")
	}
	return j, nil
}

func (e Events) eventStage(id StageID) (*Stage, error) {
	if _, err := e.eventJob(id.Job); err != nil {
		return nil, err
	}
	g := e.s.Stage(id)
	if g == nil {
		return nil, refuse(ErrUnknown, "stage "+id.String(), "there is no such stage")
	}
	return g, nil
}
