// Package process is the runtime.Driver of `drover dev`: a task is a plain
// process of this machine, in a session of its own. Nothing is confined: it
// sees the host's files, network and processes, and who uses this driver must
// say so to the user.
//
// What differs from a container:
//
//   - HostPaths: mounts do not exist, so the node daemon puts host paths where
//     it would put mount targets. Image and Rootfs are refused.
//   - The task runs as the daemon's user, unless Config.SwitchUser asks for the
//     Spec's (as root only).
//   - Its leaf cgroup is entered only where Config.CgroupMount says that there
//     are cgroups; then limits are enforced as for a container.
//   - Kill reaches the process group. A program that leaves its session escapes,
//     unless the caller also kills the cgroup.
//   - Tasks end with the daemon: Close kills them. What a killed daemon left is
//     found by notes in Config.StateDir and killed by the next New, so nothing
//     runs unseen. A container engine keeps them instead.
package process
