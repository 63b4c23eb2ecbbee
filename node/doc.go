// Package node is the daemon on every machine: it receives the wanted state from
// the coordinator, reaches it one repeatable step at a time, and reports what it
// observes.
//
// # Parts
//
//	node/task      chooses the next step of one attempt (pure)
//	node/store     holds what survives a restart of the daemon
//	node/blob      caches files and images of the coordinator's store by digest
//	node/fsys      opens the file system of a URI for a user
//	node/helper    the program that moves bytes for a task, charged to the task
//	node/shuffle   map outputs over HTTP, client and server
//	node/dump      checkpointed attempts over HTTP, client and server
//	node/pastlogs  keeps the logs of attempts that have left the node
//	node/requests  file system operations that the coordinator requests
//	node/watchdog  freezes exclusive tasks if the daemon is dead or hangs
//	node/measure   determines the resources of the machine
//
// This package joins them: the session with the coordinator (session.go), the
// attempts that are here and what is reported of them (attempts.go), the removal of
// leftovers (sweep.go), and the node's HTTP server (server.go).
//
// Each attempt has one goroutine, its loop, which observes, calls task.Next and
// performs the step (attempt.go, steps.go, levels.go). What it observes and does is
// in parts that it owns: the record (record.go), the container (container.go), the
// cgroup (cgroup.go), the level (suspension.go), the helpers (attempthelpers.go), the
// secrets (secrets.go) and the folder (folder.go). Other goroutines reach an attempt
// by its mailbox alone (mailbox.go). What only decides is apart and reads nothing:
// what a task is told (layout.go), and how its end counts (taskexit.go).
//
// # Lifetimes
//
// A container outlives the daemon and the daemon's connection to the engine. To
// stop the daemon is not to stop its tasks: when the context of Run ends, the
// daemon stops its own goroutines and helpers and leaves every container alone.
// At the next start it lists the engine's containers, the cgroups and the
// folders, adopts those that have a record and removes the others.
//
// # Folder of an attempt
//
//	<data>/attempts/<job>.<stage>.<task>.<attempt>.<run>/   0700, owned by the tenant
//	  task/                 /task in the container: the job's files, working folder
//	    .drover/            of map and reduce tasks:
//	    .drover/spec.json   input of the harness
//	    .drover/progress.json how far the harness is
//	    .drover/result.json result of the harness
//	    .drover/in/         task input, written by a helper
//	    .drover/spill/      sorted segments
//	    .drover/out/        map output, or the file to upload
//	  tmp/                  /tmp in the container
//	  logs/                 stdout.log, stderr.log and rotations; not mounted
//	<data>/pastlogs/<…>/    its logs when it has left the node (node/pastlogs)
//	<data>/images/<…>/<n>/  0700, owned by root: the attempt's n-th dump (dumpfolder.go)
//
// Everything below task/ and tmp/ belongs to the tenant, who may put anything
// there, including links: the daemon reads it through os.Root only.
package node
