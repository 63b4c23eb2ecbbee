package coordinator

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// BenchmarkSubmissions measures durable submissions, with fsync, by 128 clients
// at once on one connection: submissions per second, and the 99th percentile of
// one. Targets: 1,000/s, and 200 ms.
func BenchmarkSubmissions(b *testing.B) {
	const clients = 128
	cluster := newTestCluster(b, func(c *Config) { c.NoSync, c.SubmitRate = false, 1e6 })
	var next atomic.Int64
	var mu sync.Mutex
	var took []time.Duration
	b.ResetTimer()
	var wg sync.WaitGroup
	for range clients {
		wg.Go(func() {
			for {
				n := next.Add(1)
				if n > int64(b.N) {
					return
				}
				start := time.Now()
				if _, err := cluster.trySubmit(groupJob(fmt.Sprintf("j%d", n), 1), ""); err != nil {
					b.Error(err)
					return
				}
				mu.Lock()
				took = append(took, time.Since(start))
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	slices.Sort(took)
	b.ReportMetric(float64(len(took))/b.Elapsed().Seconds(), "jobs/s")
	b.ReportMetric(float64(took[len(took)*99/100].Milliseconds()), "p99-ms")
}
