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

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/mapreduce"
	"github.com/drover-run/drover/node/helper"
	"github.com/drover-run/drover/node/shuffle"
)

// The files of a MapReduce task below .drover.
const (
	nameSplit    = "split"   // in: the growing input
	nameSegments = "journal" // in: which partitions are there
	nameData     = "data"    // out: map output
	nameIndex    = "index"   // out: its index
	namePart     = "part"    // out: the file to upload
	maxResult    = 16 << 20  // bytes
)

// sortShare is the part of a task's memory in which the harness sorts; the
// rest is for the user's program and the page cache.
const (
	sortShare = 4
	sortMost  = 1 << 30
)

// writeSpec tells the harness what to do. Nothing of the tenant runs yet.
func (a *attempt) writeSpec(spec *droverv1.TaskSpec, uid uint32) error {
	s, err := a.harnessSpec(spec)
	if err != nil {
		return err
	}
	path := a.dir.inner(nameSpec)
	if err := mapreduce.WriteSpec(path, s); err != nil {
		if errors.Is(err, mapreduce.ErrSpec) {
			return fault.New(fault.Invalid, "%w", err)
		}
		return err
	}
	return chown(path, uid)
}

// harnessSpec translates what the coordinator wants; paths are as the task
// sees them.
func (a *attempt) harnessSpec(spec *droverv1.TaskSpec) (*mapreduce.TaskSpec, error) {
	k, p := a.id.Key(), a.paths()
	s := &mapreduce.TaskSpec{
		Version: mapreduce.SpecVersion,
		Names: mapreduce.Names{
			Job: strconv.FormatUint(k.GetJob(), 10), JobName: spec.GetJobName(), Stage: spec.GetStageName(),
			Task: fmt.Sprintf("%d.%d.%d", k.GetJob(), k.GetStage(), k.GetTask()), Attempt: a.id.String(),
			Run: int(k.GetRun()), Index: int(k.GetTask()), Maps: int(spec.GetMapTasks()),
		},
		Program: program(spec.GetCommand(), spec.GetBuiltin()),
		WorkDir: p.task, TempDir: p.inner(nameSpill), Result: p.inner(nameResult), Progress: p.inner(nameProgress),
		SortMemory: min(sortMost, max(mapreduce.MinSortMemory, spec.GetDemand().GetMemory()/sortShare)),
	}
	switch spec.GetKind() {
	case kindMap:
		return s, a.mapSpec(s, spec, p)
	case kindReduce:
		s.Kind = mapreduce.KindReduce
		s.Shuffle = &mapreduce.ReduceInput{Dir: p.inner(nameIn), Journal: p.inner(nameIn, nameSegments), Maps: int(spec.GetMapTasks())}
		s.Output = &mapreduce.OutputFile{Path: p.inner(nameOut, namePart), Codec: mapreduce.CodecNone}
		return s, nil
	default:
		return nil, fault.New(fault.Unsupported, "task kind %q is not known to this node: upgrade it", spec.GetKind())
	}
}

func (a *attempt) mapSpec(s *mapreduce.TaskSpec, spec *droverv1.TaskSpec, p paths) error {
	pieces, err := piecesOf(spec)
	if err != nil {
		return err
	}
	s.Kind, s.Reduces = mapreduce.KindMap, int(spec.GetPartitions())
	s.Input = &mapreduce.MapInput{File: p.inner(nameIn, nameSplit), Pieces: pieces}
	if s.Reduces == 0 {
		s.Output = &mapreduce.OutputFile{Path: p.inner(nameOut, namePart), Codec: mapreduce.CodecNone}
		return nil
	}
	s.MapOutput = &mapreduce.MapOutputPaths{Data: p.inner(nameOut, nameData), Index: p.inner(nameOut, nameIndex), Codec: mapreduce.CodecNone}
	if len(spec.GetCombineCommand()) > 0 || len(spec.GetCombineBuiltin()) > 0 {
		c := program(spec.GetCombineCommand(), spec.GetCombineBuiltin())
		s.Combiner = &c
	}
	return nil
}

func program(command, builtin []string) mapreduce.Program {
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

// startFetch starts the helper that brings the input. Paths are the host's:
// the helper is not in the container.
func (a *attempt) startFetch(ctx context.Context, spec *droverv1.TaskSpec) error {
	req := &helper.Request{}
	if spec.GetKind() == kindMap {
		pieces, err := piecesOf(spec)
		if err != nil {
			return err
		}
		req.Fetch = &helper.Fetch{Pieces: pieces, File: a.dir.inner(filepath.Join(nameIn, nameSplit))}
	} else {
		wanted, _ := a.goal()
		req.Shuffle = &helper.Shuffle{
			Job: a.id.Key().GetJob(), Partition: int(a.id.Key().GetTask()), Maps: int(spec.GetMapTasks()),
			Dir: a.dir.inner(nameIn), Journal: a.dir.inner(filepath.Join(nameIn, nameSegments)),
			Token: spec.GetShuffleToken(), CA: a.d.cfg.ShuffleCA, Update: updateOf(wanted),
		}
		a.sent = req.Shuffle.Update
	}
	return a.startHelper(a.life, &a.fetch, spec, req, func(err error) *verdict {
		v := &verdict{cause: droverv1.Cause_CAUSE_INPUT, message: "its input cannot be read: " + err.Error()}
		a.fault = v
		return v
	})
}

func updateOf(w *droverv1.WantedAttempt) helper.Update {
	u := helper.Update{}
	for _, o := range w.GetMapOutputs() {
		u.Outputs = append(u.Outputs, helper.MapOutput{Stage: o.GetStage(), Task: o.GetTask(), Attempt: o.GetAttempt(), Run: o.GetRun(), Address: o.GetAddress()})
	}
	return u
}

// updateFetch tells the shuffle helper when the known map outputs changed.
func (a *attempt) updateFetch(w *droverv1.WantedAttempt) {
	if a.fetch.updates == nil || w == nil {
		return
	}
	if u := updateOf(w); !slices.Equal(u.Outputs, a.sent.Outputs) {
		a.sent = u
		a.fetch.update(u)
	}
}

// startUpload starts the helper that takes the result to the output path.
func (a *attempt) startUpload(_ context.Context, spec *droverv1.TaskSpec) error {
	if a.product == nil {
		return fault.New(fault.Invalid, "the task wrote no output file")
	}
	req := &helper.Request{Upload: &helper.Upload{
		Root: a.dir.task(), Name: a.dir.outName(namePart), URI: spec.GetOutput(), Replication: int(spec.GetReplication()),
		Bytes: a.product.Bytes, CRC32C: a.product.CRC32C,
	}}
	return a.startHelper(a.life, &a.upload, spec, req, func(err error) *verdict {
		cause := droverv1.Cause_CAUSE_INFRA
		if errors.Is(err, fault.Corrupt) || errors.Is(err, fault.Exhausted) || errors.Is(err, fault.Denied) || errors.Is(err, fault.Invalid) {
			cause = droverv1.Cause_CAUSE_OUTPUT
		}
		return &verdict{cause: cause, message: "its output cannot be written: " + err.Error()}
	})
}

// readResult reads what the harness left, which the tenant could have written.
func (a *attempt) readResult() (*mapreduce.Result, error) {
	b, err := a.dir.readTask(filepath.Join(nameInner, nameResult), maxResult)
	if err != nil {
		return nil, err
	}
	r := &mapreduce.Result{}
	if err := json.Unmarshal(b, r); err != nil {
		return nil, fault.New(fault.Invalid, "result of the harness: %w", err)
	}
	if r.Version != mapreduce.ResultVersion || r.Class < mapreduce.ClassOK || r.Class > mapreduce.ClassInternal {
		return nil, fault.New(fault.Invalid, "result of the harness: version %d, class %d", r.Version, r.Class)
	}
	return r, nil
}

// judgeHarness reads how a MapReduce task ended; nil means that it did its
// work and its product is in place.
func (a *attempt) judgeHarness(spec *droverv1.TaskSpec) (*verdict, error) {
	r, err := a.readResult()
	if err != nil {
		return a.judgeWithoutResult(spec, err), nil
	}
	a.takeResult(r)
	if r.Class == mapreduce.ClassOK {
		return a.checkProduct(spec, r), nil
	}
	if v := a.killed(spec, a.status.ExitCode); v != nil {
		return v, nil
	}
	v := &verdict{cause: causeOfClass(r.Class), message: r.Error, exit: int32(r.UserExit)}
	if r.Class == mapreduce.ClassUserExit && r.UserExit == 127 {
		v.cause = droverv1.Cause_CAUSE_SPEC
	}
	if v.message == "" {
		v.message = "the task failed: " + r.Class.String()
	}
	return v, nil
}

// judgeWithoutResult goes by the exit code.
func (a *attempt) judgeWithoutResult(spec *droverv1.TaskSpec, why error) *verdict {
	code := a.status.ExitCode
	if v := a.killed(spec, code); v != nil {
		return v
	}
	class, known := mapreduce.ClassOfExit(code)
	switch {
	case code == 0 || !errors.Is(why, fs.ErrNotExist):
		return &verdict{cause: droverv1.Cause_CAUSE_OUTPUT, exit: int32(code), message: fmt.Sprintf("the harness ended with code %d, but its result cannot be read: %v", code, why)}
	case known:
		return &verdict{cause: causeOfClass(class), exit: int32(code), message: fmt.Sprintf("the harness ended with code %d (%s) and could not say more", code, class)}
	case code > 128:
		return &verdict{cause: droverv1.Cause_CAUSE_INFRA, exit: int32(code), message: fmt.Sprintf("killed by signal %d from outside its limits", code-128)}
	default:
		return &verdict{cause: droverv1.Cause_CAUSE_INFRA, exit: int32(code), message: fmt.Sprintf("the harness did not start: code %d", code)}
	}
}

func causeOfClass(c mapreduce.Class) droverv1.Cause {
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
		return droverv1.Cause_CAUSE_INFRA
	default:
		return droverv1.Cause_CAUSE_INFRA
	}
}

// takeResult keeps the counters of a task that ended.
func (a *attempt) takeResult(r *mapreduce.Result) {
	a.progress.counters = flatten(r.Counters)
	own := r.Kind.String() + ":"
	for name, f := range map[string]mapreduce.Flow{"in": r.In, "map_out": r.MapOut, "combine_in": r.CombineIn, "combine_out": r.CombineOut, "spilled": r.Spilled, "out": r.Out} {
		if f.Records != 0 || f.Bytes != 0 {
			a.progress.counters[own+name+"_records"], a.progress.counters[own+name+"_bytes"] = f.Records, f.Bytes
		}
	}
	a.progress.status, a.progress.inputBytes = oneLine(r.Status), r.In.Bytes
	if a.d.cfg.Enforcer == nil { // nobody but the harness has measured it
		a.usage = &droverv1.Usage{CpuMs: r.UserCPUMS + r.HarnessCPUMS, MemoryPeak: r.UserPeakRSS + r.HarnessPeakRSS}
	}
}

func flatten(c mapreduce.Counters) map[string]int64 {
	all := map[string]int64{}
	for group, names := range c {
		for name, v := range names {
			all[oneLine(group+":"+name)] = v
		}
	}
	return all
}

// checkProduct makes sure that what the result names is there: a map output
// that others can fetch, or a file to upload.
func (a *attempt) checkProduct(spec *droverv1.TaskSpec, r *mapreduce.Result) *verdict {
	bad := func(err error) *verdict {
		return &verdict{cause: droverv1.Cause_CAUSE_OUTPUT, message: fmt.Sprintf("the task said that it was done, but its output is not there whole: %v", err)}
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
		a.product = &mapreduce.Stored{Bytes: last.Offset + last.Length, CRC32C: mapreduce.CRC32C(0, out.Index.Encode())}
		return nil
	}
	f, err := a.dir.openTask(a.dir.outName(namePart))
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
	a.product = r.Output
	return nil
}

// readProgress reads what a running task says of itself.
func (a *attempt) readProgress(spec *droverv1.TaskSpec) {
	if a.result != nil || a.passed {
		return
	}
	a.progress.lostMaps = a.fetch.event.Lost
	b, err := a.dir.readTask(filepath.Join(nameInner, nameProgress), maxResult)
	if err != nil {
		return // not written yet
	}
	var p mapreduce.Progress
	if json.Unmarshal(b, &p) != nil || p.Version != mapreduce.ResultVersion {
		return // it is the tenant's folder; a progress that makes no sense is none
	}
	a.progress.counters, a.progress.status, a.progress.inputBytes = flatten(p.Counters), oneLine(p.Status), p.In.Bytes
	read := share(p.In.Bytes, a.fetch.event.Of)
	if spec.GetKind() == kindReduce {
		read = (share(int64(p.Segments), int64(spec.GetMapTasks())) + share(p.In.Bytes, a.fetch.event.Bytes)) / 2
	}
	a.progress.fraction = max(a.progress.fraction, read)
}

// share is part of whole, between 0 and 0.99: only the end is 1.
func share(part, whole int64) float64 {
	if whole <= 0 || part <= 0 {
		return 0
	}
	return min(0.99, float64(part)/float64(whole))
}

// openOutput opens a map output and its index.
func (f folder) openOutput() (*shuffle.Output, error) {
	const maxIndex = 24 + 40*mapreduce.MaxReduces + 4
	b, err := f.readTask(f.outName(nameIndex), maxIndex)
	if err != nil {
		return nil, err
	}
	index, err := mapreduce.DecodeIndex(b)
	if err != nil {
		return nil, fault.New(fault.Corrupt, "%w", err)
	}
	data, err := f.openTask(f.outName(nameData))
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
