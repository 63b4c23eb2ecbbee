// Package peer is the network between the coordinators of a cluster: one port,
// mutual TLS with the cluster's authority, and two protocols on it that ALPN
// tells apart. It is not the API of nodes and users, which has a port of its own.
//
//	drover-raft  raft's own protocol: votes, entries, snapshots
//	h2           PeerService: state, joining, uploaded files
//
// Both ends of every connection show a certificate of kind coordinator that was
// not revoked; the certificates of nodes and users end in the handshake. A caller
// of [Listen] calls Start once and Close when raft and the API have stopped.
package peer
