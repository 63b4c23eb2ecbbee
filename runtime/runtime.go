package runtime

import (
	"context"
	"errors"
	"io"
	"syscall"
	"time"
)

// Spec describes a container. It is a value: a driver copies what it needs.
type Spec struct {
	ID       string            // unique on the node, [a-zA-Z0-9._-], at most 76 bytes
	Image    string            // digest ("sha256:…") in Images, a pulled name, or "" for none
	Rootfs   string            // a folder as root instead of an image; "" if Image is set
	Args     []string          // argv; Args[0] is looked up in the container's PATH
	Env      []string          // "K=V", sorted by the caller; the driver prepends the image's
	Dir      string            // working directory in the container
	UID, GID uint32            // of the task's processes; 0 only if the operator allows it
	Mounts   []Mount           // besides /proc, /dev, /sys, /dev/shm
	Cgroup   string            // leaf below the cgroup mount, e.g. "/drover/tasks/<attempt>/container"; made by the caller
	Hostname string            // in the container
	Labels   map[string]string // stored with the container and returned by List
	Log      Log

	// Reuse, if set, allows a Reuser to run this container and others with the same key
	// one after another as processes of one: the caller vouches that it does not matter
	// to them. Everything but ID, Args, Env, Hostname, Labels, Cgroup, Log and the sources of
	// writable mounts must be the same too. Other drivers ignore it.
	Reuse string `json:",omitempty"`

	// NeverDumped says that nobody calls Checkpoint or Restore for the container.
	NeverDumped bool `json:",omitempty"`
}

// Mount binds a host path into the container.
type Mount struct {
	Source, Target string
	ReadOnly       bool
}

// Log configures the logs of standard output and error. Files are rotated by size
// and outlive the container and the daemon.
type Log struct {
	Dir      string // stdout.log, stderr.log and their .1, .2 … rotations
	MaxBytes int64  // size at which a file is rotated
	MaxFiles int    // per stream, the current file included
	// BytesPerS is what both streams together may write; the program that writes faster
	// waits. 0: no limit. Drivers that enforce no limits ignore it.
	BytesPerS int64
}

// Phase is the closed set of states of a container.
type Phase int

// The phases.
const (
	PhaseCreated Phase = iota + 1 // made but not started
	PhaseRunning                  // its first process is alive, possibly frozen
	PhaseStopped                  // its first process has exited; ExitCode and Exited are set
	PhaseUnknown                  // the engine cannot tell now
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

// ExitLost is the ExitCode of a container that ran and whose exit was not
// observed: the machine was rebooted, or the engine lost the process.
const ExitLost = -1

// Status is a driver's view of one container.
type Status struct {
	ID       string
	Phase    Phase
	PID      int // of the first process in the host's namespace; 0 unless running
	ExitCode int // as wait(2) reports it, 128+signal for a killed one; valid when stopped
	Started  time.Time
	Exited   time.Time
	Labels   map[string]string
	Shared   bool // others run in what it runs in, before and after it (Spec.Reuse): its processes can end the first one there

	// What it used, of a driver without cgroups that knows it; valid when stopped, 0
	// otherwise. The peak is that of its largest process.
	CPU        time.Duration
	PeakMemory int64 // bytes
}

// Driver runs containers. All methods are safe for concurrent use; the rules
// are in the package comment. Errors carry a class of package fault: NotFound,
// Exists (same ID, other Spec), Invalid (the Spec), Unavailable (the engine),
// Unsupported.
type Driver interface {
	// Name returns the driver's name: "containerd", "process", "fake".
	Name() string
	// Create makes the container without starting its process.
	Create(ctx context.Context, s Spec) error
	// Start starts the process of a created container. A container runs once:
	// Start of a stopped one does nothing. A Start that fails or is interrupted by
	// its context leaves the container as Create made it, if the engine answers:
	// Start can then be tried again.
	Start(ctx context.Context, id string) error
	// Wait returns the status once the container has stopped. Its errors are the
	// context's or Unavailable, and say nothing about the container; NotFound means
	// that the container was deleted meanwhile.
	Wait(ctx context.Context, id string) (Status, error)
	// List returns every container of this driver, ordered by ID.
	List(ctx context.Context) ([]Status, error)
	// Kill sends a signal to every process of the container. It is not an error if
	// the container does not run or does not exist.
	Kill(ctx context.Context, id string, sig syscall.Signal) error
	// Delete kills the container if it runs and removes everything of it.
	Delete(ctx context.Context, id string) error
}

// Images is the ability to store images by digest.
type Images interface {
	// Has reports whether the image with that digest is present and unpacked.
	Has(ctx context.Context, digest string) (bool, error)
	// Import reads an OCI archive and stores it as digest (the sha256 of the
	// archive's bytes, which the caller has verified).
	Import(ctx context.Context, digest string, archive io.Reader) error
	// ReleaseImports removes what interrupted imports left: those of an earlier daemon, and those
	// during which the engine ended. What imports under way have stored stays.
	ReleaseImports(ctx context.Context) error
	// Remove removes the image; its content goes when nothing uses it.
	Remove(ctx context.Context, digest string) error
	// ListImages returns the imported images, ordered by digest.
	ListImages(ctx context.Context) ([]Image, error)
}

// Image is an imported image.
type Image struct {
	Digest string // of the archive it came from
	Bytes  int64  // on disk, content and unpacked layers; shared layers count for each image
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

// HostPaths is implemented by a driver that cannot give a task its own file
// system (plain processes): the task sees the host's paths. The node daemon then
// passes host paths instead of mount targets (arguments, environment, Dir), and
// such a driver refuses Image and Rootfs.
type HostPaths interface {
	// HostPaths reports whether Mounts have no effect.
	HostPaths() bool
}

// Preparer is the ability to do the part of Start that precedes the task's
// program. The engine's processes in that part run inside the task's cgroup, and
// the caller may lift its CPU limit meanwhile.
type Preparer interface {
	// Prepare makes everything that Start needs but does not start the program.
	// It is safe to repeat, and fails as Start does.
	Prepare(ctx context.Context, id string) error
}

// Reuser is the ability to run containers whose Specs have the same Reuse key one after
// another as processes of one. All verbs take them by their own IDs, and List returns them, not
// what they run in.
type Reuser interface {
	// CloseIdle deletes what containers ran in that none has used for so long, and what
	// an earlier driver left of it.
	CloseIdle(ctx context.Context, idle time.Duration) error
}

// Leftover is what a container, or an interrupted start of it, left on the machine.
type Leftover struct {
	ID     string   // of the container
	Listed bool     // List returns that container
	Parts  []string // descriptions: a folder, a mount, a process
}

// Sweeper is the ability to find leftovers of containers; Delete removes them.
type Sweeper interface {
	// Leftovers returns the leftovers of containers that do not run, ordered by ID.
	// They include containers whose start is under way: the caller knows which
	// containers it wants.
	Leftovers(ctx context.Context) ([]Leftover, error)
}

// Freezer is the ability to freeze a container's processes. All methods are safe
// to repeat. If the node daemon has a cgroup for the container it freezes that; a
// driver needs this only where there is none.
type Freezer interface {
	// Freeze returns when every process is frozen; after an error all are running.
	Freeze(ctx context.Context, id string) error
	// Thaw returns when the processes may run again.
	Thaw(ctx context.Context, id string) error
	// Frozen reports whether the processes are frozen, or will be: Freeze makes sure.
	Frozen(ctx context.Context, id string) (bool, error)
}

// LastingFreezer is the ability to keep a container from running on that is not frozen in time.
type LastingFreezer interface {
	Freezer
	// FreezeLasting is Freeze that leaves the container freezing after an error: none of its
	// programs runs on until Thaw. NotFound: there is no such container.
	FreezeLasting(ctx context.Context, id string) error
}

// ErrMustRun is the cause of a Conflict of Checkpoint: a frozen process waits for another frozen
// one, as a parent does from vfork to the exec of its child, and cannot be stopped before both have
// run on.
var ErrMustRun = errors.New("a frozen process waits for another one")

// Checkpointer is the ability to dump a container to files and to continue it
// from them, on this node or on another one of the same kind.
type Checkpointer interface {
	// Checkpoint dumps the container into dir, which must not exist but its parent
	// must, and ends the container; after an error the container is as it was.
	// Called again with the same dir after a lost answer, it completes the dump.
	// Errors: Unsupported, this container cannot be dumped; Exhausted, no space;
	// Conflict, not now, since a process cannot be stopped (ErrMustRun: not before the
	// container has been thawed for a moment); Unavailable, the outcome is unknown, or the
	// container has ended and its dump cannot be completed yet.
	Checkpoint(ctx context.Context, id, dir string) error
	// Restore makes the container of s from the dump in dir and runs it. The dump
	// may have been made under another ID: the caller must choose the right one.
	// Corrupt: the dump is damaged.
	Restore(ctx context.Context, s Spec, dir string) error
	// DumpFormat returns the version of what Checkpoint writes. Restore reads it and all earlier ones.
	DumpFormat() int
}

// Dumper is an optional ability of a Checkpointer: Checkpoint in two steps, between
// which the caller may tell that the container has ended and its dump is complete.
type Dumper interface {
	// Dump is Checkpoint, but the container stays, stopped, until Delete.
	Dump(ctx context.Context, id, dir string) error
}

// StoppedRestorer is an optional ability of a Checkpointer: Restore in two steps,
// between which the caller writes the limits that a restore needs to be without.
type StoppedRestorer interface {
	// RestoreStopped is Restore, but no process of the container runs before
	// Continue.
	RestoreStopped(ctx context.Context, s Spec, dir string) error
	// Continue lets all processes of the container run. It is safe to repeat.
	Continue(ctx context.Context, id string) error
}
