package trace

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/sim/engine"
)

// Param is a numeric parameter of a generator, with its default.
type Param struct {
	Name, Help string
	Default    float64
}

// Generator makes a workload from a seed.
type Generator struct {
	Name, Help string
	Params     []Param
	make       func(r *rand.Rand, v map[string]float64) (*Workload, error)
}

// Generators lists all generators.
func Generators() []Generator {
	return []Generator{poissonGen, uniformGen, heavyGen, twoTierGen, pumaGen, pumaEC2Gen, benchmarkGen}
}

// Generate makes a workload; missing parameters have their defaults. Equal names, parameters and
// seeds make equal workloads.
func Generate(name string, params map[string]string, seed uint64) (*Workload, error) {
	gens := Generators()
	i := slices.IndexFunc(gens, func(g Generator) bool { return g.Name == name })
	if i < 0 {
		var names []string
		for _, g := range gens {
			names = append(names, g.Name)
		}
		return nil, fmt.Errorf("unknown generator %q: use one of %s", name, strings.Join(names, ", "))
	}
	g := &gens[i]
	v := map[string]float64{}
	for _, p := range g.Params {
		v[p.Name] = p.Default
	}
	for _, k := range slices.Sorted(maps.Keys(params)) {
		text := params[k]
		if _, ok := v[k]; !ok {
			var names []string
			for _, p := range g.Params {
				names = append(names, p.Name)
			}
			return nil, fmt.Errorf("generator %q has no parameter %q: it has %s", name, k, strings.Join(names, ", "))
		}
		x, err := parseParam(k, text)
		if err != nil {
			return nil, fmt.Errorf("generator %q: %w", name, err)
		}
		v[k] = x
	}
	w, err := g.make(rand.New(rand.NewPCG(seed, 0x6a6f6273)), v)
	if err != nil {
		return nil, fmt.Errorf("generator %q: %w", name, err)
	}
	if err := w.checkTimes(); err != nil {
		return nil, fmt.Errorf("generator %q: %w", name, err)
	}
	w.sort()
	return w, nil
}

// commonParams are the parameters of the single-stage generators.
var commonParams = []Param{
	{"jobs", "number of jobs", 1000}, {"interval_s", "mean time between arrivals (Poisson); 0: all at second 0", 10}, {"tasks", "tasks of a job", 10},
	{"task_s", "mean run time of a task", 10}, {"cpu", "millicores of a task", 1000}, {"memory_mib", "memory of a task", 1024}, {"io_mib_s", "disk I/O of a task", 0},
	{"tenants", "number of tenants; jobs are assigned round-robin", 1}, {"deadline_part", "fraction of the jobs with a deadline", 0}, {"deadline_factor", "mean deadline over the duration alone", 3},
}

// singleStageJobs makes jobs of one stage with sizes drawn by size (mean 1).
func singleStageJobs(r *rand.Rand, v map[string]float64, size func() float64) (*Workload, error) {
	w := &Workload{}
	tenant := tenantIDs(w)
	at := 0.0
	for i := range int(v["jobs"]) {
		if i > 0 {
			at += r.ExpFloat64() * v["interval_s"]
		}
		s := size()
		j := engine.Job{Name: fmt.Sprintf("job-%d", i+1), Submit: secondsDuration(at), Tenant: tenant(fmt.Sprintf("tenant-%d", i%int(v["tenants"]))),
			Stages: []engine.Stage{{Name: "main", Tasks: int32(v["tasks"]), Work: secondsDuration(s * v["task_s"]),
				Demand: scheduler.Resources{int64(v["cpu"]), int64(v["memory_mib"]) << 20, int64(v["io_mib_s"]) << 20}}}}
		if r.Float64() < v["deadline_part"] {
			j.Deadline = j.Submit + secondsDuration(s*v["task_s"]*max(1, v["deadline_factor"]*(1+0.3*r.NormFloat64())))
		}
		w.Jobs = append(w.Jobs, j)
	}
	return w, nil
}

var poissonGen = Generator{Name: "poisson", Help: "Poisson arrivals, exponential task times", Params: commonParams,
	make: func(r *rand.Rand, v map[string]float64) (*Workload, error) {
		return singleStageJobs(r, v, r.ExpFloat64)
	}}

var uniformGen = Generator{Name: "uniform", Help: "jobs of equal size", Params: commonParams,
	make: func(r *rand.Rand, v map[string]float64) (*Workload, error) {
		return singleStageJobs(r, v, func() float64 { return 1 })
	}}

var heavyGen = Generator{Name: "heavy_tailed", Help: "Poisson arrivals, Pareto sizes", Params: append(slices.Clone(commonParams), Param{"alpha", "tail index, above 1", 1.5}),
	make: func(r *rand.Rand, v map[string]float64) (*Workload, error) {
		a := v["alpha"]
		if a <= 1 {
			return nil, fmt.Errorf("alpha is %g: it must be above 1 for a mean to exist", a)
		}
		return singleStageJobs(r, v, func() float64 { return (a - 1) / a * math.Pow(r.Float64(), -1/a) })
	}}

// TwoTierJob is a job of the two-tier paper: its run time te and one demand q per resource.
type TwoTierJob struct {
	Te float64
	Q  []int64
}

// TwoTierProject is a project of the two-tier paper.
type TwoTierProject struct {
	Arrival float64
	High    bool
	Jobs    []TwoTierJob
}

// TwoTier draws the workload of the two-tier paper's Table 6: capacities m uniform in 20..40;
// projects with exponential inter-arrival times of mean ita; normal (5, 2) jobs per project, at
// least one; te exponential with mean 500; q exponential with mean 2, capped at m; high priority
// with probability 1/5. Only the number of jobs and q are truncated to integers (5.1).
func TwoTier(seed uint64, projects, resources int, ita float64) (m []int64, out []TwoTierProject) {
	r := rand.New(rand.NewPCG(seed, 0x74776f))
	for range resources {
		m = append(m, 20+int64(r.IntN(21)))
	}
	at := 0.0
	for range projects {
		at += r.ExpFloat64() * ita
		p := TwoTierProject{Arrival: at, High: r.Float64() < 0.2}
		for range max(1, int(5+2*r.NormFloat64())) {
			j := TwoTierJob{Te: r.ExpFloat64() * 500}
			for i := range resources {
				j.Q = append(j.Q, min(m[i], int64(r.ExpFloat64()*2)))
			}
			p.Jobs = append(p.Jobs, j)
		}
		out = append(out, p)
	}
	return m, out
}

var twoTierGen = Generator{Name: "two_tier", Help: "projects of the two-tier paper's Table 6 on CPU, memory and disk I/O",
	Params: []Param{{"projects", "number of projects", 1000}, {"interval_s", "mean time between projects", 40}},
	make: func(r *rand.Rand, v map[string]float64) (*Workload, error) {
		_, ps := TwoTier(r.Uint64(), int(v["projects"]), scheduler.NumResources, v["interval_s"])
		w := &Workload{}
		tenant := tenantIDs(w)("default")
		for i, p := range ps {
			pr := engine.Project{Name: fmt.Sprintf("project-%d", i+1), Tenant: tenant, Submit: secondsDuration(p.Arrival), Jobs: int32(len(p.Jobs))}
			if p.High {
				pr.Priority = scheduler.PriorityHigh
			}
			w.Projects = append(w.Projects, pr)
			for k, j := range p.Jobs {
				te := secondsDuration(max(1, j.Te))
				w.Jobs = append(w.Jobs, engine.Job{Name: fmt.Sprintf("p%d-j%d", i+1, k+1), Tenant: tenant, Priority: pr.Priority, Submit: pr.Submit, Bound: te, Project: i + 1,
					Stages: []engine.Stage{{Name: "main", Tasks: 1, Work: te, Demand: scheduler.Resources{j.Q[0] * 1000, j.Q[1] << 30, j.Q[2] << 20}}}})
			}
		}
		return w, nil
	}}

// pumaRow is a row of LAS_MQ's Tables 1 and 2.
type pumaRow struct {
	bin           string
	name          string
	gb            float64
	maps, reduces int32
	jobs, ec2     int
	mapS, reduceS float64 // relative work of a map and of a reduce task
	ec2GB         float64
	ec2Maps       int32
}

// pumaTable is Tables 1 and 2 of LAS_MQ. mapS and reduceS, the work of a task relative to the
// average, are our assumptions.
var pumaTable = []pumaRow{
	{"1", "TeraGen", 1, 100, 10, 3, 3, 0.5, 0.5, 1, 100}, {"1", "SelfJoin", 1, 102, 10, 15, 4, 0.6, 0.8, 1, 102},
	{"2", "Classification", 10, 102, 20, 17, 4, 1, 0.8, 10, 102}, {"2", "HistogramMovies", 10, 102, 20, 12, 3, 0.9, 0.7, 10, 102},
	{"2", "HistogramRatings", 10, 102, 20, 8, 4, 0.9, 0.7, 10, 102}, {"3", "SequenceCount", 30, 234, 60, 16, 3, 1.3, 1.3, 30, 234},
	{"3", "InvertedIndex", 30, 234, 60, 19, 3, 1.1, 1.2, 30, 234}, {"4", "WordCount", 100, 721, 80, 10, 6, 1, 1, 50, 396},
}

var pumaParams = []Param{{"interval_s", "mean time between arrivals (Poisson)", 80}, {"map_s", "mean work of a map task", 25}, {"reduce_s", "mean work of a reduce task", 30},
	{"weights", "each job has a tenant of a random weight from 1 to this; 0: one tenant", 0}}

var pumaGen = Generator{Name: "puma", Help: "the 100 PUMA jobs of LAS_MQ's Table 1 in random order", Params: pumaParams,
	make: func(r *rand.Rand, v map[string]float64) (*Workload, error) { return makePuma(r, v, false) }}

var pumaEC2Gen = Generator{Name: "puma_ec2", Help: "the 30 PUMA jobs of LAS_MQ's Table 2 in random order", Params: pumaParams,
	make: func(r *rand.Rand, v map[string]float64) (*Workload, error) { return makePuma(r, v, true) }}

func makePuma(r *rand.Rand, v map[string]float64, ec2 bool) (*Workload, error) {
	w := &Workload{}
	tenant := tenantIDs(w)
	var rows []pumaRow
	for _, p := range pumaTable {
		n := p.jobs
		if ec2 {
			n, p.gb, p.maps = p.ec2, p.ec2GB, p.ec2Maps
		}
		for range n {
			rows = append(rows, p)
		}
	}
	r.Shuffle(len(rows), func(i, j int) { rows[i], rows[j] = rows[j], rows[i] })
	at := 0.0
	for i, p := range rows {
		if i > 0 {
			at += r.ExpFloat64() * v["interval_s"]
		}
		input := int64(p.gb * 1e9)
		read := (input + int64(p.maps) - 1) / int64(p.maps)
		var id scheduler.TenantID
		if n := int(v["weights"]); n > 0 {
			id = tenant(fmt.Sprintf("job-%d", i+1))
			w.Tenants[id].Weight = float64(1 + r.IntN(n))
		} else {
			id = tenant("default")
		}
		w.Jobs = append(w.Jobs, engine.Job{Name: fmt.Sprintf("%s-%d", p.name, i+1), Tag: p.bin, Submit: secondsDuration(at), Tenant: id,
			Stages: []engine.Stage{
				{Name: "map", Kind: scheduler.KindMap, Tasks: p.maps, Demand: scheduler.Resources{1000, 2 << 30, 0}, InputBytes: input, BlockBytes: read, Work: secondsDuration(p.mapS * v["map_s"])},
				{Name: "reduce", Kind: scheduler.KindReduce, After: []int32{0}, Tasks: p.reduces, Demand: scheduler.Resources{1000, 4 << 30, 0},
					ShuffleBytes: input / 2 / int64(p.reduces), Work: secondsDuration(p.reduceS * v["reduce_s"])}}})
	}
	return w, nil
}

// benchmarkGen makes the mixes of PDSonQueue and 3DSF: many small jobs of one to three tasks that
// mainly use CPU, memory or disk I/O, a fraction of them with a deadline drawn around its run time.
var benchmarkGen = Generator{Name: "benchmark", Help: "PDSonQueue's and 3DSF's mixes: Pi, Malloc, read/write files, TeraSort and application cases",
	Params: []Param{{"jobs", "number of jobs", 6000}, {"span_s", "duration over which jobs are submitted", 40}, {"job_s", "mean run time of a task", 0.45},
		{"pi", "weight of CPU-intensive jobs", 1}, {"malloc", "weight of memory-intensive jobs", 1}, {"readwrite", "weight of jobs that read and write files", 1}, {"terasort", "weight of TeraSort jobs", 0},
		{"cpu", "millicores of the mean task", 700}, {"memory_mib", "memory of the mean task", 1200}, {"io_mib_s", "disk I/O of the mean task", 20}, {"lean", "demand of a job's main resource over the mean demand", 1.8},
		{"input_gb", "input of all jobs together", 40}, {"deadline_part", "fraction of the jobs with a deadline", 0.33}, {"deadline_mean", "mean deadline over mean run time", 4}, {"deadline_sigma", "standard deviation of the deadline over mean run time", 1},
		{"high_part", "fraction of the regular jobs with high priority", 0.5}, {"tenants", "tenants", 3}},
	make: makeBenchmark}

func makeBenchmark(r *rand.Rand, v map[string]float64) (*Workload, error) {
	w := &Workload{}
	tenant := tenantIDs(w)
	names, sum := []string{"pi", "malloc", "readwrite", "terasort"}, 0.0
	for _, n := range names {
		sum += v[n]
	}
	if sum <= 0 {
		return nil, fmt.Errorf("all weights are 0")
	}
	n := int(v["jobs"])
	input := int64(v["input_gb"] * 1e9 / float64(max(1, n)))
	for i := range n {
		kind, x := "", r.Float64()*sum
		for _, k := range names {
			if kind = k; x < v[k] {
				break
			}
			x -= v[k]
		}
		run := v["job_s"] * math.Exp(0.4*r.NormFloat64()-0.08)
		j := engine.Job{Name: fmt.Sprintf("%s-%d", kind, i+1), Tag: kind, Submit: secondsDuration(r.Float64() * v["span_s"]),
			Tenant: tenant(fmt.Sprintf("tenant-%d", i%int(v["tenants"]))), Priority: scheduler.PriorityLow}
		if r.Float64() < v["high_part"] {
			j.Priority = scheduler.PriorityHigh
		}
		if r.Float64() < v["deadline_part"] { // the 3-sigma rule cuts the tails
			z := max(-3, min(3, r.NormFloat64()))
			j.Deadline = j.Submit + max(time.Millisecond, secondsDuration(v["job_s"]*(v["deadline_mean"]+v["deadline_sigma"]*z)))
			j.Priority = scheduler.PriorityHigh // for a scheduler that has priorities but no deadlines (3DSF 9)
		}
		j.Stages = []engine.Stage{{Name: "main", Kind: scheduler.KindMap, Tasks: 1, Work: secondsDuration(run), Demand: skewedDemand(r, v, kind), InputBytes: input, BlockBytes: max(1, input)}}
		w.Jobs = append(w.Jobs, j)
	}
	slices.SortStableFunc(w.Jobs, func(a, b engine.Job) int { return cmp.Compare(a.Submit, b.Submit) })
	return w, nil
}

// skewedDemand draws a demand that is larger in the main resource of its kind.
func skewedDemand(r *rand.Rand, v map[string]float64, kind string) scheduler.Resources {
	f := [3]float64{1, 1, 1}
	own := map[string]int{"pi": 0, "malloc": 1, "readwrite": 2, "terasort": -1}[kind]
	rest := (3 - v["lean"]) / 2
	for k := range f {
		if own >= 0 {
			f[k] = max(0.05, rest)
			if k == own {
				f[k] = v["lean"]
			}
		}
		f[k] *= 0.75 + 0.5*r.Float64()
	}
	return scheduler.Resources{int64(v["cpu"] * f[0]), int64(v["memory_mib"]*f[1]) << 20, int64(v["io_mib_s"]*f[2]*1024) << 10}
}
