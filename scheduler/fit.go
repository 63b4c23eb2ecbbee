package scheduler

import (
	"math"
	"math/bits"
	"slices"
)

// fitIndex finds nodes with free capacity. It is a cache over the nodes: its answers depend on
// the State alone, never on earlier calls.
//
// Each demand that was searched for has an equivalence class with a set of candidate nodes. A node leaves the
// set when it is examined and does not fit; it returns when the log of gains records that capacity became free
// on it. So a full node costs a class one examination per release on it, regardless of the number of nodes.
type fitIndex struct {
	free            []capacityVec
	inverseCapacity [][NumResources]float64 // 1/capacity of each node, 0 for none: for BestNode
	gained          []NodeID                // ring of the nodes that gained free capacity
	gainedCount     uint64                  // number of entries ever added to gained
	// version is the last node version assigned, versions the last one of each node,
	// versionOfAll the last one assigned to all nodes at once.
	version, versionOfAll uint64
	versions              []uint64
	changed               []NodeID // ring of the nodes whose free capacity changed, as long as gained
	changedCount          uint64   // number of entries ever added to changed
	classes               []equivalenceClass
	byNeed                map[DemandClass]int32 // index in classes
	generation            uint32                // increased when classes are dropped
	blocks                fitBlocks
	misfits               misfits // needs without a class
}

// capacityVec is CPU, memory, the largest free I/O of a disk and the largest free space of a
// disk. It is unschedulable for a node that is not schedulable.
type capacityVec [4]int64

var unschedulable = capacityVec{math.MinInt64, math.MinInt64, math.MinInt64, math.MinInt64}

func (n *capacityVec) fits(in *capacityVec) bool {
	return n[0] <= in[0] && n[1] <= in[1] && n[2] <= in[2] && n[3] <= in[3]
}

// equivalenceClass is all demands with equal needs, and the nodes that may fit them. Each Avoidance has its own.
type equivalenceClass struct {
	need       capacityVec
	avoided    []NodeID // never candidates, usually none; in order
	candidates bitset
	pos        uint64 // entries of gained already applied to candidates
	lacking    *lacking
}

// maxEquivalenceClasses bounds the classes. When it is reached all are dropped, which costs time but changes no answer.
const maxEquivalenceClasses = 4096

const bestNodeCandidates = 8 // how many fitting nodes BestNode compares

// addNode extends the index by a node. It drops all classes, and enlarges logs shorter than twice the number of nodes.
func (f *fitIndex) addNode() {
	f.free = append(f.free, unschedulable)
	f.versions = append(f.versions, 0)
	f.inverseCapacity = append(f.inverseCapacity, [NumResources]float64{})
	if n := len(f.free); len(f.gained) < 2*n {
		size := 1024
		for size < 4*n {
			size *= 2
		}
		f.gained, f.gainedCount = make([]NodeID, size), 0
		f.changed, f.changedCount = make([]NodeID, size), 0
	}
	f.blocks.grow(len(f.free))
	f.dropClasses()
}

func (c *Cluster) updateFitIndex(id NodeID) {
	n := c.nodes[id]
	f := &c.fit
	c.bumpNodeVersion(id)
	now := unschedulable
	if n.Schedulable() {
		now[0], now[1] = n.Free[CPU], n.Free[Memory]
		if len(n.Disks) == 0 {
			now[2], now[3] = 0, 0
		}
		for i := range n.Disks {
			now[2], now[3] = max(now[2], n.Disks[i].FreeIO), max(now[3], n.Disks[i].FreeSpace)
		}
	}
	was := &f.free[id]
	if *was != now || len(n.Disks) > 1 {
		f.changed[f.changedCount&uint64(len(f.changed)-1)] = id
		f.changedCount++
	}
	// *was has only the maximum over the disks: another disk may have gained without raising it.
	more := now[0] > was[0] || now[1] > was[1] || now[2] > was[2] || now[3] > was[3] || len(n.Disks) > 1
	f.blocks.update(id, was, &now)
	*was = now
	if more {
		f.gained[f.gainedCount&uint64(len(f.gained)-1)] = id
		f.gainedCount++
	}
}

// classFor returns the index of the class of a demand; it adds a new class. j is the job of its
// Avoidance, if any.
func (c *Cluster) classFor(j *Job, k DemandClass) int32 {
	f := &c.fit
	if i, ok := f.byNeed[k]; ok {
		return i
	}
	if len(f.classes) >= maxEquivalenceClasses || f.byNeed == nil {
		f.classes, f.byNeed = f.classes[:0], map[DemandClass]int32{}
		f.generation++
	}
	n, i := int32(len(f.free)), int32(len(f.classes))
	f.classes = append(f.classes, equivalenceClass{need: k.need, avoided: c.avoided(j, k), candidates: newBitset(n), pos: f.gainedCount})
	f.classes[i].candidates.setAll(n)
	f.byNeed[k] = i
	return i
}

// classOfStage returns the class of the stage's demand, cached in the stage until classes are dropped.
func (c *Cluster) classOfStage(g *Stage) *equivalenceClass {
	f := &c.fit
	begins := c.begunBy(g)
	if g.eqClassGeneration != f.generation || g.eqClassGeneration == 0 || g.eqClassBegins != begins {
		g.eqClass = c.classFor(g.Job, DemandClass{g.need(), Avoidance{g.Avoider(), begins}})
		g.eqClassGeneration, g.eqClassBegins = f.generation, begins
	}
	return &f.classes[g.eqClass]
}

func needOf(d Resources, disk int64) capacityVec { return capacityVec{d[CPU], d[Memory], d[IO], disk} }

func (g *Stage) need() capacityVec { return needOf(g.Spec.Demand, g.Spec.Disk) }

// catchUp adds the nodes that gained capacity since the last call for the class to its candidates.
func (f *fitIndex) catchUp(class *equivalenceClass) {
	size := uint64(len(f.gained))
	if f.gainedCount-class.pos > size {
		class.candidates.setAll(int32(len(f.free)))
		class.pos = f.gainedCount
		return
	}
	for ; class.pos < f.gainedCount; class.pos++ {
		if id := f.gained[class.pos&(size-1)]; class.need.fits(&f.free[id]) {
			class.candidates.set(int32(id))
		}
	}
}

// avoids reports whether a node is never a candidate.
func (class *equivalenceClass) avoids(id NodeID) bool {
	if len(class.avoided) == 0 {
		return false
	}
	_, found := slices.BinarySearch(class.avoided, id)
	return found
}

// fullBeforeBlocks is how many full nodes nextFit examines before it compares whole blocks: most
// searches end earlier. After nodesPerBlock full nodes it compares all candidates of a block at once.
const fullBeforeBlocks = 4

// nextFit returns the lowest node >= from that fits the class, or NoNode.
func (c *Cluster) nextFit(class *equivalenceClass, from NodeID) NodeID {
	f := &c.fit
	if class.pos != f.gainedCount {
		f.catchUp(class)
	}
	compared := int32(-1) // the last block that was compared
	for i, full := class.candidates.next(int32(from)), 0; i >= 0; i = class.candidates.next(i + 1) {
		if class.need.fits(&f.free[i]) && (len(c.nodes[i].Disks) < 2 || tightestDisk(c.nodes[i].Disks, class.need[2], class.need[3]) >= 0) &&
			!class.avoids(NodeID(i)) {
			return NodeID(i)
		}
		class.candidates.clear(i)
		switch full++; {
		case full >= fullBeforeBlocks && !f.blocks.mayFitIn(i/nodesPerBlock, &class.need, f.free):
			class.candidates.setWord(i/nodesPerBlock, 0)
		case full >= nodesPerBlock && compared != i/nodesPerBlock:
			compared = i / nodesPerBlock
			class.candidates.setWord(compared, f.fittingIn(compared, class))
		}
	}
	return NoNode
}

// fittingIn returns the candidates of a block that fit the class, as a word of a bitset.
func (f *fitIndex) fittingIn(block int32, class *equivalenceClass) (fitting uint64) {
	of := f.free[block*nodesPerBlock:]
	for word := class.candidates.l0[block]; word != 0; word &= word - 1 {
		if i := bits.TrailingZeros64(word); class.need.fits(&of[i]) {
			fitting |= 1 << i
		}
	}
	return fitting
}

// tightestDisk returns the disk with the least free I/O that fits this I/O and space (ties to the first), or -1.
func tightestDisk(disks []DiskUse, io, space int64) int16 {
	best := int16(-1)
	for i := range disks {
		if d := &disks[i]; io <= d.FreeIO && space <= d.FreeSpace && (best < 0 || d.FreeIO < disks[best].FreeIO) {
			best = int16(i)
		}
	}
	return best
}

// Fits reports whether a task of this demand and disk space can be placed on the node now, and
// on which disk (-1: it needs none and the node has none).
func (n *Node) Fits(d Resources, space int64) (disk int16, ok bool) {
	if !n.Schedulable() {
		return -1, false
	}
	c := FreeCapacity{n.Free, n.Disks}
	return c.fits(d, space)
}

// HasCapacity reports whether a task of the stage can be placed on the node now. It answers as Fits
// does, but from the index, without reading a node that has one disk.
func (c *Cluster) HasCapacity(g *Stage, id NodeID) bool {
	if id < 0 || int(id) >= len(c.fit.free) {
		return false
	}
	need := g.need()
	return c.fits(id, &need) && !c.Avoids(g, id)
}

// NodeVersion returns a number that changes whenever an attempt arrives on the node, leaves it, changes what it
// occupies there or gets another predicted end or other refused levels, tries included. Numbers are never reused.
func (c *Cluster) NodeVersion(id NodeID) uint64 { return max(c.fit.versions[id], c.fit.versionOfAll) }

// IsSchedulable reports whether there is such a node and it is Node.Schedulable. It reads less memory than the node.
func (c *Cluster) IsSchedulable(id NodeID) bool {
	return id >= 0 && int(id) < len(c.fit.free) && c.fit.free[id] != unschedulable
}

// bumpNodeVersion assigns a new version to a node, or to all for NoNode.
func (c *Cluster) bumpNodeVersion(id NodeID) {
	f := &c.fit
	if f.version++; id == NoNode {
		f.versionOfAll = f.version
	} else {
		f.versions[id] = f.version
	}
}

// NextNode returns the lowest node >= from that fits a task of the stage, or NoNode. Amortised
// O(1) for any number of nodes; it allocates only for the first stage with a demand.
func (c *Cluster) NextNode(g *Stage, from NodeID) NodeID {
	if c.fitsNowhere(g) {
		return NoNode
	}
	return c.nextFit(c.classOfStage(g), from)
}

// NextNodeFor is NextNode for any demand and disk space.
func (c *Cluster) NextNodeFor(d Resources, space int64, from NodeID) NodeID {
	return c.NextNodeOfClass(nil, &DemandClass{need: needOf(d, space)}, from)
}

// NextNodeOfClass is NextNodeFor for a class of demand. j is the job of its Avoidance, nil for none.
func (c *Cluster) NextNodeOfClass(j *Job, k *DemandClass, from NodeID) NodeID {
	i := c.classFor(j, *k)
	return c.nextFit(&c.fit.classes[i], from)
}

// BestNode returns the fitting node that a task of the stage would leave with the least free capacity, and the disk to
// use: among the first few fitting nodes by id that are not excluded (a few, in any order) the one with the smallest
// sum of free shares, ties to the lowest id. It returns NoNode if no node fits. Amortised O(1).
func (c *Cluster) BestNode(g *Stage, excluded []NodeID) (NodeID, int16) {
	if c.fitsNowhere(g) {
		return NoNode, -1
	}
	class := c.classOfStage(g)
	best, least := NoNode, 0.0
	for i, k := c.nextFit(class, 0), 0; i != NoNode && k < bestNodeCandidates; i = c.nextFit(class, i+1) {
		if slices.Contains(excluded, i) {
			continue
		}
		// The sum of free shares, before placement: the task reduces it equally on nodes of one size.
		free, inv := &c.fit.free[i], &c.fit.inverseCapacity[i]
		left := float64(free[0])*inv[0] + float64(free[1])*inv[1] + float64(free[2])*inv[2]
		if best == NoNode || left < least {
			best, least = i, left
		}
		k++
	}
	if best == NoNode {
		return NoNode, -1
	}
	return best, tightestDisk(c.nodes[best].Disks, class.need[2], class.need[3])
}

// NodeLackingLeast returns the node that lacks least of the demand of a task of the stage, by its scarcest resource:
// among the schedulable nodes that are large enough for the task and not in excluded, the one with the largest
// FreeFraction, ties to the lowest id. It returns NoNode if there is none. O(nodes x excluded).
func (c *Cluster) NodeLackingLeast(g *Stage, excluded []NodeID) NodeID {
	best, most, need := NoNode, -1.0, g.need()
	for _, n := range c.nodes {
		if !n.Schedulable() || slices.Contains(excluded, n.Spec.ID) || c.Avoids(g, n.Spec.ID) {
			continue
		}
		if near := n.FreeFraction(g.Spec.Demand); near > most && n.isLargeEnough(&need) {
			best, most = n.Spec.ID, near
		}
	}
	return best
}

// FreeFraction returns how much of a demand is free on the node: min_r free_r/need_r, at most 1; -1 if it exceeds
// the node's capacity. I/O is the sum over all disks: use IsLargeEnough to learn whether one disk suffices.
func (n *Node) FreeFraction(demand Resources) float64 {
	near := 1.0
	for r, need := range demand {
		if need > n.Spec.Capacity[r] {
			return -1
		}
		if free := n.Free[r]; free < need && need > 0 {
			near = min(near, float64(free)/float64(need))
		}
	}
	return near
}

// PlaceAction returns the action that starts the next attempt at task i of the stage. It does not apply it.
func (at Attempts) PlaceAction(g *Stage, i int32, n NodeID, disk int16) Action {
	return Action{Kind: ActPlace, Task: g.Task(i), Attempt: at.NextAttempt(g, i), Run: 1, Node: n, Disk: disk}
}
