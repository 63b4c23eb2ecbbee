package coordinator

import (
	"context"
	"time"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/coordinator/facts"
	"github.com/drover-run/drover/internal/sleep"
)

// samplePast stores samples of the cluster and its tenants each minute, and keeps the
// history within its limits, until ctx ends. Every server does.
func (c *core) samplePast(ctx context.Context) error {
	var last schedulerTotals
	for tick := 0; sleep.For(ctx, c.cfg.SampleEvery); tick++ {
		now := c.now()
		samples, counts := c.samples(last, c.cfg.SampleEvery)
		last = counts
		if err := c.past.AddSamples(now.UnixMilli(), samples); err != nil {
			c.log.Error("samples cannot be stored", "err", err)
		}
		if tick%60 != 0 && !c.past.OverLimit() { // age needs no haste; size does: a busy hour brings hundreds of MiB
			continue
		}
		if n, err := c.past.Prune(now); err != nil {
			c.log.Error("the history cannot be kept within its limits", "err", err)
		} else if n > 0 {
			c.log.Info("removed old jobs from the history", "jobs", n)
		}
	}
	return nil
}

// samples returns samples by tenant; "" is the cluster. Tenants without live jobs
// are left out.
func (c *core) samples(last schedulerTotals, period time.Duration) (map[string]*droverv1.PastSample, schedulerTotals) {
	out := map[string]*droverv1.PastSample{}
	all := &droverv1.PastSample{Used: &droverv1.Resources{}, Capacity: &droverv1.Resources{}}
	out[""] = all
	c.view(func(f *facts.Facts) {
		for _, n := range f.Nodes() {
			if n.Up {
				all.NodesUp++
				addResources(all.Capacity, n.Info.GetAllocatable())
				addResources(all.Used, n.Used.Proto())
			}
		}
		for _, t := range tenantStatus(f) {
			if t.GetJobs() > 0 || t.GetDominantShare() > 0 {
				out[t.GetTenant().GetName()] = &droverv1.PastSample{Share: t.GetDominantShare(), FairShare: t.GetFairShare(), Used: t.GetUsed(), JobsLive: float64(t.GetJobs())}
			}
		}
		for _, id := range f.JobIDs() {
			if j := f.Job(id); !j.HasEnded() {
				addLive(all, j)
				addLive(out[j.Spec.Tenant], j)
				all.JobsLive++
			}
		}
	})
	all.Share = resources(facts.AmountsOf(all.Used)).DominantShare(resources(facts.AmountsOf(all.Capacity)))
	if all.NodesUp == 0 {
		all.Share = 0
	}
	counts := c.metrics.totals.read()
	if n := counts.cycles - last.cycles; n > 0 {
		all.CycleMs = float64(counts.nanos-last.nanos) / 1e6 / float64(n)
	}
	all.LongestCycleMs = float64(c.metrics.totals.takeLongest().Nanoseconds()) / 1e6
	all.DecisionsPerSecond = float64(counts.actions-last.actions) / period.Seconds()
	all.DroppedPerSecond = float64(counts.dropped-last.dropped) / period.Seconds()
	return out, counts
}

func addResources(to, r *droverv1.Resources) {
	to.Cpu, to.Memory, to.Io = to.Cpu+r.GetCpu(), to.Memory+r.GetMemory(), to.Io+r.GetIo()
}

func addLive(m *droverv1.PastSample, j *facts.Job) {
	if m == nil {
		return
	}
	for i := range j.Stages {
		s := &j.Stages[i]
		m.TasksRunning += float64(s.Live - s.Suspended)
		m.TasksSuspended += float64(s.Suspended)
		m.TasksWaiting += float64(s.Pending)
	}
}
