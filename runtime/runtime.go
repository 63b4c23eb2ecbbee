package runtime

import (
	"context"
	"io"
	"syscall"
	"time"
)

// Spec says what to run. It is a value: a driver keeps what it needs of it.
type Spec struct {
	ID       string            // unique on the node, [a-zA-Z0-9._-], at most 76 bytes
	Image    string            // digest ("sha256:…") known to Images, a pulled name, or "" for none
	Rootfs   string            // a folder as root instead of an image; "" where Image is set
	Args     []string          // argv; Args[0] is looked up in the container's PATH
	Env      []string          // "K=V", sorted by the caller; the driver adds the image's own before them
	Dir      string            // working directory inside
	UID, GID uint32            // who the task runs as; 0 only with the operator's leave
	Mounts   []Mount           // besides /proc, /dev, /sys, /dev/shm
	Cgroup   string            // leaf below the cgroup mount, e.g. "/drover/tasks/<attempt>/c"; made by the caller
	Hostname string            // name inside
	Labels   map[string]string // kept with the container and given back by List
	Log      Log
}

// Mount binds a host path into the container.
type Mount struct {
	Source, Target string
	ReadOnly       bool
}

// Log says where standard output and error go. Files are rotated by size and
// live on when the container and the daemon are gone.
type Log struct {
	Dir      string // stdout.log, stderr.log and their .1, .2 … rotations
	MaxBytes int64  // size at which a file is rotated
	MaxFiles int    // files kept of each stream, the current one included
}

// Phase is the closed set of states of a container.
type Phase int

// The phases.
const (
	PhaseCreated Phase = iota + 1 // made, not started
	PhaseRunning                  // its first process lives (it may be frozen)
	PhaseStopped                  // its first process is gone; ExitCode and ExitedAt are set
	PhaseUnknown                  // the engine cannot say now
)

// String names the phase.
func (p Phase) String() string {
	switch p {
	case PhaseCreated:
		return "created"
	case PhaseRunning:
		return "running"
	case PhaseStopped:
		return "stopped"
	case PhaseUnknown:
		return "unknown"
	default:
		return "invalid phase"
	}
}

// ExitLost is the ExitCode of a container that ran and whose end nobody saw:
// the machine was started again, or the engine lost the process.
const ExitLost = -1

// Status is what a driver sees of one container.
type Status struct {
	ID       string
	Phase    Phase
	PID      int // of the first process in the host's namespace; 0 unless running
	ExitCode int // as wait(2) gives it, 128+signal for a killed one; valid when stopped
	Started  time.Time
	Exited   time.Time
	Labels   map[string]string
}

// Driver runs containers. All methods are safe for concurrent use; the rules
// are in the package comment. Errors carry a class of package fault: NotFound,
// Exists (same ID, other Spec), Invalid (the Spec), Unavailable (the engine),
// Unsupported.
type Driver interface {
	// Name of the driver: "containerd", "process", "fake".
	Name() string
	// Create makes the container without starting its process.
	Create(ctx context.Context, s Spec) error
	// Start starts the process of a created container. A container runs once:
	// Start of a stopped one does nothing.
	Start(ctx context.Context, id string) error
	// Wait returns the status once the container has stopped; it fails with the
	// context's error or Unavailable, and then says nothing about the container.
	// A container that is deleted meanwhile is NotFound.
	Wait(ctx context.Context, id string) (Status, error)
	// List gives every container of this driver, ordered by ID.
	List(ctx context.Context) ([]Status, error)
	// Kill sends a signal to every process of the container; one that does not
	// run, or is gone, has none, and that is no error.
	Kill(ctx context.Context, id string, sig syscall.Signal) error
	// Delete kills what still runs and removes all of it.
	Delete(ctx context.Context, id string) error
}

// Images is the ability to hold images by digest.
type Images interface {
	// Has tells whether the image of that digest is there and unpacked.
	Has(ctx context.Context, digest string) (bool, error)
	// Import reads an OCI archive and keeps it as digest (the sha256 of the
	// archive's bytes, which the caller has verified).
	Import(ctx context.Context, digest string, archive io.Reader) error
	// Remove forgets the image; its content goes when nothing uses it.
	Remove(ctx context.Context, digest string) error
	// ListImages gives the images that Import keeps, ordered by digest.
	ListImages(ctx context.Context) ([]Image, error)
}

// Image is one that the engine keeps.
type Image struct {
	Digest string // of the archive it came from
	Bytes  int64  // on the disk, content and unpacked layers; shared ones count for each
}

// ExecSpec is one extra process in a running container.
type ExecSpec struct {
	Args   []string
	Env    []string
	Dir    string
	Stdin  io.Reader // nil: empty
	Stdout io.Writer
	Stderr io.Writer
}

// Execer is the ability to run one more process inside a container.
type Execer interface {
	// Exec runs the process to its end and returns its exit code; cancelling the
	// context kills it.
	Exec(ctx context.Context, id string, e ExecSpec) (int, error)
}

// HostPaths is the mark of a driver that cannot give a task a file system of
// its own (plain processes): the task sees the host's paths. The node daemon
// then writes host paths where it would write mount targets (arguments,
// environment, Dir), and such a driver refuses Image and Rootfs.
type HostPaths interface {
	// HostPaths tells whether Mounts have no effect.
	HostPaths() bool
}

// Freezer is the ability to have a container's processes stand still and go on.
// All three are safe to repeat. Where the node daemon has a cgroup for the
// container it freezes that; a driver needs this only where there is none.
type Freezer interface {
	// Freeze returns when every process stands still; on error all run on.
	Freeze(ctx context.Context, id string) error
	// Thaw returns when they may run again.
	Thaw(ctx context.Context, id string) error
	// Frozen tells whether they stand still.
	Frozen(ctx context.Context, id string) (bool, error)
}

// Checkpointer is the ability to dump a container to files and run it again
// from them, here or on another node of the same kind.
type Checkpointer interface {
	// Checkpoint dumps the container into dir (fresh, its parent is there) and
	// ends it; on error the container is as it was. Called again with the same
	// dir after an answer that was lost, it finishes what was begun. Errors:
	// Unsupported, this container cannot be dumped; Exhausted, there is no space;
	// Unavailable, what became of it is not known.
	Checkpoint(ctx context.Context, id, dir string) error
	// Restore makes the container of s from the dump in dir and lets it run. The
	// dump may be one of another ID: that it is the right one is the caller's
	// business. Corrupt: the dump is not what was written.
	Restore(ctx context.Context, s Spec, dir string) error
}
