package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/mapreduce"
	"github.com/drover-run/drover/node/helper"
	"github.com/drover-run/drover/node/shuffle"
	"github.com/drover-run/drover/runtime"
)

// Files of a MapReduce task below .drover.
const (
	nameSplit    = "split"   // in: the input, appended to while the harness reads it
	nameSegments = "journal" // in: journal of the partitions that are present
	nameData     = "data"    // out: map output
	nameIndex    = "index"   // out: its index
	namePart     = "part"    // out: the file to upload
)

// The harness sorts in a task's memory divided by sortMemoryDivisor, at most
// maxSortMemory bytes; the rest is for the user's program and the page cache.
const (
	sortMemoryDivisor = 4
	maxSortMemory     = 1 << 30
	// A line that is held in memory may have a task's memory divided by
	// lineMemoryDivisor: a buffer that grows is there twice, its record once, and the
	// program that writes the line and the page cache need the rest.
	lineMemoryDivisor = 8
)

// writeSpec writes the harness's input. No process of the tenant runs yet.
func (a *attempt) writeSpec(spec *droverv1.TaskSpec, uid uint32) error {
	s, err := a.harnessSpec(spec)
	if err != nil {
		return err
	}
	path := a.dir.metaPath(nameSpec)
	if err := mapreduce.WriteSpec(path, s); err != nil {
		if errors.Is(err, mapreduce.ErrSpec) {
			return fault.New(fault.Invalid, "%w", err)
		}
		return err
	}
	return chown(path, uid)
}

// harnessSpec translates the coordinator's spec; paths are as the task sees
// them.
func (a *attempt) harnessSpec(spec *droverv1.TaskSpec) (*mapreduce.TaskSpec, error) {
	k, p := a.id.Key(), a.taskPaths()
	s := &mapreduce.TaskSpec{
		Version: mapreduce.SpecVersion,
		Identity: mapreduce.TaskIdentity{
			Job: strconv.FormatUint(k.GetJob(), 10), JobName: spec.GetJobName(), Stage: spec.GetStageName(),
			Task: fmt.Sprintf("%d.%d.%d", k.GetJob(), k.GetStage(), k.GetTask()), Attempt: a.id.String(),
			Run: int(k.GetRun()), Index: int(k.GetTask()), MapTasks: int(spec.GetMapTasks()),
		},
		Program: newProgram(spec.GetCommand(), spec.GetBuiltin()),
		WorkDir: p.task, TempDir: p.metaPath(nameSpill), Result: p.metaPath(nameResult), Progress: p.metaPath(nameProgress),
		MaxLine:    min(mapreduce.MaxMaxLine, max(mapreduce.DefaultMaxLine, spec.GetDemand().GetMemory()/lineMemoryDivisor)),
		SortMemory: min(maxSortMemory, max(mapreduce.MinSortMemory, spec.GetDemand().GetMemory()/sortMemoryDivisor)),
	}
	switch spec.GetKind() {
	case kindMap:
		return s, a.fillMapSpec(s, spec, p)
	case kindReduce:
		s.Kind, s.Reduces = mapreduce.KindReduce, int(spec.GetPartitions())
		s.Shuffle = &mapreduce.ReduceInput{Dir: p.metaPath(nameIn), Journal: p.metaPath(nameIn, nameSegments), Maps: int(spec.GetMapTasks())}
		s.Output = &mapreduce.OutputFile{Path: p.metaPath(nameOut, namePart), Codec: mapreduce.CodecNone}
		return s, nil
	default:
		return nil, fault.New(fault.Unsupported, "task kind %q is not supported by this node: upgrade it", spec.GetKind())
	}
}

func (a *attempt) fillMapSpec(s *mapreduce.TaskSpec, spec *droverv1.TaskSpec, p taskPaths) error {
	pieces, err := piecesOf(spec)
	if err != nil {
		return err
	}
	s.Kind, s.Reduces = mapreduce.KindMap, int(spec.GetPartitions())
	s.Input = &mapreduce.MapInput{File: p.metaPath(nameIn, nameSplit), Pieces: pieces}
	if s.Reduces == 0 {
		s.Output = &mapreduce.OutputFile{Path: p.metaPath(nameOut, namePart), Codec: mapreduce.CodecNone}
		return nil
	}
	s.MapOutput = &mapreduce.MapOutputPaths{Data: p.metaPath(nameOut, nameData), Index: p.metaPath(nameOut, nameIndex), Codec: mapreduce.CodecNone}
	if len(spec.GetCombineCommand()) > 0 || len(spec.GetCombineBuiltin()) > 0 {
		c := newProgram(spec.GetCombineCommand(), spec.GetCombineBuiltin())
		s.Combiner = &c
	}
	return nil
}

func newProgram(command, builtin []string) mapreduce.Program {
	if len(builtin) > 0 {
		return mapreduce.Program{Builtin: builtin[0], Args: builtin[1:]}
	}
	return mapreduce.Program{Argv: command}
}

func piecesOf(spec *droverv1.TaskSpec) ([]mapreduce.Piece, error) {
	pieces := make([]mapreduce.Piece, len(spec.GetSplit()))
	for i, p := range spec.GetSplit() {
		codec, err := mapreduce.CodecOf(p.GetUri())
		if err != nil {
			return nil, fault.New(fault.Invalid, "%w", err)
		}
		pieces[i] = mapreduce.Piece{Path: p.GetUri(), Offset: p.GetOffset(), Length: p.GetLength(), Codec: codec}
	}
	return pieces, nil
}

// startFetch starts the helper that fetches the input. Paths are host paths,
// since the helper runs outside the container.
func (a *attempt) startFetch(ctx context.Context, spec *droverv1.TaskSpec) error {
	req := &helper.Request{}
	if spec.GetKind() == kindMap {
		pieces, err := piecesOf(spec)
		if err != nil {
			return err
		}
		req.Fetch = &helper.Fetch{Pieces: pieces, File: a.dir.metaPath(filepath.Join(nameIn, nameSplit))}
	} else {
		wanted, _ := a.wantedAndSpec()
		req.Shuffle = &helper.Shuffle{
			Job: a.id.Key().GetJob(), Partition: int(a.id.Key().GetTask()), Maps: int(spec.GetMapTasks()),
			Dir: a.dir.metaPath(nameIn), Journal: a.dir.metaPath(filepath.Join(nameIn, nameSegments)),
			Token: spec.GetShuffleToken(), CA: a.d.cfg.ShuffleCA, Update: a.d.shuffleUpdate(wanted),
		}
		a.sentUpdate = req.Shuffle.Update
	}
	return a.startHelper(a.loopCtx, &a.fetch, spec, req, func(err error) *failure {
		v := &failure{cause: droverv1.Cause_CAUSE_INPUT, message: "cannot read the task's input: " + err.Error()}
		a.failure = v
		return v
	})
}

// shuffleUpdate returns the known map outputs, as a helper of this node reaches them.
func (d *daemon) shuffleUpdate(w *droverv1.WantedAttempt) helper.Update {
	u := helper.Update{}
	for _, o := range w.GetMapOutputs() {
		u.Outputs = append(u.Outputs, helper.MapOutput{Stage: o.GetStage(), Task: o.GetTask(), Attempt: o.GetAttempt(), Run: o.GetRun(), Address: d.helperAddress(o.GetAddress())})
	}
	return u
}

// updateFetch sends the shuffle helper a changed set of map outputs.
func (a *attempt) updateFetch(w *droverv1.WantedAttempt) {
	if a.fetch.updates == nil || w == nil {
		return
	}
	if u := a.d.shuffleUpdate(w); !slices.Equal(u.Outputs, a.sentUpdate.Outputs) {
		a.sentUpdate = u
		a.fetch.sendUpdate(u)
	}
}

// startUpload starts the helper that uploads the result to the output path.
func (a *attempt) startUpload(_ context.Context, spec *droverv1.TaskSpec) error {
	if a.output == nil {
		return fault.New(fault.Invalid, "the task wrote no output file")
	}
	req := &helper.Request{Upload: &helper.Upload{
		Root: a.dir.task(), Name: a.dir.outputName(namePart), URI: spec.GetOutput(), Replication: int(spec.GetReplication()),
		Bytes: a.output.Bytes, CRC32C: a.output.CRC32C,
	}}
	return a.startHelper(a.loopCtx, &a.upload, spec, req, func(err error) *failure {
		cause := droverv1.Cause_CAUSE_INFRA
		if errors.Is(err, fault.Corrupt) || errors.Is(err, fault.Exhausted) || errors.Is(err, fault.Denied) || errors.Is(err, fault.Invalid) {
			cause = droverv1.Cause_CAUSE_OUTPUT
		}
		return &failure{cause: cause, message: "cannot write the task's output: " + err.Error()}
	})
}

// readResult reads the harness's result; the tenant may have forged it.
func (a *attempt) readResult() (*mapreduce.Result, error) {
	b, err := a.dir.readTaskFile(filepath.Join(nameMeta, nameResult), mapreduce.MaxResultBytes)
	if err != nil {
		return nil, err
	}
	return parseResult(b)
}

// parseResult reads the text of such a file.
func parseResult(b []byte) (*mapreduce.Result, error) {
	r := &mapreduce.Result{}
	if err := json.Unmarshal(b, r); err != nil {
		return nil, fault.New(fault.Invalid, "result of the harness: %w", err)
	}
	if r.Version != mapreduce.ResultVersion || r.Class < mapreduce.ClassOK || r.Class > mapreduce.ClassInternal {
		return nil, fault.New(fault.Invalid, "result of the harness: version %d, class %d", r.Version, r.Class)
	}
	return r, nil
}

// classifyHarnessExit classifies the exit of a MapReduce task; nil means success
// with the output in place.
func (a *attempt) classifyHarnessExit(spec *droverv1.TaskSpec) (*failure, error) {
	r, err := a.readResult()
	if err != nil {
		return a.classifyWithoutResult(spec, err), nil
	}
	if f := a.resultDisagrees(spec, r); f != nil {
		return f, nil
	}
	a.applyResult(r)
	if r.Class == mapreduce.ClassOK {
		return a.verifyOutput(spec, r), nil
	}
	if v := a.memoryFailure(spec, a.status.ExitCode); v != nil {
		return v, nil
	}
	v := &failure{cause: a.causeOfClass(r.Class), message: r.Error, exitCode: int32(r.UserExit)}
	switch {
	case r.Class == mapreduce.ClassUserExit && (r.UserExit == 127 || r.Permanent):
		v.cause = droverv1.Cause_CAUSE_SPEC
	case r.Class == mapreduce.ClassUserData && r.Permanent:
		v.cause = droverv1.Cause_CAUSE_DATA
	}
	if v.message == "" {
		v.message = "the task failed: " + r.Class.String()
	}
	return v, nil
}

// resultDisagrees returns a failure if a result says something else than the exit
// code, which the engine saw and no process of the task can choose: one of them has
// written the result, or ended the harness after it had.
func (a *attempt) resultDisagrees(spec *droverv1.TaskSpec, r *mapreduce.Result) *failure {
	code := a.status.ExitCode
	if code == r.Class.ExitCode() || code == runtime.ExitLost {
		return nil
	}
	if f := a.memoryFailure(spec, code); f != nil {
		return f
	}
	return &failure{cause: a.ownCause(), exitCode: int32(code), message: fmt.Sprintf("the harness ended with code %d, but its result says %q: a process of the task has written it, or ended the harness", code, r.Class)}
}

// classifyWithoutResult classifies an exit by its code alone.
func (a *attempt) classifyWithoutResult(spec *droverv1.TaskSpec, why error) *failure {
	code := a.status.ExitCode
	if v := a.memoryFailure(spec, code); v != nil {
		return v
	}
	class, known := mapreduce.ClassOfExitCode(code)
	switch {
	case code == 0 || !errors.Is(why, fs.ErrNotExist):
		return &failure{cause: droverv1.Cause_CAUSE_OUTPUT, exitCode: int32(code), message: fmt.Sprintf("the harness ended with code %d, but its result cannot be read: %v", code, why)}
	case known:
		return &failure{cause: a.causeOfClass(class), exitCode: int32(code), message: fmt.Sprintf("the harness ended with code %d (%s) and left no result", code, class)}
	case code == 128+int(syscall.SIGKILL) && !a.d.cfg.usesHostPaths(): // the kernel delivers no KILL to a container's first process from inside
		return &failure{cause: droverv1.Cause_CAUSE_INFRA, exitCode: int32(code), message: "killed by signal 9 from outside its container"}
	case code > 128:
		return &failure{cause: a.ownCause(), exitCode: int32(code), message: fmt.Sprintf("the harness was ended by signal %d: a process of the task sent it", code-128)}
	default:
		return &failure{cause: a.ownCause(), exitCode: int32(code), message: fmt.Sprintf("the harness ended with code %d and left no result, as after a signal (QUIT) of a process of the task", code)}
	}
}

// ownCause is the cause of a failure that the task's own processes can bring about:
// a signal to the harness, or a forged result. Counted against the infrastructure,
// it would be tried again without end and take nodes out of service. Only a reboot
// ends a harness in the same ways from outside.
func (a *attempt) ownCause() droverv1.Cause {
	if a.rec.BootID != "" && a.rec.BootID != a.d.bootID {
		return droverv1.Cause_CAUSE_INFRA
	}
	return droverv1.Cause_CAUSE_EXIT
}

func (a *attempt) causeOfClass(c mapreduce.ExitClass) droverv1.Cause {
	switch c {
	case mapreduce.ClassUserExit:
		return droverv1.Cause_CAUSE_EXIT
	case mapreduce.ClassUserData:
		return droverv1.Cause_CAUSE_OUTPUT
	case mapreduce.ClassQuota:
		return droverv1.Cause_CAUSE_DISK
	case mapreduce.ClassSpec:
		return droverv1.Cause_CAUSE_SPEC
	case mapreduce.ClassInput:
		return droverv1.Cause_CAUSE_INPUT
	case mapreduce.ClassIO, mapreduce.ClassKilled, mapreduce.ClassInternal:
		return a.ownCause()
	default:
		return a.ownCause()
	}
}

// applyResult takes counters, status and usage from the harness's result.
func (a *attempt) applyResult(r *mapreduce.Result) {
	a.progress.counters = a.programCounters(r.Counters, r.CountersDropped)
	own := r.Kind.String() + ":"
	for name, f := range map[string]mapreduce.Flow{"in": r.Input, "map_out": r.MapOutput, "combine_in": r.CombineIn, "combine_out": r.CombineOut, "spilled": r.Spilled, "out": r.Final} {
		if f.Records != 0 || f.Bytes != 0 {
			a.progress.counters[own+name+"_records"], a.progress.counters[own+name+"_bytes"] = f.Records, f.Bytes
		}
	}
	a.progress.status, a.progress.inputBytes = oneLine(r.Status), r.Input.Bytes
	if a.d.cfg.Enforcer == nil { // only the harness has measured it
		a.usage = &droverv1.Usage{CpuMs: r.UserCPUMS + r.HarnessCPUMS, MemoryPeak: r.UserPeakRSS + r.HarnessPeakRSS}
	}
}

// verifyOutput checks that the output named by the result exists: a map output
// that other nodes can fetch, or a file to upload.
func (a *attempt) verifyOutput(spec *droverv1.TaskSpec, r *mapreduce.Result) *failure {
	bad := func(err error) *failure {
		return &failure{cause: droverv1.Cause_CAUSE_OUTPUT, message: fmt.Sprintf("the task reported success, but its output is incomplete: %v", err)}
	}
	if spec.GetKind() == kindMap && spec.GetPartitions() > 0 {
		out, err := a.dir.openOutput()
		if err != nil {
			return bad(err)
		}
		defer out.Data.Close()
		if n := len(out.Index.Parts); n != int(spec.GetPartitions()) {
			return bad(fault.New(fault.Corrupt, "%d partitions, want %d", n, spec.GetPartitions()))
		}
		last := out.Index.Parts[len(out.Index.Parts)-1]
		a.output = &mapreduce.StoredFile{Bytes: last.Offset + last.Length, CRC32C: mapreduce.CRC32C(0, out.Index.Encode())}
		return nil
	}
	f, err := a.dir.openTaskFile(a.dir.outputName(namePart))
	if err != nil {
		return bad(err)
	}
	defer f.Close()
	st, err := f.Stat()
	switch {
	case err != nil:
		return bad(err)
	case r.Output == nil || st.Size() != r.Output.Bytes:
		return bad(fault.New(fault.Corrupt, "the file has %d bytes", st.Size()))
	}
	a.output = r.Output
	return nil
}

// readProgress reads the progress that a running task reports.
func (a *attempt) readProgress(spec *droverv1.TaskSpec) {
	if a.outcome != nil || a.exitOK {
		return
	}
	a.progress.lostMaps = a.fetch.progress.Lost
	b, err := a.dir.readTaskFile(filepath.Join(nameMeta, nameProgress), mapreduce.MaxResultBytes)
	if errors.Is(err, fault.Invalid) {
		a.progress.refused = "its progress is not shown: " + oneLine(err.Error())
	}
	if err != nil {
		return // not written yet
	}
	var p mapreduce.Progress
	if json.Unmarshal(b, &p) != nil || p.Version != mapreduce.ResultVersion {
		return // the tenant can write this file; invalid progress is ignored
	}
	a.progress.counters, a.progress.status, a.progress.inputBytes = a.programCounters(p.Counters, 0), oneLine(p.Status), p.Input.Bytes
	read := progressShare(p.Input.Bytes, a.fetch.progress.Total)
	if spec.GetKind() == kindReduce {
		read = (progressShare(int64(p.Segments), int64(spec.GetMapTasks())) + progressShare(p.Input.Bytes, a.fetch.progress.Bytes)) / 2
	}
	a.progress.fraction = max(a.progress.fraction, read)
}

// progressShare returns part/whole, between 0 and 0.99; only a finished task is 1.
func progressShare(part, whole int64) float64 {
	if whole <= 0 || part <= 0 {
		return 0
	}
	return min(0.99, float64(part)/float64(whole))
}

// openOutput opens a map output and its index.
func (f folder) openOutput() (*shuffle.Output, error) {
	const maxIndex = 24 + 40*mapreduce.MaxReduces + 4
	b, err := f.readTaskFile(f.outputName(nameIndex), maxIndex)
	if err != nil {
		return nil, err
	}
	index, err := mapreduce.DecodeIndex(b)
	if err != nil {
		return nil, fault.New(fault.Corrupt, "%w", err)
	}
	data, err := f.openTaskFile(f.outputName(nameData))
	if err != nil {
		return nil, err
	}
	st, err := data.Stat()
	last := index.Parts[len(index.Parts)-1]
	if err == nil && st.Size() != last.Offset+last.Length {
		err = fault.New(fault.Corrupt, "map output of %d bytes, its index says %d", st.Size(), last.Offset+last.Length)
	}
	if err != nil {
		return nil, errors.Join(err, data.Close())
	}
	return &shuffle.Output{Index: index, Data: data}, nil
}
