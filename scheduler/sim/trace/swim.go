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

// SwimJob is a line of a SWIM trace.
type SwimJob struct {
	Name                   string
	Submit                 float64 // seconds
	Input, Shuffle, Output float64 // bytes
	Path                   string  // "" where the trace has none
}

// Swim is a SWIM trace.
type Swim struct {
	Jobs []SwimJob
	Count
}

// ReadSwim reads a SWIM trace: job id, submit time [s], seconds since the job
// before, map input, shuffle and output [bytes], and maybe an input path,
// separated by tabs.
func ReadSwim(r io.Reader, o Options) (*Swim, error) {
	t := &Swim{}
	var err error
	t.Count, err = scan(r, o, func(_ int, text []byte) error {
		f := strings.Split(string(text), "\t")
		for len(f) > 6 && f[len(f)-1] == "" { // trailing tabs
			f = f[:len(f)-1]
		}
		if len(f) < 6 || len(f) > 8 {
			return fmt.Errorf("%d fields: expected 6 or 7, separated by tabs: job, submit, gap, input, shuffle, output, path", len(f))
		}
		j := SwimJob{Name: f[0]}
		var err error
		if j.Submit, err = number(f[1], "the submit time", 0, maxSeconds); err != nil {
			return err
		}
		for i, to := range []*float64{&j.Input, &j.Shuffle, &j.Output} {
			if *to, err = number(f[3+i], []string{"the input", "the shuffle", "the output"}[i], 0, 1<<53); err != nil {
				return err
			}
		}
		if len(f) > 6 {
			j.Path = f[6]
		}
		t.Jobs = append(t.Jobs, j)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return t, nil
}

// FluidRule makes sizes for the fluid model of bytes.
type FluidRule struct {
	// Shuffle weighs shuffled bytes against input and output.
	Shuffle float64
	// Least is the least weight of a job, bytes.
	Least float64
	// Load is the sum of sizes over the span: from 0 to the last submission,
	// or from the first to the last.
	Load      float64
	FromFirst bool
	// Mean stretches time and sizes together so that the mean size is Mean
	// seconds, 0 for not.
	Mean float64
}

// The two rules that are in use for FB-2010.
var (
	// SchedsimRule is that of Dell'Amico et al. (2014).
	SchedsimRule = FluidRule{Shuffle: 5, Load: 0.9}
	// LASMQRule is that of LAS_MQ, section 5.4, with the mean size that gives
	// its Fig. 10 with a first threshold of 1.
	LASMQRule = FluidRule{Shuffle: 1, Least: 1, Load: 0.9, FromFirst: true, Mean: 20}
)

// Fluid makes the jobs of the fluid model.
func (t *Swim) Fluid(rule FluidRule) []fluid.Job {
	out := make([]fluid.Job, len(t.Jobs))
	if len(out) == 0 {
		return out
	}
	sum, first, last := 0.0, t.Jobs[0].Submit, 0.0
	for i, j := range t.Jobs {
		out[i] = fluid.Job{Arrival: j.Submit, Size: max(rule.Least, j.Input+rule.Shuffle*j.Shuffle+j.Output)}
		sum += out[i].Size
		first, last = min(first, j.Submit), max(last, j.Submit)
	}
	span := last
	if rule.FromFirst {
		span -= first
	}
	scale, stretch := 1.0, 1.0
	if sum > 0 && span > 0 {
		scale = rule.Load * span / sum
		if rule.Mean > 0 {
			stretch = rule.Mean / (sum * scale / float64(len(out)))
		}
	}
	for i := range out {
		out[i].Size *= scale * stretch
		out[i].Arrival *= stretch
	}
	return out
}

// SwimRule makes map and reduce tasks of bytes: a map for each block of input,
// a reduce for each ReducePer bytes of shuffle, none where nothing is
// shuffled. A task takes Base and its bytes at MapRate or ReduceRate.
type SwimRule struct {
	Block               int64 // bytes
	ReducePer           int64 // bytes
	MaxReduces          int32
	Base                time.Duration
	MapRate, ReduceRate int64 // bytes per second
	Map, Reduce         scheduler.Resources
	SlowStart           float64
	Tenants             int // jobs go round these tenants; 0 counts as 1
}

// DefaultSwimRule is a rule with blocks of 128 MiB.
var DefaultSwimRule = SwimRule{Block: 128 << 20, ReducePer: 1 << 30, MaxReduces: 999, Base: 2 * time.Second, MapRate: 32 << 20, ReduceRate: 32 << 20,
	Map: scheduler.Resources{1000, 2 << 30, 16 << 20}, Reduce: scheduler.Resources{1000, 4 << 30, 32 << 20}, SlowStart: 1, Tenants: 1}

// Workload makes jobs with tasks of the trace. Jobs with one path read the
// same file.
func (t *Swim) Workload(rule SwimRule) *Workload {
	w := &Workload{Count: t.Count}
	tenant := tenants(w)
	for i := range t.Jobs {
		j := &t.Jobs[i]
		e := engine.Job{Name: j.Name, Submit: seconds(j.Submit), Tenant: tenant(fmt.Sprintf("tenant-%d", i%max(1, rule.Tenants))), Tag: swimBin(j)}
		maps := blocks(j.Input, rule.Block)
		m := engine.Stage{Name: "map", Kind: scheduler.KindMap, Tasks: maps, Demand: rule.Map, Input: int64(j.Input), Read: rule.Block,
			Work: rule.Base + perRate(j.Input/float64(maps), rule.MapRate)}
		if j.Path != "" {
			h := fnv.New64a()
			h.Write([]byte(j.Path))
			m.File = h.Sum64() >> 1
		}
		if j.Shuffle <= 0 {
			m.Write = int64(j.Output / float64(maps))
			e.Stages = []engine.Stage{m}
		} else {
			n := min(blocks(j.Shuffle, rule.ReducePer), rule.MaxReduces)
			share := j.Shuffle / float64(n)
			e.Stages = []engine.Stage{m, {Name: "reduce", Kind: scheduler.KindReduce, After: []int32{0}, Tasks: n, Demand: rule.Reduce, SlowStart: rule.SlowStart,
				Shuffle: int64(share), Write: int64(j.Output / float64(n)), Work: rule.Base + perRate(share, rule.ReduceRate)}}
		}
		w.Jobs = append(w.Jobs, e)
	}
	w.sort()
	return w
}

// swimBin classes a job by its input: below 1 GiB, 10 GiB, 100 GiB, above.
func swimBin(j *SwimJob) string {
	switch gib := j.Input / (1 << 30); {
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

func blocks(bytes float64, block int64) int32 {
	n := int64(bytes) / max(1, block)
	if n*block < int64(bytes) {
		n++
	}
	return int32(max(1, min(n, scheduler.MaxTasks)))
}

func perRate(bytes float64, rate int64) time.Duration {
	if rate <= 0 {
		return 0
	}
	return seconds(bytes / float64(rate))
}

// sort orders jobs by submission; those of one instant stay as they were.
func (w *Workload) sort() {
	slices.SortStableFunc(w.Jobs, func(a, b engine.Job) int { return cmp.Compare(a.Submit, b.Submit) })
}
