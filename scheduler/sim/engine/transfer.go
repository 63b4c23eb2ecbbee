package engine

import (
	"slices"
	"time"

	"github.com/drover-run/drover/internal/heaps"
	"github.com/drover-run/drover/scheduler"
)

// placeBlocks places the blocks of a stage's input with Models.Replicas copies each, as HDFS does
// by default: the first on any node, the second in another rack, the third in the second one's
// rack, the rest anywhere, all on different nodes. The result depends only on the seed, the file
// and the block.
func (c *cluster) placeBlocks(w *world, j *job, g *Stage) *scheduler.Inputs {
	n := int(g.Tasks)
	r := min(w.Models.Replicas, len(w.Nodes))
	in := &scheduler.Inputs{Bytes: make([]int64, n), Start: make([]int32, n+1), Nodes: make([]scheduler.NodeID, 0, n*r)}
	file := g.FileID
	if file == 0 {
		file = 1<<63 | uint64(j.id)
	}
	left := g.InputBytes
	for i := range n {
		in.Bytes[i] = max(0, min(g.BlockBytes, left))
		left -= in.Bytes[i]
		from := len(in.Nodes)
		for k := range r {
			in.Nodes = append(in.Nodes, c.chooseReplica(w, in.Nodes[from:], k, hash(w.Seed, drawReplica, file, uint64(i), uint64(k))))
		}
		in.Start[i+1] = int32(len(in.Nodes))
	}
	return in
}

// chooseReplica returns the node of the k-th copy, given those already placed.
func (c *cluster) chooseReplica(w *world, have []scheduler.NodeID, k int, h uint64) scheduler.NodeID {
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
	if len(c.rackNodes) > 1 {
		switch k {
		case 1:
			if id, ok := pick(func(n scheduler.NodeID) bool { return rack(n) != rack(have[0]) }); ok {
				return id
			}
		case 2:
			second := c.rackNodes[rack(have[1])]
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

// resolveLocality sets the locality of an attempt and returns its input bytes and the node of the
// nearest copy.
func (w *world) resolveLocality(t *attempt) (int64, scheduler.NodeID) {
	id := t.id()
	g := w.s.Stage(id.StageID())
	bytes, nodes, local := g.Input(t.task)
	if bytes == 0 || len(nodes) == 0 {
		t.locality = localNone
		return bytes, scheduler.NoNode
	}
	near, best := nodes[0], 1<<30
	for i, n := range nodes {
		d := w.s.Cluster().Dist(t.node, n)
		if d == 0 && local != nil && 2*local[i] < bytes {
			d = 1 // less than half of the input is local
		}
		if d < best {
			near, best = n, d
		}
	}
	switch best {
	case 0:
		t.locality = localNode
	case 1:
		t.locality = localRack
	default:
		t.locality = localRemote
	}
	return bytes, near
}

// planTransfers computes what an attempt reads and writes: as time before and after its work with
// fixed rates, as bytes with shared links.
func (w *world) planTransfers(t *attempt, j *job, g *Stage) {
	m := &w.Models
	bytes := int64(0)
	if j.stages[t.stage].hasInputs {
		bytes, _ = w.resolveLocality(t)
	} else if g.BlockBytes > 0 && g.InputBytes > 0 {
		bytes = min(g.BlockBytes, max(0, g.InputBytes-g.BlockBytes*int64(t.task)))
	}
	if m.transferModel() == TransferShared {
		t.readBytesLeft, t.writeBytesLeft = float64(bytes+g.ShuffleBytes), float64(g.OutputBytes)
		return
	}
	rate := m.localRate(g)
	switch t.locality {
	case localRack:
		rate = m.RackRate
	case localRemote:
		rate = m.RemoteRate
	}
	t.setupLeft += transferTime(bytes, rate) + transferTime(g.ShuffleBytes, m.RemoteRate)
	t.workLeft += transferTime(g.OutputBytes, m.localRate(g))
}

// localRate returns a task's rate on a local disk without other users.
func (m *Models) localRate(g *Stage) int64 {
	if m.EnforceIO && g.Demand[scheduler.IO] > 0 {
		return g.Demand[scheduler.IO]
	}
	return m.LocalRate
}

// nominalTaskTime returns the mean duration of the tasks of a stage on an idle node of speed 1 with
// local data.
func (m *Models) nominalTaskTime(g *Stage) time.Duration {
	work := g.Work
	if len(g.WorkPerTask) > 0 {
		work = meanDuration(g.WorkPerTask)
	}
	work += m.Launch + meanDuration(g.StartDelays)
	if m.transferModel() == TransferFree {
		return work
	}
	local := m.localRate(g)
	bytes := int64(0)
	if g.Tasks > 0 {
		bytes = g.InputBytes / int64(g.Tasks)
	}
	if in := g.Inputs; in != nil && g.Tasks > 0 {
		bytes = 0
		for _, b := range in.Bytes {
			bytes += b
		}
		bytes /= int64(g.Tasks)
	}
	return work + transferTime(bytes, local) + transferTime(g.ShuffleBytes, m.RemoteRate) + transferTime(g.OutputBytes, local)
}

// stageTime returns the duration of a stage's tasks on a number of slots if each free slot takes
// the next task. mean is their nominal time. O(tasks log slots) if they differ, else O(1).
func stageTime(g *Stage, mean time.Duration, slots int64) time.Duration {
	if g.WorkPerTask == nil && g.StartDelays == nil {
		return repeated((int64(g.Tasks)+slots-1)/slots, mean)
	}
	others := mean - meanDuration(g.WorkPerTask) - meanDuration(g.StartDelays) // launch and transfers, plus work if it is equal
	var ends []time.Duration                                                   // when each slot is free, a heap
	last := time.Duration(0)
	for i := range int(g.Tasks) {
		end := others
		if g.WorkPerTask != nil {
			end += g.WorkPerTask[i]
		}
		if g.StartDelays != nil {
			end += g.StartDelays[i]
		}
		end = min(longest, end)
		if int64(len(ends)) == slots {
			end = min(longest, end+slotEnds.Pop(&ends))
		}
		slotEnds.Push(&ends, end)
		last = max(last, end)
	}
	return last
}

// slotEnds is the order of the times at which slots are free.
var slotEnds = heaps.Order[time.Duration]{Less: func(a, b time.Duration) bool { return a < b }}

// meanDuration returns the mean of durations, 0 if there are none.
func meanDuration(all []time.Duration) time.Duration {
	sum := time.Duration(0)
	for _, d := range all {
		sum += d
	}
	return sum / time.Duration(max(1, len(all)))
}
