package facts

import (
	"cmp"
	"slices"
	"time"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/internal/fault"
)

// An operator orders maintenance windows of a node ahead. The leader proposes when one begins and
// ends. From its beginning to its end the node is drained as by an operator, with a deadline that
// has passed: what still runs leaves it. An operator who drains the node meanwhile keeps it drained
// after the end, and one who ends the drain ends the window.

// Limits of maintenance windows.
const (
	MaxMaintenance      = 31 // windows of a node
	MaxMaintenanceAhead = 400 * 24 * time.Hour
	MaxMaintenanceTime  = 30 * 24 * time.Hour
)

// MaintenanceWindow is a time in which a node is away, Unix ns.
type MaintenanceWindow struct {
	From  int64 `json:"from"`
	To    int64 `json:"to"`
	Begun bool  `json:"begun,omitempty"`
	// StaysDrained: an operator drained the node before or during the window.
	StaysDrained bool `json:"stays_drained,omitempty"`
}

func (en nodeEntries) applyMaintenance(e *droverv1.Entry, m *droverv1.MaintenanceFact, r *Result) {
	n := en.f.Node(m.GetNode())
	if n == nil {
		r.Err = fault.New(fault.NotFound, "node %d is unknown", m.GetNode())
		return
	}
	i := slices.IndexFunc(n.Maintenance, func(w MaintenanceWindow) bool { return w.From == m.GetFrom() })
	switch change := m.GetChange(); {
	case change == droverv1.MaintenanceChange_MAINTENANCE_CHANGE_ORDERED:
		r.Err = en.orderMaintenance(e, n, MaintenanceWindow{From: m.GetFrom(), To: m.GetTo()})
	case change == droverv1.MaintenanceChange_MAINTENANCE_CHANGE_CANCELLED && m.GetFrom() == 0:
		for len(en.f.Node(n.ID).Maintenance) > 0 {
			en.endMaintenance(e, en.f.Node(n.ID), 0, "node.maintenance_cancelled")
		}
	case i < 0:
		r.Err = fault.New(fault.NotFound, "node %s has no maintenance window that begins at %s: `drover node status` shows them", n.Info.GetName(), formatTime(m.GetFrom()))
	case change == droverv1.MaintenanceChange_MAINTENANCE_CHANGE_CANCELLED:
		en.endMaintenance(e, n, i, "node.maintenance_cancelled")
	case change == droverv1.MaintenanceChange_MAINTENANCE_CHANGE_BEGUN && !n.Maintenance[i].Begun:
		en.beginMaintenance(e, n, i)
	case change == droverv1.MaintenanceChange_MAINTENANCE_CHANGE_ENDED:
		en.endMaintenance(e, n, i, "node.maintenance_ended")
	default:
		return
	}
	if r.Err == nil {
		r.Changed = 1
	}
}

// orderMaintenance adds a window. The windows of a node do not overlap.
func (en nodeEntries) orderMaintenance(e *droverv1.Entry, n *Node, w MaintenanceWindow) error {
	ahead, length := time.Duration(w.From-en.f.now), time.Duration(w.To-w.From)
	switch {
	case w.From <= 0 || w.To <= en.f.now || length <= 0 || length > MaxMaintenanceTime || ahead > MaxMaintenanceAhead:
		return fault.New(fault.Invalid, "maintenance from %s to %s: it lasts at most %s, ends in the future, and begins at most %s from now",
			formatTime(w.From), formatTime(w.To), MaxMaintenanceTime, MaxMaintenanceAhead)
	case len(n.Maintenance) >= MaxMaintenance:
		return fault.New(fault.Exhausted, "node %s has %d maintenance windows, the limit: cancel some with `drover node maintain -cancel`", n.Info.GetName(), len(n.Maintenance))
	}
	for _, o := range n.Maintenance {
		if o.From < w.To && w.From < o.To {
			return fault.New(fault.Invalid, "maintenance from %s overlaps that from %s to %s: cancel that one first", formatTime(w.From), formatTime(o.From), formatTime(o.To))
		}
	}
	c := *n
	c.Maintenance = slices.SortedFunc(slices.Values(append(slices.Clone(n.Maintenance), w)), func(a, b MaintenanceWindow) int { return cmp.Compare(a.From, b.From) })
	en.putNode(&c)
	en.f.EventLog().add(e, "node.maintenance_ordered", &Event{Node: n.Info.GetName(), Text: "from " + formatTime(w.From) + " to " + formatTime(w.To)})
	return nil
}

// beginMaintenance drains the node.
func (en nodeEntries) beginMaintenance(e *droverv1.Entry, n *Node, i int) {
	c := *n
	c.Maintenance = slices.Clone(n.Maintenance)
	w := &c.Maintenance[i]
	w.Begun, w.StaysDrained = true, n.IsDrained()
	c.Draining, c.DrainDeadline, c.DrainSetAt = true, w.From, 0
	if !w.StaysDrained {
		c.Reason = "maintenance until " + formatTime(w.To)
	}
	c.RetryAt, c.QuarantineStreak, c.Probation = 0, 0, false
	en.putNode(&c)
	en.f.EventLog().add(e, "node.maintenance_begun", &Event{Node: n.Info.GetName(), Text: "until " + formatTime(w.To) + ", what still runs leaves the node"})
}

// endMaintenance removes a window, and lets the node take work again if only that kept it from it.
func (en nodeEntries) endMaintenance(e *droverv1.Entry, n *Node, i int, kind string) {
	c, w := *n, n.Maintenance[i]
	c.Maintenance = slices.Delete(slices.Clone(n.Maintenance), i, i+1)
	text := "from " + formatTime(w.From) + " to " + formatTime(w.To)
	switch {
	case w.Begun && w.StaysDrained:
		text += ", the node stays drained"
	case w.Begun:
		c.Draining, c.Reason, c.DrainDeadline, c.InfraFailures, c.SchedulableSince = false, "", 0, nil, en.f.now
	}
	en.putNode(&c)
	en.f.EventLog().add(e, kind, &Event{Node: n.Info.GetName(), Text: text})
	if c.DrainDeadline == 0 {
		levelsOf(en.f).unparkDrained(n.ID)
	}
}

// overridden returns the windows after an operator drained the node, or ended a drain: then the window
// that has begun is over.
func overridden(list []MaintenanceWindow, draining bool) (out []MaintenanceWindow) {
	for _, w := range list {
		if w.Begun && !draining {
			continue
		}
		w.StaysDrained = w.Begun
		out = append(out, w)
	}
	return out
}

func formatTime(ns int64) string { return time.Unix(0, ns).UTC().Format("2006-01-02 15:04:05 MST") }
