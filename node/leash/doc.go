// Package leash has the tasks of exclusive stages stand still when the node daemon
// is dead or hangs and its lease is over: then the coordinator may start another
// run of them elsewhere.
//
// A process of its own, the watch, sees to that: it outlives the daemon, knows
// nothing but a file, and needs neither daemon nor coordinator. There are two of
// it, and each starts the other anew where that was killed; so does the daemon
// where both were, when it renews the lease. Only where daemon and both watches
// die within a second does a task run on until the next daemon starts.
//
// The daemon writes the file (Holder): until when its lease surely holds, and the
// cgroup.freeze files of exclusive tasks that run. When that time is over, the
// watch (Watch) writes 1 to each. A daemon that is alive is quicker: it freezes
// such tasks itself, some time before the watch would.
//
// File and freezing are under one lock on the file, so that a task is never frozen
// by the watch after the daemon has renewed the lease and let it go. Where the
// watch froze something and the daemon was only slow, the daemon lets it go when
// it has its lease back.
//
// A watch ends when no task is listed. That one is there is held by a lock of its
// own, on a file beside, which names its process.
package leash
