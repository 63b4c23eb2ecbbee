// Package runtime is the vocabulary of a container engine as the node daemon
// sees it: what to run (Spec), what runs (Status) and the six verbs of a
// Driver. The drivers are runtime/containerd (the product), runtime/process
// (plain processes, for `drover dev`) and runtime/fake (tests); all of them
// pass the suite in runtime/runtimetest.
//
// What a driver does not do: it sets no resource limits. The node daemon owns
// the attempt's cgroup (package cgroups), writes and reads back every limit
// there, and gives the driver only the leaf in which the processes live. The
// driver fetches nothing from a network either.
//
// Rules for every driver:
//
//   - Every verb takes a context with a limit and is safe to repeat: Create of
//     what exists with an equal Spec, Start of what runs, Kill and Delete of
//     what is gone all succeed.
//   - A container outlives the daemon and the connection to the engine; List
//     finds it again.
//   - Losing the engine is fault.Unavailable, never an exit of the container.
//   - Delete leaves nothing: no container, snapshot, mount, process or file of
//     the driver's own. Logs belong to the node daemon and stay.
//
// An extra ability is an extra interface: Images, Execer, HostPaths, Freezer,
// Checkpointer.
package runtime
