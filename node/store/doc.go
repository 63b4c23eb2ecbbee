// Package store holds what a node daemon must remember across a restart: its identity at the
// coordinator, the wanted state, and a record of each attempt that it has touched. It is one bbolt
// file, inaccessible to tenants.
//
// The bucket tree, version 2 (version 1 had no sum):
//
//	meta
//	  version   uint64  schema of this file
//	  sum       uint64  over all other pairs of the file: see pairSum
//	  cluster   text    id; another cluster is refused
//	  node      uint64  number assigned by the coordinator
//	  epoch     uint64  raised after the node was declared lost
//	  term      uint64  highest seen; a lower one is refused
//	  revision  uint64  of the wanted set below
//	  daemon    text    random, made with the file: the coordinator tells machines of one name apart by it
//	  machine   text    hash of the id of the machine that the daemon's id is of
//	wanted
//	  <job>.<stage>.<task>.<attempt>.<run>  protobuf WantedAttempt, always with its spec
//	records
//	  <job>.<stage>.<task>.<attempt>.<run>  JSON Record
//
// A wanted message is applied in one transaction with its revision, before the daemon acts on it. A
// record is written before the action it announces.
//
// The file is verified as a whole before it is opened: damage is an error with its name and the
// cure, never a panic, and nothing of it is believed.
//
// Values of secrets are in neither bucket. The job's shuffle token is, so the file has mode 0600.
package store
