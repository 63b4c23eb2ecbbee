package coordinator

import (
	"slices"
	"sync"
	"time"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/coordinator/facts"
	"github.com/drover-run/drover/jobspec"
)

// maxWantedLog bounds the changes kept for each node. A watcher that is further
// behind receives a full set.
const maxWantedLog = 1 << 14

// wantedSets holds the attempts that each node shall have, as a projection of
// the facts: only keys and revisions. The content of a message is read from the
// facts when it is sent, so it is never older than its revision.
//
// A revision is term<<32 + a counter, so that revisions of different leaders
// never coincide.
type wantedSets struct {
	mu    sync.Mutex
	term  uint64
	nodes map[int32]*wantedNode
}

type wantedNode struct {
	epoch uint64
	rev   uint64
	items map[facts.Key]struct{}
	log   []wantedChange // ascending revisions
	base  uint64         // the log contains every change above this revision
	wake  chan struct{}  // closed and replaced at every change
}

// wantedChange is a change of an attempt, or a new request (requestID > 0).
type wantedChange struct {
	rev       uint64
	key       facts.Key
	run       int32
	requestID uint64
}

func newWantedSets() *wantedSets { return &wantedSets{nodes: map[int32]*wantedNode{}} }

// rebuild rebuilds the sets for a leader of that term.
func (w *wantedSets) rebuild(f *facts.Facts, term uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.term = term
	for _, n := range f.Nodes() {
		if n.Up {
			w.resetLocked(n)
		}
	}
	for _, id := range f.JobIDs() {
		f.EachAttempt(f.Job(id), func(k facts.Key, _ *facts.Task, a *facts.Attempt) {
			if n := w.nodes[a.Node]; n != nil && n.epoch == a.Epoch && f.Node(a.Node).Up {
				n.items[k] = struct{}{}
			}
			if n := w.nodes[a.Suspension.ImageNode]; n != nil && n.epoch == a.Suspension.ImageEpoch && f.Node(a.Suspension.ImageNode).Up {
				n.items[k] = struct{}{}
			}
		})
	}
}

// resetLocked replaces a node's set: its next message is a full set.
func (w *wantedSets) resetLocked(n *facts.Node) *wantedNode {
	old := w.nodes[n.ID]
	s := &wantedNode{epoch: n.Epoch, rev: w.term << 32, items: map[facts.Key]struct{}{}, wake: make(chan struct{})}
	if old != nil {
		s.rev = max(s.rev, old.rev)
		close(old.wake)
	}
	s.rev++
	s.base = s.rev
	w.nodes[n.ID] = s
	return s
}

// registerNode starts an empty set for a new epoch of a node.
func (w *wantedSets) registerNode(n *facts.Node) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if s := w.nodes[n.ID]; n.Up && (s == nil || s.epoch != n.Epoch) {
		w.resetLocked(n)
	}
}

// touch records that the wanted state of an attempt on a node changed.
func (w *wantedSets) touch(node int32, epoch uint64, k facts.Key, run int32) {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.nodes[node]
	if s == nil || s.epoch != epoch {
		return
	}
	s.items[k] = struct{}{}
	s.add(wantedChange{key: k, run: run})
}

// forgetJob removes all attempts of a job from a node's set.
func (w *wantedSets) forgetJob(node int32, job uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.nodes[node]
	if s == nil {
		return
	}
	var gone []facts.Key
	for k := range s.items {
		if k.Job == job {
			gone = append(gone, k)
		}
	}
	slices.SortFunc(gone, facts.CompareKeys)
	for _, k := range gone {
		delete(s.items, k)
		s.add(wantedChange{key: k, run: 1})
	}
}

// addRequest records a new request for a node.
func (w *wantedSets) addRequest(node int32, id uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if s := w.nodes[node]; s != nil {
		s.add(wantedChange{requestID: id})
	}
}

func (s *wantedNode) add(c wantedChange) {
	s.rev++
	c.rev = s.rev
	if len(s.log) >= maxWantedLog {
		half := len(s.log) / 2
		s.base = s.log[half-1].rev
		s.log = append(s.log[:0:0], s.log[half:]...)
	}
	s.log = append(s.log, c)
	close(s.wake)
	s.wake = make(chan struct{})
}

// wantedBatch is the next message to a watcher.
type wantedBatch struct {
	rev      uint64
	full     bool
	keys     []wantedChange // each attempt once
	requests []uint64
	wake     <-chan struct{}
}

// changesSince returns what changed after rev; ok is false if the node has no
// set of that epoch. An empty batch without full means: wait for wake.
func (w *wantedSets) changesSince(node int32, epoch, rev uint64) (b wantedBatch, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.nodes[node]
	if s == nil || s.epoch != epoch {
		return wantedBatch{}, false
	}
	b = wantedBatch{rev: s.rev, wake: s.wake, full: rev < s.base || rev > s.rev}
	if b.full {
		for k := range s.items {
			b.keys = append(b.keys, wantedChange{key: k})
		}
		slices.SortFunc(b.keys, func(x, y wantedChange) int { return facts.CompareKeys(x.key, y.key) })
		return b, true
	}
	i, _ := slices.BinarySearchFunc(s.log, rev+1, func(c wantedChange, r uint64) int { return int(int64(c.rev) - int64(r)) })
	seen := map[facts.Key]bool{}
	for _, c := range s.log[i:] {
		switch {
		case c.requestID > 0:
			b.requests = append(b.requests, c.requestID)
		case !seen[c.key]:
			seen[c.key] = true
			b.keys = append(b.keys, c)
		}
	}
	return b, true
}

// retainedOnNode reports whether anything of an attempt shall be on its node:
// until its job has ended and its logs have expired, or as long as it is
// retained for inspection.
func retainedOnNode(j *facts.Job, a *facts.Attempt, now int64, keepLogs time.Duration) bool {
	return !j.HasEnded() || a.State.IsActive() || a.Retained || now < j.Ended+int64(keepLogs)
}

// wantedAttempt returns the wanted state of an attempt at now (Unix ns); nil
// means that nothing of it shall remain on the node.
func wantedAttempt(f *facts.Facts, k facts.Key, node int32, epoch uint64, now int64, keepLogs time.Duration) *droverv1.WantedAttempt {
	a, j := f.Attempt(k), f.Job(k.Job)
	if a != nil && a.Suspension.ImageNode == node && a.Suspension.ImageEpoch == epoch && a.State.IsActive() {
		// Its image remains until it runs elsewhere.
		return &droverv1.WantedAttempt{Key: k.Proto(a.Suspension.ImageRun), Spec: taskSpec(f, j, k, a), Goal: droverv1.Goal_GOAL_RUN, Level: droverv1.Level_LEVEL_CHECKPOINTED}
	}
	if a == nil || a.Node != node || a.Epoch != epoch || !retainedOnNode(j, a, now, keepLogs) {
		return nil
	}
	w := &droverv1.WantedAttempt{Key: k.Proto(a.Run), Spec: taskSpec(f, j, k, a)}
	switch {
	case a.State == facts.AttemptLive:
		w.Goal, w.Level = droverv1.Goal_GOAL_RUN, a.Level
		if a.Target != 0 {
			w.Level = a.Target
		}
		if a.Suspension.ImageNode != 0 {
			w.ResumeFrom, w.ResumeRun = f.Node(a.Suspension.ImageNode).Info.GetAddress(), a.Suspension.ImageRun
		}
		if j.Spec.Stages[k.Stage].Kind == jobspec.KindReduce {
			w.MapOutputs, w.MapOutputsComplete = mapOutputs(f, j)
		}
	case a.Retained, a.State == facts.AttemptSucceeded && j.OutputsNeeded(int(k.Stage)) && j.Stages[k.Stage].Task(k.Task).Winner == k.Attempt:
		w.Goal = droverv1.Goal_GOAL_KEEP
	default:
		w.Goal = droverv1.Goal_GOAL_STOP
	}
	return w
}

// mapOutputs returns where the outputs of done map tasks are, in order, and
// whether all are done.
func mapOutputs(f *facts.Facts, j *facts.Job) (out []*droverv1.MapOutput, complete bool) {
	m := j.MapStage()
	if m < 0 {
		return nil, true
	}
	s := &j.Stages[m]
	for i := range s.Tasks {
		if a := s.Task(i).WinningAttempt(); a != nil {
			out = append(out, &droverv1.MapOutput{Stage: int32(m), Task: i, Attempt: a.Attempt, Run: a.Run, Address: f.Node(a.Node).Info.GetAddress()})
		}
	}
	return out, len(out) == int(s.Tasks)
}

// taskSpec returns what a node needs to run an attempt.
func taskSpec(f *facts.Facts, j *facts.Job, k facts.Key, a *facts.Attempt) *droverv1.TaskSpec {
	s := &j.Spec.Stages[k.Stage]
	t := &droverv1.TaskSpec{
		JobName: j.Name, StageName: s.Name, Tenant: j.Spec.Tenant, Kind: string(s.Kind), Command: s.Command, Builtin: s.Builtin,
		Env: mergeEnv(j.Spec.Env, s.Env), Demand: &droverv1.Resources{Cpu: s.Resources.CPU, Memory: s.Resources.Memory, Io: s.Resources.IO},
		Disk: s.Disk, TimeLimitMs: timeMS(s.TimeLimit), Exclusive: s.Exclusive, StageTasks: j.Stages[k.Stage].Tasks, ShuffleToken: j.Token,
		ContainersUsedAgain: s.ContainersUsedAgain,
	}
	if tn := f.Tenant(j.Spec.Tenant); tn != nil {
		t.Uid, t.HdfsUser = tn.Spec.GetUid(), hdfsUser(f, j.Spec)
	}
	if d := f.Node(a.Node).Info.GetDisks(); a.Disk >= 0 && int(a.Disk) < len(d) {
		t.DiskName = d[a.Disk].GetName()
	}
	for _, file := range s.Files {
		t.Files = append(t.Files, &droverv1.FileRef{Name: file.Name, Digest: file.Digest, Mode: file.Mode, Size: file.Size})
	}
	for _, x := range s.Secrets {
		t.Secrets = append(t.Secrets, &droverv1.SecretRef{Env: x.Env, Ref: x.Ref})
	}
	if im := j.Spec.Image; im != nil {
		t.Image = &droverv1.ImageRef{Kind: string(im.Kind), Source: im.Source, Digest: im.Digest, Size: im.Size}
	}
	t.StartPauseMs = retryPause(j.Stages[k.Stage].Task(k.Task).Failures).Milliseconds()
	mapReduceSpec(j, k, t)
	if j.WritesOutput(int(k.Stage)) {
		t.Output = attemptOutput(j, k, a.Run)
		t.Replication = int32(j.Spec.Output.Replication)
	}
	return t
}

// Pauses between the attempts of a task that failed by the user's fault.
const (
	firstRetryPause = time.Second
	retryPauseGrows = 3 // times per failure
	maxRetryPause   = time.Minute
)

// retryPause returns how long an attempt waits after so many failures: what fails
// for a moment shall not fail for good.
func retryPause(failures int32) time.Duration {
	if failures <= 0 {
		return 0
	}
	pause := firstRetryPause
	for i := int32(1); i < failures && pause < maxRetryPause; i++ {
		pause *= retryPauseGrows
	}
	return min(pause, maxRetryPause)
}

// mapReduceSpec sets what connects the map and reduce stages of a job.
func mapReduceSpec(j *facts.Job, k facts.Key, t *droverv1.TaskSpec) {
	r, m := j.ReduceStage(), j.MapStage()
	switch int(k.Stage) {
	case m:
		t.MapTasks = j.Stages[m].Tasks
		t.Split = j.Stages[m].Splits[k.Task].GetPieces()
		if r < 0 {
			return
		}
		red := &j.Spec.Stages[r]
		t.Partitions = j.Stages[r].Tasks
		if t.Combiner = red.Combiner; t.Combiner {
			t.CombineCommand = red.CombineCommand
			if len(t.CombineCommand) == 0 {
				t.CombineCommand, t.CombineBuiltin = red.Command, red.Builtin
			}
			t.Files = withFiles(t.Files, red.Files)
		}
	case r:
		t.Partitions = j.Stages[r].Tasks
		if m >= 0 {
			t.MapTasks = j.Stages[m].Tasks
		}
	}
}

// withFiles adds the combiner's files that the map stage does not have.
func withFiles(have []*droverv1.FileRef, more []jobspec.File) []*droverv1.FileRef {
	for _, file := range more {
		if !slices.ContainsFunc(have, func(h *droverv1.FileRef) bool { return h.GetName() == file.Name }) {
			have = append(have, &droverv1.FileRef{Name: file.Name, Digest: file.Digest, Mode: file.Mode, Size: file.Size})
		}
	}
	return have
}

func mergeEnv(job, stage map[string]string) map[string]string {
	if len(job) == 0 {
		return stage
	}
	out := make(map[string]string, len(job)+len(stage))
	for k, v := range job {
		out[k] = v
	}
	for k, v := range stage {
		out[k] = v
	}
	return out
}
