// Package client implements hdfs.FS for Apache HDFS, natively: Hadoop RPC v9 to the
// NameNode for names and block locations, the data transfer protocol to DataNodes
// for bytes. It holds the policy above the protocol packages (internal/namenode on
// internal/rpc, and internal/datanode): which replica is read, what is cached, what
// is retried and for how long.
//
// # Why not a library
//
// github.com/colinmarc/hdfs/v2 is the established one, and the tests of this
// package verify bytes against it in both directions. It has no contexts or
// time-outs, keeps block locations private (so a caller can neither prefer a local
// replica nor request a range instead of a whole file), returns errors for five
// seconds after a NameNode failure, fails a write as soon as one DataNode of a new
// pipeline is dead, and trusts lengths sent by the peer.
//
// # Waiting
//
// While the NameNode is down, starting, in standby or in safe mode, a request is
// retried until Options.WaitLimit; Events.Waiting is called before each pause. All
// attempts of one request carry the same call id, so that the NameNode's retry
// cache executes a rename, a create or a delete only once even if the first
// response was lost.
//
// # Reading
//
// Replicas on Options.LocalAddresses are read first, then those on LocalRack, then
// the others in the NameNode's order; DataNodes that failed within the last 30
// seconds come last. After a failure the read continues at the next byte on the
// next replica. If all replicas failed, the locations are requested again, for up
// to MissingWait; then the error names file, block and offset.
//
// With Options.DomainSocket, a block of a DataNode on LocalAddresses is read from its files instead of
// over TCP. Each reason against it that is no fault of the replica leads to TCP for the rest of the
// block; if the socket is of no use at all, it is tried again after a minute.
//
// # Writing
//
// A DataNode that is dead when the pipeline of a block is set up is excluded, and
// another block is requested. If one dies in the middle of a block, the write fails
// with ErrUnavailable; hdfs.Upload then writes the whole file again, without that DataNode, because
// its callers have the content in a local file. If a DataNode hangs, the DataNode in front of it
// reports that after 60 s, plus 5 s for each DataNode behind it, so a writer waits longer than
// that. Leases are renewed while a writer is open.
//
// # Kerberos
//
// Kerberos is a non-goal. Auth is the interface for it; simpleAuth is the only
// implementation. A cluster that requires more answers the first call with
// AccessControlException, which becomes hdfs.ErrPermission.
package client
