// Package client is hdfs.FS over Apache HDFS, spoken directly: Hadoop RPC v9 to
// the NameNode for names and block locations, the data transfer protocol to
// DataNodes for bytes. It holds the policy of the two protocol packages below
// it (internal/namenode over internal/rpc, internal/datanode): which replica is
// read, what is cached, what is tried again and for how long.
//
// # Why not a library for the data
//
// github.com/colinmarc/hdfs/v2 is the known one, and this package's tests check
// every byte both ways against it. It has no contexts or time-outs, keeps block
// locations private (so neither a local replica can be preferred nor a range
// be asked instead of a whole file), returns errors for five seconds after a
// NameNode failure, fails a write as soon as one DataNode of a new pipeline is
// dead, and trusts lengths that a peer sends.
//
// # Waiting
//
// A NameNode that is down, starting, in standby or in safe mode is asked again
// until Options.WaitLimit; Events.Waiting hears of it before each pause. All
// tries of one request carry one call id, so the NameNode's retry cache makes a
// rename, a create or a delete happen once even if the first answer was lost.
//
// # Reading
//
// Replicas on Options.LocalAddresses come first, then those on LocalRack, then
// the NameNode's order; those that failed in the last half minute come last. A
// read goes on at the next byte on the next replica. When all failed, the
// locations are asked again, for up to MissingWait; then the error names file,
// block and offset.
//
// # Writing
//
// A DataNode that is dead when a block's pipeline is set up is excluded and
// another one is asked for. One that dies in the middle of a block breaks the
// file with an ErrUnavailable: hdfs.Upload writes the whole file again, because
// its callers have the content in a local file. Leases are renewed while a
// writer is open.
//
// # Kerberos
//
// A non-goal. Auth is the seam; Simple the implementation. A cluster that
// demands more answers the first call with AccessControlException, which
// becomes hdfs.ErrPermission.
package client
