package engine

import (
	"slices"
	"time"

	"github.com/drover-run/drover/scheduler"
)

// network is links and the flows over them. A flow moves at the least of its
// own limit and, over its links, the link's capacity divided by the flows on
// it: no more than a fair share anywhere. What a flow leaves unused on one
// link because another holds it back is not given to others, so the sum is a
// little below that of max-min fairness and never above a capacity.
type network struct {
	on        bool
	links     []link
	flows     []flow
	free      []int32
	diskStart []int32 // first disk link of each node
	racks     int
	nodes     int
}

type link struct {
	capacity float64 // bytes per second
	flows    []int32
}

type flow struct {
	attempt int32
	due     uint64   // the key of its end to come
	links   [4]int32 // -1: none
	limit   float64
	left    float64
	rate    float64
	since   scheduler.Time
}

// build makes the links: in and out of each node, up and down of each rack,
// and each disk.
func (n *network) build(w *world) {
	m := &w.Models
	if n.on = m.transfer() == TransferShared; !n.on {
		return
	}
	n.nodes, n.racks = len(w.Nodes), len(w.rackNodes)
	for range 2 * n.nodes {
		n.links = append(n.links, link{capacity: float64(m.NodeLink)})
	}
	for range 2 * n.racks {
		n.links = append(n.links, link{capacity: float64(m.RackLink)})
	}
	for i := range w.Nodes {
		n.diskStart = append(n.diskStart, int32(len(n.links)))
		for _, d := range w.Nodes[i].Disks {
			n.links = append(n.links, link{capacity: float64(max(1, d.IO))})
		}
	}
}

func (n *network) in(node scheduler.NodeID) int32  { return int32(2 * node) }
func (n *network) out(node scheduler.NodeID) int32 { return int32(2*node + 1) }
func (n *network) up(rack int32) int32             { return int32(2*n.nodes) + 2*rack }
func (n *network) down(rack int32) int32           { return int32(2*n.nodes) + 2*rack + 1 }

// begin starts moving bytes for the present phase of an attempt.
func (n *network) begin(w *world, slot int32, bytes float64) int32 {
	t := &w.attempts[slot]
	id := int32(len(n.flows))
	if k := len(n.free); k > 0 {
		id = n.free[k-1]
		n.free = n.free[:k-1]
	} else {
		n.flows = append(n.flows, flow{})
	}
	f := &n.flows[id]
	*f = flow{attempt: slot, links: [4]int32{-1, -1, -1, -1}, left: bytes, since: w.now}
	n.route(w, t, f)
	for _, l := range f.links {
		if l >= 0 {
			n.links[l].flows = append(n.links[l].flows, id)
		}
	}
	n.touched(w, f)
	if f.rate == 0 { // it uses no link
		n.replan(w, id)
	}
	return id
}

// route chooses a flow's links and limit.
func (n *network) route(w *world, t *attempt, f *flow) {
	m := &w.Models
	g := &w.jobs[t.job].spec.Stages[t.stage]
	if t.phase == phaseRead {
		bytes, from := w.see(t)
		switch {
		case bytes > 0 && t.local == localRack:
			f.limit = float64(m.RackRate)
			f.links = [4]int32{n.out(from), n.in(t.node), -1, -1}
			return
		case bytes > 0 && t.local == localFar:
			f.limit = float64(m.RemoteRate)
			f.links = [4]int32{n.out(from), n.up(w.s.Node(from).Rack), n.down(w.s.Node(t.node).Rack), n.in(t.node)}
			return
		case t.local != localNode && g.Shuffle > 0: // from everywhere
			f.limit = float64(m.RemoteRate)
			f.links = [4]int32{n.in(t.node), -1, -1, -1}
			return
		}
	}
	f.limit = float64(w.localRate(g))
	if disks := len(w.Nodes[t.node].Disks); disks > 0 && !(m.Enforced && g.Demand[scheduler.IO] > 0) {
		f.links[0] = n.diskStart[t.node] + int32(max(0, min(int(t.disk), disks-1)))
	}
}

// end takes a flow off and gives the attempt it was for.
func (n *network) end(w *world, id int32) int32 {
	slot := n.flows[id].attempt
	n.remove(w, id)
	return slot
}

// stop takes a flow off before its end and gives the bytes left.
func (n *network) stop(w *world, id int32) float64 {
	f := &n.flows[id]
	left := f.left - f.rate*w.now.Sub(f.since).Seconds()
	n.remove(w, id)
	return left
}

func (n *network) remove(w *world, id int32) {
	f := &n.flows[id]
	f.due = 0
	for _, l := range f.links {
		if l >= 0 {
			i := slices.Index(n.links[l].flows, id)
			n.links[l].flows = slices.Delete(n.links[l].flows, i, i+1)
		}
	}
	n.touched(w, f)
	n.free = append(n.free, id)
}

// touched sets the rates of all flows that share a link with f anew.
func (n *network) touched(w *world, f *flow) {
	for _, l := range f.links {
		if l < 0 {
			continue
		}
		for _, id := range n.links[l].flows {
			n.replan(w, id)
		}
	}
}

// replan brings a flow up to now and plans its end at its new rate.
func (n *network) replan(w *world, id int32) {
	f := &n.flows[id]
	rate := f.limit
	for _, l := range f.links {
		if l >= 0 {
			rate = min(rate, n.links[l].capacity/float64(len(n.links[l].flows)))
		}
	}
	if rate == f.rate {
		return
	}
	f.left -= f.rate * w.now.Sub(f.since).Seconds()
	f.since, f.rate = w.now, rate
	d := time.Duration(max(0, f.left)/rate*float64(time.Second)) + 1
	f.due = w.events.plan(w.now.Add(d), evFlow, id)
}
