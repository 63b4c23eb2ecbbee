package run

import (
	"context"
	"fmt"
	"math"
	"slices"
	"sort"
	"time"

	"github.com/drover-run/drover/scheduler/queueing"
	"github.com/drover-run/drover/scheduler/sim/engine"
)

// Target is the requirement on a cluster: Share of the jobs end within Response of their submission.
type Target struct {
	Response time.Duration
	Share    float64
}

// Sizing is how many equal machines a workload needs for a target.
type Sizing struct {
	Estimate  int     `json:"estimate_nodes"`  // by the M/M/n queue
	Nodes     int     `json:"nodes"`           // by simulation: the smallest cluster that meets the target
	Share     float64 `json:"share"`           // share of the jobs on time there
	OneLess   float64 `json:"share_one_less"`  // with one machine less; 0 for a cluster of one machine
	Simulated int     `json:"simulated_sizes"` // number of sizes that were simulated
}

// maxSizeNodes is the largest cluster that Size considers.
const maxSizeNodes = 100_000

// Size finds the smallest cluster of machines like node on which the target holds, as the mean over
// seeds. It estimates with the M/M/n queue (3DSF section 7.2) and then simulates sizes from there on.
// It returns an error if the jobs are too long for the target on any cluster.
func (s *Setup) Size(ctx context.Context, node engine.Node, target Target, seeds []uint64, parallel int) (*Sizing, error) {
	z := &sizer{setup: *s, ctx: ctx, node: node, target: target, seeds: seeds, parallel: parallel, shares: map[int]float64{}}
	z.setup.Absences = nil
	load, err := z.measureLoad()
	if err != nil {
		return nil, err
	}
	out := &Sizing{Estimate: load.nodes(target)}
	if out.Nodes, err = z.smallest(out.Estimate); err != nil {
		return nil, err
	}
	out.Share, out.OneLess, out.Simulated = z.shares[out.Nodes], z.shares[out.Nodes-1], len(z.shares)
	return out, nil
}

// sizer simulates sizes and remembers the results.
type sizer struct {
	setup    Setup
	ctx      context.Context
	node     engine.Node
	target   Target
	seeds    []uint64
	parallel int
	shares   map[int]float64 // of the jobs on time, by number of nodes
}

// simulate runs all seeds on n nodes.
func (z *sizer) simulate(n int) ([]*Outcome, error) {
	z.setup.Nodes = make([]engine.Node, n)
	for i := range z.setup.Nodes {
		z.setup.Nodes[i] = z.node
		z.setup.Nodes[i].Name = fmt.Sprintf("n%d", i)
	}
	outs, err := z.setup.SimulateSeeds(z.ctx, z.seeds, z.parallel, func(int, int, engine.Progress) {})
	if err != nil {
		return nil, err
	}
	met, jobs := 0, 0
	for _, o := range outs {
		for i := range o.Result.Jobs {
			if j := &o.Result.Jobs[i]; j.Outcome == engine.JobSucceeded && j.Response() <= z.target.Response {
				met++
			}
			jobs++
		}
	}
	z.shares[n] = float64(met) / float64(jobs)
	return outs, nil
}

// holds reports whether n nodes hold the target.
func (z *sizer) holds(n int) (bool, error) {
	if _, known := z.shares[n]; !known {
		if _, err := z.simulate(n); err != nil {
			return false, err
		}
	}
	return z.shares[n] >= z.target.Share, nil
}

// smallest returns the smallest size that holds the target, searching from a first guess.
func (z *sizer) smallest(guess int) (int, error) {
	low, high := 0, guess // low does not hold it
	for {
		ok, err := z.holds(high)
		if err != nil {
			return 0, err
		}
		if ok {
			break
		}
		if high == maxSizeNodes {
			return 0, fmt.Errorf("%.1f%% of the jobs end within %v on %d machines, the target is %.1f%%: give a longer -response or a smaller -share", 100*z.shares[high], z.target.Response, high, 100*z.target.Share)
		}
		low, high = high, min(maxSizeNodes, high+max(1, high/8))
	}
	for step := max(1, high/8); high-low > 1; {
		mid := max(low+1, high-step)
		if low > 0 {
			mid = (low + high) / 2
		}
		ok, err := z.holds(mid)
		if err != nil {
			return 0, err
		}
		if ok {
			high = mid
		} else {
			low = mid
		}
	}
	return high, nil
}

// offeredLoad is a workload as a queue sees it.
type offeredLoad struct {
	rate, mean float64         // tasks per second, seconds of a task
	slots      float64         // tasks that a machine runs at once
	variation  float64         // (ca^2 + cs^2)/2 of arrivals in batches and of task times; 1 for M/M/n
	span       float64         // seconds in which the jobs are submitted
	alone      []time.Duration // ascending
}

// measureLoad measures the load in a simulation on a cluster without queues.
func (z *sizer) measureLoad() (*offeredLoad, error) {
	w, err := z.setup.Workload(z.seeds[0], nil)
	if err != nil {
		return nil, err
	}
	var share, tasks, batches float64
	last := time.Duration(0)
	total := z.node.Capacity
	for i := range w.Jobs {
		k := 0.0
		for g := range w.Jobs[i].Stages {
			st := &w.Jobs[i].Stages[g]
			share += st.Demand.DominantShare(total) * float64(st.Tasks)
			k += float64(st.Tasks)
			batches += float64(st.Tasks) * float64(st.Tasks)
		}
		tasks += k
		last = max(last, w.Jobs[i].Submit)
	}
	if share <= 0 || last <= 0 || tasks == 0 {
		return nil, fmt.Errorf("the workload has no rate: its jobs are submitted at once, or demand nothing")
	}
	outs, err := z.simulate(probeNodes(share, len(w.Jobs)))
	if err != nil {
		return nil, err
	}
	r, work := outs[0].Result, 0.0
	l := &offeredLoad{rate: tasks / last.Seconds(), slots: tasks / share, span: last.Seconds()}
	var squares float64
	for i := range r.Jobs {
		k := 0.0
		for g := range w.Jobs[i].Stages {
			k += float64(w.Jobs[i].Stages[g].Tasks)
		}
		work += r.Jobs[i].Work
		squares += r.Jobs[i].Work * r.Jobs[i].Work / k
		l.alone = append(l.alone, r.Jobs[i].Alone)
	}
	l.mean = work / tasks
	l.variation = (batches/tasks + squares/tasks/(l.mean*l.mean)) / 2
	late := 0
	slices.Sort(l.alone)
	for _, a := range l.alone {
		if a > z.target.Response {
			late++
		}
	}
	if on := 1 - float64(late)/float64(len(l.alone)); on < z.target.Share {
		return nil, fmt.Errorf("%.1f%% of the jobs end within %v even alone on the cluster, the target is %.1f%%: give a longer -response or a smaller -share", 100*on, z.target.Response, 100*z.target.Share)
	}
	return l, nil
}

// probeNodes returns a number of machines on which no job waits long: room for all tasks of the mean
// job a hundred times.
func probeNodes(share float64, jobs int) int {
	return int(min(maxSizeNodes, math.Ceil(100*max(1, share/float64(jobs)))))
}

// onTime returns the share of jobs on time on n machines: the mean over jobs, and over the time in
// which they are submitted, of P(wait <= response - duration alone). The tail of the wait is
// M/M/n's C(n, rho1) times that of the heavy-traffic limit from an empty cluster, which for a long
// time is M/M/n's own tail, stretched by the variation of arrivals and task times. A load above 1,
// which M/M/n excludes, lasts only as long as the workload.
func (l *offeredLoad) onTime(n int, response time.Duration) float64 {
	servers := int(float64(n) * l.slots)
	if servers < 1 {
		return 0
	}
	waits, rho := 1.0, l.rate*l.mean/float64(servers)
	if q, err := queueing.New(servers, l.rate, 1/l.mean); err == nil {
		waits = q.ErlangC()
	}
	drift, variance := rho-1, 2*l.variation*rho*l.mean/float64(servers)
	const times, quantiles = 16, 100
	on := 0.0
	for k := range quantiles {
		spare := (response - l.alone[(2*k+1)*len(l.alone)/(2*quantiles)]).Seconds()
		if spare < 0 {
			continue
		}
		for i := range times {
			at := l.span * (float64(i) + 0.5) / times
			on += (1 - waits*(1-reflectedBelow(spare, drift, variance, at))) / (times * quantiles)
		}
	}
	return on
}

// reflectedBelow returns P(W(t) <= x) of a Brownian motion with the given drift and variance per
// second that starts at 0 and is reflected there: the wait in heavy traffic (Harrison 1985, 1.8).
func reflectedBelow(x, drift, variance, t float64) float64 {
	sd := math.Sqrt(variance * t)
	up, down := (x-drift*t)/sd, (-x-drift*t)/sd
	return normalBelow(up) - math.Exp(2*drift*x/variance+logNormalBelow(down))
}

// normalBelow is the distribution function of the standard normal distribution.
func normalBelow(z float64) float64 { return math.Erfc(-z/math.Sqrt2) / 2 }

// logNormalBelow is the logarithm of normalBelow, also where that underflows.
func logNormalBelow(z float64) float64 {
	if z > -30 {
		return math.Log(normalBelow(z))
	}
	return -z*z/2 - math.Log(-z*math.Sqrt(2*math.Pi))
}

// nodes returns the smallest number of machines on which the target is expected to hold.
func (l *offeredLoad) nodes(t Target) int {
	return max(1, sort.Search(maxSizeNodes, func(n int) bool { return l.onTime(n, t.Response) >= t.Share }))
}
