// Package containerd is the product's runtime.Driver: containers in containerd
// (1.7 or 2.x) with runc, in a containerd namespace of our own.
//
// # What a task gets
//
// A read-only root (an image's snapshot, or a folder), its own PID, IPC, UTS,
// mount, cgroup and empty network namespaces, no capabilities, no new
// privileges, containerd's default seccomp profile and masked paths, the
// Spec's user, a tmpfs on /tmp unless something is mounted there, and the
// Spec's mounts without set-uid and devices. It sets no resource limits: the
// processes live in the leaf Spec.Cgroup, below limits that the caller made.
//
// # What is kept where
//
//	container <id>          labels drover/spec (fingerprint), drover/log,
//	                        drover/started, drover.label/<key>
//	snapshot  <id>          of the image; removed with the container
//	task      <id>          its shim; log through binary:// and our own executable
//	image     sha256:<…>    named by the digest of its archive; label drover/archive
//	<StateDir>/<id>/        mount points over a root folder; pipes of Exec; options for criu
//
// So the driver has no state in memory, and a daemon that starts again, or a
// containerd that does, finds everything. Create makes container and snapshot;
// Start makes the task, notes the time on the container and starts it. A
// container that was started and has no task any more (reboot, dead shim) is
// stopped with runtime.ExitLost.
//
// # Traps this package knows
//
// The death of containerd makes Wait return, with code 255 in the client's
// words: here it is fault.Unavailable, and an exit counts only when the task's
// status says stopped. Events are not used: nothing is replayed after a
// restart.
package containerd
