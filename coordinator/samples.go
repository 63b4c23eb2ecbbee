package coordinator

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"connectrpc.com/connect"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/coordinator/facts"
)

// Samples cover an hour.
const (
	sampleEvery = 10 * time.Second
	maxSampled  = 360
)

// sampler remembers the load of the scheduler and the tenants' shares while
// this server leads. It is safe for concurrent use.
type sampler struct {
	mu      sync.Mutex
	now     droverv1.Sample // since the last sample; only the scheduler's counters
	busy    time.Duration   // in cycles since the last sample
	samples []*droverv1.Sample
}

// observeCycle counts one cycle of the scheduler.
func (s *sampler) observeCycle(d time.Duration, actions, dropped int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now.Cycles++
	s.now.Actions += int64(actions)
	s.now.Dropped += int64(dropped)
	s.now.MaxCycleUs = max(s.now.MaxCycleUs, d.Microseconds())
	s.busy += d
}

// add ends a sample with the tenants' shares at the time.
func (s *sampler) add(at time.Time, tenants []*droverv1.TenantStatus) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := &droverv1.Sample{AtMs: at.UnixMilli(), Cycles: s.now.Cycles, Actions: s.now.Actions, Dropped: s.now.Dropped, MaxCycleUs: s.now.MaxCycleUs}
	if p.Cycles > 0 {
		p.MeanCycleUs = s.busy.Microseconds() / p.Cycles
	}
	for _, t := range tenants {
		p.Shares = append(p.Shares, t.GetDominantShare())
		p.TasksPending += t.GetTasksPending()
		p.TasksRunning += t.GetTasksRunning()
		p.TasksSuspended += t.GetTasksSuspended()
	}
	s.now.Reset()
	s.busy = 0
	if len(s.samples) == maxSampled {
		s.samples = slices.Delete(s.samples, 0, 1)
	}
	s.samples = append(s.samples, p)
}

// list returns the samples, oldest first. They are immutable.
func (s *sampler) list() []*droverv1.Sample {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.samples)
}

// takeSamples adds a sample every sampleEvery while this server leads, until
// ctx ends.
func (c *core) takeSamples(ctx context.Context) error {
	t := time.NewTicker(sampleEvery)
	defer t.Stop()
	for {
		select {
		case <-t.C:
		case <-ctx.Done():
			return nil
		}
		if c.leads() {
			c.view(func(f *facts.Facts) { c.sampler.add(c.now(), tenantStatus(f)) })
		}
	}
}

// ListSamples returns what was sampled in the last hour.
func (s *clientService) ListSamples(ctx context.Context, _ *connect.Request[droverv1.ListSamplesRequest]) (*connect.Response[droverv1.ListSamplesResponse], error) {
	if err := s.needUser(ctx); err != nil {
		return nil, err
	}
	res := &droverv1.ListSamplesResponse{Samples: s.sampler.list()}
	s.view(func(f *facts.Facts) {
		for _, t := range f.Tenants() {
			res.Tenants = append(res.Tenants, t.Spec.GetName())
		}
	})
	return connect.NewResponse(res), nil
}

// pendingSums sums up why the tasks of the cluster wait, most tasks first.
// O(waiting stages).
func (c *core) pendingSums() []*droverv1.PendingSum {
	sums := map[string]*droverv1.PendingSum{}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, w := range c.waiting {
		reason := w.Reason.String()
		p := sums[reason]
		if p == nil {
			p = &droverv1.PendingSum{Reason: reason}
			sums[reason] = p
		}
		p.Stages++
		p.Tasks += int64(w.Tasks)
	}
	out := make([]*droverv1.PendingSum, 0, len(sums))
	for _, p := range sums {
		out = append(out, p)
	}
	slices.SortFunc(out, func(a, b *droverv1.PendingSum) int {
		return cmp.Or(cmp.Compare(b.GetTasks(), a.GetTasks()), cmp.Compare(a.GetReason(), b.GetReason()))
	})
	return out
}

// fairShares sets the share of the cluster that each tenant's weight gives it
// among its siblings, and its parents' among theirs. O(tenants).
func fairShares(list []*droverv1.TenantStatus) {
	sum := map[string]float64{}
	byName := map[string]*droverv1.Tenant{}
	for _, t := range list {
		byName[t.GetTenant().GetName()] = t.GetTenant()
		sum[t.GetTenant().GetParent()] += t.GetTenant().GetWeight()
	}
	for _, t := range list {
		share := 1.0
		at := t.GetTenant()
		for range list { // a chain of parents is no longer than the list
			if at == nil || sum[at.GetParent()] == 0 {
				break
			}
			share *= at.GetWeight() / sum[at.GetParent()]
			at = byName[at.GetParent()]
		}
		t.FairShare = share
	}
}
