// Package fake is an in-memory container engine for tests of everything above
// package runtime: containers run virtual programs (Go functions) instead of
// processes, and every verb can be made to fail, to act and then fail, or to
// take its time.
//
// An Engine is the world: it keeps containers, images and faults. A Driver is
// one connection to it; a test that restarts its node daemon takes a second
// Driver of the same Engine and finds the containers running. While the engine
// is Down every verb of every Driver, and every Wait in flight, fails with
// fault.Unavailable, and the programs run on, as containers do when containerd
// dies.
//
// Standard output and error go to stdout.log and stderr.log in Spec.Log.Dir, if
// set, without rotation. No cgroup is touched. The caller ends an Engine with
// Close, which kills the programs and waits for them.
package fake
