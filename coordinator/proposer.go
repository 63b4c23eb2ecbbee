package coordinator

import (
	"context"
	"errors"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/coordinator/facts"
)

const leaseExpiredReason = "it did not report within its lease"

// proposer proposes entries of one term in which this server leads.
type proposer struct {
	c    *core
	term uint64
}

// proposeDecision proposes a decision in entries of bounded size, and returns the actions that were
// dropped.
func (p proposer) proposeDecision(ctx context.Context, d *droverv1.DecisionFact) (dropped []facts.Drop, err error) {
	from := 0
	for _, part := range decisionParts(d) {
		res, err := p.c.replica.Propose(ctx, &droverv1.Entry{Actor: actorSelf, Term: p.term, Body: &droverv1.Entry_Decision{Decision: part}})
		if err = errors.Join(err, res.Err); err != nil {
			return nil, err
		}
		p.c.metrics.violated.Add(float64(res.Violated))
		for _, x := range res.Dropped {
			dropped = append(dropped, facts.Drop{Index: from + x.Index, Reason: x.Reason})
		}
		from += len(part.Actions)
	}
	return dropped, nil
}

// declareLost proposes the loss of several nodes in one entry, as when a rack or a switch fails.
func (p proposer) declareLost(ctx context.Context, gone []lostNode) error {
	var entries []*droverv1.Entry
	for _, n := range gone {
		entries = append(entries, &droverv1.Entry{Actor: actorSelf, Term: p.term, Body: &droverv1.Entry_NodeLost{NodeLost: &droverv1.NodeLostFact{Node: n.id, Epoch: n.epoch, Reason: leaseExpiredReason}}})
	}
	results, err := p.c.replica.ProposeAll(ctx, entries)
	for i, res := range results {
		n := gone[i]
		p.c.sessions.end(n.id, n.epoch)
		if res.Changed == 0 {
			continue // it has registered in a later epoch
		}
		p.c.view(func(f *facts.Facts) {
			if x := f.Node(n.id); x != nil {
				p.c.log.Warn("lost a node: it did not report for as long as its lease", "node", x.Info.GetName())
			}
		})
	}
	return err
}
