package facts

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/jobspec"
)

// Limits of the history kept for predictions.
const (
	maxCompletions = 8192   // the latest tasks that succeeded
	maxOutcomes    = 10_000 // the latest ended jobs with a quote
	maxProjects    = maxLiveJobs
	maxSource      = 32 // bytes of the name of an estimate's source
)

// Completion records a task that succeeded; run times are predicted from it. It
// is immutable.
type Completion struct {
	Seq      uint64  `json:"seq"` // from 1
	Job      uint64  `json:"job"`
	Stage    int32   `json:"stage"`
	Tenant   string  `json:"tenant"`
	JobName  string  `json:"job_name"`
	Name     string  `json:"name"` // of the stage
	Kind     string  `json:"kind"`
	Node     int32   `json:"node"`
	Locality string  `json:"locality,omitempty"`
	Demand   Amounts `json:"demand"`
	Tasks    int32   `json:"tasks"`           // of the stage
	Input    int64   `json:"input,omitempty"` // bytes
	RunNS    int64   `json:"run_ns"`          // from placement to end, without suspensions
}

// Outcome records how a job with a quoted deadline ended.
type Outcome struct {
	Job         uint64  `json:"job"`
	Probability float64 `json:"p"`
	Deadline    int64   `json:"deadline"` // Unix ns
	Ended       int64   `json:"ended"`
	OnTime      bool    `json:"on_time,omitempty"`
	// Excluded: it ended before its deadline for a reason that quotes do not
	// cover (a user stopped it, or its own fault).
	Excluded bool `json:"excluded,omitempty"`
}

// Project is a group of jobs with one guaranteed departure. It exists from its
// first job until its last one has ended and has no active attempts. It is
// immutable.
type Project struct {
	ID         uint64 `json:"id"`
	Name       string `json:"name"`
	Tenant     string `json:"tenant"`
	High       bool   `json:"high,omitempty"` // priority of its first job
	Submitted  int64  `json:"submitted"`      // Unix ns
	Jobs       int32  `json:"jobs"`           // accepted in total
	ActiveJobs int32  `json:"active_jobs"`    // that are live or have active attempts
	// GuaranteeViolated is why its guarantee was violated first.
	GuaranteeViolated string `json:"guarantee_violated,omitempty"`
}

// Miss records that a deadline is infeasible or has passed.
type Miss struct {
	At     int64  `json:"at"` // Unix ns
	Passed bool   `json:"passed,omitempty"`
	Reason string `json:"reason,omitempty"`
}

// DeadlineNS returns the job's deadline in Unix ns, 0 for none.
func (j *Job) DeadlineNS() int64 {
	if j.Spec.Deadline == nil {
		return 0
	}
	return j.Spec.Deadline.UnixNano()
}

// Lowered reports whether the job lost its deadline to on_miss = "lower".
func (j *Job) Lowered() bool { return j.Miss != nil && j.Spec.OnMiss == jobspec.OnMissLower }

// projectKey returns the key of a tenant's project.
func projectKey(tenant, name string) string { return tenant + "/" + name }

// Project returns the project of that number, or nil.
func (d Deadlines) Project(id uint64) *Project { return d.f.projects[id] }

// ProjectOf returns the project of a job, or nil.
func (d Deadlines) ProjectOf(j *Job) *Project { return d.f.projects[j.Project] }

// projects returns the projects by number. It allocates.
func (d Deadlines) projects() []*Project {
	out := make([]*Project, 0, len(d.f.projects))
	for _, p := range d.f.projects {
		out = append(out, p)
	}
	slices.SortFunc(out, func(a, b *Project) int { return cmp.Compare(a.ID, b.ID) })
	return out
}

// CompletionsSince returns the recorded completions numbered above seq, oldest
// first, and the number of the newest. The records are immutable.
func (d Deadlines) CompletionsSince(seq uint64) ([]*Completion, uint64) {
	n := uint64(len(d.f.completions))
	if seq >= d.f.completionSeq {
		return nil, d.f.completionSeq
	}
	skip := uint64(0)
	if first := d.f.completionSeq - n; seq > first {
		skip = seq - first
	}
	out := make([]*Completion, 0, n-skip)
	for i := skip; i < n; i++ {
		out = append(out, d.f.completions[(uint64(d.f.completionsStart)+i)%n])
	}
	return out, d.f.completionSeq
}

// Outcomes returns the outcomes of quoted jobs, oldest first. It copies.
func (d Deadlines) Outcomes() []Outcome {
	return append(append(make([]Outcome, 0, len(d.f.outcomes)), d.f.outcomes[d.f.outcomesStart:]...), d.f.outcomes[:d.f.outcomesStart]...)
}

// checkDeadline returns why a job's deadline or project cannot be accepted at a
// time (Unix ns), or nil.
func (c Checks) checkDeadline(spec *jobspec.Job, at int64) error {
	if d := spec.Deadline; d != nil {
		ns, ok := unixNS(*d)
		switch {
		case !ok:
			return fault.New(fault.Invalid, "job %q: deadline %s is out of range: use a time of the next decades", spec.Name, d.Format(time.RFC3339))
		case ns <= at:
			return fault.New(fault.Invalid, "job %q: deadline %s is in the past (it is %s): set a later one", spec.Name,
				d.UTC().Format(time.RFC3339), time.Unix(0, at).UTC().Format(time.RFC3339))
		}
	}
	if spec.Project == "" {
		return nil
	}
	if c.f.projectName[projectKey(spec.Tenant, spec.Project)] == 0 && len(c.f.projects) >= maxProjects {
		return fault.New(fault.Exhausted, "%d projects have work, the limit: try again when some have ended", maxProjects)
	}
	return nil
}

// unixNS returns t in Unix ns, and whether it is in a supported range.
func unixNS(t time.Time) (int64, bool) {
	if y := t.Year(); y < 1970 || y > 2200 {
		return 0, false
	}
	return t.UnixNano(), true
}

// joinProject adds a new job to its project, which it creates if necessary.
func (d Deadlines) joinProject(e *droverv1.Entry, j *Job) {
	if j.Spec.Project == "" {
		return
	}
	key := projectKey(j.Spec.Tenant, j.Spec.Project)
	p := &Project{Name: j.Spec.Project, Tenant: j.Spec.Tenant, High: j.Spec.Priority == jobspec.PriorityHigh, Submitted: d.f.now}
	if id := d.f.projectName[key]; id != 0 {
		c := *d.f.projects[id]
		p = &c
	} else {
		d.f.nextProject++
		p.ID = d.f.nextProject
		d.f.projectName[key] = p.ID
		d.f.EventLog().add(e, "project.opened", &Event{Job: j.Name, JobID: j.ID, Text: p.Name})
	}
	p.Jobs++
	p.ActiveJobs++
	d.f.projects[p.ID] = p
	j.Project = p.ID
}

// leaveProject removes a job from its project. It is called once for each job,
// when the job has ended and has no active attempts.
func (d Deadlines) leaveProject(j *Job) {
	p := d.f.projects[j.Project]
	if p == nil {
		return
	}
	c := *p
	c.ActiveJobs--
	d.f.projects[c.ID] = &c
	if c.ActiveJobs > 0 {
		return
	}
	delete(d.f.projects, c.ID)
	delete(d.f.projectName, projectKey(c.Tenant, c.Name))
	for k := range d.f.policyStates.ofProject.of(c.ID) {
		d.f.policyStates.remove(k)
	}
	for id := range d.f.reservations.ofProject.of(c.ID) {
		d.f.reservations.remove(id)
	}
}

// Draft returns the job that would be accepted now (Unix ns), without adding it
// to the facts.
func (d Deadlines) Draft(spec *jobspec.Job, splits []*droverv1.FactSplit, now int64) (*Job, error) {
	j, err := jobsOf(d.f).newJob(&droverv1.Entry{}, &droverv1.JobAcceptedFact{}, d.f.nextJob+1, spec, splits)
	if err != nil {
		return nil, err
	}
	j.Submitted = max(now, d.f.now)
	j.Project = d.f.projectName[projectKey(spec.Tenant, spec.Project)]
	return j, nil
}

// applyEstimates stores predictions of the run times of live stages.
func (d Deadlines) applyEstimates(en *droverv1.EstimatesFact, r *Result) {
	for i, x := range en.GetStages() {
		j := d.f.jobs[x.GetJob()]
		if j == nil || j.HasEnded() || x.GetStage() < 0 || int(x.GetStage()) >= len(j.Stages) || x.GetNs() < 0 {
			r.Dropped = append(r.Dropped, Drop{i, "the stage is gone"})
			continue
		}
		j = writerOf(d.f).writableJob(j)
		s := &j.Stages[x.GetStage()]
		s.EstimateNS, s.EstimateSource = x.GetNs(), clip(x.GetSource(), maxSource)
		writerOf(d.f).recordChange(Change{Kind: ChangeEstimate, Key: Key{Job: j.ID, Stage: x.GetStage()}})
		r.Changed++
	}
}

// setEstimates stores the predictions made at submission.
func (j *Job) setEstimates(list []*droverv1.StageEstimate) {
	for _, x := range list {
		if i := x.GetStage(); i >= 0 && int(i) < len(j.Stages) && x.GetNs() >= 0 {
			j.Stages[i].EstimateNS, j.Stages[i].EstimateSource = x.GetNs(), clip(x.GetSource(), maxSource)
			j.Stages[i].UpperNS = max(0, x.GetUpperNs())
		}
	}
}

// applyDeadlineMiss records that a live job's deadline is infeasible or has
// passed, and stops the job if on_miss says so.
func (d Deadlines) applyDeadlineMiss(e *droverv1.Entry, miss *droverv1.DeadlineMissFact, r *Result) {
	j := d.f.jobs[miss.GetJob()]
	switch {
	case j == nil || j.HasEnded() || j.State == droverv1.JobState_JOB_STATE_COMMITTING:
		r.Dropped = append(r.Dropped, Drop{Reason: "the job has ended or is about to"})
		return
	case j.Spec.Deadline == nil:
		r.Dropped = append(r.Dropped, Drop{Reason: "the job has no deadline"})
		return
	case j.Miss != nil && (j.Miss.Passed || !miss.GetPassed()):
		r.Dropped = append(r.Dropped, Drop{Reason: "it is recorded already"})
		return
	}
	first := j.Miss == nil
	j = writerOf(d.f).writableJob(j)
	j.Miss = &Miss{At: d.f.now, Passed: miss.GetPassed(), Reason: clip(miss.GetReason(), 256)}
	kind := "job.deadline_infeasible"
	if miss.GetPassed() {
		kind = "job.deadline_missed"
	}
	text := fmt.Sprintf("deadline %s, on_miss = %s", j.Spec.Deadline.UTC().Format(time.RFC3339), j.Spec.OnMiss)
	if w := j.Miss.Reason; w != "" {
		text += ": " + w
	}
	d.f.EventLog().add(e, kind, &Event{Job: j.Name, JobID: j.ID, Text: text})
	r.Changed = 1
	if j.Spec.OnMiss == jobspec.OnMissStop && first {
		jobsOf(d.f).endJob(e, j, droverv1.JobState_JOB_STATE_STOPPED, "stopped by on_miss: "+cmp.Or(j.Miss.Reason, "its deadline cannot be met"))
		return
	}
	writerOf(d.f).recordChange(Change{Kind: ChangeJob, Key: Key{Job: j.ID}})
}

// recordGuarantee records whether the scheduler guarantees a job's deadline.
func (d Deadlines) recordGuarantee(e *droverv1.Entry, n *droverv1.PolicyStateFact) {
	j := d.f.jobs[n.GetJob()]
	if j == nil || j.Spec.Deadline == nil || (n.GetKind() != acceptedState && n.GetKind() != refusedState) {
		return
	}
	refused := n.GetKind() == refusedState
	if known := d.f.policyStates.all[PolicyStateKey{Kind: n.GetKind(), Job: j.ID}]; known != nil && j.GuaranteeRefused == refused {
		return
	}
	kind, text := "job.deadline_guaranteed", "by "+j.Spec.Deadline.UTC().Format(time.RFC3339)
	if refused {
		kind, text = "job.deadline_refused", "no guarantee; the quote still applies"
		if at := n.GetAt(); at > 0 {
			text = "no guarantee before " + time.Unix(0, at).UTC().Format(time.RFC3339) + "; the quote still applies"
		}
	}
	j = writerOf(d.f).writableJob(j)
	j.GuaranteeRefused = refused
	d.f.EventLog().add(e, kind, &Event{Job: j.Name, JobID: j.ID, Text: text})
	writerOf(d.f).recordChange(Change{Kind: ChangeJob, Key: Key{Job: j.ID}})
}

// answersProject reports whether a decision has a state of which addProjectEvent makes an event.
func (d Deadlines) answersProject(x *droverv1.DecisionFact) bool {
	return slices.ContainsFunc(x.GetPolicyStates(), d.isProjectAnswer)
}

// isProjectAnswer reports whether a state is the scheduler's answer to a project that had none: its
// guarantee, which comes with a latest departure, or a refusal.
func (d Deadlines) isProjectAnswer(n *droverv1.PolicyStateFact) bool {
	k := PolicyStateKey{Kind: n.GetKind(), Project: n.GetProject()}
	return (k.Kind == latestDepartureState || k.Kind == refusedState) && n.GetJob() == 0 && d.f.projects[k.Project] != nil && d.f.policyStates.all[k] == nil
}

// addProjectEvent adds the event that the scheduler guarantees a project, or refuses to, once. Like
// recordViolation's, the event is of the first live job of the project.
func (d Deadlines) addProjectEvent(e *droverv1.Entry, n *droverv1.PolicyStateFact) {
	if e.GetStepRules() < projectRules || !d.isProjectAnswer(n) {
		return
	}
	p, at := d.f.projects[n.GetProject()], time.Unix(0, n.GetAt()).UTC().Format(time.RFC3339)
	j := d.firstJobOf(p)
	if j == nil {
		return
	}
	kind, text := "project.guaranteed", "by "+at
	if n.GetKind() == refusedState {
		kind, text = "project.guarantee_refused", "no guarantee"
		if n.GetAt() > 0 {
			text += " before " + at
		}
	}
	d.f.EventLog().add(e, kind, &Event{Job: j.Name, JobID: j.ID, Text: p.Name + ": " + text})
}

// recordsViolation reports whether a decision has a state of which recordViolation makes a record.
func recordsViolation(d *droverv1.DecisionFact) bool {
	return slices.ContainsFunc(d.GetPolicyStates(), func(n *droverv1.PolicyStateFact) bool { return n.GetKind() == violatedState })
}

// recordViolation records the first reason for which a scheduler violated the guarantee of a job or
// project, and reports whether it did. The event of a project belongs to its first live job, so
// that readers of that job see it.
func (d Deadlines) recordViolation(e *droverv1.Entry, n *droverv1.PolicyStateFact) bool {
	if n.GetKind() != violatedState || e.GetStepRules() < violationRules {
		return false
	}
	why := violationCause(n.GetSlot())
	if p := d.f.projects[n.GetProject()]; p != nil && p.GuaranteeViolated == "" {
		c := *p
		c.GuaranteeViolated = why
		d.f.projects[c.ID] = &c
		if j := d.firstJobOf(p); j != nil {
			d.f.EventLog().add(e, "project.guarantee_violated", &Event{Job: j.Name, JobID: j.ID, Text: p.Name + ": " + why})
		}
		return true
	}
	if j := d.f.jobs[n.GetJob()]; j != nil && j.GuaranteeViolated == "" {
		j = writerOf(d.f).writableJob(j)
		j.GuaranteeViolated = why
		d.f.EventLog().add(e, "job.guarantee_violated", &Event{Job: j.Name, JobID: j.ID, Text: why})
		return true
	}
	return false
}

// firstJobOf returns the project's live job with the lowest number, nil for none. O(jobs).
func (d Deadlines) firstJobOf(p *Project) *Job {
	var first *Job
	for _, j := range d.f.jobs {
		if j.Project == p.ID && !j.HasEnded() && (first == nil || j.ID < first.ID) {
			first = j
		}
	}
	return first
}

// violationCause returns a cause of a violated guarantee in words. The numbers and words mirror
// backfill.Cause.
func violationCause(slot int32) string {
	switch slot {
	case 1:
		return "a job ran past its bound"
	case 2:
		return "a node was lost"
	case 3:
		return "a task failed"
	case 4:
		return "a job could not start in time"
	case 5:
		return "a task was suspended"
	default:
		return fmt.Sprintf("cause %d", slot)
	}
}

// recordOutcome records how a job with a quoted deadline ended.
func (d Deadlines) recordOutcome(j *Job) {
	deadline := j.DeadlineNS()
	if j.Quote == nil || deadline == 0 {
		return
	}
	o := Outcome{Job: j.ID, Probability: j.Quote.GetProbability(), Deadline: deadline, Ended: d.f.now}
	switch {
	case j.State == droverv1.JobState_JOB_STATE_SUCCEEDED:
		o.OnTime = d.f.now <= deadline
	case d.f.now <= deadline && j.Miss == nil:
		o.Excluded = true
	}
	if len(d.f.outcomes) < maxOutcomes {
		d.f.outcomes = append(d.f.outcomes, o)
		return
	}
	d.f.outcomes[d.f.outcomesStart] = o
	d.f.outcomesStart = (d.f.outcomesStart + 1) % maxOutcomes
}

// recordCompletion records a task that succeeded. Its run time counts from
// placement to end, because that is how long it occupied its node, less the
// time it was suspended.
func (d Deadlines) recordCompletion(j *Job, k Key, a *Attempt) {
	s := &j.Spec.Stages[k.Stage]
	d.f.completionSeq++
	r := &Completion{Seq: d.f.completionSeq, Job: j.ID, Stage: k.Stage, Tenant: j.Spec.Tenant, JobName: j.Name, Name: s.Name, Kind: string(s.Kind),
		Node: a.Node, Locality: a.Locality, Demand: j.Demand(int(k.Stage)), Tasks: j.Stages[k.Stage].Tasks, RunNS: max(1, a.Ended-a.Placed-a.suspendedNS())}
	if splits := j.Stages[k.Stage].Splits; int(k.Task) < len(splits) {
		for _, p := range splits[k.Task].GetPieces() {
			r.Input = addClamped(r.Input, p.GetLength())
		}
	}
	if len(d.f.completions) < maxCompletions {
		d.f.completions = append(d.f.completions, r)
		return
	}
	d.f.completions[d.f.completionsStart] = r
	d.f.completionsStart = (d.f.completionsStart + 1) % maxCompletions
}

// suspendedNS returns how long an ended attempt was suspended, including the
// suspension during which it ended.
func (a *Attempt) suspendedNS() int64 {
	ns := a.Suspension.SuspendedMS * 1e6
	if a.Level != droverv1.Level_LEVEL_RUNNING && a.Suspension.SuspendedAt > 0 {
		ns += max(0, a.Ended-a.Suspension.SuspendedAt)
	}
	return ns
}

// checkQuote returns q, or nil if its probability is invalid.
func checkQuote(q *droverv1.Quote) *droverv1.Quote {
	if p := q.GetProbability(); q == nil || math.IsNaN(p) || p < 0 || p > 1 {
		return nil
	}
	return q
}
