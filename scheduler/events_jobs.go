package scheduler

import (
	"fmt"
	"slices"
	"time"
)

// SubmitJob adds a job with its stages. Stages of an open job (JobSpec.Open) may also be added
// later (AddStage, CloseJob). State keeps the stages' Inputs. A refused job leaves no trace.
// O(tasks/64 + replicas) plus the number of jobs with a later submission time.
func (s *State) SubmitJob(spec JobSpec, stages []StageSpec) error {
	if err := s.refuseInTry("submit a job"); err != nil {
		return err
	}
	what := fmt.Sprintf("job %d", spec.ID)
	if spec.OnMiss == 0 {
		spec.OnMiss = OnMissContinue
	}
	if err := spec.validate(); err != nil {
		return err
	}
	if s.jobs[spec.ID] != nil {
		return refuse(ErrExists, what, "a job of that id exists")
	}
	t := s.Tenant(spec.Tenant)
	if t == nil {
		return refuse(ErrUnknown, what, "its tenant %d is unknown", spec.Tenant)
	}
	if spec.Project != 0 && s.projects[spec.Project] == nil {
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
	s.jobs[spec.ID] = j
	s.changeLog.grow(len(s.jobs))
	s.enqueue(j, t)
	s.recordJobChange(j)
	for i := range stages {
		s.addStage(j, stages[i])
	}
	if p := s.projects[spec.Project]; p != nil {
		i, _ := slices.BinarySearch(p.Jobs, spec.ID)
		p.Jobs = slices.Insert(p.Jobs, i, spec.ID)
	}
	s.countChange()
	return nil
}

// AddStage adds a stage to an open job.
func (s *State) AddStage(id JobID, spec StageSpec) error {
	j, err := s.eventJob(id)
	if err != nil {
		return err
	}
	what := fmt.Sprintf("job %d", id)
	if !j.Spec.Open {
		return refuse(ErrInvalid, what, "it is not open: no stage can be added")
	}
	if len(j.Stages) >= MaxStages {
		return refuse(ErrInvalid, what, "it already has the maximum of %d stages", MaxStages)
	}
	if err := spec.validate(what, len(j.Stages)); err != nil {
		return err
	}
	s.addStage(j, spec)
	s.countChange()
	return nil
}

// CloseJob closes an open job: no stage may be added any more.
func (s *State) CloseJob(id JobID) error {
	j, err := s.eventJob(id)
	if err != nil {
		return err
	}
	j.Spec.Open = false
	s.recordJobChange(j)
	s.countChange()
	return nil
}

// UpdateJob replaces the spec of a job. Tenant, submission time, project and Open must not
// change.
func (s *State) UpdateJob(spec JobSpec) error {
	j, err := s.eventJob(spec.ID)
	if err != nil {
		return err
	}
	if err := spec.validate(); err != nil {
		return err
	}
	old := &j.Spec
	if spec.Tenant != old.Tenant || spec.Submitted != old.Submitted || spec.Project != old.Project || spec.Open != old.Open {
		return refuse(ErrInvalid, fmt.Sprintf("job %d", spec.ID), "tenant, submission, project and open cannot be changed")
	}
	if spec.OnMiss == 0 {
		spec.OnMiss = OnMissContinue
	}
	if t := s.tenants[spec.Tenant]; j.Ready > 0 {
		t.countHigh(j, -1)
		j.Spec = spec
		t.countHigh(j, 1)
	}
	j.Spec = spec
	for _, g := range j.Stages {
		g.finished = nil // it contains the job's name
	}
	s.recordJobChange(j)
	s.bumpNodeVersionsOf(j)
	s.countChange()
	return nil
}

// SetEstimate sets the predicted run time of the stage's tasks. Running attempts keep their
// own prediction (AttemptProgress changes it).
func (s *State) SetEstimate(id StageID, d time.Duration) error {
	g, err := s.eventStage(id)
	if err != nil {
		return err
	}
	if d < 0 {
		return refuse(ErrInvalid, "stage "+id.String(), "estimate is %v: it must not be negative", d)
	}
	if g.Spec.Estimate != d {
		s.bumpNodeVersion(NoNode)
	}
	g.Spec.Estimate, g.details = d, nil
	s.recordJobChange(g.Job)
	s.countChange()
	return nil
}

// SetInput replaces the locations of a task's input. local holds the bytes on each node; nil:
// all of them on each.
func (s *State) SetInput(id TaskID, nodes []NodeID, local []int64) error {
	g, err := s.eventStage(id.StageID())
	if err != nil {
		return err
	}
	what := "task " + id.String()
	if id.Index < 0 || id.Index >= g.Spec.Tasks || g.Spec.Inputs == nil {
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
	s.countChange()
	return nil
}

// StopJob reports that a user stopped the job: nothing of it starts any more. Its attempts
// live until AttemptEnded; then the owner calls EndJob.
func (s *State) StopJob(id JobID) error {
	j, err := s.eventJob(id)
	if err != nil {
		return err
	}
	s.setPhase(j, JobStopping)
	s.countChange()
	return nil
}

// JobOutcome says how a job ended.
type JobOutcome uint8

// The outcomes of a job.
const (
	JobSucceeded JobOutcome = iota + 1
	JobFailed
	JobStopped
	JobMissed // its deadline was missed and on_miss is stop
)

// String returns the outcome's name.
func (o JobOutcome) String() string {
	switch o {
	case JobSucceeded:
		return "succeeded"
	case JobFailed:
		return "failed"
	case JobStopped:
		return "stopped"
	case JobMissed:
		return "missed"
	default:
		return fmt.Sprintf("outcome(%d)", uint8(o))
	}
}

// EndJob removes a job without live attempts from the State, with its policy states and its
// reservations, and records it in the history.
func (s *State) EndJob(id JobID, outcome JobOutcome, now Time) error {
	j, err := s.eventJob(id)
	if err != nil {
		return err
	}
	what := fmt.Sprintf("job %d", id)
	if outcome < JobSucceeded || outcome > JobMissed {
		return refuse(ErrInvalid, what, "outcome is %v", outcome)
	}
	if j.Live > 0 {
		return refuse(ErrBusy, what, "it has %d live attempts: stop it and wait for them", j.Live)
	}
	s.setPhase(j, JobStopping)
	s.recordJob(j, outcome, now)
	for _, g := range j.Stages {
		ref := g.self
		s.stages[ref] = nil
		s.freeStageIndexes = append(s.freeStageIndexes, ref)
	}
	s.dequeue(j)
	delete(s.jobs, id)
	s.lastJob = nil
	if p := s.projects[j.Spec.Project]; p != nil {
		if i, ok := slices.BinarySearch(p.Jobs, id); ok {
			p.Jobs = slices.Delete(p.Jobs, i, i+1)
		}
	}
	s.forgetJob(j)
	s.countChange()
	return nil
}

func (s *State) recordJob(j *Job, outcome JobOutcome, now Time) {
	f := FinishedJob{Job: j.Spec.ID, Tenant: j.Spec.Tenant, Name: j.Spec.Name, Deadline: j.Spec.Deadline,
		Submitted: j.Spec.Submitted, Started: j.FirstPlaced, Ended: now, Outcome: outcome}
	for _, g := range j.Stages {
		f.Service += g.TaskTime(now)
		f.Tasks += g.Spec.Tasks
	}
	s.history.jobs.put(f, HistoryJobs)
}

// forgetJob deletes the policy states and reservations of a job.
func (s *State) forgetJob(j *Job) {
	id := j.Spec.ID
	if j.policyStates > 0 {
		for k := range s.policyStates {
			if k.Job == id {
				delete(s.policyStates, k)
			}
		}
	}
	for _, r := range j.reservations {
		i, _ := s.findReservation(r.ID)
		s.dropReservation(i)
		s.unplannedReleases++
	}
}

// PutProject adds a project or replaces its spec.
func (s *State) PutProject(spec ProjectSpec) error {
	if err := s.refuseInTry("put a project"); err != nil {
		return err
	}
	if err := spec.validate(); err != nil {
		return err
	}
	if s.Tenant(spec.Tenant) == nil {
		return refuse(ErrUnknown, fmt.Sprintf("project %d", spec.ID), "its tenant %d is unknown", spec.Tenant)
	}
	if p := s.projects[spec.ID]; p != nil {
		p.Spec = spec
	} else {
		s.projects[spec.ID] = &Project{Spec: spec}
	}
	s.changeLog.add(ChangedOwner{Project: spec.ID})
	s.countChange()
	return nil
}

// DropProject removes a project without jobs, with its policy states and reservations.
func (s *State) DropProject(id ProjectID) error {
	if err := s.refuseInTry("drop a project"); err != nil {
		return err
	}
	p := s.projects[id]
	what := fmt.Sprintf("project %d", id)
	if p == nil {
		return refuse(ErrUnknown, what, "there is no such project")
	}
	if len(p.Jobs) > 0 {
		return refuse(ErrBusy, what, "%d of its jobs have not ended", len(p.Jobs))
	}
	delete(s.projects, id)
	s.changeLog.add(ChangedOwner{Project: id})
	for i := len(s.reservations) - 1; i >= 0; i-- {
		if r := s.reservations[i]; r.Project == id && r.Job == 0 {
			s.dropReservation(i)
			s.unplannedReleases++
		}
	}
	for k := range s.policyStates {
		if k.Project == id && k.Job == 0 {
			delete(s.policyStates, k)
			s.joblessStates--
		}
	}
	s.countChange()
	return nil
}

func (s *State) eventJob(id JobID) (*Job, error) {
	if err := s.refuseInTry("change a job"); err != nil {
		return nil, err
	}
	j := s.jobs[id]
	if j == nil {
		return nil, refuse(ErrUnknown, fmt.Sprintf("job %d", id), "there is no such job, or it has ended")
	}
	return j, nil
}

func (s *State) eventStage(id StageID) (*Stage, error) {
	if _, err := s.eventJob(id.Job); err != nil {
		return nil, err
	}
	g := s.Stage(id)
	if g == nil {
		return nil, refuse(ErrUnknown, "stage "+id.String(), "there is no such stage")
	}
	return g, nil
}
