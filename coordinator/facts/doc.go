// Package facts is the coordinator's replicated state machine: the durable
// facts of a cluster, and how each entry of the log (drover.v1.Entry) changes
// them.
//
// Apply is a deterministic function: it reads no clock and no random source,
// and map order never reaches its results. The same entries produce the same
// facts, events and journal on every server. An entry that has become stale (a
// decision on a task that ended, a report of an old run) changes nothing, and
// Result says why. An entry without a body, which is what the caller makes of one
// that cannot be decoded, changes nothing either: it is counted and shown as an
// event. An entry that a newer program wrote must not be applied: the caller asks
// Newer first, and stops for good at the first such entry (package replica).
//
// The package knows no raft, file, network or scheduler. The scheduler's State
// is a projection of the facts, which package coordinator builds from the
// journal.
//
// # Callers
//
// Package replica applies entries in log order, under its write lock. Readers
// hold the read lock and keep no pointer into the facts afterwards, except to
// values documented as never changed once made: Attempt, Node, Tenant and every
// message of package droverv1.
//
// # Memory, and snapshots that do not stop Apply
//
// Everything lives in memory; the disk holds the log and snapshots. Snapshot
// copies O(jobs + nodes + blobs + events) pointers and raises the generation.
// From then on the first write to a job, or to a block of 256 of its tasks,
// copies it; attempts and nodes are never written but replaced. So
// Snapshot.Encode reads an immutable copy while Apply continues.
//
// Memory is bounded by what lives. A block of tasks in which nothing is active
// any more is sealed: packed into some 100 bytes for each task, and decoded when
// it is read (see sealedTasks). Whoever needs active attempts alone calls
// EachActive, which passes over sealed blocks.
//
// # Snapshot format
//
// A snapshot is lines of JSON: a header {"drover":"facts","version":N,…},
// then one line per record, whose type is named by "t": tenant, token, secret,
// secret_number, node, blob, job, tasks, policy_state, reservation, event, staging, key, project,
// completion, outcome; finally "end" with the number of lines. API messages are
// stored as base64 of their protobuf encoding. From version 3 on a block of tasks
// may be sealed, from 4 on there are tokens, by the hashes of their secrets, from 5
// on the secrets of tenants, encrypted, from 6 on the numbers that deleted versions of
// them had, from 7 on what restores of the coordinator left (cluster epoch, unknown
// runs), from 8 on tenants may be deleted. testdata/ keeps one snapshot of each
// version, which a test restores.
package facts
