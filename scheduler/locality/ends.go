package locality

import (
	"cmp"
	"math"
	"slices"

	"github.com/drover-run/drover/scheduler"
)

// Ends caches the attempts on each node by predicted end, until the node changes.
type Ends struct {
	state  *scheduler.State
	byNode []nodeEnds
}

// nodeEnds is the ends at a version of the node.
type nodeEnds struct {
	version uint64
	list    []End
}

// End is the predicted end of an attempt, long past if it has no prediction.
type End struct {
	At      scheduler.Time
	Attempt *scheduler.Attempt
}

// On returns the attempts on a node by predicted end, ties in order of placement. O(1), or
// O(a log a) for the a attempts on the node after it changed.
func (e *Ends) On(s *scheduler.State, id scheduler.NodeID) []End {
	if e.state != s {
		e.state = s
		clear(e.byNode)
	}
	if n := len(s.Nodes()) - len(e.byNode); n > 0 {
		e.byNode = append(e.byNode, make([]nodeEnds, n)...)
	}
	k := &e.byNode[id]
	if v := s.Cluster().NodeVersion(id); k.version != v {
		k.version, k.list = v, k.list[:0]
		for a := range s.Attempts().On(id) {
			at, known := PredictedEnd(s, a)
			if !known {
				at = math.MinInt64
			}
			k.list = append(k.list, End{at, a})
		}
		slices.SortFunc(k.list, func(a, b End) int { return cmp.Or(cmp.Compare(a.At, b.At), cmp.Compare(a.Attempt.Seq, b.Attempt.Seq)) })
	}
	return k.list
}

// PredictedEnd returns the predicted end of an attempt: its placement, plus its total run time, less its run
// time before that (3DSF eq. 8). It returns false if neither the attempt nor its stage has a prediction.
func PredictedEnd(s *scheduler.State, a *scheduler.Attempt) (scheduler.Time, bool) {
	estimate := a.Estimate
	if estimate <= 0 {
		estimate = s.StageOf(a).Spec.Estimate
	}
	if estimate <= 0 {
		return 0, false
	}
	return a.Placed.Add(estimate - a.Ran), true
}
