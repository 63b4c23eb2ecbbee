// Package hdfs is the vocabulary of Drover's file systems: what the node
// daemon and its helpers may ask of HDFS, of local files in `drover dev`, and
// of an in-memory stand-in in tests.
//
// # What it is
//
//   - FS, and its halves Source and Sink: stat, list, read a byte range, ask
//     where blocks lie, create, make directories, rename without overwriting,
//     delete;
//   - a short list of error classes, asked with errors.Is;
//   - URI parsing, globbing, uploading with retries, all over the interface.
//
// # What it is not
//
// It is no POSIX file system: files are written once, from start to end, by
// one writer. There is no append, no random write, no symbolic link, no
// permission change. Kerberos, encryption zones, encrypted transfer and
// erasure-coded files are non-goals of the client: it refuses them by name
// rather than reading wrong bytes. Authentication sits behind client.Auth, so a
// SASL mechanism can be added without touching a caller.
//
// # Implementations
//
//	hdfs/client   Apache HDFS: Hadoop RPC v9 to the NameNode, the data transfer
//	              protocol to DataNodes, both without generated code
//	hdfs/localfs  a directory tree of this machine (file:///)
//	hdfs/fake     in memory, with hosts, racks and faults
//
// All of them pass hdfs/hdfstest; the first one against a real NameNode.
//
// # What the caller must do
//
// Paths are absolute, slash separated and clean (see CleanPath); URIs are taken
// apart with ParseURI first. A reader is closed; a writer is ended by exactly
// one Commit or Abort (Abort after Commit does nothing, so it may be deferred).
// A file under its final name may be seen half written, as HDFS itself shows
// it: whoever needs all or nothing writes beside and renames.
package hdfs
