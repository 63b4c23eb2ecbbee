package engine

import (
	"slices"
	"time"

	"github.com/drover-run/drover/scheduler"
)

// network models flows over shared links. A flow's rate is the minimum of its own limit and, over
// its links, the link's capacity divided by the link's flows: at most a fair share of each link.
// Capacity that a flow leaves unused on one link because another limits it is not redistributed, so
// the total is slightly below max-min fairness and never above a capacity.
type network struct {
	enabled   bool
	links     []link
	flows     []flow
	freeFlows []int32
	diskStart []int32 // first disk link of each node
	racks     int
	nodes     int
}

type link struct {
	capacity float64 // bytes per second
	flows    []int32
}

type flow struct {
	attempt   int32
	eventKey  uint64   // key of its scheduled end
	links     [4]int32 // -1: none
	limit     float64
	bytesLeft float64
	rate      float64
	updatedAt scheduler.Time
}

// build makes the links: in and out of each node, up and down of each rack, and one per disk.
func (n *network) build(w *world) {
	m := &w.Models
	if n.enabled = m.transferModel() == TransferShared; !n.enabled {
		return
	}
	n.nodes, n.racks = len(w.Nodes), len(w.cluster.rackNodes)
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

func (n *network) nodeIn(node scheduler.NodeID) int32  { return int32(2 * node) }
func (n *network) nodeOut(node scheduler.NodeID) int32 { return int32(2*node + 1) }
func (n *network) rackUp(rack int32) int32             { return int32(2*n.nodes) + 2*rack }
func (n *network) rackDown(rack int32) int32           { return int32(2*n.nodes) + 2*rack + 1 }

// startFlow starts the transfer of the attempt's current phase and returns the flow's index.
func (n *network) startFlow(w *world, slot int32, bytes float64) int32 {
	t := &w.attempts[slot]
	id := int32(len(n.flows))
	if k := len(n.freeFlows); k > 0 {
		id = n.freeFlows[k-1]
		n.freeFlows = n.freeFlows[:k-1]
	} else {
		n.flows = append(n.flows, flow{})
	}
	f := &n.flows[id]
	*f = flow{attempt: slot, links: [4]int32{-1, -1, -1, -1}, bytesLeft: bytes, updatedAt: w.now}
	n.route(w, t, f)
	for _, l := range f.links {
		if l >= 0 {
			n.links[l].flows = append(n.links[l].flows, id)
		}
	}
	n.updateNeighbours(w, f)
	if f.rate == 0 { // no link determines its rate
		n.updateRate(w, id)
	}
	return id
}

// route sets a flow's links and rate limit.
func (n *network) route(w *world, t *attempt, f *flow) {
	m := &w.Models
	g := &w.jobs[t.job].spec.Stages[t.stage]
	if t.phase == phaseRead {
		bytes, from := w.resolveLocality(t)
		switch {
		case bytes > 0 && t.locality == localRack:
			f.limit = float64(m.RackRate)
			f.links = [4]int32{n.nodeOut(from), n.nodeIn(t.node), -1, -1}
			return
		case bytes > 0 && t.locality == localRemote:
			f.limit = float64(m.RemoteRate)
			f.links = [4]int32{n.nodeOut(from), n.rackUp(w.s.Node(from).Rack), n.rackDown(w.s.Node(t.node).Rack), n.nodeIn(t.node)}
			return
		case t.locality != localNode && g.ShuffleBytes > 0: // shuffle: from all nodes
			f.limit = float64(m.RemoteRate)
			f.links = [4]int32{n.nodeIn(t.node), -1, -1, -1}
			return
		}
	}
	f.limit = float64(m.localRate(g))
	if disks := len(w.Nodes[t.node].Disks); disks > 0 && !(m.EnforceIO && g.Demand[scheduler.IO] > 0) {
		f.links[0] = n.diskStart[t.node] + int32(max(0, min(int(t.disk), disks-1)))
	}
}

// finishFlow removes a finished flow and returns the slot of its attempt.
func (n *network) finishFlow(w *world, id int32) int32 {
	slot := n.flows[id].attempt
	n.removeFlow(w, id)
	return slot
}

// cancelFlow removes a flow before its end and returns the bytes left.
func (n *network) cancelFlow(w *world, id int32) float64 {
	f := &n.flows[id]
	left := f.bytesLeft - f.rate*w.now.Sub(f.updatedAt).Seconds()
	n.removeFlow(w, id)
	return left
}

func (n *network) removeFlow(w *world, id int32) {
	f := &n.flows[id]
	f.eventKey = 0
	for _, l := range f.links {
		if l >= 0 {
			i := slices.Index(n.links[l].flows, id)
			n.links[l].flows = slices.Delete(n.links[l].flows, i, i+1)
		}
	}
	n.updateNeighbours(w, f)
	n.freeFlows = append(n.freeFlows, id)
}

// updateNeighbours updates the rates of all flows that share a link with f.
func (n *network) updateNeighbours(w *world, f *flow) {
	for _, l := range f.links {
		if l < 0 {
			continue
		}
		for _, id := range n.links[l].flows {
			n.updateRate(w, id)
		}
	}
}

// updateRate computes a flow's rate and, if it changed, accounts the bytes moved and reschedules
// its end.
func (n *network) updateRate(w *world, id int32) {
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
	f.bytesLeft -= f.rate * w.now.Sub(f.updatedAt).Seconds()
	f.updatedAt, f.rate = w.now, rate
	d := time.Duration(max(0, f.bytesLeft)/rate*float64(time.Second)) + 1
	f.eventKey = w.events.schedule(w.now.Add(d), evFlow, id)
}
