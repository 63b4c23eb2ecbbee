package replica

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
)

// BenchmarkGroupCommit proposes jobs, with fsync, from 128 goroutines: first one
// at a time, as if each had an fsync of its own, and then as they come, so that
// those that wait share one. ratio is how many times more the second way commits
// in a second.
func BenchmarkGroupCommit(b *testing.B) {
	var number atomic.Int64
	commit := func(name string, propose func(*Replica, *droverv1.Entry) error) (perS float64) {
		r, err := Open(Config{Dir: b.TempDir(), ID: "a"})
		if err != nil {
			b.Fatal(err)
		}
		for lead := false; !lead; {
			lead = <-r.Leadership()
		}
		defer func() {
			if err := r.Close(); err != nil {
				b.Error(err)
			}
		}()
		var mu sync.Mutex
		var took []time.Duration
		var left atomic.Int64
		left.Store(int64(b.N))
		start := time.Now()
		var wg sync.WaitGroup
		for range 128 {
			wg.Go(func() {
				for left.Add(-1) >= 0 {
					e := accepted(number.Add(1))
					began := time.Now()
					if err := propose(r, e); err != nil {
						b.Error(err)
						return
					}
					mu.Lock()
					took = append(took, time.Since(began))
					mu.Unlock()
				}
			})
		}
		wg.Wait()
		slices.Sort(took)
		perS = float64(len(took)) / time.Since(start).Seconds()
		b.ReportMetric(perS, name+"-jobs/s")
		b.ReportMetric(float64(took[len(took)*99/100].Milliseconds()), name+"-p99-ms")
		return perS
	}
	var one sync.Mutex
	alone := commit("alone", func(r *Replica, e *droverv1.Entry) error {
		one.Lock()
		defer one.Unlock()
		_, err := r.Propose(context.Background(), e)
		return err
	})
	grouped := commit("grouped", func(r *Replica, e *droverv1.Entry) error {
		_, err := r.Propose(context.Background(), e)
		return err
	})
	b.ReportMetric(grouped/alone, "ratio")
}

func accepted(n int64) *droverv1.Entry {
	spec := fmt.Sprintf(`{"version":1,"name":"j%d","tenant":"default","priority":"low","stages":[{"name":"main","kind":"group","tasks":1,"command":["true"],"resources":{"cpu":500,"memory":67108864,"io":1048576},"attempts":4}]}`, n)
	return &droverv1.Entry{Body: &droverv1.Entry_JobAccepted{JobAccepted: &droverv1.JobAcceptedFact{Spec: spec}}}
}
