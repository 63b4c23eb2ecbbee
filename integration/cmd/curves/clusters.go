package main

import (
	"container/heap"
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/sim/engine"
	"github.com/drover-run/drover/scheduler/sim/run"
	"github.com/drover-run/drover/scheduler/sim/trace"
)

// The workload and the machines of printClusters: 2,048 cores at a load of 90%.
const (
	clusterNodes = 256
	nodeCores    = 8
	clusterSeeds = 3
)

var clusterWorkload = map[string]string{"jobs": "6000", "tasks": "20", "task_s": "10", "interval_s": "0.1085", "memory_mib": "256", "tenants": "8"}

// dispatch assigns each job of a workload to one of n clusters with this number of cores each.
type dispatch func(jobs []engine.Job, n int, cores float64) []int

// inTurn assigns jobs to the clusters round robin.
func inTurn(jobs []engine.Job, n int, _ float64) []int {
	to := make([]int, len(jobs))
	for i := range to {
		to[i] = i % n
	}
	return to
}

// leastWork assigns a job to the cluster with the least remaining work, in task-seconds, assuming
// that all of its cores are used. It knows each run time in advance.
func leastWork(jobs []engine.Job, n int, cores float64) []int {
	left, at := make([]float64, n), time.Duration(0)
	to := make([]int, len(jobs))
	for i := range jobs {
		j := &jobs[i]
		for k := range left {
			left[k] = max(0, left[k]-cores*(j.Submit-at).Seconds())
		}
		at = j.Submit
		to[i] = slices.Index(left, slices.Min(left))
		for _, w := range taskTimes(j) {
			left[to[i]] += w.Seconds()
		}
	}
	return to
}

// earliestEnd assigns a job to the cluster that would end it first if each cluster started its
// tasks on its cores in the order of submission. It knows each run time in advance; quotes, which
// use predictions, know less.
func earliestEnd(jobs []engine.Job, n int, cores float64) []int {
	free := make([]coreTimes, n)
	for k := range free {
		free[k] = make(coreTimes, int(cores))
	}
	to := make([]int, len(jobs))
	for i := range jobs {
		tasks, best := taskTimes(&jobs[i]), time.Duration(0)
		var after coreTimes
		for k := range free {
			then := slices.Clone(free[k])
			if end := then.run(jobs[i].Submit, tasks); k == 0 || end < best {
				to[i], best, after = k, end, then
			}
		}
		free[to[i]] = after
	}
	return to
}

// coreTimes is a heap of the times at which cores become free.
type coreTimes []time.Duration

func (c coreTimes) Len() int           { return len(c) }
func (c coreTimes) Less(i, j int) bool { return c[i] < c[j] }
func (c coreTimes) Swap(i, j int)      { c[i], c[j] = c[j], c[i] }
func (c coreTimes) Push(any)           { panic("curves: the number of cores is fixed") }
func (c coreTimes) Pop() any           { panic("curves: the number of cores is fixed") }

// run assigns tasks to the cores that become free first, and returns when the last task ends.
func (c coreTimes) run(now time.Duration, tasks []time.Duration) (end time.Duration) {
	for _, w := range tasks {
		c[0] = max(now, c[0]) + w
		end = max(end, c[0])
		heap.Fix(c, 0)
	}
	return end
}

// taskTimes returns the computing times of all tasks of a job.
func taskTimes(j *engine.Job) (all []time.Duration) {
	for _, s := range j.Stages {
		if s.WorkPerTask != nil {
			all = append(all, s.WorkPerTask...)
			continue
		}
		for range s.Tasks {
			all = append(all, s.Work)
		}
	}
	return all
}

// responses simulates one workload on n clusters and returns the response times of all jobs,
// ascending.
func responses(ctx context.Context, seed uint64, n int, d dispatch) ([]time.Duration, error) {
	all, err := trace.Generate("heavy_tailed", clusterWorkload, seed)
	if err != nil {
		return nil, err
	}
	nodes := make([]engine.Node, clusterNodes/n)
	for i := range nodes {
		nodes[i] = engine.Node{NodeSpec: scheduler.NodeSpec{Name: fmt.Sprintf("n%d", i), Capacity: scheduler.Resources{nodeCores * 1000, 32 << 30, 0}}}
	}
	to := d(all.Jobs, n, float64(len(nodes)*nodeCores))
	var out []time.Duration
	for k := range n {
		part := &trace.Workload{Tenants: all.Tenants}
		for i, j := range all.Jobs {
			if to[i] == k {
				part.Jobs = append(part.Jobs, j)
			}
		}
		setup := run.Setup{Nodes: nodes, Scheduler: "3dsf", Models: run.DefaultModels(), CycleInterval: 10 * time.Millisecond,
			Workload: func(uint64, []engine.Node) (*trace.Workload, error) { return part, nil }}
		o, err := setup.Simulate(ctx, seed, func(engine.Progress) {})
		if err != nil {
			return nil, err
		}
		for i := range o.Result.Jobs {
			out = append(out, o.Result.Jobs[i].Response())
		}
	}
	slices.Sort(out)
	return out, nil
}

// printClusters simulates how several clusters, each with its own coordinator, handle the workload
// of one cluster of all machines.
func printClusters(ctx context.Context, quick bool) error {
	fmt.Printf("One workload on %d nodes of %d cores in 1 to 16 clusters, 3dsf, heavy-tailed jobs, load 0.9, %d seeds (simulated; least work and earliest end know all run times in advance)\n", clusterNodes, nodeCores, clusterSeeds)
	sizes := []int{1, 2, 4, 8, 16}
	if quick {
		sizes = sizes[:2]
	}
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "clusters\tin turn: mean s\tp95 s\tp99 s\tleast work: mean s\tp95 s\tp99 s\tearliest end: mean s\tp95 s\tp99 s")
	for _, n := range sizes {
		row := []string{strconv.Itoa(n)}
		for _, d := range []dispatch{inTurn, leastWork, earliestEnd} {
			var sum [3]float64 // mean, p95, p99
			for seed := uint64(1); seed <= clusterSeeds; seed++ {
				r, err := responses(ctx, seed, n, d)
				if err != nil {
					return err
				}
				mean := 0.0
				for _, x := range r {
					mean += x.Seconds() / float64(len(r))
				}
				for i, v := range []float64{mean, r[len(r)*95/100].Seconds(), r[len(r)*99/100].Seconds()} {
					sum[i] += v / clusterSeeds
				}
			}
			for _, v := range sum {
				row = append(row, strconv.FormatFloat(v, 'f', 1, 64))
			}
		}
		fmt.Fprintln(w, strings.Join(row, "\t"))
	}
	return w.Flush()
}
