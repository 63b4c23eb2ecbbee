package scheduler

import (
	"math"
	"slices"
)

// fitIndex finds nodes with room. It is a cache over the nodes: its answers
// depend on the State alone, never on what was asked before.
//
// Each demand that is asked for has a set of nodes that may have room. A node
// leaves the set when it is looked at and has no room; it comes back when the
// log says that something became free on it. So a node that is full costs a
// demand one look per time something ends on it, however many nodes there are.
type fitIndex struct {
	room   []room
	inv    [][NumResources]float64 // 1/capacity of each node
	log    []NodeID                // ring of nodes that got more room
	head   uint64                  // entries ever put in the log
	turns  []NodeID                // ring of nodes whose room changed, as long as log
	turned uint64                  // entries ever put in turns
	// versions ever given, the last one of each node, and of all nodes together;
	// and a ring of which node got which, as long as log, good from a version on.
	version, versionOfAll uint64
	versions              []uint64
	given                 []NodeID
	givenFrom             uint64
	shapes                []shape
	byNeed                map[room]int32
	gen                   uint32 // raised when shapes were dropped
}

// room is CPU, memory, the largest free I/O of a disk and the largest free
// space of a disk; noRoom on a node that takes no work.
type room [4]int64

var noRoom = room{math.MinInt64, math.MinInt64, math.MinInt64, math.MinInt64}

func (n *room) fits(in *room) bool {
	return n[0] <= in[0] && n[1] <= in[1] && n[2] <= in[2] && n[3] <= in[3]
}

type shape struct {
	need room
	may  bitset
	pos  uint64 // log entries seen
	lack *lacking
}

// maxShapes bounds the demands remembered; past it all are forgotten, which
// costs time and changes nothing.
const maxShapes = 4096

// bestOf is how many nodes with room BestNode compares.
const bestOf = 8

func (f *fitIndex) addNode() {
	f.room = append(f.room, noRoom)
	f.versions = append(f.versions, 0)
	f.inv = append(f.inv, [NumResources]float64{})
	if n := len(f.room); len(f.log) < 2*n {
		size := 1024
		for size < 4*n {
			size *= 2
		}
		f.log, f.head = make([]NodeID, size), 0
		f.turns, f.turned = make([]NodeID, size), 0
		f.given, f.givenFrom = make([]NodeID, size), f.version
	}
	f.shapes, f.byNeed = nil, nil
	f.gen++
}

// touch tells the index that a node changed.
func (s *State) touch(id NodeID) {
	n := s.nodes[id]
	f := &s.fit
	f.giveVersion(id)
	now := noRoom
	if n.Takes() {
		now[0], now[1], now[2], now[3] = n.Free[CPU], n.Free[Memory], 0, 0
		if len(n.Disks) > 0 {
			now[2], now[3] = n.Disks[0].FreeIO, n.Disks[0].FreeSpace
			for i := 1; i < len(n.Disks); i++ {
				now[2] = max(now[2], n.Disks[i].FreeIO)
				now[3] = max(now[3], n.Disks[i].FreeSpace)
			}
		}
	}
	was := &f.room[id]
	if *was != now || len(n.Disks) > 1 {
		f.turns[f.turned&uint64(len(f.turns)-1)] = id
		f.turned++
	}
	more := now[0] > was[0] || now[1] > was[1] || now[2] > was[2] || now[3] > was[3]
	*was = now
	if more {
		f.log[f.head&uint64(len(f.log)-1)] = id
		f.head++
	}
}

// setScale remembers a node's capacity for comparing what is left.
func (f *fitIndex) setScale(id NodeID, capacity Resources) {
	for r, c := range capacity {
		f.inv[id][r] = 0
		if c > 0 {
			f.inv[id][r] = 1 / float64(c)
		}
	}
}

func (f *fitIndex) shapeOf(need room) *shape {
	if i, ok := f.byNeed[need]; ok {
		return &f.shapes[i]
	}
	if len(f.shapes) >= maxShapes || f.byNeed == nil {
		f.shapes, f.byNeed = f.shapes[:0], map[room]int32{}
		f.gen++
	}
	n := int32(len(f.room))
	f.byNeed[need] = int32(len(f.shapes))
	f.shapes = append(f.shapes, shape{need: need, may: newBitset(n), pos: f.head})
	sh := &f.shapes[len(f.shapes)-1]
	sh.may.setAll(n)
	return sh
}

func (s *State) shapeOfStage(g *Stage) *shape {
	f := &s.fit
	if g.shapeGen == f.gen && g.shapeGen != 0 {
		return &f.shapes[g.shape]
	}
	need := needOf(g.Spec.Demand, g.Spec.Disk)
	sh := f.shapeOf(need)
	g.shape, g.shapeGen = f.byNeed[need], f.gen
	return sh
}

func needOf(d Resources, disk int64) room { return room{d[CPU], d[Memory], d[IO], disk} }

// catchUp takes in what became free since the shape was last asked for.
func (f *fitIndex) catchUp(sh *shape) {
	size := uint64(len(f.log))
	if f.head-sh.pos > size {
		sh.may.setAll(int32(len(f.room)))
		sh.pos = f.head
		return
	}
	for ; sh.pos < f.head; sh.pos++ {
		if id := f.log[sh.pos&(size-1)]; sh.need.fits(&f.room[id]) {
			sh.may.set(int32(id))
		}
	}
}

// nextFit gives the lowest node >= from with room for the shape, or NoNode.
func (s *State) nextFit(sh *shape, from NodeID) NodeID {
	f := &s.fit
	if sh.pos != f.head {
		f.catchUp(sh)
	}
	for i := sh.may.next(int32(from)); i >= 0; i = sh.may.next(i + 1) {
		if sh.need.fits(&f.room[i]) && (len(s.nodes[i].Disks) < 2 || s.nodes[i].disk(sh.need[2], sh.need[3]) >= 0) {
			return NodeID(i)
		}
		sh.may.clear(i)
	}
	return NoNode
}

// disk gives the tightest disk with room for this I/O and space (ties to the
// first), or -1.
func (n *Node) disk(io, space int64) int16 {
	best := int16(-1)
	for i := range n.Disks {
		d := &n.Disks[i]
		if io <= d.FreeIO && space <= d.FreeSpace && (best < 0 || d.FreeIO < n.Disks[best].FreeIO) {
			best = int16(i)
		}
	}
	return best
}

// Fits tells whether a task of this demand and disk space can be placed on the
// node now, and on which disk (-1: it needs none and the node has none).
func (n *Node) Fits(d Resources, space int64) (disk int16, ok bool) {
	if !n.Takes() || d[CPU] > n.Free[CPU] || d[Memory] > n.Free[Memory] {
		return -1, false
	}
	disk = n.disk(d[IO], space)
	return disk, disk >= 0 || (len(n.Disks) == 0 && d[IO] == 0 && space == 0)
}

// HasRoom tells whether a task of the stage can be placed on the node now: Fits
// from the index, without a look at the node where it has one disk.
func (s *State) HasRoom(g *Stage, id NodeID) bool {
	if id < 0 || int(id) >= len(s.fit.room) {
		return false
	}
	need := needOf(g.Spec.Demand, g.Spec.Disk)
	return need.fits(&s.fit.room[id]) && (len(s.nodes[id].Disks) < 2 || s.nodes[id].disk(need[2], need[3]) >= 0)
}

// NodeVersion is a number that changes whenever an attempt comes to the node,
// leaves it, holds something else there or gets another predicted end, tries
// included, and that never comes back.
func (s *State) NodeVersion(id NodeID) uint64 { return max(s.fit.versions[id], s.fit.versionOfAll) }

// LastVersion is the last version that a node got, for NodesSince. O(1).
func (s *State) LastVersion() uint64 { return s.fit.version }

// NodesSince lists the nodes that got a new version (NodeVersion) since LastVersion
// gave one, in order, some of them more than once. False means that it cannot tell:
// too much has happened, or all nodes got a new version; then some may have been
// listed. O(changes).
func (s *State) NodesSince(at uint64, yield func(NodeID)) bool {
	f := &s.fit
	if at < f.givenFrom || at > f.version || f.version-at > uint64(len(f.given)) || f.versionOfAll > at {
		return false
	}
	for at++; at <= f.version; at++ {
		yield(f.given[at&uint64(len(f.given)-1)])
	}
	return true
}

// predictedAnew gives a node a new version; NoNode stands for all.
func (s *State) predictedAnew(id NodeID) {
	f := &s.fit
	if id == NoNode {
		f.version++
		f.versionOfAll = f.version
		return
	}
	f.giveVersion(id)
}

func (f *fitIndex) giveVersion(id NodeID) {
	f.version++
	f.versions[id] = f.version
	f.given[f.version&uint64(len(f.given)-1)] = id
}

// NextNode gives the node with the lowest id >= from that has room for a task
// of the stage, or NoNode: amortised O(1) however many nodes there are. No
// allocation but at the first demand of a kind.
func (s *State) NextNode(g *Stage, from NodeID) NodeID {
	return s.nextFit(s.shapeOfStage(g), from)
}

// NextNodeFor is NextNode for any demand and disk space.
func (s *State) NextNodeFor(d Resources, space int64, from NodeID) NodeID {
	return s.nextFit(s.fit.shapeOf(needOf(d, space)), from)
}

// BestNode gives a node with room for a task of the stage that is left with
// the least after it, and the disk to use: of the first few nodes with room in
// order of id the one with the smallest sum of free shares, ties to the lowest
// id. NoNode when no node has room. Amortised O(1).
func (s *State) BestNode(g *Stage) (NodeID, int16) { return s.best(s.shapeOfStage(g)) }

// BestNodeFor is BestNode for any demand and disk space.
func (s *State) BestNodeFor(d Resources, space int64) (NodeID, int16) {
	return s.best(s.fit.shapeOf(needOf(d, space)))
}

func (s *State) best(sh *shape) (NodeID, int16) {
	best, least := NoNode, 0.0
	for i, k := s.nextFit(sh, 0), 0; i != NoNode && k < bestOf; i, k = s.nextFit(sh, i+1), k+1 {
		if left := s.fit.left(i); best == NoNode || left < least {
			best, least = i, left
		}
	}
	if best == NoNode {
		return NoNode, -1
	}
	return best, s.nodes[best].disk(sh.need[2], sh.need[3])
}

// BestNodeBut is BestNode without the nodes in taken (sorted or not; a few).
func (s *State) BestNodeBut(g *Stage, taken []NodeID) (NodeID, int16) {
	if len(taken) == 0 {
		return s.BestNode(g)
	}
	sh := s.shapeOfStage(g)
	best, least := NoNode, 0.0
	for i, k := s.nextFit(sh, 0), 0; i != NoNode && k < bestOf; i = s.nextFit(sh, i+1) {
		if slices.Contains(taken, i) {
			continue
		}
		if left := s.fit.left(i); best == NoNode || left < least {
			best, least = i, left
		}
		k++
	}
	if best == NoNode {
		return NoNode, -1
	}
	return best, s.nodes[best].disk(sh.need[2], sh.need[3])
}

// NearestNode gives the node that lacks least of what a task of the stage
// needs, by the scarcest resource: of those that take work, could hold the task
// were they empty and are not in taken the one with the largest
// min_r free_r/need_r, ties to the lowest id. NoNode where there is none.
// O(nodes x taken).
func (s *State) NearestNode(g *Stage, taken []NodeID) NodeID {
	best, most := NoNode, -1.0
	for _, n := range s.nodes {
		if !n.Takes() || slices.Contains(taken, n.Spec.ID) {
			continue
		}
		if near := n.Nearness(g.Spec.Demand); near > most {
			best, most = n.Spec.ID, near
		}
	}
	return best
}

// Nearness is how much of a demand is free on the node, by the scarcest
// resource: min_r free_r/need_r, at most 1; -1 where the demand would not fit
// the node were it empty.
func (n *Node) Nearness(demand Resources) float64 {
	near := 1.0
	for r, need := range demand {
		if need > n.Spec.Capacity[r] {
			return -1
		}
		if need > 0 {
			near = min(near, float64(n.Free[r])/float64(need))
		}
	}
	return near
}

// left is the sum of a node's free shares; the demand is the same for all that
// are compared and nodes of one size lose the same by it.
func (f *fitIndex) left(i NodeID) float64 {
	r, inv := &f.room[i], &f.inv[i]
	return float64(r[0])*inv[0] + float64(r[1])*inv[1] + float64(r[2])*inv[2]
}

// Place makes the action that starts the next attempt of task i of the stage.
func (s *State) Place(g *Stage, i int32, n NodeID, disk int16) Action {
	attempt := int32(1)
	if len(g.tries) > 0 {
		attempt = s.NextAttempt(g, i)
	}
	return Action{Kind: ActPlace, Task: g.Task(i), Attempt: attempt, Run: 1, Node: n, Disk: disk}
}
