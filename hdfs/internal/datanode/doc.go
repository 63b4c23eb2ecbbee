// Package datanode transfers the bytes of one block between this process and
// DataNodes: Hadoop's data transfer protocol, version 28 (datatransfer.proto,
// DataXceiver.java, BlockReceiver.java).
//
// A Reader reads a range of one block from one DataNode and verifies every checksum. A
// LocalReader does so from the block's files, which a DataNode of this machine passes through its
// domain socket (the short-circuit reads of HDFS). A Pipeline sends one new block through several DataNodes and waits for the
// acknowledgements of all. None retries: package client decides which replica is
// tried next and what happens after a broken pipeline.
//
// A context bounds each of them for its whole life, and a time-out bounds every wait
// for the peer. Malformed bytes lead to errors, never to a panic, and to at most
// 16 MiB of memory.
package datanode
