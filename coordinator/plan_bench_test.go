package coordinator

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"connectrpc.com/connect"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/coordinator/coordtest"
	"github.com/drover-run/drover/jobspec"
)

// BenchmarkPlanQueued plans a job under 3dsf while 15,000 jobs are queued. Target: 0.5 s.
func BenchmarkPlanQueued(b *testing.B) {
	const queued = 15_000
	cluster := newTestCluster(b, func(c *Config) { c.SubmitRate, c.Scheduler = 1e6, "3dsf" })
	cluster.addNode(coordtest.Info("n1"), coordtest.Hang)
	cluster.waitForNodes()
	var next atomic.Int64
	var wg sync.WaitGroup
	for range 64 {
		wg.Go(func() {
			for n := next.Add(1); n <= queued; n = next.Add(1) {
				if _, err := cluster.trySubmit(groupJob(fmt.Sprintf("j%d", n), 1), ""); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	j := groupJob("planned", 1)
	jobspec.SetDefaults(j)
	text, err := jobspec.Encode(j)
	if err != nil {
		b.Fatal(err)
	}
	b.ResetTimer()
	for range b.N {
		if _, err := cluster.client.PlanJob(cluster.ctx, connect.NewRequest(&droverv1.PlanJobRequest{Spec: string(text)})); err != nil {
			b.Fatal(err)
		}
	}
}
