package coordinator

import (
	"maps"
	"sync"

	"google.golang.org/protobuf/proto"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/coordinator/facts"
)

// startFailures are the nodes that could not start tasks. What a node lacks, such as a program, an image of its
// registry or a secret of its folder, another one may have; what two nodes cannot start, none can. They are remembered
// by the leader alone: the next one may try once more.
type startFailures struct {
	mu sync.Mutex
	on map[startedStage]int32 // the node that failed first
}

type startedStage struct {
	job   uint64
	stage int32
}

// maxStartFailures is the number of stages from which on those of jobs that have ended are forgotten.
const maxStartFailures = 1000

// markElsewhere returns a report of a node, with Elsewhere set if it says that a task could not be started there, and this is the
// task's first such failure, no other node has failed so in the stage, and there is another node to try.
func (s *startFailures) markElsewhere(f *facts.Facts, n *facts.Node, seen *droverv1.SeenAttempt) *droverv1.SeenAttempt {
	k := facts.KeyOf(seen.GetKey())
	if seen.GetPhase() != droverv1.Phase_PHASE_FAILED || seen.GetCause() != droverv1.Cause_CAUSE_SPEC || failedToStart(f, k) || !hasOther(f, n) {
		return seen
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	stage := startedStage{k.Job, k.Stage}
	if first, known := s.on[stage]; known && first != n.ID {
		return seen
	}
	if len(s.on) >= maxStartFailures {
		maps.DeleteFunc(s.on, func(x startedStage, _ int32) bool { j := f.Job(x.job); return j == nil || j.HasEnded() })
	}
	s.on[stage] = n.ID
	elsewhere := proto.CloneOf(seen) // the report itself is the node's
	elsewhere.Elsewhere = true
	return elsewhere
}

// failedToStart reports whether an attempt of a task could not be started.
func failedToStart(f *facts.Facts, k facts.Key) bool {
	for _, a := range f.Job(k.Job).Stages[k.Stage].Task(k.Task).Attempts {
		if a.State == facts.AttemptFailed && a.Cause() == droverv1.Cause_CAUSE_SPEC {
			return true
		}
	}
	return false
}

// hasOther reports whether there is another node that takes tasks.
func hasOther(f *facts.Facts, n *facts.Node) bool {
	for _, other := range f.Nodes() {
		if other.ID != n.ID && other.Schedulable() {
			return true
		}
	}
	return false
}
