// Package raftstore keeps the replicated log and raft's own few values in
// bbolt, as hashicorp/raft's LogStore and StableStore.
//
// Two files, since they are written at different rates and the log's pages
// churn: raft-log.db and raft-stable.db. Their buckets:
//
//	raft-log.db
//	├── meta
//	│   └── version  = big-endian uint32 (SchemaVersion)
//	└── log
//	    └── big-endian uint64 index = record
//	raft-stable.db
//	├── meta
//	│   └── version  = big-endian uint32 (SchemaVersion)
//	└── kv
//	    └── key of raft = value; numbers are big-endian uint64
//
// A record is
//
//	byte 0     record version (1)
//	byte 1     raft.LogType
//	8 bytes    term, big-endian
//	8 bytes    AppendedAt, Unix nanoseconds, big-endian; 0 = none
//	4 bytes    length n of the data, big-endian
//	n bytes    data
//	rest       extensions
//
// What must be durable first: StoreLogs returns only after the transaction is
// synced, and one call is one transaction, so a crash leaves all of its
// entries or none. The log file keeps no free list on disk (NoFreelistSync):
// it is rebuilt when the file is opened.
//
// Its one caller is package replica. All methods are safe for concurrent use.
package raftstore
