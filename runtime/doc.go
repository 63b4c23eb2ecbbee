// Package runtime is the node daemon's interface to a container engine: what to
// run (Spec), what runs (Status) and the methods of a Driver. The drivers are
// runtime/containerd (for production), runtime/process (plain processes, for
// `drover dev`) and runtime/fake (for tests); all of them pass the suite in
// runtime/runtimetest.
//
// A driver sets no resource limits. The node daemon owns the attempt's cgroup
// (package cgroups), writes and reads back every limit there, and passes the
// driver only the leaf for the processes. A driver fetches nothing from a network
// either.
//
// Rules for every driver:
//
//   - Every method takes a context with a limit and is safe to repeat: Create of
//     an existing container with an equal Spec, Start of a running one, Kill and
//     Delete of a missing one all succeed.
//   - A container outlives the daemon and the connection to the engine; List
//     finds it again.
//   - Losing the engine is fault.Unavailable, never an exit of the container.
//   - Delete leaves nothing: no container, snapshot, mount, process or file of
//     the driver's own. Logs belong to the node daemon and stay.
//
// Optional abilities are separate interfaces: Images, Execer, HostPaths, Preparer,
// Sweeper, Freezer, Checkpointer.
package runtime
