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
// A program takes part in being frozen by calling Process.Gate. A dump is a
// folder that names a program which waits at its gate inside the engine: Restore
// lets it go on, in another engine too if both share their dumps (ShareDumps),
// as two machines do that hand an image on. What a folder holds is checked as a
// real image is.
//
// Standard output and error go to stdout.log and stderr.log in Spec.Log.Dir, if
// set, without rotation. No cgroup is touched. The caller ends an Engine with
// Close, which kills the programs and waits for them.
package fake
