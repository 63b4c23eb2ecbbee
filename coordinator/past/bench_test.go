package past

import (
	"fmt"
	"os"
	"testing"
	"time"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
)

// BenchmarkHistory writes attempts of jobs of 100 tasks, 100,000 in the short form
// and 1,000,000 with DROVER_SOAK, and reports the bytes of an attempt and the time of
// the lists that people ask for.
func BenchmarkHistory(b *testing.B) {
	attempts := 100_000
	if os.Getenv("DROVER_SOAK") != "" {
		attempts = 1_000_000
	}
	for range b.N {
		s := openStore(b, b.TempDir(), Options{})
		const tasks = 100
		start := time.Now()
		for id := uint64(1); int(id) <= attempts/tasks; {
			batch := Batch{Index: id}
			for range 50 {
				tenant, user, end := fmt.Sprint("tenant", id%20), fmt.Sprint("user/u", id%50), day0+int64(id)*1000
				batch.Jobs = append(batch.Jobs, job(id, tenant, user, fmt.Sprint("job", id%500), end))
				for k := range int32(tasks) {
					batch.Attempts = append(batch.Attempts, attempt(id, id, k, 1, tenant, user, fmt.Sprint("job", id%500), end))
				}
				id++
			}
			if err := s.Write(batch); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64(attempts)/time.Since(start).Seconds(), "attempts/s")
		used, _, err := s.Size()
		if err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(float64(used)/float64(attempts), "B/attempt")
		for name, q := range map[string]JobQuery{
			"tenant-ms": {Tenant: "tenant7", Limit: 100, Visible: everybody},
			"state-ms":  {States: []droverv1.JobState{droverv1.JobState_JOB_STATE_SUCCEEDED}, Limit: 100, Visible: everybody},
		} {
			start := time.Now()
			jobs, _, err := s.Jobs(q)
			if err != nil || len(jobs) != 100 {
				b.Fatal(len(jobs), err)
			}
			b.ReportMetric(float64(time.Since(start).Microseconds())/1000, name)
		}
	}
}
