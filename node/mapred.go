package node

import (
	"errors"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/mapreduce"
	"github.com/drover-run/drover/node/shuffle"
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
	// A line held in memory may have the task's memory divided by lineMemoryDivisor. While a buffer
	// grows it exists twice, and its record once more; the program that writes the line and the
	// page cache need the rest.
	lineMemoryDivisor = 8
)

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

// classifyHarnessExit classifies the exit of a MapReduce task; nil means success
// with the output in place.
func (a *attempt) classifyHarnessExit(spec *droverv1.TaskSpec) *failure {
	r, err := a.dir.readResult()
	if err != nil {
		return a.exit(spec).withoutResult(err)
	}
	if f := a.exit(spec).disagrees(r); f != nil {
		return f
	}
	a.progress.apply(r)
	if a.d.cfg.Enforcer == nil { // only the harness has measured it
		a.cgroup.usage = &droverv1.Usage{CpuMs: r.UserCPUMS + r.HarnessCPUMS, MemoryPeak: r.UserPeakRSS + r.HarnessPeakRSS}
	}
	if r.Class != mapreduce.ClassOK {
		return a.exit(spec).ofHarness(r)
	}
	out, f := a.dir.verifyOutput(spec, r)
	a.output = out
	return f
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
