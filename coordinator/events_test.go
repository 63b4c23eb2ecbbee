package coordinator

import (
	"context"
	"fmt"
	"testing"

	"connectrpc.com/connect"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/api/wire"
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
		st, err := b.client.Events(ctx, connect.NewRequest(&droverv1.EventsRequest{Follow: true, Limit: limit}))
		if err != nil {
			t.Fatal(err)
		}
		if st.ResponseHeader().Get(wire.Position) == "" { // it comes once the past events are chosen
			t.Fatalf("limit %d: the stream does not begin", limit)
		}
		name := fmt.Sprint("new", limit+10)
		b.submit(groupJob(name, 1))
		past, accepted, ended := 0, 0, false
		for !ended && st.Receive() {
			e := st.Msg()
			if e.Job != name {
				past++
			}
			if e.Kind == "job.accepted" && e.Job != name {
				accepted++
			}
			ended = e.Job == name && e.Kind == "job.succeeded"
		}
		if !ended {
			t.Errorf("limit %d: the end of %s is not in the stream: %v", limit, name, st.Err())
		}
		switch {
		case limit == 3 && past != 3, limit == -1 && past != 0, limit == 0 && accepted < wantPast:
			t.Errorf("limit %d: %d past events, %d of them accepted jobs", limit, past, accepted)
		}
		b.waitForEnd(name, succeeded)
		cancel()
		_ = st.Close() // it was left
		b.waitUntil("it left", func() bool { return b.metric(inUse("streams")) == 0 })
	}
}
