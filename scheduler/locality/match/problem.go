package match

// None is the node of a task that is not placed.
const None = int32(-1)

const resources = 3 // the number of resources in a weight: CPU, memory, disk I/O

// Node is one machine.
type Node struct {
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

// Problem is the input of Solve, which only reads it and retains nothing. No number may be negative.
type Problem struct {
	Nodes []Node

	// Task i, best priority first, has its data on the nodes Replicas[Offsets[i]:Offsets[i+1]], in
	// any order. A task without a replica stays unplaced.
	Offsets  []int32
	Replicas []int32

	// maxWork limits the edges visited by searches; 0 means defaultWork. Beyond it, searches go
	// only one step deep: the result stays valid and maximal, but may not be optimal.
	maxWork int
}

const defaultWork = 1 << 30 // reached only by adversarial inputs: about two seconds

func (p *Problem) tasks() int { return max(0, len(p.Offsets)-1) }
