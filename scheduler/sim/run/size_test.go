package run

import (
	"math"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/drover-run/drover/internal/seed"
	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/sim/engine"
	"github.com/drover-run/drover/scheduler/sim/trace"
)

// The estimate by queueing theory is within 10% of the machines that the simulator needs. The
// workloads are fixed, as the claim is about these.
func TestSizeAgainstSimulator(t *testing.T) {
	if testing.Short() {
		t.Skip("not proved here: that the estimated size of a cluster is near the one that the simulator needs; it searches by many simulations, run it without -short")
	}
	node := NodeGroup{Count: 1, CPU: "8", Memory: "32GiB", IO: "200MiB/s", RackSize: 40}
	nodes, _, err := (&Cluster{Nodes: []NodeGroup{node}}).BuildAll()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		generator string
		rules     map[string]string
		target    Target
	}{
		{"poisson", map[string]string{"jobs": "3000", "interval_s": "0.25", "tasks": "1", "task_s": "60"}, Target{300 * time.Second, 0.95}},
		{"poisson", map[string]string{"jobs": "2000", "interval_s": "2", "tasks": "20", "task_s": "20"}, Target{180 * time.Second, 0.95}},
		{"heavy_tailed", map[string]string{"jobs": "2000", "interval_s": "1", "tasks": "8", "task_s": "30"}, Target{300 * time.Second, 0.9}},
		{"uniform", map[string]string{"jobs": "2000", "interval_s": "1", "tasks": "12", "task_s": "15"}, Target{60 * time.Second, 0.95}},
		{"puma", map[string]string{"interval_s": "20"}, Target{600 * time.Second, 0.9}},
	} {
		s := Setup{Scheduler: "fifo", Workload: func(seed uint64, _ []engine.Node) (*trace.Workload, error) {
			return trace.Generate(c.generator, c.rules, seed)
		}}
		z, err := s.Size(t.Context(), nodes[0], c.target, Seeds(1, 3), runtime.GOMAXPROCS(0))
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%s %v: %+v", c.generator, c.rules, *z)
		if off := math.Abs(float64(z.Estimate-z.Nodes)) / float64(z.Nodes); off > 0.1 {
			t.Errorf("%s %v: the estimate is %d, the simulator needs %d", c.generator, c.rules, z.Estimate, z.Nodes)
		}
		if z.Share < c.target.Share || z.OneLess >= c.target.Share {
			t.Errorf("%s %v: %d machines are not the fewest: %+v", c.generator, c.rules, z.Nodes, *z)
		}
	}
}

// A target below the longest task of jobs with unequal tasks, as those of a history, holds on no cluster, which is said
// before any size is searched.
func TestSizeKnowsTheLongestTask(t *testing.T) {
	nodes, err := (&Cluster{Nodes: []NodeGroup{{Count: 1, CPU: "4", Memory: "8GiB"}}}).Build()
	if err != nil {
		t.Fatal(err)
	}
	w := &trace.Workload{Tenants: []scheduler.TenantSpec{{Name: "t", Parent: scheduler.NoTenant, Weight: 1}}}
	for i := range 10 {
		w.Jobs = append(w.Jobs, engine.Job{Submit: time.Duration(i) * time.Second, Stages: []engine.Stage{{Name: "main", Tasks: 3, Demand: scheduler.Resources{1000, 1 << 30, 0},
			WorkPerTask: []time.Duration{time.Second, 100 * time.Second, time.Second}}}})
	}
	s := Setup{Scheduler: "fifo", Workload: fixedWorkload(w)}
	if z, err := s.Size(t.Context(), nodes[0], Target{60 * time.Second, 0.9}, Seeds(1, 1), 1); err == nil || !strings.Contains(err.Error(), "even alone on the cluster") {
		t.Errorf("%+v, %v", z, err)
	}
}

// The wait in heavy traffic: none at the start, M/M/n's exponential tail after a long time at a load
// below 1, normal around the drift at a load above 1, and never a number that is no probability.
func TestReflectedBelowHasItsLimits(t *testing.T) {
	for _, c := range []struct{ x, drift, variance, t, want float64 }{
		{1, -0.1, 0.2, 1e-9, 1},
		{3, -0.1, 0.2, 1e9, 1 - math.Exp(-3)},
		{3, -1e-3, 0.2, 1e9, 1 - math.Exp(-0.03)},
		{1e5, 0.1, 0.2, 1e6, 0.5},
		{1e6, 0.25, 1e-3, 1e6, 1},
		{1e5, 0.25, 1e-3, 1e6, 0},
	} {
		if got := reflectedBelow(c.x, c.drift, c.variance, c.t); math.Abs(got-c.want) > 5e-3 {
			t.Errorf("%+v: %v", c, got)
		}
	}
	r := rand.New(rand.NewPCG(seed.New(t), 1))
	for range 10_000 {
		x, drift, variance, at := math.Exp(6*r.NormFloat64()), r.NormFloat64(), math.Exp(4*r.NormFloat64()), math.Exp(6*r.NormFloat64())
		p, q := reflectedBelow(x, drift, variance, at), reflectedBelow(2*x, drift, variance, at)
		if math.IsNaN(p) || p < -1e-9 || p > 1+1e-9 || q < p-1e-9 {
			t.Fatalf("P(W <= %v) is %v and of twice that %v; drift %v, variance %v, time %v", x, p, q, drift, variance, at)
		}
	}
}
