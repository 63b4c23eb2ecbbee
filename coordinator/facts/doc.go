// Package facts is the coordinator's replicated state machine: the durable
// facts of a cluster, and how each entry of the log (drover.v1.Entry) changes
// them.
//
// What it is: a deterministic function. Apply reads no clock, no random source
// and no map in its own order; the same entries give the same facts, events
// and journal on every server. An entry that does not hold any more (a
// decision on a task that ended, a report of an old run) changes nothing, and
// Result says why. Entries of an unknown type or a newer version change
// nothing either: they are counted and shown as an event.
//
// What it is not: it knows no raft, no file, no network and no scheduler. The
// scheduler's State is a projection of the facts, made by package coordinator
// from the Journal.
//
// # Who calls it
//
// Package replica applies entries in the order of the log, under its lock.
// Readers hold the read lock and keep no pointer into the facts afterwards,
// except to values that are documented as never changed once made: Attempt,
// Node, Tenant and everything of package droverv1.
//
// # Memory, and a snapshot that does not stop Apply
//
// Everything lives in memory; what is on disk is the log and snapshots of it.
// Snapshot takes O(jobs + nodes + blobs + events) pointers and raises the
// generation. From then on the first write to a job, or to a block of 256 of
// its tasks, copies it; attempts and nodes are never written, but replaced. So
// Snapshot.Encode reads a frozen picture while Apply goes on.
//
// # The snapshot's form
//
// Lines of JSON, the first a header {"drover":"facts","version":N,…}, then one
// line for each record, named by "t": tenant, node, blob, job, tasks, note,
// reservation, event, staging; last "end" with the number of lines. Fields are
// only added. Messages of the API stand in it as base64 of their protobuf
// form. testdata/ keeps a snapshot and a log of each version; a test reads
// them.
package facts
