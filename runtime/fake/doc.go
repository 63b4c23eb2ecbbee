// Package fake is an in-memory container engine for tests of everything above
// package runtime. Containers run virtual programs (Go functions) instead of
// processes, and every method can be made to fail, to act and then fail, or to be
// slow.
//
// An Engine holds containers, images and faults. A Driver is one connection to it;
// a test that restarts its node daemon takes a second Driver of the same Engine
// and finds the containers running. While the engine is Down, every method of
// every Driver, including a pending Wait, fails with fault.Unavailable, and the
// programs keep running, as containers do when containerd dies.
//
// A program can be frozen if it calls Process.Gate. A dump is a folder that names a
// program waiting at its gate inside the engine: Restore continues it, also in
// another engine if both share their dumps (ShareDumps), like two machines that
// transfer an image. The folder's content is verified like a real image's.
//
// Standard output and error go to stdout.log and stderr.log in Spec.Log.Dir, if
// set, without rotation. No cgroup is touched. The caller must Close an Engine,
// which kills the programs and waits for them.
package fake
