package engine

import (
	"slices"
	"time"

	"github.com/drover-run/drover/scheduler"
)

// layout places the blocks of a stage's input: Replicas of each, the first on
// any node, the second in another rack, the third in that rack too, the rest
// anywhere, all different (HDFS's default). It depends on the seed, the file
// and the block alone.
func (w *world) layout(j *job, g *Stage) *scheduler.Inputs {
	n := int(g.Tasks)
	r := min(w.Models.Replicas, len(w.Nodes))
	in := &scheduler.Inputs{Bytes: make([]int64, n), Start: make([]int32, n+1), Nodes: make([]scheduler.NodeID, 0, n*r)}
	file := g.File
	if file == 0 {
		file = 1<<63 | uint64(j.id)
	}
	left := g.Input
	for i := range n {
		in.Bytes[i] = max(0, min(g.Read, left))
		left -= in.Bytes[i]
		from := len(in.Nodes)
		for k := range r {
			in.Nodes = append(in.Nodes, w.replica(in.Nodes[from:], k, hash(w.Seed, drawReplica, file, uint64(i), uint64(k))))
		}
		in.Start[i+1] = int32(len(in.Nodes))
	}
	return in
}

// replica chooses the node of the k-th copy beside those that are placed.
func (w *world) replica(have []scheduler.NodeID, k int, h uint64) scheduler.NodeID {
	pick := func(fits func(n scheduler.NodeID) bool) (scheduler.NodeID, bool) {
		n := len(w.Nodes)
		at := int(h % uint64(n))
		for range n {
			id := scheduler.NodeID(at)
			if !slices.Contains(have, id) && fits(id) {
				return id, true
			}
			h = mix(h)
			if at++; at == n {
				at = 0
			}
		}
		return 0, false
	}
	rack := func(n scheduler.NodeID) int32 { return w.s.Node(n).Rack }
	if len(w.rackNodes) > 1 {
		switch k {
		case 1:
			if id, ok := pick(func(n scheduler.NodeID) bool { return rack(n) != rack(have[0]) }); ok {
				return id
			}
		case 2:
			second := w.rackNodes[rack(have[1])]
			at := int(h % uint64(len(second)))
			for i := range second {
				if id := second[(at+i)%len(second)]; !slices.Contains(have, id) {
					return id
				}
			}
		}
	}
	id, _ := pick(func(scheduler.NodeID) bool { return true })
	return id
}

// see notes how far an attempt is from its input and gives the nearest copy.
func (w *world) see(t *attempt) (int64, scheduler.NodeID) {
	id := t.id()
	g := w.s.Stage(id.StageID())
	bytes, nodes, local := g.Input(t.task)
	if bytes == 0 || len(nodes) == 0 {
		t.local = localNone
		return bytes, scheduler.NoNode
	}
	near, best := nodes[0], 1<<30
	for i, n := range nodes {
		d := w.s.Dist(t.node, n)
		if d == 0 && local != nil && 2*local[i] < bytes {
			d = 1 // less than half of it is here
		}
		if d < best {
			near, best = n, d
		}
	}
	switch best {
	case 0:
		t.local = localNode
	case 1:
		t.local = localRack
	default:
		t.local = localFar
	}
	return bytes, near
}

// planTransfers works out what an attempt reads and writes: as time before and
// after its work where rates are fixed, as bytes where links are shared.
func (w *world) planTransfers(t *attempt, j *job, g *Stage) {
	m := &w.Models
	bytes := int64(0)
	if j.stages[t.stage].reads {
		bytes, _ = w.see(t)
	} else if g.Read > 0 && g.Input > 0 {
		bytes = min(g.Read, max(0, g.Input-g.Read*int64(t.task)))
	}
	if m.transfer() == TransferShared {
		t.read, t.write = float64(bytes+g.Shuffle), float64(g.Write)
		return
	}
	rate := w.localRate(g)
	switch t.local {
	case localRack:
		rate = m.RackRate
	case localFar:
		rate = m.RemoteRate
	}
	t.before += perRate(bytes, rate) + perRate(g.Shuffle, m.RemoteRate)
	t.work += perRate(g.Write, w.localRate(g))
}

// localRate is a task's rate on a local disk that it has to itself.
func (w *world) localRate(g *Stage) int64 {
	if w.Models.Enforced && g.Demand[scheduler.IO] > 0 {
		return g.Demand[scheduler.IO]
	}
	return w.Models.LocalRate
}

// nominalTask is how long one task takes on a node of speed 1 with its data
// beside it and nobody else about.
func (w *world) nominalTask(g *Stage) time.Duration {
	m := &w.Models
	work := g.Work
	if len(g.Each) > 0 {
		work = mean(g.Each)
	}
	work += m.Launch + mean(g.Starts)
	if m.transfer() == TransferFree {
		return work
	}
	local := w.localRate(g)
	bytes := int64(0)
	if g.Tasks > 0 {
		bytes = g.Input / int64(g.Tasks)
	}
	if in := g.Inputs; in != nil && g.Tasks > 0 {
		bytes = 0
		for _, b := range in.Bytes {
			bytes += b
		}
		bytes /= int64(g.Tasks)
	}
	return work + perRate(bytes, local) + perRate(g.Shuffle, m.RemoteRate) + perRate(g.Write, local)
}

// mean of durations, 0 of none.
func mean(all []time.Duration) time.Duration {
	sum := time.Duration(0)
	for _, d := range all {
		sum += d
	}
	return sum / time.Duration(max(1, len(all)))
}
