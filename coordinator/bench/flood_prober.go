package bench

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"time"

	"connectrpc.com/connect"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/api/drover/v1/droverv1connect"
	"github.com/drover-run/drover/internal/pki"
	"github.com/drover-run/drover/jobspec"
)

// proberName is the user whose work is measured.
const proberName = "other"

// prober does a user's work, one call after another.
type prober struct {
	r      *floodRun
	http   *http.Client
	client droverv1connect.ClientServiceClient
	rounds int
}

func newProber(r *floodRun) (*prober, error) {
	h, err := r.client(pki.KindUser, proberName)
	if err != nil {
		return nil, err
	}
	return &prober{r: r, http: h, client: droverv1connect.NewClientServiceClient(h, r.base)}, nil
}

func (p *prober) close() { p.http.CloseIdleConnections() }

// measure works for so many rounds and returns the medians. Any error is one: the
// floods are another identity's, and this one stays below its own limits.
func (p *prober) measure(ctx context.Context, rounds int) (Latencies, error) {
	steps := []struct {
		name string
		do   func(context.Context) error
		took []time.Duration
	}{{name: "a placement", do: p.place}, {name: "a read", do: p.read}, {name: "a new connection", do: p.connect}, {name: "a quote", do: p.plan}}
	for range rounds {
		p.rounds++
		for i := range steps {
			start := time.Now()
			if err := steps[i].do(ctx); err != nil {
				return Latencies{}, fmt.Errorf("%s: %w", steps[i].name, err)
			}
			steps[i].took = append(steps[i].took, time.Since(start))
		}
	}
	for i := range steps {
		slices.Sort(steps[i].took)
	}
	rate, err := p.placeBatches(ctx)
	if err != nil {
		return Latencies{}, fmt.Errorf("many placements: %w", err)
	}
	return Latencies{PlacedPerSecond: rate, PlaceMS: quantileMS(steps[0].took, 0.5), ReadMS: quantileMS(steps[1].took, 0.5), ConnectMS: quantileMS(steps[2].took, 0.5), PlanMS: quantileMS(steps[3].took, 0.5)}, nil
}

func (p *prober) jobName() string { return fmt.Sprintf("work-%d", p.rounds) }

func (p *prober) place(ctx context.Context) error {
	id, err := submitFlood(ctx, p.client, otherTenant, p.jobName(), 1, "true")
	if err != nil {
		return err
	}
	return until(ctx, func() bool { return p.r.counts.hasReceived(id) })
}

// batchTasks is how many tasks a job has that is placed as fast as the coordinator can.
const batchTasks = 2000

// placeBatches returns how many tasks of the user the coordinator places in a second: the median
// of some jobs, each from its submission to the receipt of its last task by a node.
func (p *prober) placeBatches(ctx context.Context) (perSecond float64, err error) {
	var rates []float64
	for range p.r.cfg.Batches {
		p.rounds++
		start := time.Now()
		id, err := submitFlood(ctx, p.client, otherTenant, p.jobName(), batchTasks, "true")
		if err != nil {
			return 0, err
		}
		if err := until(ctx, func() bool { return p.r.counts.attemptsOf(id) >= batchTasks }); err != nil {
			return 0, fmt.Errorf("%d of %d tasks are placed: %w", p.r.counts.attemptsOf(id), batchTasks, err)
		}
		rates = append(rates, batchTasks/time.Since(start).Seconds())
	}
	if len(rates) == 0 {
		return 0, nil
	}
	slices.Sort(rates)
	return rates[len(rates)/2], nil
}

func (p *prober) read(ctx context.Context) error {
	_, err := p.client.ListJobs(ctx, connect.NewRequest(&droverv1.ListJobsRequest{All: true, NamePrefix: p.jobName()}))
	return err
}

func (p *prober) connect(ctx context.Context) error {
	h, err := p.r.client(pki.KindUser, proberName)
	if err != nil {
		return err
	}
	defer h.CloseIdleConnections()
	_, err = droverv1connect.NewClientServiceClient(h, p.r.base).Status(ctx, connect.NewRequest(&droverv1.StatusRequest{}))
	return err
}

func (p *prober) plan(ctx context.Context) error {
	_, err := p.client.PlanJob(ctx, connect.NewRequest(&droverv1.PlanJobRequest{Spec: floodJob(otherTenant, p.jobName()+"-plan", 1, "true", true)}))
	return err
}

// floodJob returns the description of a job, with a deadline in an hour if one is
// wanted.
func floodJob(tenant, name string, tasks int, command string, deadline bool) string {
	j := benchJob(name, tasks)
	j.Tenant, j.Stages[0].Command = tenant, []string{command}
	if deadline {
		at := time.Now().Add(time.Hour)
		j.Deadline = &at
	}
	jobspec.SetDefaults(j)
	text, err := jobspec.Encode(j)
	if err != nil {
		panic(err) // the job is ours
	}
	return string(text)
}
