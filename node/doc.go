// Package node is the daemon on every machine: it learns from the coordinator
// what is wanted, brings it about one safe-to-repeat step at a time, and
// reports what it sees.
//
// # Parts
//
//	node/task     which step is next for one attempt (pure)
//	node/store    what survives a restart of the daemon
//	node/blob     files and images of the coordinator's store, cached by digest
//	node/helper   the program that moves bytes for a task, charged to the task
//	node/shuffle  map outputs over HTTP, both ends
//	node/dump     checkpointed attempts over HTTP, both ends
//	node/order    work on the file system that the coordinator asks for
//
// This package joins them: a session with the coordinator (session.go), one
// goroutine for each attempt that observes, asks task.Next and does the step
// (attempt.go, steps.go; levels.go for those between levels, lease.go for exclusive tasks), the verdict on an ended attempt (judge.go), the
// attempt's folder (folder.go), and the node's own server (server.go).
//
// # What outlives what
//
// A container outlives the daemon and the engine's connection to it. Leaving
// is not killing: when the context of Run ends, the daemon stops its own
// goroutines and helpers and leaves every container alone. At the next start it
// lists the engine's containers, the cgroups and the folders, adopts those that
// it has a record of and removes the others.
//
// # An attempt's folder
//
//	<data>/attempts/<job>.<stage>.<task>.<attempt>.<run>/   0700, the tenant's
//	  task/                 /task of the container: the job's files, working folder
//	    .drover/spec.json   what the harness is told
//	    .drover/result.json how it ended
//	    .drover/in/         input, written by a helper
//	    .drover/spill/      sorted runs
//	    .drover/out/        map output, or the file to upload
//	  tmp/                  /tmp of the container
//	  logs/                 stdout.log, stderr.log and rotations; not mounted
//	<data>/images/<…>/<n>/  0700, root's: its n-th dump (levels.go)
//
// Everything below task/ and tmp/ belongs to the tenant, who may put anything
// there, links too: the daemon reads it through os.Root only.
package node
