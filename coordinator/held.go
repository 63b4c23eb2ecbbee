package coordinator

import (
	"context"
	"fmt"
	"strings"
	"time"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/coordinator/facts"
)

// Limits of nodes that are held off.
const (
	problemPause = 5 * time.Second // between two looks at a node whose time is over and whose problem is not
	maxIdleNodes = 4               // nodes named in a waiting reason
)

// noteHeld keeps until when a node is held off.
func (l *leader) noteHeld(n *facts.Node) {
	if n.Up && n.Draining && n.Back > 0 {
		l.held[n.ID] = n.Back
	} else {
		delete(l.held, n.ID)
	}
}

// tryHeld proposes to try the nodes whose time is over and that report no
// problem. It gives when the next one is due, zero for none.
func (l *leader) tryHeld(ctx context.Context) (next time.Time, err error) {
	now := l.c.now()
	for id, back := range l.held {
		at := time.Unix(0, back)
		if !at.After(now) {
			if _, load := l.c.sessions.status(id); load == nil || len(load.GetProblems()) > 0 {
				at = now.Add(problemPause)
			} else {
				e := &droverv1.Entry{Actor: actorSelf, Body: &droverv1.Entry_NodeDrain{NodeDrain: &droverv1.NodeDrainFact{Node: id, ByItself: true}}}
				if _, err := l.c.replica.Propose(ctx, e); err != nil {
					return next, err
				}
				at = now.Add(problemPause) // the change takes it off the list
			}
		}
		if next.IsZero() || at.Before(next) {
			next = at
		}
	}
	return next, nil
}

// idleNodes names the nodes that take no new work, why, and what helps; "" when
// all do. O(nodes).
func (c *core) idleNodes(f *facts.Facts) string {
	var said []string
	more := 0
	for _, n := range f.Nodes() {
		switch why := c.idle(n); {
		case why == "":
		case len(said) == maxIdleNodes:
			more++
		default:
			said = append(said, n.Info.GetName()+" "+why)
		}
	}
	if more > 0 {
		said = append(said, fmt.Sprintf("%d more (drover node list)", more))
	}
	return strings.Join(said, "; ")
}

// idle says why a node takes no new work and what helps, or "".
func (c *core) idle(n *facts.Node) string {
	why := ""
	if n.Why != "" {
		why = " (" + n.Why + ")"
	}
	switch {
	case n.Takes():
		return ""
	case !n.Up:
		return "is down" + why + ": see its daemon's log"
	case n.Trial:
		return "is tried with one task" + why
	case n.Back == 0:
		return "takes no new work" + why + ": drover node drain -off " + n.Info.GetName()
	}
	back := time.Unix(0, n.Back)
	if !back.After(c.now()) {
		return "is held off" + why + ": it is tried again when its problem is gone"
	}
	return fmt.Sprintf("is held off%s: tried again at %s, or now with drover node drain -off %s", why, back.UTC().Format("15:04:05 MST"), n.Info.GetName())
}
