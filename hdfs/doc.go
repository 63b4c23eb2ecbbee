// Package hdfs defines the file system interface of Drover, which the node daemon
// and its helpers use for HDFS, for local files in `drover dev`, and for an
// in-memory file system in tests.
//
// # What it is
//
//   - FS and its halves Source and Sink: stat, list, read a byte range, locate
//     blocks, create, make directories, rename without overwriting, delete;
//   - a short list of error classes for errors.Is;
//   - URI parsing, globbing and uploading with retries, on top of the interface.
//
// # What it is not
//
// It is not a POSIX file system: a file is written once, from start to end, by one
// writer. There is no append, no random write, no symbolic link, no change of
// permissions. Kerberos, encryption zones, encrypted transfer and erasure-coded
// files are non-goals of the client: it refuses them with a clear error rather
// than reading wrong bytes. Authentication is behind client.Auth, so that a SASL
// mechanism can be added without changing callers.
//
// # Implementations
//
//	hdfs/client   Apache HDFS: Hadoop RPC v9 to the NameNode, the data transfer
//	              protocol to DataNodes, both without generated code
//	hdfs/localfs  a directory tree of this machine (file:///)
//	hdfs/fake     in memory, with hosts, racks and faults
//
// All of them pass hdfs/hdfstest; hdfs/client does so against a real NameNode.
//
// # What the caller must do
//
// Paths are absolute, slash separated and clean (see CleanPath); URIs are parsed
// with ParseURI first. The caller closes a reader, and ends a writer with exactly
// one Commit or Abort (Abort after Commit does nothing, so it may be deferred).
// Readers can see a half-written file under its final name, as in HDFS itself. A
// caller that needs all or nothing writes to another name and renames.
package hdfs
