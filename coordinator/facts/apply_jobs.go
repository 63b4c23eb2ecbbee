package facts

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/internal/apitext"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/jobspec"
)

func (en jobEntries) applyChunk(c *droverv1.JobChunkFact, r *Result) {
	id := c.GetStaging()
	if id == "" || len(id) > 64 || c.GetIndex() < 0 || c.GetIndex() >= maxChunks {
		r.Err = fault.New(fault.Invalid, "chunk %d of submission %q: want a number below %d, and a name of 1 to 64 bytes", c.GetIndex(), clip(id, 64), maxChunks)
		return
	}
	i := slices.IndexFunc(en.f.staging, func(s *staging) bool { return s.id == id })
	if c.GetDropped() {
		if i >= 0 { // else it was accepted nevertheless, or made room for others
			en.f.staging, r.Changed = slices.Delete(en.f.staging, i, i+1), 1
		}
		return
	}
	s := &staging{id: id, splits: map[int32][]*droverv1.FactSplit{}}
	if i >= 0 {
		for k, v := range en.f.staging[i].splits {
			s.splits[k] = v
		}
		en.f.staging[i] = s
	} else {
		if len(en.f.staging) >= maxStagings {
			en.f.staging = slices.Delete(en.f.staging, 0, 1)
		}
		en.f.staging = append(en.f.staging, s)
	}
	s.splits[c.GetIndex()] = c.GetSplits()
	r.Changed = 1
}

// takeStaging removes a staged submission and returns its splits in order.
func (en jobEntries) takeStaging(id string, chunks int32) ([]*droverv1.FactSplit, error) {
	i := slices.IndexFunc(en.f.staging, func(s *staging) bool { return s.id == id })
	if i < 0 {
		return nil, fault.New(fault.Unavailable, "the submission's parts were dropped, too many came at once: submit again")
	}
	s := en.f.staging[i]
	en.f.staging = slices.Delete(en.f.staging, i, i+1)
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

func (en jobEntries) applyAccepted(e *droverv1.Entry, a *droverv1.JobAcceptedFact, r *Result) {
	if id, name, ok := en.f.JobByIdempotencyKey(a.GetIdempotencyKey()); ok && a.GetIdempotencyKey() != "" {
		r.Job, r.Name = id, name
		return
	}
	id := en.takeJobNumber(a.GetJob(), r)
	if id == 0 {
		return
	}
	splits := a.GetSplits()
	if a.GetChunks() > 0 {
		if splits, r.Err = en.takeStaging(a.GetStaging(), a.GetChunks()); r.Err != nil {
			return
		}
	}
	// Not validated again: what was acknowledged stays accepted, also by a later
	// version whose rules are stricter.
	spec, err := jobspec.DecodeStored([]byte(a.GetSpec()))
	if err != nil {
		r.Err = fault.New(fault.Invalid, "%w", err)
		return
	}
	if r.Err = en.f.Checks().CheckJob(spec, a.GetOutput(), en.f.now); r.Err != nil {
		return
	}
	j, err := en.newJob(e, a, id, spec, splits)
	if err != nil {
		r.Err = err
		return
	}
	j.setEstimates(a.GetEstimates())
	j.Quote = checkQuote(a.GetQuote())
	en.f.Deadlines().joinProject(e, j)
	en.addJob(j)
	r.Job, r.Name, r.Changed = j.ID, j.Name, 1
	en.f.EventLog().add(e, "job.accepted", &Event{Job: j.Name, JobID: j.ID, Text: fmt.Sprintf("tenant %s, %d tasks", spec.Tenant, j.taskCount())})
	writerOf(en.f).recordChange(Change{Kind: ChangeJob, Key: Key{Job: j.ID}})
	en.finishIfComplete(e, j)
}

// CheckJob returns why a job cannot be accepted at a time (Unix ns), or nil.
// The API calls it before it does any work; Apply calls it again.
func (c Checks) CheckJob(spec *jobspec.Job, output string, at int64) error {
	if c.f.Tenant(spec.Tenant) == nil {
		return UnknownTenant(spec.Tenant)
	}
	if j := c.f.liveJob(spec.Tenant, spec.Name); j != nil {
		return fault.New(fault.Conflict, "job %q is live as number %d: wait for it, stop it, or choose another name", spec.Name, j.ID)
	}
	if id := c.f.outputs.byPath[output]; output != "" && id != 0 {
		return c.outputConflict(spec.Tenant, output, id)
	}
	if c.f.live.count >= maxLiveJobs {
		return fault.New(fault.Exhausted, "%d jobs are live, the limit: try again when some have ended", maxLiveJobs)
	}
	for _, d := range Digests(spec) {
		if c.f.blobs[d] == nil {
			return fault.New(fault.NotFound, "%s is not in the store: upload it first (drover job run does)", d)
		}
	}
	if err := SecretsOf(c.f).needed(spec); err != nil {
		return err
	}
	return c.checkDeadline(spec, at)
}

// Digests returns the blobs that a job references, each once, in order.
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

// takeJobNumber takes the number that an entry was given when it was proposed, or
// the next one where it has none. It is used up also if the job is then refused.
// It returns 0, and the error in r, for a number that does not follow the others.
func (en jobEntries) takeJobNumber(given uint64, r *Result) uint64 {
	if given == 0 {
		given = en.f.nextJob + 1
	}
	if given <= en.f.nextJob {
		r.Err = fault.New(fault.Conflict, "job number %d is taken, the last one is %d: submit again", given, en.f.nextJob)
		return 0
	}
	en.f.nextJob = given
	return given
}

// LastJob returns the highest job number that was given, 0 before the first.
func (f *Facts) LastJob() uint64 { return f.nextJob }

func (en jobEntries) newJob(e *droverv1.Entry, a *droverv1.JobAcceptedFact, id uint64, spec *jobspec.Job, splits []*droverv1.FactSplit) (*Job, error) {
	if len(spec.Stages) == 0 || len(spec.Stages) > jobspec.MaxStages {
		return nil, fault.New(fault.Invalid, "a job has 1 to %d stages, not %d", jobspec.MaxStages, len(spec.Stages))
	}
	j := &Job{
		ID: id, Name: spec.Name, Actor: clip(e.GetActor(), 128), Key: a.GetIdempotencyKey(), SpecJSON: a.GetSpec(), Spec: spec,
		Token: a.GetShuffleToken(), Output: a.GetOutput(), Submitted: en.f.now, State: droverv1.JobState_JOB_STATE_PENDING, gen: en.f.gen,
	}
	if j.Output != "" {
		tag := a.GetTemporaryTag()
		if tag == "" { // accepted before there were tags
			tag = fmt.Sprintf("%s-%d", clip(en.f.cluster, 8), id)
		}
		j.Temporary = TemporaryFolder(j.Output, clip(tag, 64))
	}
	j.Overhead = en.f.TaskOverheadMemory()
	j.Stages = make([]Stage, len(spec.Stages))
	for i := range spec.Stages {
		s := &j.Stages[i]
		n := spec.Stages[i].Tasks
		if spec.Stages[i].Kind == jobspec.KindMap {
			n, s.Splits, s.MeanSplit = len(splits), splits, MeanSplit(splits)
		}
		if n < 0 || n > jobspec.MaxTasks {
			return nil, fault.New(fault.Invalid, "stage %q has %d tasks, at most %d are allowed; for a map, combine small files", spec.Stages[i].Name, n, jobspec.MaxTasks)
		}
		s.Tasks, s.Pending = int32(n), int32(n)
		s.chunks = make([]*chunk, (n+chunkTasks-1)/chunkTasks)
	}
	return j, nil
}

// TemporaryFolder returns the folder for unfinished output. It is beside the
// output, so that a failed job leaves nothing at its path, and begins with an
// underscore, which MapReduce readers skip. The tag makes it unique to the job.
func TemporaryFolder(output, tag string) string {
	dir, base := path.Split(strings.TrimRight(output, "/"))
	return fmt.Sprintf("%s%s%s.%s", dir, jobspec.TemporaryPrefix, base, strings.ReplaceAll(tag, "/", "_"))
}

// addJob adds a new job to the facts and their indexes.
func (en jobEntries) addJob(j *Job) {
	en.f.jobs[j.ID] = j
	en.f.live.add(j.Spec.Tenant, j.Name, j.ID)
	if j.Output != "" {
		en.f.outputs.add(j.Output, j.ID)
	}
	for _, d := range Digests(j.Spec) {
		en.f.blobs[d].Refs++
	}
	if j.Key == "" {
		return
	}
	if len(en.f.keyRing) >= maxKeys {
		delete(en.f.keys, en.f.keyRing[0])
		en.f.keyRing = en.f.keyRing[1:]
	}
	en.f.keys[j.Key] = keyedJob{j.ID, j.Name}
	en.f.keyRing = append(en.f.keyRing, j.Key)
}

func (j *Job) taskCount() int {
	n := 0
	for i := range j.Stages {
		n += int(j.Stages[i].Tasks)
	}
	return n
}

func (en jobEntries) applyStop(e *droverv1.Entry, s *droverv1.JobStopFact, r *Result) {
	j := en.f.jobs[s.GetJob()]
	if j == nil {
		r.Err = fault.New(fault.NotFound, "there is no job %d: `drover job list -all` shows those there are", s.GetJob())
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
	r.Changed = 1
	if j.State == droverv1.JobState_JOB_STATE_COMMITTING && s.GetAfterCommit() {
		// Files may be renamed there at this moment: only the commit's end says what is published.
		if j.Message != "" {
			r.Changed, r.Dropped = 0, append(r.Dropped, Drop{Reason: "the job is to be stopped already"})
			return
		}
		j = writerOf(en.f).writableJob(j)
		j.Message = clip(msg, 512)
		writerOf(en.f).recordChange(Change{Kind: ChangeJob, Key: Key{Job: j.ID}})
		return
	}
	en.endJob(e, writerOf(en.f).writableJob(j), droverv1.JobState_JOB_STATE_STOPPED, msg)
}

// applyEnded ends a job whose result was published, or could not be. One that a user has stopped
// meanwhile has succeeded if it was published, and says that the stop came too late.
func (en jobEntries) applyEnded(e *droverv1.Entry, end *droverv1.JobEndedFact, r *Result) {
	j := en.f.jobs[end.GetJob()]
	if j == nil || j.State != droverv1.JobState_JOB_STATE_COMMITTING {
		r.Dropped = append(r.Dropped, Drop{Reason: "the job is not committing"})
		return
	}
	if s := end.GetState(); s != droverv1.JobState_JOB_STATE_SUCCEEDED && s != droverv1.JobState_JOB_STATE_FAILED {
		r.Err = fault.New(fault.Invalid, "a commit ends as succeeded or failed, not %s", s)
		return
	}
	state, msg := end.GetState(), end.GetMessage()
	switch stop := j.Message; {
	case stop == "":
	case state == droverv1.JobState_JOB_STATE_SUCCEEDED:
		msg = "its result was being published when it was " + stop
	default:
		state, msg = droverv1.JobState_JOB_STATE_STOPPED, stop+"; "+msg
	}
	en.endJob(e, writerOf(en.f).writableJob(j), state, msg)
	r.Changed = 1
}

// finishIfComplete advances a job whose tasks are all done: to its commit, or
// to its end if it has no output.
func (en jobEntries) finishIfComplete(e *droverv1.Entry, j *Job) {
	if j.HasEnded() || j.State == droverv1.JobState_JOB_STATE_COMMITTING || !j.isComplete() {
		return
	}
	j = writerOf(en.f).writableJob(j)
	if j.Output == "" {
		en.endJob(e, j, droverv1.JobState_JOB_STATE_SUCCEEDED, "")
		return
	}
	j.State = droverv1.JobState_JOB_STATE_COMMITTING
	en.f.EventLog().add(e, "job.committing", &Event{Job: j.Name, JobID: j.ID, Text: j.Output})
	en.stopAttempts(j)
	writerOf(en.f).recordChange(Change{Kind: ChangeJob, Key: Key{Job: j.ID}})
}

// endJob ends a job that came from writableJob: its name is free and its
// attempts are told to stop. Its output path is freed too, unless a commit may
// be renaming files there: then it stays reserved until the temporary folder is
// cleaned.
func (en jobEntries) endJob(e *droverv1.Entry, j *Job, state droverv1.JobState, msg string) {
	committing := j.State == droverv1.JobState_JOB_STATE_COMMITTING
	j.DepartureAtEnd, j.GuaranteeViolated = en.f.Deadlines().departure(j, guaranteeState), en.f.Deadlines().GuaranteeViolated(j)
	j.State, j.Message, j.Ended, j.EndIndex = state, clip(msg, 1024), en.f.now, en.f.index
	en.f.live.remove(j.Spec.Tenant, j.Name, j.ID)
	for k := range en.f.policyStates.ofJob.of(j.ID) {
		en.f.policyStates.remove(k)
	}
	for id := range en.f.reservations.ofJob.of(j.ID) {
		en.f.reservations.remove(id)
	}
	en.f.Deadlines().recordOutcome(j)
	en.f.EventLog().add(e, "job."+apitext.JobState(state), &Event{Job: j.Name, JobID: j.ID, Text: msg})
	writerOf(en.f).recordChange(Change{Kind: ChangeJob, Key: Key{Job: j.ID}})
	en.stopAttempts(j)
	en.dropOutputs(j)
	if j.Live == 0 {
		en.f.Deadlines().leaveProject(j)
		writerOf(en.f).sealJob(j)
	}
	j.Cleaned = state == droverv1.JobState_JOB_STATE_SUCCEEDED || j.Output == ""
	j.OutputReserved = committing && !j.Cleaned
	if !j.OutputReserved {
		en.f.outputs.remove(j.Output, j.ID)
	}
	if j.Live == 0 {
		en.f.EndedLog().addJob(j)
	}
}

// stopAttempts stops every live attempt of an ended job. The job came from
// writableJob.
func (en jobEntries) stopAttempts(j *Job) {
	if j.Live == 0 {
		return
	}
	en.f.EachActive(j, func(k Key, _ *Task, a *Attempt) {
		if a.State == AttemptLive {
			attemptsOf(en.f).stopAttempt(j, k, a)
		}
	})
}

func (en jobEntries) applyCleaned(e *droverv1.Entry, c *droverv1.JobCleanedFact, r *Result) {
	j := en.f.jobs[c.GetJob()]
	if j == nil || !j.HasEnded() || j.Cleaned {
		r.Dropped = append(r.Dropped, Drop{Reason: "the job is gone, live or cleaned"})
		return
	}
	j = writerOf(en.f).writableJob(j)
	j.Cleaned, j.OutputReserved = true, false
	en.f.outputs.remove(j.Output, j.ID)
	en.f.EventLog().add(e, "job.cleaned", &Event{Job: j.Name, JobID: j.ID, Text: j.Temporary})
	writerOf(en.f).recordChange(Change{Kind: ChangeJob, Key: Key{Job: j.ID}})
	r.Changed = 1
}

// applyLogsGathered marks that the logs of an ended job are where it wanted them.
func (en jobEntries) applyLogsGathered(e *droverv1.Entry, g *droverv1.LogsGatheredFact, r *Result) {
	j := en.f.jobs[g.GetJob()]
	if j == nil || !j.HasEnded() || j.LogsGathered {
		r.Dropped = append(r.Dropped, Drop{Reason: "the job is gone, live, or its logs are gathered"})
		return
	}
	j = writerOf(en.f).writableJob(j)
	j.LogsGathered, j.LogsMissing = true, clip(g.GetMissing(), 512)
	text := g.GetFolder()
	if j.LogsMissing != "" {
		text += " (missing: " + j.LogsMissing + ")"
	}
	en.f.EventLog().add(e, "job.logs_gathered", &Event{Job: j.Name, JobID: j.ID, Text: text})
	writerOf(en.f).recordChange(Change{Kind: ChangeJob, Key: Key{Job: j.ID}})
	r.Changed = 1
}

// applyForgotten removes ended jobs that are settled.
func (en jobEntries) applyForgotten(jf *droverv1.JobsForgottenFact, r *Result) {
	for i, id := range jf.GetJobs() {
		j := en.f.jobs[id]
		if j == nil || !j.IsSettled() {
			r.Dropped = append(r.Dropped, Drop{Index: i, Reason: "the job is unknown, live, not cleaned, has active attempts or logs to be gathered"})
			continue
		}
		delete(en.f.jobs, id)
		delete(en.f.eventsOfJob, id)
		for _, d := range Digests(j.Spec) {
			if b := en.f.blobs[d]; b != nil {
				b.Refs--
			}
		}
		writerOf(en.f).recordChange(Change{Kind: ChangeForgotten, Key: Key{Job: id}, Nodes: en.nodesWith(j)})
		r.Changed++
	}
}

// dropOutputs removes the map outputs of an ended job, which nobody needs any
// more, from the index of what is on the nodes.
func (en jobEntries) dropOutputs(j *Job) {
	m := j.MapStage()
	if m < 0 || j.ReduceStage() < 0 {
		return
	}
	for i := range j.Stages[m].Tasks {
		if w := j.Stages[m].Task(i).WinningAttempt(); w != nil {
			delete(en.f.onNode[w.Node], Key{j.ID, int32(m), i, w.Attempt})
		}
	}
}

// nodesWith returns the nodes that had attempts of a job, in order.
func (en jobEntries) nodesWith(j *Job) []int32 {
	seen := map[int32]bool{}
	en.f.EachAttempt(j, func(_ Key, _ *Task, a *Attempt) { seen[a.Node] = true })
	return slices.Sorted(maps.Keys(seen))
}
