package node

import (
	"context"
	"os"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/hdfs"
)

// Limits bound what one attempt may use.
type Limits struct {
	CPU    int64 // millicores
	Memory int64 // bytes, harness included
	io     int64 // bytes per second of reads, and as many of writes
	Pids   int64
	swap   int64  // bytes; 0 unless the attempt is swapped out
	rootfs string // folder that is the attempt's root, "" for an image of the engine: io also applies to its disk
}

// Enforcer manages the cgroup of each attempt: limits are set on the attempt's
// cgroup; the leaf container holds its container and the leaf helpers its helper
// processes. All methods are safe to repeat.
type Enforcer interface {
	// Ensure makes the cgroup with both leaves, writes the limits and returns
	// them as the kernel holds them. A value that does not read back is an error.
	Ensure(ctx context.Context, id string, l Limits) (*droverv1.Limits, error)
	// ContainerCgroup returns the container's cgroup, in the form of runtime.Spec.Cgroup.
	ContainerCgroup(id string) string
	// OpenHelperLeaf opens the folder of the helpers leaf, to start a process in it.
	OpenHelperLeaf(id string) (*os.File, error)
	// Usage returns past and current usage, and how many processes the kernel has killed for want
	// of memory.
	Usage(id string) (u *droverv1.Usage, held *droverv1.Resources, kills OOMKills, err error)
	// KillHelpers kills every process in the helpers leaf and waits for them.
	KillHelpers(ctx context.Context, id string) error
	// Remove kills the remaining processes of the cgroup and removes it.
	Remove(ctx context.Context, id string) error
	// List returns the attempts that have a cgroup.
	List() ([]string, error)
}

// OOMKills counts the processes of an attempt that the kernel has killed for want of memory.
type OOMKills struct {
	atLimit int64 // of the attempt
	outside int64 // because the machine, or a cgroup around all attempts, had none left
}

// Swapper is an optional ability of an Enforcer: it swaps out memory. An Enforcer
// that can freeze implements runtime.Freezer.
type Swapper interface {
	// SwapOut pushes the memory of a frozen attempt out, to swap as far as its limit allows, and
	// returns the bytes moved. Exhausted: more than half of it stayed, for want of swap.
	SwapOut(ctx context.Context, id string) (moved int64, err error)
	// SwapBytes returns how many bytes of the attempt are in swap.
	SwapBytes(id string) (int64, error)
}

// FileSystems opens the file system of a URI on behalf of a user. The caller must
// not close it.
type FileSystems interface {
	Open(uri hdfs.URI, user string) (hdfs.FS, error)
}
