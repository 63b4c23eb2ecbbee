// Package datanode moves the bytes of one block between this process and
// DataNodes: Hadoop's data transfer protocol, version 28 (datatransfer.proto,
// DataXceiver.java, BlockReceiver.java).
//
// A Reader takes one range of one block from one DataNode and verifies every
// checksum. A Pipeline sends one new block through several of them and waits
// for the acknowledgements of all. Neither retries: which replica is tried next,
// and what becomes of a broken pipeline, package client decides.
//
// A context bounds each of them for its whole life, and a time-out every wait
// for the other side. Bytes from the network lead to errors, never to a panic,
// and to at most 16 MiB of memory.
package datanode
