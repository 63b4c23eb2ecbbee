package node

import (
	"context"
	"testing"

	"github.com/drover-run/drover/runtime/fake"
)

// The logger of a task gets the task's own limit of disk I/O.
func TestLogsHaveTheTasksOwnRate(t *testing.T) {
	rate := make(chan int64, 1)
	p := programs()
	p["rate"] = func(_ context.Context, p *fake.Process) int { rate <- p.Spec.Log.BytesPerS; return 0 }
	b := newTestNode(t, p)
	b.start()
	w := groupTask(0, "rate")
	b.put(w)
	b.await(t, w, succeeded)
	if got, want := <-rate, w.GetSpec().GetDemand().GetIo(); got != want {
		t.Errorf("its logs may be written at %d bytes/s, its io is %d", got, want)
	}
}
