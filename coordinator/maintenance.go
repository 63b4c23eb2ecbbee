package coordinator

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"connectrpc.com/connect"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/coordinator/facts"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/scheduler"
)

// The beginning and the end of a maintenance window are facts too, which the leader proposes at
// their times. Schedulers know the windows in advance (scheduler.Window).

// maintenance holds, for each node with a window, when the window begins, or ends if it has begun,
// Unix ns.
type maintenance map[int32]int64

// track follows a change of a node.
func (m maintenance) track(n *facts.Node) {
	delete(m, n.ID)
	if len(n.Maintenance) > 0 {
		m[n.ID], _ = nextMaintenance(&n.Maintenance[0])
	}
}

// nextMaintenance returns when a window begins, or ends if it has begun.
func nextMaintenance(w *facts.MaintenanceWindow) (int64, droverv1.MaintenanceChange) {
	if w.Begun {
		return w.To, droverv1.MaintenanceChange_MAINTENANCE_CHANGE_ENDED
	}
	return w.From, droverv1.MaintenanceChange_MAINTENANCE_CHANGE_BEGUN
}

// propose proposes the begin or end of the windows that are due. It returns when the next one is
// due, zero for none.
func (m maintenance) propose(ctx context.Context, p proposer) (next time.Time, err error) {
	now := p.c.now()
	var entries []*droverv1.Entry
	p.c.view(func(f *facts.Facts) {
		for id, ns := range m {
			at := time.Unix(0, ns)
			if n := f.Node(id); !at.After(now) && n != nil && len(n.Maintenance) > 0 {
				if due, change := nextMaintenance(&n.Maintenance[0]); due <= now.UnixNano() {
					d := &droverv1.MaintenanceFact{Node: id, From: n.Maintenance[0].From, Change: change}
					entries = append(entries, &droverv1.Entry{Actor: actorSelf, Term: p.term, Body: &droverv1.Entry_Maintenance{Maintenance: d}})
				}
				at = now // the change sets the next one
			}
			next = earlier(next, at)
		}
	})
	slices.SortFunc(entries, func(a, b *droverv1.Entry) int {
		return cmp.Compare(a.GetMaintenance().GetNode(), b.GetMaintenance().GetNode())
	})
	results, err := p.c.replica.ProposeAll(ctx, entries)
	for i, res := range results {
		if res.Err != nil { // it was cancelled meanwhile
			p.c.log.Info("maintenance did not begin or end", "node", entries[i].GetMaintenance().GetNode(), "why", res.Err)
		}
	}
	if err != nil {
		return next, fmt.Errorf("begin or end maintenance: %w", err)
	}
	return next, nil
}

// nodeWindows returns when a node will be away, for the schedulers. A drain with a deadline is a
// window without an end.
func nodeWindows(n *facts.Node) (out []scheduler.Window) {
	drained := n.IsDrained() && n.DrainDeadline > 0
	for _, w := range n.Maintenance {
		drained = drained && (!w.Begun || w.StaysDrained)
	}
	if drained {
		return []scheduler.Window{{From: scheduler.Time(n.DrainDeadline), To: scheduler.Never}}
	}
	for _, w := range n.Maintenance {
		out = append(out, scheduler.Window{From: scheduler.Time(w.From), To: scheduler.Time(w.To)})
	}
	return out
}

func maintenanceProto(n *facts.Node) (out []*droverv1.MaintenanceWindow) {
	for _, w := range n.Maintenance {
		out = append(out, &droverv1.MaintenanceWindow{FromMs: w.From / 1e6, ToMs: w.To / 1e6, Begun: w.Begun})
	}
	return out
}

// MaintainNode creates or cancels a maintenance window of a node.
func (s *clientService) MaintainNode(ctx context.Context, req *connect.Request[droverv1.MaintainNodeRequest]) (*connect.Response[droverv1.MaintainNodeResponse], error) {
	if err := s.core.rights.needOperator(ctx, "order maintenance"); err != nil {
		return nil, err
	}
	m, now := req.Msg, s.core.now().UnixMilli()
	id, err := s.nodeID(m.GetNode())
	if err != nil {
		return nil, err
	}
	d := &droverv1.MaintenanceFact{Node: id, From: m.GetFromMs() * 1e6, Change: droverv1.MaintenanceChange_MAINTENANCE_CHANGE_CANCELLED}
	latest := now + facts.MaxMaintenanceAhead.Milliseconds()
	switch {
	case m.GetFromMs() < 0 || m.GetFromMs() > latest || m.GetDurationMs() < 0 || m.GetDurationMs() > facts.MaxMaintenanceTime.Milliseconds():
		return nil, fault.New(fault.Invalid, "maintenance begins at most %s from now and lasts at most %s", facts.MaxMaintenanceAhead, facts.MaxMaintenanceTime)
	case m.GetCancel() == (m.GetDurationMs() > 0):
		return nil, fault.New(fault.Invalid, "give a maintenance window its length, or cancel one")
	case m.GetCancel() && m.GetFromMs() == 0 && !s.hasMaintenance(id):
		return nil, fault.New(fault.NotFound, "node %s has no maintenance window to cancel", m.GetNode())
	case !m.GetCancel():
		from := m.GetFromMs()
		if from == 0 {
			from = now
		}
		d.From, d.To, d.Change = from*1e6, (from+m.GetDurationMs())*1e6, droverv1.MaintenanceChange_MAINTENANCE_CHANGE_ORDERED
	}
	res, err := s.core.propose(ctx, caller(ctx).name, &droverv1.Entry{Body: &droverv1.Entry_Maintenance{Maintenance: d}})
	if err = errors.Join(err, res.Err); err != nil {
		return nil, err
	}
	return connect.NewResponse(&droverv1.MaintainNodeResponse{}), nil
}

// hasMaintenance reports whether a node has a window that has not ended.
func (s *clientService) hasMaintenance(id int32) (has bool) {
	s.core.view(func(f *facts.Facts) {
		n := f.Node(id)
		has = n != nil && len(n.Maintenance) > 0
	})
	return has
}

// nodeID returns the number of the node of a name.
func (s *clientService) nodeID(name string) (id int32, err error) {
	s.core.view(func(f *facts.Facts) {
		if n := f.NodeByName(name); n != nil {
			id = n.ID
		}
	})
	if id == 0 {
		return 0, fault.New(fault.NotFound, "there is no node %q: `drover node list` shows them", clipText(name, 128))
	}
	return id, nil
}
