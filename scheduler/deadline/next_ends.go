package deadline

import (
	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/locality"
)

// nextEnds caches which attempt on each node is predicted to end next. With many nodes most of
// them are as they were when a task last asked whether it can wait, and to look at all attempts
// again takes several accesses to memory for each.
type nextEnds struct {
	state  *scheduler.State
	now    scheduler.Time
	byNode []nextEnd
}

// nextEnd is the attempt on a node that ends next and has not ended at the time it was looked up.
type nextEnd struct {
	known   bool
	version uint64 // Cluster.NodeVersion then
	at      scheduler.Time
	frees   *scheduler.Attempt // nil: none has a predicted end in the future
}

// begin sets the State and the time of the next calls of on.
func (x *nextEnds) begin(s *scheduler.State, now scheduler.Time) {
	if x.state != s || now < x.now {
		clear(x.byNode)
	}
	x.state, x.now = s, now
	for len(x.byNode) < len(s.Nodes()) {
		x.byNode = append(x.byNode, nextEnd{})
	}
}

// on returns the attempt on a node that ends next. O(1), or O(attempts on the node) after it changed
// or that attempt should have ended.
func (x *nextEnds) on(id scheduler.NodeID) *nextEnd {
	e := &x.byNode[id]
	if version := x.state.Cluster().NodeVersion(id); !e.known || e.version != version || e.at <= x.now {
		*e = nextEnd{known: true, version: version, at: scheduler.Never}
		for a := range x.state.Attempts().On(id) {
			if at, known := locality.PredictedEnd(x.state, a); known && a.Phase <= scheduler.AttemptRunning && at > x.now && at < e.at {
				e.at, e.frees = at, a
			}
		}
	}
	return e
}
