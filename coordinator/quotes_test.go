package coordinator

import (
	"testing"
	"time"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/deadline/forecast"
	"github.com/drover-run/drover/scheduler/obstacle"
)

// What cannot be computed anew stays as it was.
func TestExpectedIsKeptWhereThereIsNoNewOne(t *testing.T) {
	q, due := newQuoter(), time.Unix(1000, 0)
	ends := func(at scheduler.Time) *forecast.Expected {
		return &forecast.Expected{Ends: map[scheduler.JobID]scheduler.Time{1: at}}
	}
	found := func(n scheduler.NodeID) map[scheduler.StageID]obstacle.Set {
		return map[scheduler.StageID]obstacle.Set{{Job: 1}: {Node: n}}
	}
	for i, c := range []struct {
		expected  *forecast.Expected
		obstacles map[scheduler.StageID]obstacle.Set
		wantEnd   scheduler.Time
		wantNode  scheduler.NodeID
	}{
		{ends(5), found(2), 5, 2},
		{nil, found(3), 5, 3}, // too many tasks wait
		{nil, nil, 5, 3},      // there is no State
		{ends(6), found(4), 6, 4},
	} {
		got := q.setExpected(c.expected, c.obstacles, due)
		if end, node := got.Ends[1], q.lastObstacles()[scheduler.StageID{Job: 1}].Node; end != c.wantEnd || q.expected.Ends[1] != end || node != c.wantNode || q.expectedDue != due {
			t.Errorf("result %d: end %d, obstacles on node %d, want %d and %d", i, end, node, c.wantEnd, c.wantNode)
		}
	}
}
