package scheduler

// Node is a machine and its free capacity. Callers outside this package may only read it.
//
// Searches compare many nodes. The fields that they read come first, here and in NodeSpec, in one
// cache line per node. A Node is therefore 448 bytes: Go aligns memory of that size to cache lines.
type Node struct {
	// Free is the capacity minus what attempts occupy. It is negative after a node shrank
	// below what runs on it; then nothing is placed there.
	Free     Resources
	Spec     NodeSpec
	Disks    []DiskUse // indexed as Spec.Disks
	SwapFree int64

	firstDisk [1]DiskUse     // storage of Disks if there is one: a placement reads both
	attempts  []int32        // slots, in placement order
	reserved  []*Reservation // by (Start, ID)
	// unguaranteed counts those of reserved that are not guarantees.
	unguaranteed int32
	Rack         int32   // number of Spec.Path in order of first appearance, from 0
	moving       []int32 // slots of attempts that are migrating away, by placement
	path         []string

	// Releasing is what the suspensions and kills in progress will free.
	Releasing Resources
}

// DiskUse is what is free on one disk.
type DiskUse struct {
	FreeIO    int64 // bytes per second
	FreeSpace int64 // bytes
}

// FreeCapacity is the free capacity of a node, now or after some of its tasks have started or ended.
type FreeCapacity struct {
	Free  Resources
	Disks []DiskUse // memory that Load uses again
}

// Load sets c to what is free on a node now.
func (c *FreeCapacity) Load(n *Node) { c.Free, c.Disks = n.Free, append(c.Disks[:0], n.Disks...) }

// Release adds what a task occupied on the node, with disk space on a disk (-1 for none).
func (c *FreeCapacity) Release(r Resources, space int64, disk int16) {
	c.Free = c.Free.Add(r)
	if disk >= 0 && int(disk) < len(c.Disks) {
		c.Disks[disk].FreeIO += r[IO]
		c.Disks[disk].FreeSpace += space
	}
}

// HasRoom reports whether a task of this demand and disk space fits, as Node.Fits does.
func (c *FreeCapacity) HasRoom(d Resources, space int64) bool {
	_, ok := c.fits(d, space)
	return ok
}

func (c *FreeCapacity) fits(d Resources, space int64) (disk int16, ok bool) {
	if d[CPU] > c.Free[CPU] || d[Memory] > c.Free[Memory] {
		return -1, false
	}
	disk = tightestDisk(c.Disks, d[IO], space)
	return disk, disk >= 0 || (len(c.Disks) == 0 && d[IO] == 0 && space == 0)
}

// Schedulable reports whether the node is up and accepts new tasks.
func (n *Node) Schedulable() bool { return !n.Spec.Down && !n.Spec.Draining }

// CanPreempt reports whether tasks of a job on the node can be preempted for a guarantee: the job
// is preemptible, and the node can free memory.
func (n *Node) CanPreempt(j *Job) bool { return !j.IsNonPreemptible() && n.Spec.Levels.FreesMemory() }

// CanReach reports whether an attempt on the node can be brought to a level, as far as is known: the
// node supports the level and has not refused it for this attempt. O(1).
func (n *Node) CanReach(a *Attempt, l Level) bool {
	return n.Spec.Levels.Has(l) && !a.RefusedLevels.Has(l)
}

// Unguaranteed returns the number of reservations on the node that are not guarantees. O(1).
func (n *Node) Unguaranteed() int32 { return n.unguaranteed }

// Used returns what attempts occupy on the node.
func (n *Node) Used() Resources { return n.Spec.Capacity.Sub(n.Free) }

// Tenant is a tenant and what its subtree uses. Callers outside this package may only read it.
type Tenant struct {
	Spec TenantSpec
	// Used is what the jobs of the tenant and of all tenants below it occupy; Own is what its own jobs occupy.
	Used, Own Resources
	// Releasing is what the suspensions and kills in progress will free of Used.
	Releasing Resources
	// Running counts the attempts at level running in the subtree.
	Running int32
	// Jobs counts its own jobs that have not ended.
	Jobs int32
	// ReadyHigh counts its own jobs with high priority and ready work.
	ReadyHigh int32
	// Children are ordered by name.
	Children []TenantID

	// ReadyChanges counts changes of the tenant's own jobs with ready work, and of the readiness of their
	// stages. StateVersion changes whenever a policy state of the tenant alone (no job, no project) does;
	// its values are never reused. Both grow in tries too, and when tries are rolled back.
	ReadyChanges, StateVersion uint64

	order jobOrder // of its own jobs
}
