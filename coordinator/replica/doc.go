// Package replica runs the facts of package facts under hashicorp/raft: one
// server by default, several over TCP with mutual TLS, with the same code.
//
// What it is: the log, the snapshots, the lock around the facts, and the two
// things a leader does with them, Propose and Read. What it is not: it decides
// nothing and knows no scheduler and no API.
//
// Below its folder:
//
//	raft-log.db, raft-stable.db   package raftstore
//	snapshots/                    the last two snapshots of the facts
//
// Time: Propose stamps an entry with max(the leader's clock, the last entry's
// time); nothing else reads a clock.
//
// Who waits for whom: Apply holds the write lock for one batch of entries and
// waits for nobody. Readers hold the read lock for short; the reader of the
// journal (TakeChanges) takes the write lock.
package replica
