// Package cgroups enforces demands with cgroup v2: it turns limits into
// (file, value) pairs, writes them, reads them back, and gives statistics,
// freezing, reclaim and removal.
//
// The tree, below the mount of cgroup2:
//
//	<base>/                    default /drover
//	  tasks/
//	    system/                what is charged to no attempt: unpacking, dumps, serving
//	    <attempt>/             carries every limit
//	      c/                   the container's processes; no limits; memory.oom.group = 1
//	      x/                   our helpers for it: localise, fetch, upload
//
// Limits sit on the attempt and not on the leaves because io.max does not
// throttle a buffered write to a file that another cgroup wrote first, unless
// the limit is on a common parent; and because a leaf goes away at a checkpoint
// while the attempt's limits stay.
//
// The node daemon is the only caller. It calls Prepare once, Create before the
// engine makes a container (with Group.LeafPath as its cgroup), and Remove when
// the attempt's files are gone. The package knows files, not attempts: it keeps
// no state of its own, so that a restarted daemon needs nothing but List.
//
// A limit that reads back as something else is an error: a number that is shown
// to a user is one the kernel holds.
package cgroups
