package trace

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/sim/engine"
	"github.com/drover-run/drover/scheduler/sim/fluid"
)

// swimJob is a line of a SWIM trace.
type swimJob struct {
	name                   string
	submit                 float64 // seconds
	input, shuffle, output float64 // bytes
	path                   string  // "" if the trace has none
}

// Swim is a SWIM trace.
type Swim struct {
	jobs []swimJob // in order of submission
	Count
}

// ReadSwim reads a SWIM trace, separated by tabs: job id, submit time [s], seconds since the
// previous job, map input, shuffle and output [bytes], and an optional input path.
func ReadSwim(r io.Reader, o Options) (*Swim, error) {
	t := &Swim{}
	var err error
	t.Count, err = scanLines(r, o, func(_ int, text []byte) error {
		f := strings.Split(string(text), "\t")
		for len(f) > 6 && f[len(f)-1] == "" { // trailing tabs
			f = f[:len(f)-1]
		}
		if len(f) < 6 || len(f) > 8 {
			return fmt.Errorf("%d fields: expected 6 or 7, separated by tabs: job, submit, gap, input, shuffle, output, path", len(f))
		}
		j := swimJob{name: f[0]}
		err := checkNames(j.name)
		if err != nil {
			return err
		}
		if j.submit, err = parseNumber(f[1], "the submit time", 0, maxSeconds); err != nil {
			return err
		}
		for i, to := range []*float64{&j.input, &j.shuffle, &j.output} {
			if *to, err = parseNumber(f[3+i], []string{"the input", "the shuffle", "the output"}[i], 0, 1<<53); err != nil {
				return err
			}
		}
		if len(f) > 6 {
			j.path = f[6]
		}
		t.jobs = append(t.jobs, j)
		return nil
	})
	if err != nil {
		return nil, err
	}
	slices.SortStableFunc(t.jobs, func(a, b swimJob) int { return cmp.Compare(a.submit, b.submit) })
	return t, nil
}

// FluidRule converts bytes to sizes of the fluid model.
type FluidRule struct {
	// shuffleWeight is the weight of shuffled bytes against input and output.
	shuffleWeight float64
	// minSize is the minimum size of a job, in weighted bytes.
	minSize float64
	// Load is the sum of sizes over the duration of the trace: from 0 to the last submission, or
	// from the first to the last.
	Load      float64
	fromFirst bool
	// meanSize, if not 0, stretches times and sizes together so that the mean size is meanSize
	// seconds.
	meanSize float64
}

// The rules of the published results on FB-2010.
var (
	// SchedsimRule is the rule of Dell'Amico et al. (2014).
	SchedsimRule = FluidRule{shuffleWeight: 5, Load: 0.9}
	// LASMQRule is the rule of LAS_MQ, section 5.4, with the mean size that reproduces its Fig. 10
	// with a first threshold of 1.
	LASMQRule = FluidRule{shuffleWeight: 1, minSize: 1, Load: 0.9, fromFirst: true, meanSize: 20}
)

// FluidJobs converts the trace to jobs of the fluid model, in the order of the jobs of Workload.
func (t *Swim) FluidJobs(rule FluidRule) []fluid.Job {
	out := make([]fluid.Job, len(t.jobs))
	if len(out) == 0 {
		return out
	}
	sum, first, last := 0.0, t.jobs[0].submit, 0.0
	for i, j := range t.jobs {
		out[i] = fluid.Job{Arrival: j.submit, Size: max(rule.minSize, j.input+rule.shuffleWeight*j.shuffle+j.output)}
		sum += out[i].Size
		first, last = min(first, j.submit), max(last, j.submit)
	}
	span := last
	if rule.fromFirst {
		span -= first
	}
	scale, stretch := 1.0, 1.0
	if sum > 0 && span > 0 {
		scale = rule.Load * span / sum
		if rule.meanSize > 0 {
			stretch = rule.meanSize / (sum * scale / float64(len(out)))
		}
	}
	for i := range out {
		out[i].Size *= scale * stretch
		out[i].Arrival *= stretch
	}
	return out
}

// SwimRule converts bytes to map and reduce tasks: one map per block of input and one reduce per
// BytesPerReduce bytes of shuffle. A task takes TaskOverhead plus the time for its bytes at MapRate
// or ReduceRate.
type SwimRule struct {
	BlockBytes              int64 // bytes
	BytesPerReduce          int64 // bytes
	MaxReduces              int32
	TaskOverhead            time.Duration
	MapRate, ReduceRate     int64 // bytes per second
	MapDemand, ReduceDemand scheduler.Resources
	SlowStart               float64
	Tenants                 int // jobs are assigned round-robin; 0 counts as 1
}

// DefaultSwimRule has blocks of 128 MiB.
var DefaultSwimRule = SwimRule{BlockBytes: 128 << 20, BytesPerReduce: 1 << 30, MaxReduces: 999, TaskOverhead: 2 * time.Second, MapRate: 32 << 20, ReduceRate: 32 << 20,
	MapDemand: scheduler.Resources{1000, 2 << 30, 16 << 20}, ReduceDemand: scheduler.Resources{1000, 4 << 30, 32 << 20}, SlowStart: 1, Tenants: 1}

// Check returns an error for a rule that makes no sensible tasks. It names the setting as package run
// does.
func (r *SwimRule) Check() error {
	const leastBytes = 64 << 10
	switch {
	case r.BlockBytes < leastBytes || r.BytesPerReduce < leastBytes:
		return fmt.Errorf("block is %d and reduce_per is %d bytes: expected at least 64 KiB", r.BlockBytes, r.BytesPerReduce)
	case r.MaxReduces < 1 || r.Tenants < 1:
		return fmt.Errorf("max_reduces is %d and tenants is %d: expected at least 1", r.MaxReduces, r.Tenants)
	case r.TaskOverhead < 0:
		return fmt.Errorf("base is %v: must not be negative", r.TaskOverhead)
	case r.MapRate <= 0 || r.ReduceRate <= 0:
		return fmt.Errorf("map_rate is %d and reduce_rate is %d bytes/s: must be above 0", r.MapRate, r.ReduceRate)
	case !(r.SlowStart >= 0 && r.SlowStart <= 1):
		return fmt.Errorf("slow_start is %v: expected 0 to 1", r.SlowStart)
	}
	return nil
}

// Workload makes jobs with tasks. Jobs with equal paths read the same file.
func (t *Swim) Workload(rule SwimRule) *Workload {
	w := &Workload{Count: t.Count}
	tenant := tenantIDs(w)
	for i := range t.jobs {
		j := &t.jobs[i]
		e := engine.Job{Name: j.name, Submit: secondsDuration(j.submit), Tenant: tenant(fmt.Sprintf("tenant-%d", i%max(1, rule.Tenants))), Tag: swimBin(j)}
		maps := blockCount(j.input, rule.BlockBytes)
		m := engine.Stage{Name: "map", Kind: scheduler.KindMap, Tasks: maps, Demand: rule.MapDemand, InputBytes: int64(j.input), BlockBytes: rule.BlockBytes,
			Work: rule.TaskOverhead + transferTime(j.input/float64(maps), rule.MapRate)}
		if j.path != "" {
			h := fnv.New64a()
			h.Write([]byte(j.path))
			m.FileID = h.Sum64() >> 1
		}
		if j.shuffle <= 0 {
			m.OutputBytes = int64(j.output / float64(maps))
			e.Stages = []engine.Stage{m}
		} else {
			n := min(blockCount(j.shuffle, rule.BytesPerReduce), rule.MaxReduces)
			share := j.shuffle / float64(n)
			e.Stages = []engine.Stage{m, {Name: "reduce", Kind: scheduler.KindReduce, After: []int32{0}, Tasks: n, Demand: rule.ReduceDemand, SlowStart: rule.SlowStart,
				ShuffleBytes: int64(share), OutputBytes: int64(j.output / float64(n)), Work: rule.TaskOverhead + transferTime(share, rule.ReduceRate)}}
		}
		w.Jobs = append(w.Jobs, e)
	}
	return w
}

// swimBin returns the bin of a job by its input: below 1 GiB, 10 GiB, 100 GiB, above.
func swimBin(j *swimJob) string {
	switch gib := j.input / (1 << 30); {
	case gib < 1:
		return "small"
	case gib < 10:
		return "medium"
	case gib < 100:
		return "large"
	default:
		return "huge"
	}
}

func blockCount(bytes float64, block int64) int32 {
	n := int64(bytes) / max(1, block)
	if n*block < int64(bytes) {
		n++
	}
	return int32(max(1, min(n, scheduler.MaxTasks)))
}

func transferTime(bytes float64, rate int64) time.Duration {
	if rate <= 0 {
		return 0
	}
	return secondsDuration(bytes / float64(rate))
}

// sort orders the jobs by submission and is stable.
func (w *Workload) sort() {
	slices.SortStableFunc(w.Jobs, func(a, b engine.Job) int { return cmp.Compare(a.Submit, b.Submit) })
}
