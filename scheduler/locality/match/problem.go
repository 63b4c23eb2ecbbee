package match

import (
	"errors"
	"fmt"
	"math"

	"github.com/drover-run/drover/internal/enum"
)

// errProblem is the class of all errors of this package: an inconsistent input. The
// message names the inconsistent part.
var errProblem = errors.New("match: bad problem")

// None is the node of a task that is not placed.
const None = int32(-1)

// Limits of a problem.
const (
	MaxTasks = 1 << 24
	maxNodes = 1 << 20
	maxEdges = 1 << 27 // replicas of all tasks together
)

// resources is the number of resources in a weight: CPU, memory, disk I/O.
const resources = 3

// Node is one machine.
type Node struct {
	rack  int32              // index of its rack, from 0
	Slots int32              // number of tasks that fit now
	Used  [resources]float64 // share of each capacity in use, 0 to 1
	Step  [resources]float64 // share of each capacity that one task takes
}

// weight returns the idle weight of the node after j further tasks, 3DSF section 6.1:
// one minus the greatest share in use. It decreases with j.
func (n *Node) weight(j int32) float64 {
	f := float64(j)
	top := n.Used[0] + f*n.Step[0]
	for r := 1; r < resources; r++ {
		top = max(top, n.Used[r]+f*n.Step[r])
	}
	return 1 - top
}

// Hops is the greatest distance from its data at which a task may be placed (h of 3DSF
// eq. 7, in switches).
type Hops int

const (
	NodeOnly Hops = iota + 1 // h = 0: on a node with a replica
	SameRack                 // h = 1: also in the rack of a replica
)

// String returns the name of the distance.
func (h Hops) String() string {
	return enum.Name("hops", h, []string{NodeOnly: "node", SameRack: "rack"})
}

// localityLevel is how near to its data a task was placed.
type localityLevel uint8

const (
	unplaced  localityLevel = iota + 1 // no place within the limit of hops
	nodeLocal                          // on a node with a replica
	rackLocal                          // in the rack of a replica
)

// String returns the name of the level.
func (l localityLevel) String() string {
	return enum.Name("level", l, []string{unplaced: "unplaced", nodeLocal: "node-local", rackLocal: "rack-local"})
}

// Problem is the input of Solve, which only reads it and retains nothing of it.
type Problem struct {
	Nodes []Node
	Racks int // number of racks

	// Task i, best priority first, has its data on the nodes
	// Replicas[Offsets[i]:Offsets[i+1]], in any order. A task without a replica stays
	// unplaced.
	Offsets  []int32
	Replicas []int32

	Hops Hops

	// maxWork limits the edges visited by searches; 0 means defaultWork. Beyond it,
	// searches go only one step deep: the result stays valid and maximal, but Optimal
	// is false.
	maxWork int
}

// defaultWork is a limit that only adversarial inputs reach: about two seconds.
const defaultWork = 1 << 30

// tasks returns the number of tasks.
func (p *Problem) tasks() int { return max(0, len(p.Offsets)-1) }

// check returns an error for inputs that would make the solver read outside its slices.
func (p *Problem) check() error {
	switch {
	case len(p.Nodes) > maxNodes:
		return fmt.Errorf("%w: %d nodes, at most %d", errProblem, len(p.Nodes), maxNodes)
	case p.Racks < 0 || p.Racks > maxNodes:
		return fmt.Errorf("%w: %d racks, want 0 to %d", errProblem, p.Racks, maxNodes)
	case p.tasks() > MaxTasks:
		return fmt.Errorf("%w: %d tasks, at most %d", errProblem, p.tasks(), MaxTasks)
	case len(p.Replicas) > maxEdges:
		return fmt.Errorf("%w: %d replicas, at most %d", errProblem, len(p.Replicas), maxEdges)
	case p.Hops != NodeOnly && p.Hops != SameRack:
		return fmt.Errorf("%w: %v is no limit of hops", errProblem, p.Hops)
	case p.maxWork < 0:
		return fmt.Errorf("%w: MaxWork is %d", errProblem, p.maxWork)
	}
	for i := range p.Nodes {
		n := &p.Nodes[i]
		if n.Slots < 0 || n.rack < 0 || int(n.rack) >= p.Racks {
			return fmt.Errorf("%w: node %d has %d slots in rack %d of %d", errProblem, i, n.Slots, n.rack, p.Racks)
		}
		for r := range n.Used {
			if !(math.Abs(n.Used[r]) < 1e9) || !(n.Step[r] >= 0 && n.Step[r] < 1e9) {
				return fmt.Errorf("%w: node %d uses %g of resource %d, a task %g", errProblem, i, n.Used[r], r, n.Step[r])
			}
		}
	}
	return checkTasks(p.Offsets, p.Replicas, len(p.Nodes))
}

// checkTasks returns an error if the lists of replicas are inconsistent.
func checkTasks(offsets, replicas []int32, nodes int) error {
	last := 0
	if len(offsets) > 0 {
		last = int(offsets[len(offsets)-1])
		if offsets[0] != 0 {
			return fmt.Errorf("%w: offsets start at %d", errProblem, offsets[0])
		}
	}
	if last != len(replicas) {
		return fmt.Errorf("%w: offsets end at %d of %d replicas", errProblem, last, len(replicas))
	}
	for i := 1; i < len(offsets); i++ {
		if offsets[i-1] > offsets[i] {
			return fmt.Errorf("%w: the offsets of task %d fall from %d to %d", errProblem, i-1, offsets[i-1], offsets[i])
		}
	}
	for i, v := range replicas {
		if v < 0 || int(v) >= nodes {
			return fmt.Errorf("%w: replica %d is on node %d of %d", errProblem, i, v, nodes)
		}
	}
	return nil
}

// Result is the output of Solve. Its slices belong to the Solver and are valid until
// its next Solve.
type Result struct {
	Node  []int32         // node of each task, or None
	level []localityLevel // level of each task

	nodeLocal, rackLocal int     // numbers of tasks placed
	weight               float64 // sum of the idle weights of the slots taken

	// nodeLocalBound is an upper bound of NodeLocal, equal to NodeLocal if Optimal.
	nodeLocalBound int
	optimal        bool // false only when maxWork was reached
	work           int  // edges visited
}
