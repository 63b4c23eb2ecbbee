package scheduler

import "math"

// lacking counts the schedulable nodes that lack each resource or disk space for a task of one equivalence class,
// except the avoided nodes, after the first pos changes of free capacity. It stores each node's contribution, so
// that an update examines only changed nodes. Only classes passed to Cluster.WhyNowhere have one.
type lacking struct {
	nodes        int32
	lack         [NumResources + 1]int32
	noSingleDisk int32 // nodes that have enough of each, but not on one disk
	byNode       []lackBits
	pos          uint64
}

// lackBits is one node's contribution: a bit for each resource it lacks, or one of the values below.
type lackBits uint8

const (
	lackUnschedulable lackBits = 1 << 6 // the node is not schedulable
	lackSingleDisk    lackBits = 1 << 7
)

// WhyNowhere returns the most frequent reason why no node fits the stage's next task, and its number of nodes. O(nodes
// that changed since the last call for this demand). The first call for a demand allocates one byte per node.
func (c *Cluster) WhyNowhere(g *Stage) (Reason, int32) {
	f := &c.fit
	class := c.classOfStage(g)
	l := class.lacking
	if l == nil {
		l = &lacking{byNode: make([]lackBits, len(f.free))}
		class.lacking = l
	}
	since := f.changedCount - l.pos
	if l.pos == 0 || since >= uint64(min(len(f.free), len(f.changed))) {
		c.recountLacking(class)
	} else {
		for ; l.pos < f.changedCount; l.pos++ {
			id := f.changed[l.pos&uint64(len(f.changed)-1)]
			if now := c.nodeLack(class, id); now != l.byNode[id] {
				l.count(l.byNode[id], -1)
				l.count(now, 1)
				l.byNode[id] = now
			}
		}
	}
	switch {
	case l.nodes > 0:
		lack := l.lack
		lack[IO] += l.noSingleDisk // enough I/O and space, but not on one disk, counts as lacking I/O
		most := CPU                // ties go to the first of CPU, Memory, IO, DiskSpace
		for r, n := range lack {
			if n > lack[most] {
				most = Resource(r)
			}
		}
		return [...]Reason{CPU: ReasonNoCPU, Memory: ReasonNoMemory, IO: ReasonNoIO, DiskSpace: ReasonNoDiskSpace}[most], lack[most]
	case c.schedulable > 0:
		return ReasonMaintenance, 0
	default:
		return ReasonNoNode, 0
	}
}

func (c *Cluster) recountLacking(class *equivalenceClass) {
	l := class.lacking
	var nodes [math.MaxUint8 + 1]int32 // by contribution
	for id := range l.byNode {
		of := c.nodeLack(class, NodeID(id))
		l.byNode[id] = of
		nodes[of]++
	}
	*l = lacking{byNode: l.byNode, pos: c.fit.changedCount}
	for of, n := range nodes {
		if n > 0 {
			l.count(lackBits(of), n)
		}
	}
}

func (c *Cluster) nodeLack(class *equivalenceClass, id NodeID) lackBits {
	need, r := &class.need, &c.fit.free[id]
	if r[0] == unschedulable[0] || class.avoids(id) {
		return lackUnschedulable
	}
	of := lackBits(0)
	for k := range need {
		lacks := lackBits(0)
		if need[k] > r[k] { // compiled without a branch, which few processors would predict
			lacks = 1
		}
		of |= lacks << k
	}
	if of == 0 && len(c.nodes[id].Disks) > 1 && tightestDisk(c.nodes[id].Disks, need[2], need[3]) < 0 {
		return lackSingleDisk
	}
	return of
}

// count adds the contribution of n nodes, or removes it if n is negative.
func (l *lacking) count(of lackBits, n int32) {
	if of == lackUnschedulable {
		return
	}
	l.nodes += n
	switch of {
	case 0: // the task fits
	case lackSingleDisk:
		l.noSingleDisk += n
	default:
		for k := range l.lack {
			l.lack[k] += n * int32(of>>k&1)
		}
	}
}
