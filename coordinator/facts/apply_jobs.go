package facts

import (
	"fmt"
	"path"
	"slices"
	"strings"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/jobspec"
)

func (f *Facts) applyChunk(c *droverv1.JobChunkFact, r *Result) {
	id := c.GetStaging()
	if id == "" || len(id) > 64 || c.GetIndex() < 0 || c.GetIndex() >= MaxChunks {
		r.Err = fault.New(fault.Invalid, "chunk %d of submission %q", c.GetIndex(), clip(id, 64))
		return
	}
	i := slices.IndexFunc(f.staging, func(s *staging) bool { return s.id == id })
	s := &staging{id: id, splits: map[int32][]*droverv1.FactSplit{}}
	if i >= 0 {
		for k, v := range f.staging[i].splits {
			s.splits[k] = v
		}
		f.staging[i] = s
	} else {
		if len(f.staging) >= MaxStagings {
			f.staging = slices.Delete(f.staging, 0, 1)
		}
		f.staging = append(f.staging, s)
	}
	s.splits[c.GetIndex()] = c.GetSplits()
	r.Changed = 1
}

// takeStaging removes a staged submission and gives its splits in order.
func (f *Facts) takeStaging(id string, chunks int32) ([]*droverv1.FactSplit, error) {
	i := slices.IndexFunc(f.staging, func(s *staging) bool { return s.id == id })
	if i < 0 {
		return nil, fault.New(fault.Unavailable, "the submission's parts were dropped, too many came at once: submit again")
	}
	s := f.staging[i]
	f.staging = slices.Delete(f.staging, i, i+1)
	var out []*droverv1.FactSplit
	for k := range chunks {
		part, ok := s.splits[k]
		if !ok {
			return nil, fault.New(fault.Invalid, "part %d of %d of the submission is missing: submit again", k, chunks)
		}
		out = append(out, part...)
	}
	return out, nil
}

func (f *Facts) applyAccepted(e *droverv1.Entry, a *droverv1.JobAcceptedFact, r *Result) {
	if id, name, ok := f.ByKey(a.GetIdempotencyKey()); ok && a.GetIdempotencyKey() != "" {
		r.Job, r.Name = id, name
		return
	}
	splits := a.GetSplits()
	if a.GetChunks() > 0 {
		if splits, r.Err = f.takeStaging(a.GetStaging(), a.GetChunks()); r.Err != nil {
			return
		}
	}
	spec, err := jobspec.Decode([]byte(a.GetSpec()))
	if err != nil {
		r.Err = fault.New(fault.Invalid, "%w", err)
		return
	}
	if r.Err = f.CheckAccept(spec, a.GetOutputHeld(), f.at); r.Err != nil {
		return
	}
	j, err := f.newJob(e, a, spec, splits)
	if err != nil {
		r.Err = err
		return
	}
	j.setEstimates(a.GetEstimates())
	j.Quote = checkQuote(a.GetQuote())
	f.joinProject(e, j)
	f.register(j)
	r.Job, r.Name, r.Changed = j.ID, j.Name, 1
	f.event(e, "job.accepted", &Event{Job: j.Name, JobID: j.ID, Text: fmt.Sprintf("tenant %s, %d tasks", spec.Tenant, j.taskCount())})
	f.record(Change{Kind: ChangeJob, Key: Key{Job: j.ID}})
	f.checkComplete(e, j)
}

// CheckAccept tells why a job cannot be accepted on the facts as they are at
// an instant (Unix ns). The API asks before it does work; Apply asks again.
func (f *Facts) CheckAccept(spec *jobspec.Job, output string, at int64) error {
	if f.tenantName[spec.Tenant] == nil {
		return fault.New(fault.NotFound, "tenant %q is unknown; `drover tenant list` shows those there are", clip(spec.Tenant, 128))
	}
	if id, ok := f.live[spec.Name]; ok {
		return fault.New(fault.Conflict, "job %q is live as number %d: wait for it, stop it, or choose another name", spec.Name, id)
	}
	if id := f.outputs[output]; output != "" && id != 0 {
		return fault.New(fault.Conflict, "output %s is held by job %q (number %d): wait for it or choose another path", output, f.jobs[id].Name, id)
	}
	if len(f.live) >= MaxLiveJobs {
		return fault.New(fault.Exhausted, "%d jobs are live, the limit: try again when some have ended", MaxLiveJobs)
	}
	for _, d := range Digests(spec) {
		if f.blobs[d] == nil {
			return fault.New(fault.NotFound, "%s is not in the store: upload it first (drover job run does)", d)
		}
	}
	return f.checkPromise(spec, at)
}

// Digests lists the blobs that a job names, each once, in order.
func Digests(spec *jobspec.Job) []string {
	var out []string
	if spec.Image != nil && spec.Image.Digest != "" {
		out = append(out, spec.Image.Digest)
	}
	for i := range spec.Stages {
		for _, file := range spec.Stages[i].Files {
			if file.Digest != "" {
				out = append(out, file.Digest)
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func (f *Facts) newJob(e *droverv1.Entry, a *droverv1.JobAcceptedFact, spec *jobspec.Job, splits []*droverv1.FactSplit) (*Job, error) {
	if len(spec.Stages) == 0 || len(spec.Stages) > jobspec.MaxStages {
		return nil, fault.New(fault.Invalid, "a job has 1 to %d stages, not %d", jobspec.MaxStages, len(spec.Stages))
	}
	id := f.nextJob + 1
	j := &Job{
		ID: id, Name: spec.Name, Actor: clip(e.GetActor(), 128), Key: a.GetIdempotencyKey(), SpecJSON: a.GetSpec(), Spec: spec,
		Token: a.GetShuffleToken(), Output: a.GetOutputHeld(), Submitted: f.at, State: droverv1.JobState_JOB_STATE_PENDING, gen: f.gen,
	}
	if j.Output != "" {
		tag := a.GetTemporaryTag()
		if tag == "" { // of before the tag was known
			tag = fmt.Sprintf("%s-%d", clip(f.cluster, 8), id)
		}
		j.Temporary = Temporary(j.Output, clip(tag, 64))
	}
	for _, n := range f.nodes {
		j.Overhead = max(j.Overhead, n.Info.GetTaskOverheadMemory())
	}
	j.Stages = make([]Stage, len(spec.Stages))
	for i := range spec.Stages {
		s := &j.Stages[i]
		n := spec.Stages[i].Tasks
		if spec.Stages[i].Kind == jobspec.KindMap {
			n, s.Splits = len(splits), splits
		}
		if n < 0 || n > jobspec.MaxTasks {
			return nil, fault.New(fault.Invalid, "stage %q has %d tasks, at most %d are allowed; for a map, combine small files", spec.Stages[i].Name, n, jobspec.MaxTasks)
		}
		s.Tasks, s.Pending = int32(n), int32(n)
		s.chunks = make([]*chunk, (n+chunkTasks-1)/chunkTasks)
	}
	return j, nil
}

// Temporary names the folder for unfinished output: beside the output, so
// that a failed job leaves nothing at its path, and with a leading underscore,
// which MapReduce readers skip. The tag makes it the job's own.
func Temporary(output, tag string) string {
	dir, base := path.Split(strings.TrimRight(output, "/"))
	return fmt.Sprintf("%s_temporary.%s.%s", dir, base, strings.ReplaceAll(tag, "/", "_"))
}

// register makes a new job known to the facts.
func (f *Facts) register(j *Job) {
	f.nextJob = j.ID
	f.jobs[j.ID] = j
	f.live[j.Name] = j.ID
	if j.Output != "" {
		f.outputs[j.Output] = j.ID
	}
	for _, d := range Digests(j.Spec) {
		f.blobs[d].Refs++
	}
	if j.Key == "" {
		return
	}
	if len(f.keyRing) >= MaxKeys {
		delete(f.keys, f.keyRing[0])
		f.keyRing = f.keyRing[1:]
	}
	f.keys[j.Key] = keyed{j.ID, j.Name}
	f.keyRing = append(f.keyRing, j.Key)
}

func (j *Job) taskCount() int {
	n := 0
	for i := range j.Stages {
		n += int(j.Stages[i].Tasks)
	}
	return n
}

func (f *Facts) applyStop(e *droverv1.Entry, s *droverv1.JobStopFact, r *Result) {
	j := f.jobs[s.GetJob()]
	if j == nil {
		r.Err = fault.New(fault.NotFound, "there is no job %d", s.GetJob())
		return
	}
	if j.HasEnded() {
		r.Dropped = append(r.Dropped, Drop{Reason: "the job has ended"})
		return
	}
	msg := "stopped by " + clip(e.GetActor(), 128)
	if s.GetReason() != "" {
		msg += ": " + clip(s.GetReason(), 256)
	}
	f.endJob(e, f.write(j), droverv1.JobState_JOB_STATE_STOPPED, msg)
	r.Changed = 1
}

// applyEnded ends a job whose result was published, or could not be.
func (f *Facts) applyEnded(e *droverv1.Entry, en *droverv1.JobEndedFact, r *Result) {
	j := f.jobs[en.GetJob()]
	if j == nil || j.State != droverv1.JobState_JOB_STATE_COMMITTING {
		r.Dropped = append(r.Dropped, Drop{Reason: "the job is not committing"})
		return
	}
	if s := en.GetState(); s != droverv1.JobState_JOB_STATE_SUCCEEDED && s != droverv1.JobState_JOB_STATE_FAILED {
		r.Err = fault.New(fault.Invalid, "a commit ends as succeeded or failed, not %s", s)
		return
	}
	f.endJob(e, f.write(j), en.GetState(), en.GetMessage())
	r.Changed = 1
}

// checkComplete moves a job on when every task is done: to its commit, or to
// its end where it has no output.
func (f *Facts) checkComplete(e *droverv1.Entry, j *Job) {
	if j.HasEnded() || j.State == droverv1.JobState_JOB_STATE_COMMITTING || !j.Complete() {
		return
	}
	j = f.write(j)
	if j.Output == "" {
		f.endJob(e, j, droverv1.JobState_JOB_STATE_SUCCEEDED, "")
		return
	}
	j.State = droverv1.JobState_JOB_STATE_COMMITTING
	f.event(e, "job.committing", &Event{Job: j.Name, JobID: j.ID, Text: j.Output})
	f.stopAttempts(j)
	f.record(Change{Kind: ChangeJob, Key: Key{Job: j.ID}})
}

// endJob ends a job that came from write: its name is free and its attempts are
// told to stop. Its output path is free too, unless a commit may be under way
// that renames files there: then it stays held until what is left is cleaned.
func (f *Facts) endJob(e *droverv1.Entry, j *Job, state droverv1.JobState, msg string) {
	committing := j.State == droverv1.JobState_JOB_STATE_COMMITTING
	j.State, j.Message, j.Ended, j.EndIndex = state, clip(msg, 1024), f.at, f.index
	j.Promised = f.Promised(j)
	delete(f.live, j.Name)
	for k := range f.notes {
		if k.Job == j.ID {
			delete(f.notes, k)
		}
	}
	for id, res := range f.reservations {
		if res.GetJob() == j.ID {
			delete(f.reservations, id)
		}
	}
	f.judgeQuote(j)
	f.event(e, "job."+stateWord(state), &Event{Job: j.Name, JobID: j.ID, Text: msg})
	f.record(Change{Kind: ChangeJob, Key: Key{Job: j.ID}})
	f.stopAttempts(j)
	if j.Live == 0 {
		f.leaveProject(j)
	}
	j.Cleaned = state == droverv1.JobState_JOB_STATE_SUCCEEDED || j.Output == ""
	j.Holds = committing && !j.Cleaned
	if !j.Holds {
		f.release(j)
	}
}

// release frees the output path.
func (f *Facts) release(j *Job) {
	if f.outputs[j.Output] == j.ID {
		delete(f.outputs, j.Output)
	}
}

func stateWord(s droverv1.JobState) string {
	return strings.ToLower(strings.TrimPrefix(s.String(), "JOB_STATE_"))
}

// stopAttempts tells every live attempt of an ended job to stop. The job came
// from write.
func (f *Facts) stopAttempts(j *Job) {
	if j.Live == 0 {
		return
	}
	for s := range j.Stages {
		if j.Stages[s].Live == 0 {
			continue
		}
		for t := range j.Stages[s].Tasks {
			for _, a := range j.Stages[s].Task(t).Attempts {
				if a.State == AttemptLive {
					f.stopAttempt(j, Key{j.ID, int32(s), t, a.Attempt}, a)
				}
			}
		}
	}
}

func (f *Facts) applyCleaned(e *droverv1.Entry, c *droverv1.JobCleanedFact, r *Result) {
	j := f.jobs[c.GetJob()]
	if j == nil || !j.HasEnded() || j.Cleaned {
		r.Dropped = append(r.Dropped, Drop{Reason: "the job is gone, live or cleaned"})
		return
	}
	j = f.write(j)
	j.Cleaned, j.Holds = true, false
	f.release(j)
	f.event(e, "job.cleaned", &Event{Job: j.Name, JobID: j.ID, Text: j.Temporary})
	f.record(Change{Kind: ChangeJob, Key: Key{Job: j.ID}})
	r.Changed = 1
}

// applyForgotten drops jobs that ended, are cleaned and hold nothing.
func (f *Facts) applyForgotten(jf *droverv1.JobsForgottenFact, r *Result) {
	for i, id := range jf.GetJobs() {
		j := f.jobs[id]
		if j == nil || !j.HasEnded() || !j.Cleaned || j.Live > 0 {
			r.Dropped = append(r.Dropped, Drop{At: i, Reason: "the job is gone, live, holds something or is not cleaned"})
			continue
		}
		delete(f.jobs, id)
		for _, d := range Digests(j.Spec) {
			if b := f.blobs[d]; b != nil {
				b.Refs--
			}
		}
		f.record(Change{Kind: ChangeForgotten, Key: Key{Job: id}, Nodes: f.dropFromNodes(j)})
		r.Changed++
	}
}

// dropFromNodes takes the job's attempts off the index and lists the nodes
// that had any, in order.
func (f *Facts) dropFromNodes(j *Job) []int32 {
	seen := map[int32]bool{}
	f.EachAttempt(j, func(_ Key, _ *Task, a *Attempt) { seen[a.Node] = true })
	var out []int32
	for n := range seen {
		out = append(out, n)
		for k := range f.onNode[n] {
			if k.Job == j.ID {
				delete(f.onNode[n], k)
			}
		}
	}
	slices.Sort(out)
	return out
}
