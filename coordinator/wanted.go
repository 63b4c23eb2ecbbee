package coordinator

import (
	"cmp"
	"slices"
	"time"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/coordinator/facts"
	"github.com/drover-run/drover/jobspec"
	"github.com/drover-run/drover/mapreduce"
)

// nodeEpoch is a node in one of its epochs. Attempts of an older epoch of the node do not belong to
// it.
type nodeEpoch struct {
	node  int32
	epoch uint64
}

// retention is how much of an attempt its node must keep.
type retention int8

const (
	retainNothing retention = iota + 1
	retainLogs              // it has ended and nobody needs it: it stays for its logs while it is one of the newest (keptEnded)
	retainAll               // it is active, retained for inspection, or a map whose output reduce tasks fetch
)

// retentionOf returns how much of an attempt a node shall have at now (Unix ns).
func retentionOf(f *facts.Facts, at nodeEpoch, k facts.Key, t *facts.Task, a *facts.Attempt, now int64, keepLogs time.Duration) retention {
	j := f.Job(k.Job)
	switch {
	case hasImage(a, at):
		return retainAll
	case nodeEpoch{a.Node, a.Epoch} != at:
		return retainNothing
	case a.State.IsActive() || a.Retained || isOutputNeeded(j, k, t, a):
		return retainAll
	case j.HasEnded() && now >= j.Ended+int64(keepLogs) && !j.LogsToGather():
		return retainNothing
	default:
		return retainLogs
	}
}

// hasImage reports whether a node must keep the image of an attempt that has yet to run elsewhere.
func hasImage(a *facts.Attempt, at nodeEpoch) bool {
	return nodeEpoch{a.Suspension.ImageNode, a.Suspension.ImageEpoch} == at && a.State.IsActive()
}

func isOutputNeeded(j *facts.Job, k facts.Key, t *facts.Task, a *facts.Attempt) bool {
	return a.State == facts.AttemptSucceeded && j.OutputsNeeded(int(k.Stage)) && t.Winner == k.Attempt
}

// wantedAttempt returns the wanted state of an attempt at now (Unix ns); nil means that nothing of
// it may remain on the node. kept is false for an attempt that its node was told to remove, as
// wantedSets knows.
func wantedAttempt(f *facts.Facts, at nodeEpoch, k facts.Key, kept bool, now int64, keepLogs time.Duration) *droverv1.WantedAttempt {
	a, j := f.Attempt(k), f.Job(k.Job)
	if a == nil {
		return nil
	}
	t := j.Stages[k.Stage].Task(k.Task)
	switch r := retentionOf(f, at, k, t, a, now, keepLogs); {
	case r == retainNothing || r == retainLogs && !kept:
		return nil
	case hasImage(a, at):
		// Its image remains until it runs elsewhere.
		return &droverv1.WantedAttempt{Key: k.Proto(a.Suspension.ImageRun), Spec: taskSpec(f, j, k, a), Goal: droverv1.Goal_GOAL_RUN, Level: droverv1.Level_LEVEL_CHECKPOINTED}
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
	case a.Retained, isOutputNeeded(j, k, t, a):
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
		Env: mergeEnv(j.Spec.Env, s.Env), Files: taskFiles(j.Spec, s), Demand: &droverv1.Resources{Cpu: s.Resources.CPU, Memory: s.Resources.Memory, Io: s.Resources.IO},
		Disk: s.Disk, TimeLimitMs: timeMS(s.TimeLimit), Exclusive: s.Exclusive, StageTasks: j.Stages[k.Stage].Tasks, ShuffleToken: j.Token,
		ContainersUsedAgain: s.ContainersUsedAgain, HarnessMemory: j.Overhead,
	}
	if tn := f.Tenant(j.Spec.Tenant); tn != nil {
		t.Uid, t.HdfsUser = tn.Spec.GetUid(), hdfsUser(f, j.Spec)
	}
	if d := f.Node(a.Node).Info.GetDisks(); a.Disk >= 0 && int(a.Disk) < len(d) {
		t.DiskName = d[a.Disk].GetName()
	}
	for _, x := range s.Secrets {
		t.Secrets = append(t.Secrets, &droverv1.SecretRef{Env: x.Env, Ref: x.Ref})
	}
	if im := j.Spec.Image; im != nil {
		t.Image = &droverv1.ImageRef{Kind: string(im.Kind), Source: im.Source, Digest: im.Digest, Size: im.Size}
	}
	t.StartPauseMs = retryPause(j.Stages[k.Stage].Task(k.Task).Failures).Milliseconds()
	mapReduceSpec(j, k, t)
	switch {
	case t.Keys == nil:
	case !a.State.IsActive():
		t.Keys = nil // it has run, and a node may keep very many map outputs
	case !slices.Contains(f.Node(a.Node).Info.GetFeatures(), keysFeature(t.Keys)):
		t.Kind = kindWithKeys(t)
	}
	if j.WritesOutput(int(k.Stage)) {
		t.Output = attemptOutput(j, k, a.Run)
		t.Replication = int32(j.Spec.Output.Replication)
	}
	return t
}

// keysFeature returns the feature that a node must advertise to know the keys of a task.
func keysFeature(k *droverv1.MapKeys) string {
	if len(k.GetOrder()) > 0 {
		return mapreduce.FeatureKeyOrder
	}
	return mapreduce.FeatureKeys
}

// kindWithKeys returns the kind of a task with keys. A node that does not know these keys refuses
// the kind as unknown; with the plain kind it would silently partition by the first field or sort
// by bytes.
func kindWithKeys(t *droverv1.TaskSpec) string {
	if len(t.GetKeys().GetOrder()) > 0 {
		return t.GetKind() + " with key_order"
	}
	return t.GetKind() + " with key_fields, partition_fields or partition_keys"
}

// Pauses between the attempts of a task that failed by the user's fault.
const (
	firstRetryPause = time.Second
	retryPauseGrows = 3 // times per failure
	maxRetryPause   = time.Minute
)

// retryPause returns how long an attempt waits after that many failures, so that a transient fault
// does not fail the job.
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
		t.CompressMapOutput = string(compressMapOutput(&j.Spec.Stages[m], red))
		if red.HasKeys() {
			t.Keys = &droverv1.MapKeys{Fields: int32(red.KeyFields), PartitionFields: int32(red.PartitionFields), PartitionKeys: red.PartitionKeys, Order: keyOrder(red)}
		}
		if t.Combiner = red.Combiner; t.Combiner {
			t.CombineCommand = red.CombineCommand
			if len(t.CombineCommand) == 0 {
				t.CombineCommand, t.CombineBuiltin = red.Command, red.Builtin
			}
		}
	case r:
		t.Partitions = j.Stages[r].Tasks
		if red := &j.Spec.Stages[r]; red.HasKeyOrder() {
			t.Keys = &droverv1.MapKeys{Fields: int32(red.KeyFields), Order: keyOrder(red)}
		}
		if m >= 0 {
			t.MapTasks = j.Stages[m].Tasks
		}
	}
}

// minReduceMemoryToCompress is the memory of a reduce task in bytes below which "auto" compresses nothing. A
// quarter of it holds the decoders of all segments that are merged at once (decoderBytes of
// mapreduce/sortmerge times the fan-in), and the rest holds them on a node that does not count them.
const minReduceMemoryToCompress = 128 << 20

// compressMapOutput returns what nodes are told of the compression of map outputs. Only a node knows
// whether its disks are limited, so it decides what "auto" is.
func compressMapOutput(maps, reduces *jobspec.Stage) jobspec.Compression {
	choice := cmp.Or(maps.CompressMapOutput, jobspec.CompressAuto)
	if choice == jobspec.CompressAuto && reduces.Resources.Memory < minReduceMemoryToCompress {
		return jobspec.CompressNone
	}
	return choice
}

// keyOrder returns the order of a reduce stage's keys, nil for the order of their bytes, which
// every node knows.
func keyOrder(s *jobspec.Stage) []string {
	if !s.HasKeyOrder() {
		return nil
	}
	return s.KeyOrder
}

// taskFiles returns the files of a stage's tasks. A map stage also gets the files of its combiner,
// which runs in its tasks, unless it has them already.
func taskFiles(spec *jobspec.Job, s *jobspec.Stage) (out []*droverv1.FileRef) {
	add := func(file *jobspec.File) {
		out = append(out, &droverv1.FileRef{Name: file.Name, Digest: file.Digest, Mode: file.Mode, Size: file.Size})
	}
	for i := range s.Files {
		add(&s.Files[i])
	}
	for i := range spec.Stages {
		red := &spec.Stages[i]
		if s.Kind != jobspec.KindMap || red.Kind != jobspec.KindReduce || !red.Combiner {
			continue
		}
		for k := range red.Files {
			if !slices.ContainsFunc(s.Files, func(own jobspec.File) bool { return own.Name == red.Files[k].Name }) {
				add(&red.Files[k])
			}
		}
	}
	return out
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
