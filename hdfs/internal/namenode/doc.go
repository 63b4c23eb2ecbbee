// Package namenode holds the methods of HDFS's ClientProtocol that Drover
// calls, and their messages (Hadoop's ClientNamenodeProtocol.proto and
// hdfs.proto), over package rpc. It keeps no state and decides nothing: retries
// live in rpc, caching and policy in package client.
//
// Decoding takes bytes from the network: it returns errors, never panics, and
// keeps at most a small multiple of the message in memory, because a block or
// a file without its required fields is an error.
package namenode
