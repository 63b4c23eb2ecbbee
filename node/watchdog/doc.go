// Package watchdog freezes the tasks of exclusive stages when the node daemon is dead or hangs and
// its lease has expired: from then on the coordinator may start another attempt elsewhere.
//
// Each node runs two watchdog processes that restart each other. They outlive the daemon, know
// nothing but one file, and need neither the daemon nor the coordinator. If both are killed, the
// daemon restarts them at the next renewal of the lease. Only if the daemon and both watchdogs die
// within one second does a task keep running until the next daemon starts.
//
// The daemon writes the file (Client): the end of its lease, and the cgroup.freeze files of running
// exclusive tasks. When the lease has expired, a watchdog (run) writes 1 to each of them. A live
// daemon is faster: it freezes such tasks itself some time before the watchdog would.
//
// Watchdogs have real-time priority: on a machine that was paused as a whole, and goes on after the
// end of the lease, they run before the programs of the tasks.
//
// Updates of the file and freezing happen under one lock on the file, so a watchdog never freezes a
// task after the daemon has renewed the lease and thawed it. If a watchdog froze tasks and the
// daemon was only slow, the daemon thaws them when it has its lease back.
//
// A watchdog ends when no task is listed, or the folder of the file is gone. While it runs it holds
// a lock on a slot file beside the file; the slot file contains its process ID.
package watchdog
