package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/mapreduce"
	"github.com/drover-run/drover/node/helper"
)

// progress owns the part of a map or reduce task's reports that is passed on. The tenant can write
// the files they come from, so counters are limited to mapreduce.MaxCounters, texts are one line,
// and fraction never decreases.
type progress struct {
	fraction   float64
	counters   map[string]int64
	status     string
	inputBytes int64
	// lostOutputs are the map outputs that could not be fetched. The list is replaced, never
	// modified.
	lostOutputs []*droverv1.MapOutput
	refused     string // why a part of the task's report was refused; "" if nothing was
}

// read reads the progress that a running task reports. fetched says what was fetched for it.
func (p *progress) read(dir folder, spec *droverv1.TaskSpec, fetched helper.Event) {
	p.lostOutputs = lostOutputs(fetched.Lost)
	b, err := dir.readTaskFile(filepath.Join(nameMeta, nameProgress), mapreduce.MaxResultBytes)
	if errors.Is(err, fault.Invalid) {
		p.refused = "its progress is not shown: " + oneLine(err.Error())
	}
	if err != nil {
		return // not written yet
	}
	var now mapreduce.Progress
	if json.Unmarshal(b, &now) != nil || now.Version != mapreduce.ResultVersion {
		return // the tenant can write this file; invalid progress is ignored
	}
	p.counters, p.status, p.inputBytes = p.count(now.Counters, 0), oneLine(now.Status), now.Input.Bytes
	read := progressShare(now.Input.Bytes, fetched.Total)
	if spec.GetKind() == kindReduce {
		read = (progressShare(int64(now.Segments), int64(spec.GetMapTasks())) + progressShare(now.Input.Bytes, fetched.Bytes)) / 2
	}
	p.fraction = max(p.fraction, read)
}

// lostOutputs returns outputs for a report, without their addresses.
func lostOutputs(all []helper.MapOutput) []*droverv1.MapOutput {
	out := make([]*droverv1.MapOutput, len(all))
	for i, o := range all {
		out[i] = &droverv1.MapOutput{Stage: o.Stage, Task: o.Task, Attempt: o.Attempt, Run: o.Run}
	}
	return out
}

// apply takes counters and status from the harness's result.
func (p *progress) apply(r *mapreduce.Result) {
	p.counters = p.count(r.Counters, r.CountersDropped)
	own := r.Kind.String() + ":"
	for name, f := range map[string]mapreduce.Flow{"in": r.Input, "map_out": r.MapOutput, "combine_in": r.CombineIn, "combine_out": r.CombineOut, "spilled": r.Spilled, "out": r.Final} {
		if f.Records != 0 || f.Bytes != 0 {
			p.counters[own+name+"_records"], p.counters[own+name+"_bytes"] = f.Records, f.Bytes
		}
	}
	for name, f := range map[string]mapreduce.Flow{mapreduce.CounterStored: r.Stored, mapreduce.CounterFetched: r.Fetched} {
		if f.Records != 0 || f.Bytes != 0 {
			p.counters[name+"_records"], p.counters[name+"_bytes"] = f.Records, f.Bytes
		}
	}
	p.status, p.inputBytes = oneLine(r.Status), r.Input.Bytes
}

// count returns the counters that the task's program reported, named GROUP:NAME. Counters beyond
// the limits are refused, which the attempt's message then says; dropped is how many the harness
// has refused already.
func (p *progress) count(c mapreduce.Counters, dropped int64) map[string]int64 {
	all := map[string]int64{}
	for group, names := range c {
		for name, v := range names {
			all[group+":"+name] = v
		}
	}
	kept, refused := boundCounters(all, mapreduce.MaxCounters)
	p.refused = refusedCounters(refused + dropped)
	return kept
}

// progressShare returns part/whole, between 0 and 0.99; only a finished task is 1.
func progressShare(part, whole int64) float64 {
	if whole <= 0 || part <= 0 {
		return 0
	}
	return min(0.99, float64(part)/float64(whole))
}

// readResult reads the harness's result; the tenant may have forged it.
func (f folder) readResult() (*mapreduce.Result, error) {
	b, err := f.readTaskFile(filepath.Join(nameMeta, nameResult), mapreduce.MaxResultBytes)
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

// verifyOutput checks that the output named by the result exists: a map output
// that other nodes can fetch, or a file to upload. It returns it.
func (f folder) verifyOutput(spec *droverv1.TaskSpec, r *mapreduce.Result) (*mapreduce.StoredFile, *failure) {
	bad := func(err error) (*mapreduce.StoredFile, *failure) {
		return nil, &failure{cause: droverv1.Cause_CAUSE_OUTPUT, message: fmt.Sprintf("the task reported success, but its output is incomplete: %v", err)}
	}
	if spec.GetKind() == kindMap && spec.GetPartitions() > 0 {
		out, err := f.openOutput()
		if err != nil {
			return bad(err)
		}
		defer out.Data.Close()
		if n := len(out.Index.Parts); n != int(spec.GetPartitions()) {
			return bad(fault.New(fault.Corrupt, "%d partitions, want %d", n, spec.GetPartitions()))
		}
		last := out.Index.Parts[len(out.Index.Parts)-1]
		return &mapreduce.StoredFile{Bytes: last.Offset + last.Length, CRC32C: mapreduce.CRC32C(0, out.Index.Encode())}, nil
	}
	file, err := f.openTaskFile(f.outputName(namePart))
	if err != nil {
		return bad(err)
	}
	defer file.Close()
	st, err := file.Stat()
	switch {
	case err != nil:
		return bad(err)
	case r.Output == nil || st.Size() != r.Output.Bytes:
		return bad(fault.New(fault.Corrupt, "the file has %d bytes", st.Size()))
	}
	return r.Output, nil
}
