// Package shuffle transfers map outputs between nodes over HTTP: Server serves
// ranges of one partition of a committed map output, Fetch fetches one partition
// into a file, verified and resumable.
//
// # Protocol
//
//	GET /shuffle/<job>/<stage>/<task>.<attempt>.<run>/<partition>
//	Range: bytes=<from>-
//	Authorization: Bearer <hex of HMAC-SHA256(the job's token, the path)>
//
//	206 or 200, the stored bytes of the partition from there on
//	Drover-Partition: JSON of mapreduce.PartitionRange
//	Drover-Codec: none or zstd
//
// The token is never transmitted, and an intercepted header gives access only to
// the one partition it was made for. The reader checks length and CRC-32C against
// the index, so neither side trusts the other's disk or the network.
//
// A reader on the same machine uses a unix socket and adds "Drover-Descriptor: 1". The
// answer then has no body but a descriptor of the open map output (SCM_RIGHTS), in which
// "Drover-Descriptor" is the offset of the first byte asked for. A server that does not
// know the header sends the bytes.
//
// A map output that comes by descriptor and is a single partition is linked into the reader's folder
// instead of copied, where the two have one owner, file system and quota; it is read for its checksum.
//
// # Status codes
//
// 401: another token. 404: the node does not have that output (any more); the
// map must run again. 416: past the end. 503 with Retry-After: too many requests
// at once. 500: the output is damaged; the map must run again.
package shuffle
