package bench

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sync/errgroup"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/api/drover/v1/droverv1connect"
	"github.com/drover-run/drover/jobspec"
)

// pollPause is the time between two looks at the counts.
const pollPause = 2 * time.Millisecond

// Config is one measurement.
type Config struct {
	Nodes   int           // simulated nodes of 32 cores and 128 GiB
	Jobs    int           // jobs of the phase Work
	Tasks   int           // tasks of each
	Alone   int           // jobs of one task of the phase Alone
	Submits int           // jobs of one task of the phase Submit, and of the phase Steady
	Steady  float64       // jobs a second of the phase Steady
	Clients int           // that submit at once
	Pages   int           // open web pages, live from the phase Idle on
	Rate    float64       // jobs a second that all clients together submit in the phase Work; 0 for as many as are answered
	Idle    time.Duration // length of the phase Idle
	Limit   time.Duration // of each phase
}

// Client is a connection to the coordinator, or to the one of several that leads.
type Client struct {
	HTTP    *http.Client
	Base    string
	Options []connect.ClientOption
}

// Dial returns a client with a connection of its own.
type Dial func() (Client, error)

// Meter reads the processes of the coordinators.
type Meter struct {
	CPU func() time.Duration // used so far, by all of them
	RSS func() uint64        // bytes, of the largest
	// KillLeader kills the one that leads, as kill -9 does; nil for one that is alone.
	KillLeader func(context.Context) error
}

// Result is what was measured. Durations are in milliseconds, CPU is that of the coordinators'
// processes alone.
type Result struct {
	Nodes   int `json:"nodes"`
	Jobs    int `json:"jobs"`
	Tasks   int `json:"tasks_per_job"`
	Clients int `json:"clients"`
	Pages   int `json:"pages"`

	Register Phase `json:"register"`
	Open     Phase `json:"open"` // of the pages
	Idle     Phase `json:"idle"`
	Work     Phase `json:"work"`
	Alone    Phase `json:"alone"`
	Submit   Phase `json:"submit"`
	Steady   Phase `json:"steady"`
	Failover Phase `json:"failover"`

	RegistrationsPerS float64 `json:"registrations_per_s"`
	ReportsPerS       float64 `json:"reports_per_s"` // phase Idle
	// NodesAtHalfCore is how many nodes' heartbeats cost half a core, by the phase Idle.
	NodesAtHalfCore float64 `json:"nodes_at_half_core"`
	// PlacementsPerS is tasks by the time from the first submission to the last
	// acknowledged end of the phase Work, PlacementsPerCPUS by the coordinator's CPU time.
	PlacementsPerS    float64 `json:"placements_per_s"`
	PlacementsPerCPUS float64 `json:"placements_per_cpu_s"`
	// ReceiptP50MS and ReceiptP99MS are from the call of SubmitJob to a node's receipt of
	// the job's first attempt, in the phase Alone.
	ReceiptP50MS float64 `json:"receipt_p50_ms"`
	ReceiptP99MS float64 `json:"receipt_p99_ms"`
	// SubmitsPerS, SubmitP50MS and SubmitP99MS are of the phase Submit.
	SubmitsPerS float64 `json:"submits_per_s"`
	SubmitP50MS float64 `json:"submit_p50_ms"`
	SubmitP99MS float64 `json:"submit_p99_ms"`
	// SteadyPerS, SteadyP50MS and SteadyP99MS are of the phase Steady. Its latencies begin when a
	// job is due by the rate, so that one that waits for a client counts as waiting.
	SteadyPerS  float64 `json:"steady_per_s"`
	SteadyP50MS float64 `json:"steady_p50_ms"`
	SteadyP99MS float64 `json:"steady_p99_ms"`
	// FailoverMS is from the end of the leader to a node's receipt of a task submitted after it; 0
	// for a coordinator that is alone.
	FailoverMS float64 `json:"failover_ms"`
	// PageChanges is how often an open page changed in the phase Work, with the data of
	// its pictures.
	PageChanges int64  `json:"page_changes"`
	RSSBytes    uint64 `json:"rss_bytes"`
}

// Phase is what one phase took.
type Phase struct {
	Seconds    float64 `json:"seconds"`
	CPUSeconds float64 `json:"cpu_seconds"` // of the coordinators' processes
}

// Run measures the coordinator behind dial in phases: all nodes register; pages are opened, if
// wanted, and stay open; the nodes report while nothing runs; jobs are submitted and their tasks
// placed and ended; jobs of one task are submitted one after another, each when a node has received
// the one before; jobs of one task are submitted by all clients at once, and then at a rate; and,
// where there are several coordinators, the one that leads is killed. progress is called with the
// name of each phase. It returns an error if a phase exceeds its limit or a node loses its session.
func Run(ctx context.Context, cfg Config, dial Dial, meter Meter, progress func(string)) (Result, error) {
	if cfg.Nodes < 1 || cfg.Jobs < 1 || cfg.Tasks < 1 || cfg.Clients < 1 || cfg.Submits < 1 || !(cfg.Steady > 0) {
		return Result{}, errors.New("nodes, jobs, tasks, clients and submissions must each be at least 1, and the rate of submissions more than 0")
	}
	ctx, cancel := context.WithCancel(ctx)
	r := &run{cfg: cfg, dial: dial, meter: meter, counts: newCounts(),
		result: Result{Nodes: cfg.Nodes, Jobs: cfg.Jobs, Tasks: cfg.Tasks, Clients: cfg.Clients, Pages: cfg.Pages}}
	defer r.nodes.Wait()
	defer cancel()
	type phase struct {
		name string
		into *Phase
		do   func(context.Context) error
	}
	phases := []phase{
		{"register", &r.result.Register, func(phase context.Context) error { return r.register(phase, ctx) }},
		{"open", &r.result.Open, func(phase context.Context) error { return r.openPages(phase, ctx) }},
		{"idle", &r.result.Idle, r.idle},
		{"work", &r.result.Work, r.work},
		{"alone", &r.result.Alone, r.alone},
		{"submit", &r.result.Submit, r.submit},
		{"steady", &r.result.Steady, r.steady},
	}
	if meter.KillLeader != nil {
		phases = append(phases, phase{"failover", &r.result.Failover, r.failover})
	}
	for _, p := range phases {
		progress(p.name)
		if err := r.phase(ctx, p.into, p.do); err != nil {
			return r.result, fmt.Errorf("phase %s: %w", p.name, err)
		}
	}
	r.summarise()
	return r.result, nil
}

// run is a measurement under way.
type run struct {
	cfg    Config
	dial   Dial
	meter  Meter
	counts *counts
	nodes  sync.WaitGroup
	result Result

	reports  int64 // in the phase idle
	receipts []time.Duration
	submits  []time.Duration
	steadies []time.Duration
}

func (r *run) phase(ctx context.Context, into *Phase, do func(context.Context) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, r.cfg.Limit, fmt.Errorf("not done within %s", r.cfg.Limit))
	defer cancel()
	start, cpu := time.Now(), r.meter.CPU()
	err := do(ctx)
	*into = Phase{Seconds: time.Since(start).Seconds(), CPUSeconds: (r.meter.CPU() - cpu).Seconds()}
	if err != nil && ctx.Err() != nil {
		err = errors.Join(context.Cause(ctx), err)
	}
	return errors.Join(err, r.counts.err())
}

// register starts the nodes, which run until sessions ends, and waits until all of them
// are registered.
func (r *run) register(ctx, sessions context.Context) error {
	var registered atomic.Int64
	for i := range r.cfg.Nodes {
		c, err := r.dial()
		if err != nil {
			return err
		}
		n := newNode(i, droverv1connect.NewNodeServiceClient(c.HTTP, c.Base, c.Options...), r.counts, func() { registered.Add(1) })
		r.nodes.Go(func() {
			n.run(sessions)
			c.HTTP.CloseIdleConnections()
		})
	}
	return until(ctx, func() bool { return registered.Load() >= int64(r.cfg.Nodes) })
}

// idle lets the nodes report while nothing runs.
func (r *run) idle(ctx context.Context) error {
	before := r.counts.reports.Load()
	select {
	case <-time.After(r.cfg.Idle):
	case <-ctx.Done():
		return ctx.Err()
	}
	r.reports = r.counts.reports.Load() - before
	return nil
}

// work submits the jobs and waits until the ends of all their tasks are acknowledged.
func (r *run) work(ctx context.Context) error {
	before, pages := r.counts.ended.Load(), r.counts.pages.Load()
	defer func() { r.result.PageChanges = r.counts.pages.Load() - pages }()
	want := before + int64(r.cfg.Jobs)*int64(r.cfg.Tasks)
	if _, _, err := r.submitAll(ctx, "work", r.cfg.Jobs, r.cfg.Tasks, r.cfg.Rate); err != nil {
		return err
	}
	if err := until(ctx, func() bool { return r.counts.ended.Load() >= want }); err != nil {
		return fmt.Errorf("%d of %d tasks have ended: %w", r.counts.ended.Load()-before, want-before, err)
	}
	return nil
}

// alone submits jobs of one task to an idle cluster, each when a node has received the
// task of the one before.
func (r *run) alone(ctx context.Context) error {
	called := map[uint64]time.Time{}
	for i := range r.cfg.Alone {
		one, _, err := r.submitAll(ctx, fmt.Sprintf("alone-%d", i), 1, 1, 0)
		if err != nil {
			return err
		}
		maps.Copy(called, one)
		if err := until(ctx, func() bool { return len(r.counts.receipts(called)) == len(called) }); err != nil {
			return err
		}
	}
	r.receipts = r.counts.receipts(called)
	return nil
}

// submit submits jobs of one task, all clients at once.
func (r *run) submit(ctx context.Context) (err error) {
	_, r.submits, err = r.submitAll(ctx, "submit", r.cfg.Submits, 1, 0)
	return err
}

// steady submits jobs of one task at a rate.
func (r *run) steady(ctx context.Context) (err error) {
	_, r.steadies, err = r.submitAll(ctx, "steady", r.cfg.Submits, 1, r.cfg.Steady)
	return err
}

// failover kills the coordinator that leads and submits a job at once, which its client repeats until
// another one leads.
func (r *run) failover(ctx context.Context) error {
	r.result.RSSBytes = r.meter.RSS()
	c, err := r.dial()
	if err != nil {
		return err
	}
	defer c.HTTP.CloseIdleConnections()
	client := droverv1connect.NewClientServiceClient(c.HTTP, c.Base, c.Options...)
	if _, err := client.Status(ctx, connect.NewRequest(&droverv1.StatusRequest{})); err != nil { // it knows who leads
		return err
	}
	spec, err := jobspec.Encode(benchJob("failover", 1))
	if err != nil {
		return err
	}
	r.counts.mayLose.Store(true)
	if err := r.meter.KillLeader(ctx); err != nil {
		return err
	}
	killed := time.Now()
	res, err := client.SubmitJob(ctx, connect.NewRequest(&droverv1.SubmitJobRequest{Spec: string(spec), IdempotencyKey: "failover"}))
	if err != nil {
		return err
	}
	job := map[uint64]time.Time{res.Msg.GetJob(): killed}
	if err := until(ctx, func() bool { return len(r.counts.receipts(job)) > 0 }); err != nil {
		return err
	}
	r.result.FailoverMS = quantileMS(r.counts.receipts(job), 0)
	return nil
}

// submitAll submits n jobs of so many tasks each by all clients, which share one
// connection, as the users of a gateway do. It returns when each call began, or was due by
// the rate, by the job's number, and how long the calls took from then on, ascending.
func (r *run) submitAll(ctx context.Context, prefix string, n, tasks int, rate float64) (map[uint64]time.Time, []time.Duration, error) {
	c, err := r.dial()
	if err != nil {
		return nil, nil, err
	}
	defer c.HTTP.CloseIdleConnections()
	client := droverv1connect.NewClientServiceClient(c.HTTP, c.Base, c.Options...)
	var mu sync.Mutex
	called, took := make(map[uint64]time.Time, n), make([]time.Duration, 0, n)
	begin := time.Now()
	err = inParallel(ctx, min(r.cfg.Clients, n), n, func(ctx context.Context, i int) error {
		var at time.Time
		if rate > 0 {
			at = begin.Add(time.Duration(float64(i) / rate * float64(time.Second)))
			if err := waitUntil(ctx, at); err != nil {
				return err
			}
		}
		spec, err := jobspec.Encode(benchJob(fmt.Sprintf("%s-%d", prefix, i), tasks))
		if err != nil {
			return err
		}
		if rate == 0 {
			at = time.Now()
		}
		res, err := client.SubmitJob(ctx, connect.NewRequest(&droverv1.SubmitJobRequest{Spec: string(spec)}))
		if err != nil {
			return fmt.Errorf("submit job %d: %w", i, err)
		}
		mu.Lock()
		defer mu.Unlock()
		called[res.Msg.GetJob()] = at
		took = append(took, time.Since(at))
		return nil
	})
	slices.Sort(took)
	return called, took, err
}

func (r *run) summarise() {
	f := &r.result
	f.RegistrationsPerS = float64(f.Nodes) / f.Register.Seconds
	f.ReportsPerS = float64(r.reports) / f.Idle.Seconds
	if f.Idle.CPUSeconds > 0 {
		f.NodesAtHalfCore = float64(f.Nodes) * 0.5 / (f.Idle.CPUSeconds / f.Idle.Seconds)
	}
	placements := float64(f.Jobs) * float64(f.Tasks)
	f.PlacementsPerS = placements / f.Work.Seconds
	if f.Work.CPUSeconds > 0 {
		f.PlacementsPerCPUS = placements / f.Work.CPUSeconds
	}
	f.ReceiptP50MS, f.ReceiptP99MS = quantileMS(r.receipts, 0.5), quantileMS(r.receipts, 0.99)
	f.SubmitsPerS = float64(len(r.submits)) / f.Submit.Seconds
	f.SubmitP50MS, f.SubmitP99MS = quantileMS(r.submits, 0.5), quantileMS(r.submits, 0.99)
	f.SteadyPerS = float64(len(r.steadies)) / f.Steady.Seconds
	f.SteadyP50MS, f.SteadyP99MS = quantileMS(r.steadies, 0.5), quantileMS(r.steadies, 0.99)
	if f.RSSBytes == 0 {
		f.RSSBytes = r.meter.RSS()
	}
}

// quantileMS returns the q-quantile of ascending durations in milliseconds, 0 of none.
func quantileMS(sorted []time.Duration, q float64) float64 {
	if len(sorted) == 0 {
		return 0
	}
	return float64(sorted[min(int(q*float64(len(sorted))), len(sorted)-1)]) / float64(time.Millisecond)
}

// benchJob returns a job of n tasks that any node has room for.
func benchJob(name string, n int) *jobspec.Job {
	j := &jobspec.Job{Name: name, Stages: []jobspec.Stage{{Name: "main", Kind: jobspec.KindGroup, Tasks: n, Command: []string{"true"},
		Resources: jobspec.Resources{CPU: 1000, Memory: 1 << 30, IO: 1 << 20}}}}
	jobspec.SetDefaults(j)
	return j
}

// inParallel calls do for 0 to n-1, by so many workers, until one call fails.
func inParallel(ctx context.Context, workers, n int, do func(context.Context, int) error) error {
	var next atomic.Int64
	g, ctx := errgroup.WithContext(ctx)
	for range workers {
		g.Go(func() error {
			for i := int(next.Add(1) - 1); i < n && ctx.Err() == nil; i = int(next.Add(1) - 1) {
				if err := do(ctx, i); err != nil {
					return err
				}
			}
			return ctx.Err()
		})
	}
	return g.Wait()
}

// until polls ok until it is true or ctx ends.
func until(ctx context.Context, ok func() bool) error {
	for !ok() {
		if err := waitUntil(ctx, time.Now().Add(pollPause)); err != nil {
			return err
		}
	}
	return nil
}

func waitUntil(ctx context.Context, at time.Time) error {
	select {
	case <-time.After(time.Until(at)):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
