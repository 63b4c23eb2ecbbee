package engine

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/drover-run/drover/scheduler"
)

// Absence is a time during which a node is not there: an outage, maintenance, or the time before a
// node joins and after it leaves a cluster that grows and shrinks. Absences of a node may overlap.
type Absence struct {
	Node scheduler.NodeID
	From time.Duration // at or below 0: the node is absent from the start
	To   time.Duration // 0: it does not come back
	// Drain is how long before From the node gets no new tasks. Tasks that run at From are lost.
	Drain time.Duration
	// Known: the policy knows of it from the start (scheduler.Window), as of maintenance.
	Known bool
}

func (c *Config) checkAbsences() error {
	for i, a := range c.Absences {
		what := fmt.Sprintf("absence %d of node %d", i+1, a.Node)
		switch {
		case a.Node < 0 || int(a.Node) >= len(c.Nodes):
			return fmt.Errorf("%s: there are %d nodes", what, len(c.Nodes))
		case a.To != 0 && a.To <= a.From:
			return fmt.Errorf("%s: it ends at %v, not after it begins at %v", what, a.To, a.From)
		case a.Drain < 0:
			return fmt.Errorf("%s: it drains for %v: must not be negative", what, a.Drain)
		}
	}
	if len(c.Absences) > maxRef {
		return fmt.Errorf("%d absences: at most %d", len(c.Absences), maxRef)
	}
	return nil
}

// outages records why nodes are down or drain: a node may have several reasons at a time.
type outages struct {
	downReasons  []int                // of each node: failures and absences that keep it down
	drainReasons []int                // of each node: absences for which it drains
	known        [][]scheduler.Window // of each node: known absences that have not ended
	progress     progress
}

// scheduleAbsences takes nodes down that are absent from the start and schedules all other changes.
func (o *outages) scheduleAbsences(w *world) error {
	o.known = make([][]scheduler.Window, len(w.Nodes))
	for _, a := range w.Absences {
		if a.Known {
			o.addKnown(w, &a)
		}
	}
	for id := range o.known {
		if err := o.announce(w, scheduler.NodeID(id)); err != nil {
			return err
		}
	}
	for i, a := range w.Absences {
		if a.From <= 0 {
			if err := o.nodeDown(w, a.Node, false); err != nil {
				return err
			}
		} else {
			w.events.schedule(w.timeAt(a.From), evLeave, int32(i))
			if a.Drain > 0 {
				w.events.schedule(w.timeAt(max(0, a.From-a.Drain)), evDrain, int32(i))
			}
		}
		if a.To > 0 {
			w.events.schedule(w.timeAt(a.To), evReturn, int32(i))
		}
	}
	return nil
}

// addKnown adds a known absence to the windows of its node, which neither overlap nor touch.
func (o *outages) addKnown(w *world, a *Absence) {
	x := scheduler.Window{From: w.timeAt(max(0, a.From)), To: scheduler.Never}
	if a.To > 0 {
		x.To = w.timeAt(a.To)
	}
	list := slices.DeleteFunc(o.known[a.Node], func(y scheduler.Window) bool {
		if y.To < x.From || x.To < y.From {
			return false
		}
		x = scheduler.Window{From: min(x.From, y.From), To: max(x.To, y.To)}
		return true
	})
	i, _ := slices.BinarySearchFunc(list, x, func(y, x scheduler.Window) int { return cmp.Compare(y.From, x.From) })
	o.known[a.Node] = slices.Insert(list, i, x)
}

// announce sets the next windows of a node in the State.
func (o *outages) announce(w *world, n scheduler.NodeID) error {
	list := o.known[n]
	for len(list) > 0 && list[0].To <= w.now {
		list = list[1:]
	}
	o.known[n] = list
	return w.s.Events().SetWindows(n, list[:min(len(list), scheduler.MaxWindows)])
}

func (o *outages) startDrain(w *world, a *Absence) error {
	o.drainReasons[a.Node]++
	return w.s.Events().SetDrain(a.Node, true)
}

func (o *outages) endAbsence(w *world, a *Absence) error {
	if a.Drain > 0 && a.From > 0 {
		if o.drainReasons[a.Node]--; o.drainReasons[a.Node] == 0 {
			if err := w.s.Events().SetDrain(a.Node, false); err != nil {
				return err
			}
		}
	}
	if a.Known {
		if err := o.announce(w, a.Node); err != nil {
			return err
		}
	}
	return o.nodeUp(w, a.Node)
}

// nodeDown takes a node down for one more reason: a failure or an absence. lose says whether its
// attempts and outputs are lost; at the start there are none.
func (o *outages) nodeDown(w *world, n scheduler.NodeID, lose bool) error {
	if o.downReasons[n]++; o.downReasons[n] > 1 {
		return nil
	}
	if lose {
		return o.loseNode(w, n)
	}
	if err := w.s.Events().NodeLost(n, w.now); err != nil {
		return err
	}
	w.use.setCapacity(w.s.Cluster().Total())
	return nil
}

// nodeUp removes one reason for which a node is down, and starts it again after the last one.
func (o *outages) nodeUp(w *world, n scheduler.NodeID) error {
	if o.downReasons[n]--; o.downReasons[n] > 0 {
		return nil
	}
	if err := w.s.Events().NodeUp(n); err != nil {
		return err
	}
	w.use.setCapacity(w.s.Cluster().Total())
	return nil
}
