// Package process is the runtime.Driver of `drover dev`: a task is a plain process
// of this machine in its own session. Nothing is confined: the task sees the host's
// files, network and processes, and users of this driver must be told so.
//
// Differences from a container:
//
//   - HostPaths: there are no mounts, so the node daemon passes host paths instead
//     of mount targets. Image and Rootfs are refused.
//   - The task runs as the daemon's user, unless Config.SwitchUser requests the
//     Spec's (as root only).
//   - Its leaf cgroup is entered only if Config.cgroupMount is set; then limits are
//     enforced as for a container.
//   - Kill reaches the process group. A program that leaves its session escapes,
//     unless the caller also kills the cgroup.
//   - Tasks end with the daemon: Close kills them. Records in Config.StateDir let
//     the next New kill what a killed daemon left running.
package process
