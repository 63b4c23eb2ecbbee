package scheduler_test

import (
	"math/rand/v2"
	"testing"

	"github.com/drover-run/drover/internal/seed"
	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/schedtest"
)

// TestFloorIsRecountedInParts checks, while jobs end and others are submitted between them in the queue, that a
// node that fits some stage is never denied, and that it is found out in the end that none fits any.
func TestFloorIsRecountedInParts(t *testing.T) {
	rng := rand.New(rand.NewPCG(seed.New(t), 1))
	w := schedtest.New(t).AddNodes(3, schedtest.R(4, 4, 100)).AddTenants("a")
	q := w.State.Queue()
	var small, large []scheduler.JobID
	end := func(id scheduler.JobID) {
		if err := w.State.Events().EndJob(id, scheduler.JobSucceeded, w.Now); err != nil {
			t.Fatal(err)
		}
	}
	submit := func(cores float64) scheduler.JobID {
		return w.Submit("a", 1, schedtest.R(cores, 1, 10), func(j *scheduler.JobSpec, _ *scheduler.StageSpec) {
			j.Submitted = scheduler.Time(1 + rng.IntN(1000))
		})
	}
	for range 1500 {
		large = append(large, submit(5))
		small = append(small, submit(1))
	}
	for len(small) > 0 {
		i := rng.IntN(len(small))
		end(small[i])
		small[i] = small[len(small)-1]
		if small = small[:len(small)-1]; rng.IntN(4) == 0 {
			small = append(small, submit(1))
		}
		if got := q.CapacityForAny(); len(small) > 0 && !got {
			t.Fatalf("no capacity for any of %d small jobs", len(small))
		}
	}
	for i := 0; q.CapacityForAny(); i++ { // it is recounted when an eighth is gone
		if i == len(large) {
			t.Fatal("capacity for jobs that fit nowhere")
		}
		one := submit(1)
		for range rng.IntN(20) {
			if !q.CapacityForAny() {
				t.Fatal("no capacity for a small job that was submitted while stages are recounted")
			}
		}
		end(one)
		end(large[i])
	}
}
