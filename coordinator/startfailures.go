package coordinator

import (
	"maps"
	"sync"

	"google.golang.org/protobuf/proto"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/coordinator/facts"
)

// startFailures remembers which nodes could not start tasks. Another node may have what one lacks,
// such as a program, an image of its registry or a secret of its folder; what two nodes cannot
// start, probably none can. Only the leader remembers them: the next leader may try once more.
type startFailures struct {
	mu sync.Mutex
	on map[startedStage]int32 // the node that failed first
}

type startedStage struct {
	job   uint64
	stage int32
}

// maxStartFailures is the number of stages above which those of ended jobs are dropped.
const maxStartFailures = 1000

// markElsewhere returns a node's report, with Elsewhere set if the task should be tried on another
// node: it could not be started, this is its first such failure, no other node has failed so in the
// stage, and there is another node to try.
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
