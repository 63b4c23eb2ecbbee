package coordinator

import (
	"context"
	"fmt"
	"testing"

	"connectrpc.com/connect"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/coordinator/coordtest"
)

// TestFollowedEventsGoOn follows events that are more than the limit: the limit
// counts past ones alone, the newest of them, and what happens later comes too.
func TestFollowedEventsGoOn(t *testing.T) {
	b := newTestCluster(t, nil)
	b.addNode(coordtest.Info("n1"), coordtest.Succeed)
	b.waitForNodes()
	for i := range 12 {
		name := fmt.Sprint("old", i)
		b.submit(groupJob(name, 1))
		b.waitForEnd(name, succeeded)
	}
	for limit, wantPast := range map[int32]int{0: 12, 3: -1, -1: 0} {
		ctx, cancel := context.WithTimeout(b.ctx, waitLimit)
		got := make(chan *droverv1.Event, 10_000)
		done := make(chan error, 1)
		go func() {
			st, err := b.client.Events(ctx, connect.NewRequest(&droverv1.EventsRequest{Follow: true, Limit: limit}))
			for err == nil && st.Receive() {
				got <- st.Msg()
			}
			done <- err
		}()
		b.waitUntil("it follows", func() bool { return b.metric(inUse("streams")) == 1 })
		past, accepted := 0, 0
		for past < int(limit) { // the past events, which the stream chooses before any that follow
			select {
			case <-got:
				past++
			case <-ctx.Done():
				t.Fatalf("limit %d: %d past events", limit, past)
			}
		}
		name := fmt.Sprint("new", limit+10)
		b.submit(groupJob(name, 1))
		for e := range got {
			if e.Job != name {
				past++
			}
			if e.Kind == "job.accepted" && e.Job != name {
				accepted++
			}
			if e.Job == name && e.Kind == "job.succeeded" {
				break
			}
			if len(got) == 0 && ctx.Err() != nil {
				break
			}
		}
		switch {
		case limit == 3 && past != 3, limit == -1 && past != 0, limit == 0 && accepted < wantPast:
			t.Errorf("limit %d: %d past events, %d of them accepted jobs", limit, past, accepted)
		}
		b.waitForEnd(name, succeeded)
		cancel()
		<-done
		b.waitUntil("it left", func() bool { return b.metric(inUse("streams")) == 0 })
	}
}
