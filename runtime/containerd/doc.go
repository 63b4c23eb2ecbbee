// Package containerd is the runtime.Driver for production: containers in
// containerd (1.7 or 2.x) with runc, in a containerd namespace of Drover's own.
//
// # Confinement of a task
//
// A read-only root (an image's snapshot, or a folder), its own PID, IPC, UTS,
// mount, cgroup and empty network namespaces, no capabilities, no new
// privileges, containerd's default seccomp profile and masked paths, the
// Spec's user, a tmpfs on /tmp unless something is mounted there, and the
// Spec's mounts without set-uid and devices. /dev and /run are read-only unless the
// user is root; /dev/shm can be written. The driver sets no resource limits:
// the processes are in the leaf Spec.Cgroup, below limits that the caller made.
//
// # Where state is stored
//
//	container <id>          labels drover/spec (fingerprint), drover/log,
//	                        drover/started, drover.label/<key>
//	snapshot  <id>          of the image; removed with the container
//	task      <id>          its shim; logs through binary:// and Drover's executable
//	image     sha256:<…>    named by the digest of its archive; label drover/archive
//	<stateDir>/<id>/        mount points over a root folder; pipes of Exec; options for criu
//	<stateDir>/.drover-*/   folders that a restore mounts; see fixed.go
//
// The driver has no state in memory but a cache of the images' configurations, so restarts
// of the daemon and of containerd lose nothing. Create makes first the container, then its
// snapshot; Start makes the task, records the time on the container and starts it. A
// container that was started and has no task any more (reboot, dead shim) is stopped with
// runtime.ExitLost.
//
// # Pitfalls of containerd
//
// When containerd dies, its client's Wait returns exit code 255. The driver
// returns fault.Unavailable instead: an exit counts only if the task's status is
// stopped. Events are not used, since they are not replayed after a restart.
package containerd
