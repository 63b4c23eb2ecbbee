// Package replica runs the facts of package facts under hashicorp/raft: one
// server by default, or several over TCP with mutual TLS, with the same code.
//
// It holds the log, the snapshots, the lock around the facts, and the two
// operations of a leader, Propose and Read. It decides nothing and knows no
// scheduler and no API.
//
// Below its folder:
//
//	raft-log.db, raft-stable.db   package raftstore
//	snapshots/                    the last two snapshots of the facts
//
// Propose stamps an entry with the leader's clock, or with the last entry's time
// where the clock is behind that by less than facts.ClockTolerance; of what is
// decided nothing else reads a clock. leaderWatch and raft measure silence by it.
//
// Apply holds the write lock for one batch of entries and never blocks. Readers
// hold the read lock briefly; the reader of the journal (TakeChanges) takes the
// write lock.
package replica
