package coordinator

import (
	"context"
	"fmt"
	"strings"
	"time"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/coordinator/facts"
)

// Limits of quarantines.
const (
	quarantinePause = 5 * time.Second // between two checks of a node that still reports a problem after its quarantine
	maxNamedNodes   = 4               // named in a waiting reason
)

// quarantines holds when the quarantine of each quarantined node ends, Unix ns.
type quarantines map[int32]int64

// track follows a change of a node.
func (q quarantines) track(n *facts.Node) {
	if n.Up && n.IsQuarantined() {
		q[n.ID] = n.RetryAt
	} else {
		delete(q, n.ID)
	}
}

// startProbations proposes the probation of nodes whose quarantine has ended and that report no
// problem. It returns when the next quarantine ends, zero for none.
func (q quarantines) startProbations(ctx context.Context, c *core) (next time.Time, err error) {
	now := c.now()
	for id, retryAt := range q {
		at := time.Unix(0, retryAt)
		if !at.After(now) {
			if _, load := c.sessions.status(id); load == nil || len(load.GetProblems()) > 0 {
				at = now.Add(quarantinePause)
			} else {
				e := &droverv1.Entry{Actor: actorSelf, Body: &droverv1.Entry_NodeDrain{NodeDrain: &droverv1.NodeDrainFact{Node: id, Automatic: true}}}
				if _, err := c.replica.Propose(ctx, e); err != nil {
					return next, err
				}
				at = now.Add(quarantinePause) // the change removes it
			}
		}
		next = earlier(next, at)
	}
	return next, nil
}

// unschedulableNodes lists the nodes that are not schedulable, with reasons and cures; "" if all
// are schedulable. O(nodes).
func unschedulableNodes(f *facts.Facts, now time.Time) string {
	var texts []string
	more := 0
	for _, n := range f.Nodes() {
		switch why := unschedulableReason(n, now); {
		case why == "":
		case len(texts) == maxNamedNodes:
			more++
		default:
			texts = append(texts, n.Info.GetName()+" "+why)
		}
	}
	if more > 0 {
		texts = append(texts, fmt.Sprintf("%d more (drover node list)", more))
	}
	return strings.Join(texts, "; ")
}

// unschedulableReason returns why a node is not schedulable and what helps, "" if it is. It
// contains no message of a task: users whose jobs wait for the node may not be allowed to read what
// failed there.
func unschedulableReason(n *facts.Node, now time.Time) string {
	why := ""
	if n.Reason != "" {
		why = " (" + facts.WithoutMessage(n.Reason) + ")"
	}
	switch {
	case n.Schedulable():
		return ""
	case !n.Up:
		return "is down" + why + ": see its daemon's log"
	case n.Probation:
		return "is on probation with one task" + why
	case n.IsDrained():
		return "takes no new work" + why + ": drover node drain -off " + n.Info.GetName()
	}
	retryAt := time.Unix(0, n.RetryAt)
	if !retryAt.After(now) {
		return "is quarantined" + why + ": its probation starts when the problem is gone"
	}
	return fmt.Sprintf("is quarantined%s until %s; to end it now: drover node drain -off %s", why, retryAt.UTC().Format("15:04:05 MST"), n.Info.GetName())
}
