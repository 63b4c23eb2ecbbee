// Package raftstore stores the replicated log and raft's own metadata in bbolt,
// as hashicorp/raft's LogStore and StableStore.
//
// There are two files, because they are written at different rates and the
// log's pages churn: raft-log.db and raft-stable.db. Their buckets:
//
//	raft-log.db
//	├── meta
//	│   ├── version  = big-endian uint32 (schemaVersion)
//	│   └── range    = first and last index (big-endian uint64 each, 0 for none), CRC-32C of both
//	└── log
//	    └── big-endian uint64 index = record
//	raft-stable.db
//	├── meta
//	│   ├── version  = big-endian uint32 (schemaVersion)
//	│   └── sum      = number of pairs in kv (big-endian uint32), CRC-32C of them in order
//	└── kv
//	    ├── ServerID = name of the server whose term and vote these are (package replica)
//	    └── key of raft = value; numbers are big-endian uint64
//
// A record is
//
//	byte 0     record version (2)
//	byte 1     raft.LogType
//	8 bytes    term, big-endian
//	8 bytes    AppendedAt, Unix nanoseconds, big-endian; 0 = none
//	4 bytes    length n of the data, big-endian
//	n bytes    data
//	k bytes    extensions
//	4 bytes    CRC-32C of the index (big-endian uint64) and of all before
//
// Damage on disk is found before it is believed: Open reads every page of both
// files by itself, before the database does (internal/boltpages), checks each record, that
// indexes follow each other without a gap, and that they begin and end where the
// last transaction said. bbolt alone would skip a damaged newest meta page, hide
// entries behind a damaged branch page, or panic. A meta page that a loss of power cut
// short is told from one that was whole: its checksum is still that of the page that it
// replaces. Then the store goes on with the state before it, and says so in its log.
//
// What must be durable first: StoreLogs returns only after the transaction is
// synced, and one call is one transaction, so a crash leaves all of its
// entries or none. The files keep no free list on disk (NoFreelistSync):
// it is rebuilt when a file is opened, and cannot rot.
//
// Package replica is the only caller. All methods are safe for concurrent use.
package raftstore
