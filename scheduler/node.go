package scheduler

// Node is a machine and what is free on it. Read only outside this package.
type Node struct {
	Spec NodeSpec
	// Free is capacity minus what attempts hold. It is negative after a node
	// shrank below what runs on it; then nothing is placed there.
	Free     Resources
	Disks    []DiskUse // as Spec.Disks
	SwapFree int64

	attempts []int32        // slots, in placement order
	reserved []*Reservation // by (Start, ID)
	moving   []int32        // slots of attempts that move away, by placement
	path     []string

	// Releasing is what suspensions and kills in flight will give back.
	Releasing Resources
	Rack      int32 // number of Spec.Path among the paths seen, from 0
}

// DiskUse is what is free on one disk.
type DiskUse struct {
	FreeIO    int64 // bytes per second
	FreeSpace int64 // bytes
}

// Takes tells whether the node is up and takes new work.
func (n *Node) Takes() bool { return !n.Spec.Down && !n.Spec.Draining }

// Used is what attempts hold on the node.
func (n *Node) Used() Resources { return n.Spec.Capacity.Sub(n.Free) }

// Tenant is who is charged, with what its subtree holds.
// Read only outside this package.
type Tenant struct {
	Spec TenantSpec
	// Used is held by the tenant and everything below it; Own by its own jobs.
	Used, Own Resources
	// Running counts attempts at level running in the subtree.
	Running int32
	// Jobs counts its own jobs that have not ended.
	Jobs int32
	// ReadyHigh counts its own jobs of high priority with ready work.
	ReadyHigh int32
	// Depth is 0 at the root. Children are in order of name.
	Depth    int32
	Children []TenantID

	order []*Job // by (Submitted, ID); nil where a job left
	ready bitset // ranks in order with ready work
}
