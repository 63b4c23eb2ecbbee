package coordinator

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
)

// BenchmarkRestart measures how long a coordinator that was killed with 100,000 jobs takes until it
// answers: 19,900 wait, about as many as a tenant may have, and all others were stopped.
func BenchmarkRestart(b *testing.B) {
	const jobs, waiting = 100_000, 19_900
	cluster := newTestCluster(b, func(c *Config) { c.SubmitRate = 1e6 })
	var next atomic.Int64
	var wg sync.WaitGroup
	for range 64 {
		wg.Go(func() {
			for n := next.Add(1); n <= jobs && !b.Failed(); n = next.Add(1) {
				id, err := cluster.trySubmit(groupJob(fmt.Sprintf("j%d", n), 1), "")
				if err == nil && n > waiting {
					_, err = cluster.client.StopJob(b.Context(), connect.NewRequest(&droverv1.StopJobRequest{Job: fmt.Sprint(id)}))
				}
				if err != nil {
					b.Error(err)
				}
			}
		})
	}
	wg.Wait()
	var took time.Duration
	n := 0
	for b.Loop() {
		cluster.kill()
		began := time.Now()
		cluster.start()
		for {
			res, err := cluster.client.ListJobs(b.Context(), connect.NewRequest(&droverv1.ListJobsRequest{Limit: 1}))
			if err == nil && len(res.Msg.GetJobs()) > 0 {
				break
			}
			if time.Since(began) > time.Minute {
				b.Fatalf("it does not answer: %v", err)
			}
		}
		took += time.Since(began)
		n++
	}
	b.ReportMetric(took.Seconds()/float64(n), "s-ready")
}
