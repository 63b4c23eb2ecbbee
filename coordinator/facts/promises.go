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

// Limits of what is remembered for predictions.
const (
	MaxRan      = 8192   // tasks that succeeded, the latest
	MaxOutcomes = 10_000 // ended jobs with a quote, the latest
	MaxProjects = MaxLiveJobs
	maxSource   = 32 // bytes of the name of a prediction's source
)

// Ran is what is remembered of a task that succeeded: predictions are made of
// it. It is never changed once made.
type Ran struct {
	Seq      uint64  `json:"seq"` // counts from 1
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
	RunNS    int64   `json:"run_ns"`          // from its placement to its end, suspensions left out
}

// Outcome is what became of a job with a quoted deadline.
type Outcome struct {
	Job         uint64  `json:"job"`
	Probability float64 `json:"p"`
	Deadline    int64   `json:"deadline"` // Unix ns
	Ended       int64   `json:"ended"`
	OnTime      bool    `json:"on_time,omitempty"`
	// Aside: it ended for a reason that no quote speaks of (a user stopped it,
	// its own fault), before its deadline.
	Aside bool `json:"aside,omitempty"`
}

// Project is jobs with one guaranteed departure. It is there from its first
// job until the last one that lives has ended and holds nothing. It is never
// changed once made.
type Project struct {
	ID        uint64 `json:"id"`
	Name      string `json:"name"`
	Tenant    string `json:"tenant"`
	High      bool   `json:"high,omitempty"` // priority of its first job
	Submitted int64  `json:"submitted"`      // Unix ns
	Jobs      int32  `json:"jobs"`           // ever accepted
	Open      int32  `json:"open"`           // that live, or hold something
}

// Miss is what is known of a deadline that is not met.
type Miss struct {
	At     int64  `json:"at"` // Unix ns
	Passed bool   `json:"passed,omitempty"`
	Why    string `json:"why,omitempty"`
}

// DeadlineNS is the job's deadline in Unix ns, 0 for none.
func (j *Job) DeadlineNS() int64 {
	if j.Spec.Deadline == nil {
		return 0
	}
	return j.Spec.Deadline.UnixNano()
}

// Lowered tells whether the job lost its deadline to on_miss = "lower".
func (j *Job) Lowered() bool { return j.Miss != nil && j.Spec.OnMiss == jobspec.OnMissLower }

// projectKey names a project of a tenant.
func projectKey(tenant, name string) string { return tenant + "/" + name }

// Project finds a project by number, or nil.
func (f *Facts) Project(id uint64) *Project { return f.projects[id] }

// ProjectOf finds the project of a job, or nil.
func (f *Facts) ProjectOf(j *Job) *Project { return f.projects[j.Project] }

// Projects lists the projects by number. It allocates.
func (f *Facts) Projects() []*Project {
	out := make([]*Project, 0, len(f.projects))
	for _, p := range f.projects {
		out = append(out, p)
	}
	slices.SortFunc(out, func(a, b *Project) int { return cmp.Compare(a.ID, b.ID) })
	return out
}

// RanSince lists the remembered tasks with a number above seq, oldest first,
// and gives the number of the newest. The records are never changed.
func (f *Facts) RanSince(seq uint64) ([]*Ran, uint64) {
	n := uint64(len(f.ran))
	if seq >= f.ranSeq {
		return nil, f.ranSeq
	}
	skip := uint64(0)
	if first := f.ranSeq - n; seq > first {
		skip = seq - first
	}
	out := make([]*Ran, 0, n-skip)
	for i := skip; i < n; i++ {
		out = append(out, f.ran[(uint64(f.ranAt)+i)%n])
	}
	return out, f.ranSeq
}

// Outcomes lists what became of quoted jobs, oldest first. It copies.
func (f *Facts) Outcomes() []Outcome {
	return append(append(make([]Outcome, 0, len(f.outcomes)), f.outcomes[f.outcomeAt:]...), f.outcomes[:f.outcomeAt]...)
}

// checkPromise tells why a job's deadline, bound or project cannot be accepted
// at an instant (Unix ns).
func (f *Facts) checkPromise(spec *jobspec.Job, at int64) error {
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
	if f.projectName[projectKey(spec.Tenant, spec.Project)] == 0 && len(f.projects) >= MaxProjects {
		return fault.New(fault.Exhausted, "%d projects have work, the limit: try again when some have ended", MaxProjects)
	}
	return nil
}

// unixNS gives an instant in Unix ns, if it is one of this age.
func unixNS(t time.Time) (int64, bool) {
	if y := t.Year(); y < 1970 || y > 2200 {
		return 0, false
	}
	return t.UnixNano(), true
}

// joinProject brings a new job into its project, which it makes if need be.
func (f *Facts) joinProject(e *droverv1.Entry, j *Job) {
	if j.Spec.Project == "" {
		return
	}
	key := projectKey(j.Spec.Tenant, j.Spec.Project)
	p := &Project{Name: j.Spec.Project, Tenant: j.Spec.Tenant, High: j.Spec.Priority == jobspec.PriorityHigh, Submitted: f.at}
	if id := f.projectName[key]; id != 0 {
		c := *f.projects[id]
		p = &c
	} else {
		f.nextProject++
		p.ID = f.nextProject
		f.projectName[key] = p.ID
		f.event(e, "project.opened", &Event{Job: j.Name, JobID: j.ID, Text: p.Name})
	}
	p.Jobs++
	p.Open++
	f.projects[p.ID] = p
	j.Project = p.ID
}

// leaveProject is called once for each job, when it has ended and holds
// nothing any more.
func (f *Facts) leaveProject(j *Job) {
	p := f.projects[j.Project]
	if p == nil {
		return
	}
	c := *p
	c.Open--
	f.projects[c.ID] = &c
	if c.Open > 0 {
		return
	}
	delete(f.projects, c.ID)
	delete(f.projectName, projectKey(c.Tenant, c.Name))
	for k := range f.notes {
		if k.Project == c.ID {
			delete(f.notes, k)
		}
	}
	for id, r := range f.reservations {
		if r.GetProject() == c.ID {
			delete(f.reservations, id)
		}
	}
}

// Draft gives a job as it would be if it were accepted now (Unix ns); it is no
// fact and nobody knows of it.
func (f *Facts) Draft(spec *jobspec.Job, splits []*droverv1.FactSplit, now int64) (*Job, error) {
	j, err := f.newJob(&droverv1.Entry{}, &droverv1.JobAcceptedFact{}, spec, splits)
	if err != nil {
		return nil, err
	}
	j.Submitted = max(now, f.at)
	j.Project = f.projectName[projectKey(spec.Tenant, spec.Project)]
	return j, nil
}

// applyEstimates takes predictions; those of stages that are gone are dropped.
func (f *Facts) applyEstimates(en *droverv1.EstimatesFact, r *Result) {
	for i, x := range en.GetStages() {
		j := f.jobs[x.GetJob()]
		if j == nil || j.HasEnded() || x.GetStage() < 0 || int(x.GetStage()) >= len(j.Stages) || x.GetNs() < 0 {
			r.Dropped = append(r.Dropped, Drop{i, "the stage is gone"})
			continue
		}
		j = f.write(j)
		s := &j.Stages[x.GetStage()]
		s.EstimateNS, s.EstimateSource = x.GetNs(), clip(x.GetSource(), maxSource)
		f.record(Change{Kind: ChangeEstimate, Key: Key{Job: j.ID, Stage: x.GetStage()}})
		r.Changed++
	}
}

// setEstimates takes the predictions that came with a new job.
func (j *Job) setEstimates(list []*droverv1.StageEstimate) {
	for _, x := range list {
		if i := x.GetStage(); i >= 0 && int(i) < len(j.Stages) && x.GetNs() >= 0 {
			j.Stages[i].EstimateNS, j.Stages[i].EstimateSource = x.GetNs(), clip(x.GetSource(), maxSource)
		}
	}
}

// applyDeadline takes that a live job's deadline cannot be met, or has passed.
func (f *Facts) applyDeadline(e *droverv1.Entry, d *droverv1.DeadlineFact, r *Result) {
	j := f.jobs[d.GetJob()]
	switch {
	case j == nil || j.HasEnded() || j.State == droverv1.JobState_JOB_STATE_COMMITTING:
		r.Dropped = append(r.Dropped, Drop{Reason: "the job has ended or is about to"})
		return
	case j.Spec.Deadline == nil:
		r.Dropped = append(r.Dropped, Drop{Reason: "the job has no deadline"})
		return
	case j.Miss != nil && (j.Miss.Passed || !d.GetPassed()):
		r.Dropped = append(r.Dropped, Drop{Reason: "that is known"})
		return
	}
	first := j.Miss == nil
	j = f.write(j)
	j.Miss = &Miss{At: f.at, Passed: d.GetPassed(), Why: clip(d.GetWhy(), 256)}
	kind := "job.deadline_hopeless"
	if d.GetPassed() {
		kind = "job.deadline_missed"
	}
	text := fmt.Sprintf("deadline %s, on_miss = %s", j.Spec.Deadline.UTC().Format(time.RFC3339), j.Spec.OnMiss)
	if w := j.Miss.Why; w != "" {
		text += ": " + w
	}
	f.event(e, kind, &Event{Job: j.Name, JobID: j.ID, Text: text})
	r.Changed = 1
	if j.Spec.OnMiss == jobspec.OnMissStop && first {
		f.endJob(e, j, droverv1.JobState_JOB_STATE_STOPPED, "stopped by on_miss: "+cmp.Or(j.Miss.Why, "its deadline cannot be met"))
		return
	}
	f.record(Change{Kind: ChangeJob, Key: Key{Job: j.ID}})
}

// notePromised says what the scheduler promised a job, or refused to.
func (f *Facts) notePromised(e *droverv1.Entry, n *droverv1.NoteFact) {
	j := f.jobs[n.GetJob()]
	if j == nil || j.Spec.Deadline == nil || (n.GetKind() != noteAccepted && n.GetKind() != noteRefused) {
		return
	}
	refused := n.GetKind() == noteRefused
	if known := f.notes[NoteKey{Kind: n.GetKind(), Job: j.ID}]; known != nil && j.Refused == refused {
		return
	}
	kind, text := "job.deadline_promised", "by "+j.Spec.Deadline.UTC().Format(time.RFC3339)
	if refused {
		kind, text = "job.deadline_refused", "no guarantee; the quote stands"
		if at := n.GetUntil(); at > 0 {
			text = "no guarantee before " + time.Unix(0, at).UTC().Format(time.RFC3339) + "; the quote stands"
		}
	}
	j = f.write(j)
	j.Refused = refused
	f.event(e, kind, &Event{Job: j.Name, JobID: j.ID, Text: text})
	f.record(Change{Kind: ChangeJob, Key: Key{Job: j.ID}})
}

// judgeQuote remembers what became of a job with a quoted deadline.
func (f *Facts) judgeQuote(j *Job) {
	deadline := j.DeadlineNS()
	if j.Quote == nil || deadline == 0 {
		return
	}
	o := Outcome{Job: j.ID, Probability: j.Quote.GetProbability(), Deadline: deadline, Ended: f.at}
	switch {
	case j.State == droverv1.JobState_JOB_STATE_SUCCEEDED:
		o.OnTime = f.at <= deadline
	case f.at <= deadline && j.Miss == nil:
		o.Aside = true
	}
	if len(f.outcomes) < MaxOutcomes {
		f.outcomes = append(f.outcomes, o)
		return
	}
	f.outcomes[f.outcomeAt] = o
	f.outcomeAt = (f.outcomeAt + 1) % MaxOutcomes
}

// learn remembers a task that succeeded. Its run time is what its node was
// taken for: from the placement to the end, but for the time it was suspended.
func (f *Facts) learn(j *Job, k Key, a *Attempt) {
	s := &j.Spec.Stages[k.Stage]
	f.ranSeq++
	r := &Ran{Seq: f.ranSeq, Job: j.ID, Stage: k.Stage, Tenant: j.Spec.Tenant, JobName: j.Name, Name: s.Name, Kind: string(s.Kind),
		Node: a.Node, Locality: a.Locality, Demand: j.Demand(int(k.Stage)), Tasks: j.Stages[k.Stage].Tasks, RunNS: max(1, a.Ended-a.Placed-a.suspendedNS())}
	if splits := j.Stages[k.Stage].Splits; int(k.Task) < len(splits) {
		for _, p := range splits[k.Task].GetPieces() {
			r.Input = addClamped(r.Input, p.GetLength())
		}
	}
	if len(f.ran) < MaxRan {
		f.ran = append(f.ran, r)
		return
	}
	f.ran[f.ranAt] = r
	f.ranAt = (f.ranAt + 1) % MaxRan
}

// suspendedNS is how long an attempt that has ended was suspended, with the span
// in which it ended.
func (a *Attempt) suspendedNS() int64 {
	ns := a.Sus.TotalMS * 1e6
	if a.Level != droverv1.Level_LEVEL_RUNNING && a.Sus.From > 0 {
		ns += max(0, a.Ended-a.Sus.From)
	}
	return ns
}

// checkQuote drops a quote that says nothing that can be judged.
func checkQuote(q *droverv1.Quote) *droverv1.Quote {
	if p := q.GetProbability(); q == nil || math.IsNaN(p) || p < 0 || p > 1 {
		return nil
	}
	return q
}
