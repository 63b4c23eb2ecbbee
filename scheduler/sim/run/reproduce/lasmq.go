package reproduce

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"time"

	"github.com/drover-run/drover/scheduler/sim/engine"
	"github.com/drover-run/drover/scheduler/sim/fluid"
	"github.com/drover-run/drover/scheduler/sim/run"
	"github.com/drover-run/drover/scheduler/sim/trace"
)

const lasPaper = "LAS_MQ"

var lasAssumes = []string{"las.map_s", "las.reduce_s", "las.launch_s", "las.spread"}

func lasExperiments() []Experiment {
	return []Experiment{
		{Name: "las_mq/testbed80", Paper: lasPaper, Seeds: 20, Cost: 2.5, Assumes: lasAssumes, Run: testbed80, Why: whyTestbed80},
		{Name: "las_mq/testbed50", Paper: lasPaper, Seeds: 20, Cost: 1.5, Assumes: lasAssumes, Run: testbed50, Why: whyTestbed50},
		{Name: "las_mq/ablation50", Paper: lasPaper, Seeds: 20, Cost: 2, Assumes: lasAssumes, Run: ablation50, Why: whyAblation},
		{Name: "las_mq/ec2", Paper: lasPaper, Seeds: 20, Cost: 1, Assumes: lasAssumes, Run: ec2, Why: whyEC2},
		{Name: "las_mq/fig10a", Paper: lasPaper, Exact: true, Run: fig10a},
		{Name: "las_mq/fig10b", Paper: lasPaper, Exact: true, Run: fig10b},
		{Name: "las_mq/fig11", Paper: lasPaper, Exact: true, Run: fig11, Why: whyFig11Las},
	}
}

// contender is a scheduler with its parameters in an experiment.
type contender struct {
	name   string
	policy string
	params map[string]string
	rigid  bool // a baseline of rigid.go
}

// The paper's baselines do not conserve work (rigid.go). Drover's schedulers of the same names do,
// and are plotted beside them.
var (
	reserveParams = map[string]string{"reserve": "true"}

	contenderLASMQ     = contender{name: "las_mq", policy: "las_mq", params: reserveParams}
	contenderRigidLAS  = contender{name: "las", policy: rigidLAS, rigid: true}
	contenderRigidFair = contender{name: "fair", policy: rigidFair, rigid: true}
	contenderRigidEqu  = contender{name: "equ", policy: rigidEqu, rigid: true}
	contenderRigidFIFO = contender{name: "fifo", policy: rigidFIFO, rigid: true}
	contenderIdeal     = contender{name: "ideal", policy: "ideal", params: reserveParams}
	contenderLAS       = contender{name: "las, conserving work", policy: "las", params: reserveParams}
	contenderFair      = contender{name: "fair, conserving work", policy: "fair", params: reserveParams}
	contenderFIFO      = contender{name: "fifo, conserving work", policy: "fifo", params: reserveParams}
)

// uniformCluster returns n equal nodes.
func uniformCluster(n int, cpu, memory, io string, disks int) ([]engine.Node, error) {
	c := run.Cluster{Nodes: []run.NodeGroup{{Count: n, CPU: cpu, Memory: memory, IO: io, Disks: disks}}}
	return c.Build()
}

// lasWorkload is Table 1 on the private test bed, or Table 2 on EC2.
type lasWorkload struct {
	generator string
	interval  float64
	nodes     int
	cpu, mem  string
	replicas  int
	oneTenant bool // else each job is a tenant of weight 1 to 5
}

var (
	privateTestbed = lasWorkload{generator: "puma", nodes: 4, cpu: "56", mem: "60GiB", replicas: 2}
	ec2Testbed     = lasWorkload{generator: "puma_ec2", nodes: 15, cpu: "4", mem: "8GiB", replicas: 3}
)

// admissionLimit is the limit of the paper's job admission module.
const admissionLimit = 30

// simulate runs one contender on the workload of a seed.
func (l lasWorkload) simulate(e *Env, c contender, seed uint64) (*engine.Result, []engine.Job, error) {
	cal := e.Cal
	rule := map[string]string{"interval_s": fmt.Sprint(l.interval), "map_s": fmt.Sprint(cal.get("las.map_s")), "reduce_s": fmt.Sprint(cal.get("las.reduce_s")), "weights": "5"}
	if l.oneTenant {
		rule["weights"] = "0"
	}
	w, err := trace.Generate(l.generator, rule, seed)
	if err != nil {
		return nil, nil, err
	}
	w.Jobs = w.Jobs[:e.scaleDown(len(w.Jobs))]
	nodes, err := uniformCluster(l.nodes, l.cpu, l.mem, "400MiB/s", 1)
	if err != nil {
		return nil, nil, err
	}
	p, err := newPolicy(c)
	if err != nil {
		return nil, nil, err
	}
	m := run.DefaultModels()
	m.RackRate, m.RemoteRate, m.Replicas = 400<<20, 200<<20, l.replicas
	m.Launch = time.Duration(cal.get("las.launch_s") * float64(time.Second))
	m.Spread, m.Heartbeat, m.NoEstimates = cal.get("las.spread"), 3*time.Second, true
	r, err := engine.Simulate(engine.Config{Nodes: nodes, Tenants: w.Tenants, Jobs: w.Jobs, Policy: p, Models: m, Seed: seed, MaxAdmittedJobs: admissionLimit, Stop: e.stop})
	if err != nil {
		return nil, nil, fmt.Errorf("%s, seed %d: %w", c.name, seed, err)
	}
	return r, w.Jobs, nil
}

// lasMeans are the means that the figures show. As in the paper, responses count from admission.
type lasMeans struct {
	mean, slowdown, makespan, under2000 float64
	submitted                           float64 // mean response from submission
	bins                                map[string]float64
}

func computeMeans(r *engine.Result, jobs []engine.Job) lasMeans {
	m := lasMeans{bins: map[string]float64{}, makespan: r.Makespan.Seconds()}
	count := map[string]float64{}
	n := float64(len(jobs))
	for i := range jobs {
		j := &r.Jobs[i]
		s := (j.Finish - j.Admitted).Seconds()
		m.mean += s / n
		m.submitted += j.Response().Seconds() / n
		m.slowdown += s / max(1e-9, j.Alone.Seconds()) / n
		if s < 2000 {
			m.under2000 += 1 / n
		}
		m.bins[jobs[i].Tag] += s
		count[jobs[i].Tag]++
	}
	for b := range m.bins {
		m.bins[b] /= count[b]
	}
	return m
}

// simulateAll runs contenders on the workload of a seed and plots their bins.
func (l lasWorkload) simulateAll(e *Env, s *Sample, seed uint64, cs ...contender) (map[string]lasMeans, error) {
	out := map[string]lasMeans{}
	for _, c := range cs {
		r, jobs, err := l.simulate(e, c, seed)
		if err != nil {
			return nil, err
		}
		m := computeMeans(r, jobs)
		out[c.name] = m
		for i, b := range slices.Sorted(maps.Keys(m.bins)) {
			s.addPoint("mean response by bin (0: all jobs)", c.name, float64(i+1), m.bins[b])
		}
		s.addPoint("mean response by bin (0: all jobs)", c.name, 0, m.mean)
		s.addPoint("mean slowdown", c.name, l.interval, m.slowdown)
		s.addPoint("makespan", c.name, l.interval, m.makespan)
		s.addPoint("mean response from submission", c.name, l.interval, m.submitted)
	}
	return out, nil
}

func testbed80(e *Env, seed uint64) (*Sample, error) {
	l, s := privateTestbed, &Sample{}
	l.interval = 80
	m, err := l.simulateAll(e, s, seed, contenderLASMQ, contenderRigidLAS, contenderRigidFair, contenderRigidFIFO, contenderLAS, contenderFair, contenderFIFO)
	if err != nil {
		return nil, err
	}
	us := m["las_mq"]
	others := 0.0
	for _, o := range []string{"fair", "las", "fifo"} {
		s.setClaim(o, us.mean/m[o].mean)
		for b := range us.bins {
			s.setClaim("bin"+b+"_"+o, us.bins[b]/m[o].bins[b]-1)
		}
		others += m[o].makespan / 3
	}
	for _, p := range [][2]string{{"las_mq", "las"}, {"las", "fair"}, {"fair", "fifo"}} {
		s.setClaim("slowdown_"+p[0]+"_"+p[1], m[p[0]].slowdown/m[p[1]].slowdown-1)
	}
	s.setClaim("makespan", others/us.makespan)
	return s, nil
}

func testbed50(e *Env, seed uint64) (*Sample, error) {
	l, s := privateTestbed, &Sample{}
	l.interval = 50
	m, err := l.simulateAll(e, s, seed, contenderLASMQ, contenderRigidLAS, contenderRigidFair, contenderRigidFIFO)
	if err != nil {
		return nil, err
	}
	us := m["las_mq"]
	s.setClaim("fair", us.mean/m["fair"].mean)
	s.setClaim("fifo", us.mean/m["fifo"].mean)
	if f := m["fair"].under2000; f > 0 {
		s.setClaim("under_2000", us.under2000/f)
	}
	for name, x := range m {
		s.addPoint("part of the jobs under 2,000 s", name, l.interval, x.under2000)
	}
	return s, nil
}

func ablation50(e *Env, seed uint64) (*Sample, error) {
	l, s := privateTestbed, &Sample{}
	l.interval = 50
	with := func(name, order, stage string) contender {
		return contender{name: name, policy: "las_mq", params: map[string]string{"order": order, "stage_aware": stage, "reserve": "true"}}
	}
	m, err := l.simulateAll(e, s, seed, with("case1", "fifo", "false"), with("case2", "fifo", "true"), with("case3", "remaining", "false"),
		with("case4", "remaining", "true"), contenderRigidFair)
	if err != nil {
		return nil, err
	}
	for _, p := range [][2]string{{"case4", "case3"}, {"case3", "case2"}, {"case2", "case1"}, {"case1", "fair"}} {
		s.setClaim(p[0]+"_"+p[1], m[p[0]].mean/m[p[1]].mean-1)
	}
	return s, nil
}

func ec2(e *Env, seed uint64) (*Sample, error) {
	l, s := ec2Testbed, &Sample{}
	l.interval = 80
	m, err := l.simulateAll(e, s, seed, contenderLASMQ, contenderIdeal, contenderRigidLAS, contenderRigidFair, contenderRigidEqu, contenderRigidFIFO)
	if err != nil {
		return nil, err
	}
	us := m["las_mq"]
	s.setClaim("ideal", us.mean/m["ideal"].mean-1)
	for _, o := range []string{"las", "fair", "equ"} {
		s.setClaim(o, us.mean/m[o].mean-1)
	}
	for _, b := range []string{"1", "4"} {
		s.setClaim("near_ideal_bin"+b, us.bins[b]/m["ideal"].bins[b])
	}
	return s, nil
}

// readFB2010 reads the trace of Fig. 10a and 11.
func readFB2010(e *Env) ([]fluid.Job, error) {
	if e.FB2010 == nil {
		return nil, fmt.Errorf("the FB-2010 trace: give its path with -fb2010 FILE: %w", errUnavailable)
	}
	f, err := e.FB2010()
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("the FB-2010 trace: %w: %w", err, errUnavailable)
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	t, err := trace.ReadSwim(f, trace.Options{Name: "FB-2010"})
	if err != nil {
		return nil, err
	}
	return t.FluidJobs(trace.LASMQRule), nil
}

// fluidMean returns the mean response of jobs under a discipline.
func fluidMean(jobs []fluid.Job, d fluid.Discipline, q fluid.Queues) (float64, error) {
	ends, err := fluid.CompletionTimes(jobs, d, q)
	if err != nil {
		return 0, err
	}
	sum := 0.0
	for i := range jobs {
		sum += ends[i] - jobs[i].Arrival
	}
	return sum / float64(len(jobs)), nil
}

func fluidMeans(jobs []fluid.Job, q fluid.Queues) (map[fluid.Discipline]float64, error) {
	out := map[fluid.Discipline]float64{}
	for d := fluid.FIFO; d <= fluid.LASMQ; d++ {
		var err error
		if out[d], err = fluidMean(jobs, d, q); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func fig10a(e *Env, _ uint64) (*Sample, error) {
	jobs, err := readFB2010(e)
	if err != nil {
		return nil, err
	}
	m, err := fluidMeans(jobs, fluid.DefaultQueues)
	if err != nil {
		return nil, err
	}
	s := &Sample{}
	s.setClaim("fair", m[fluid.LASMQ]/m[fluid.PS])
	s.setClaim("las", m[fluid.LASMQ]/m[fluid.LAS]-1)
	s.setClaim("fifo", m[fluid.PS]/m[fluid.FIFO])
	for _, w := range []float64{0.5, 0.25, 0.125, 0.1, 0.01} {
		q := fluid.DefaultQueues
		q.WeightRatio = w
		x, err := fluidMean(jobs, fluid.LASMQ, q)
		if err != nil {
			return nil, err
		}
		s.addPoint("Fair over LAS_MQ by the queues' weight ratio", "LAS_MQ", w, m[fluid.PS]/x)
	}
	return s, nil
}

// fig10b has 10,000 jobs of size 10,000 that all arrive at second 0: with Poisson arrivals LAS
// would be 5.5 times Fair.
func fig10b(*Env, uint64) (*Sample, error) {
	jobs := make([]fluid.Job, 10_000)
	for i := range jobs {
		jobs[i].Size = 10_000
	}
	m, err := fluidMeans(jobs, fluid.DefaultQueues)
	if err != nil {
		return nil, err
	}
	s := &Sample{}
	s.setClaim("las_mq", m[fluid.LASMQ]/m[fluid.PS])
	s.setClaim("fifo", m[fluid.FIFO]/m[fluid.PS])
	s.setClaim("las", m[fluid.LAS]/m[fluid.PS])
	return s, nil
}

func fig11(e *Env, _ uint64) (*Sample, error) {
	jobs, err := readFB2010(e)
	if err != nil {
		return nil, err
	}
	ps, err := fluidMean(jobs, fluid.PS, fluid.Queues{})
	if err != nil {
		return nil, err
	}
	s := &Sample{}
	means := map[string]float64{}
	for _, first := range []float64{1, 10} {
		for _, k := range []int{1, 2, 3, 4, 5, 6, 8, 10} {
			q := fluid.DefaultQueues
			q.Count, q.FirstThreshold = k, first
			m, err := fluidMean(jobs, fluid.LASMQ, q)
			if err != nil {
				return nil, err
			}
			means[fmt.Sprint(first, k)] = m
			s.addPoint("Fair over LAS_MQ by number of queues", fmt.Sprintf("first threshold %g", first), float64(k), ps/m)
		}
	}
	s.setClaim("k5", means["1 5"]/ps-1)
	s.setClaim("k5_best", means["1 5"]/means["1 10"])
	s.setClaim("alpha10", means["10 10"]/means["1 10"]-1)
	return s, nil
}
