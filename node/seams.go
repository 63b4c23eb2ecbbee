package node

import (
	"context"
	"os"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/hdfs"
)

// Limits are what one attempt may use.
type Limits struct {
	CPU    int64 // millicores
	Memory int64 // bytes, harness included
	IO     int64 // bytes per second of reads, and as much of writes
	Pids   int64
	Swap   int64 // bytes; 0 but for an attempt that is swapped out
}

// Enforcer keeps the cgroup of each attempt: the limits are on the attempt's
// own cgroup, its leaf c holds the container and its leaf x our helpers. All
// methods are safe to repeat.
type Enforcer interface {
	// Make makes the cgroup with both leaves, writes the limits and gives them
	// as the kernel holds them. A value that does not stick is an error.
	Make(ctx context.Context, id string, l Limits) (*droverv1.Limits, error)
	// Leaf is the cgroup path for the container, as runtime.Spec.Cgroup has it.
	Leaf(id string) string
	// HelperLeaf opens the folder of leaf x, to start a process in it.
	HelperLeaf(id string) (*os.File, error)
	// Usage reads what was used so far; oomKills counts kills over memory.max.
	Usage(id string) (u *droverv1.Usage, held *droverv1.Resources, oomKills int64, err error)
	// KillHelpers ends every process in leaf x and waits for them.
	KillHelpers(ctx context.Context, id string) error
	// Remove ends what still runs in the cgroup and removes it.
	Remove(ctx context.Context, id string) error
	// List names the attempts that have a cgroup.
	List() ([]string, error)
}

// Swapper is what an Enforcer that pushes memory to swap can do besides. One that
// freezes is a runtime.Freezer too.
type Swapper interface {
	// SwapOut pushes the memory of a frozen attempt out, to swap as far as its
	// limit allows, and gives how many bytes went. Exhausted: less than half of it
	// did, for want of swap.
	SwapOut(ctx context.Context, id string) (moved int64, err error)
	// Swap tells how many bytes of the attempt are in swap.
	Swap(id string) (int64, error)
}

// FileSystems opens the file system of a URI on behalf of a user. The caller
// does not close it.
type FileSystems interface {
	Open(uri hdfs.URI, user string) (hdfs.FS, error)
}
