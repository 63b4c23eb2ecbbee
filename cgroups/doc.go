// Package cgroups enforces resource demands with cgroup v2. It turns limits into
// (file, value) pairs, writes them, reads them back, and provides statistics,
// freezing, memory reclaim and removal.
//
// The tree, below the cgroup2 mount:
//
//	<base>/                    default /drover
//	  tasks/
//	    system/                work charged to no attempt: unpacking, dumps, serving
//	    <attempt>/             carries every limit
//	      container/           the container's processes; no limits; memory.oom.group = 1
//	      helpers/             helper processes of the attempt: localise, fetch, upload
//
// Limits are set on the attempt and not on its leaves for two reasons: io.max
// does not throttle a buffered write to a file that another cgroup wrote first
// unless the limit is on a common parent, and a leaf disappears at a checkpoint
// while the attempt's limits must stay.
//
// The node daemon is the only caller. It calls Prepare once, Create before the
// engine makes a container (with Group.LeafPath as its cgroup), and Remove when
// the attempt has ended and its container is gone. The package keeps no state of its own: a
// restarted daemon needs only List.
//
// A limit that reads back as a different value is an error: every limit shown to a user is a limit
// that the kernel enforces.
package cgroups
