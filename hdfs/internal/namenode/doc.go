// Package namenode implements the methods of HDFS's ClientProtocol that Drover
// calls, and their messages (Hadoop's ClientNamenodeProtocol.proto and hdfs.proto),
// on top of package rpc. It has no state and makes no decisions: retries are in
// rpc, caching and policy in package client.
//
// Decoding handles untrusted bytes: it returns errors, never panics, and uses at
// most a small multiple of the message in memory, because a block or a file
// without its required fields is an error.
package namenode
