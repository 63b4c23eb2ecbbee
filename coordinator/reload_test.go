package coordinator

import (
	"testing"
	"time"

	"connectrpc.com/connect"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
)

// The configured scheduler can change while the coordinator runs, until an
// operator chose one; a wrong choice changes nothing.
func TestSchedulerReload(t *testing.T) {
	changes := make(chan SchedulerChoice)
	b := newTestCluster(t, func(c *Config) { c.Scheduler, c.SchedulerChanges = "fifo", changes })
	change := func(name string, params map[string]string) {
		t.Helper()
		select {
		case changes <- SchedulerChoice{name, params}:
		case <-time.After(20 * time.Second):
			t.Fatal("nobody takes the change")
		}
	}
	var last string
	inForce := func(want string) {
		t.Helper()
		for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
			if res, err := b.client.GetScheduler(b.ctx, connect.NewRequest(&droverv1.GetSchedulerRequest{})); err == nil {
				if last = res.Msg.GetName(); last == want {
					return
				}
			}
		}
		t.Fatalf("scheduler %s is in force, want %s", last, want)
	}
	inForce("fifo")
	change("nonsense", nil)
	change("fair", nil)
	inForce("fair")
	if _, err := b.client.SetScheduler(b.ctx, connect.NewRequest(&droverv1.SetSchedulerRequest{Name: "drf"})); err != nil {
		t.Fatal(err)
	}
	change("las", nil)
	change("las", nil) // taken once the first was followed
	inForce("drf")
}
