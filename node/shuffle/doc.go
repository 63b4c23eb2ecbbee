// Package shuffle moves map outputs between nodes over HTTP: Server answers
// ranges of one partition of a committed map output, Fetch brings one partition
// into a file, checked and resumed.
//
// # On the wire
//
//	GET /shuffle/<job>/<stage>/<task>.<attempt>.<run>/<partition>
//	Range: bytes=<from>-
//	Authorization: Bearer <hex of HMAC-SHA256(the job's token, the path)>
//
//	206 or 200, the stored bytes of the partition from there on
//	Drover-Partition: JSON of mapreduce.PartRange
//	Drover-Codec: none or zstd
//
// The key never crosses the wire, and a header that was overheard opens the one
// partition that was overheard with it. The reader checks length and CRC-32C
// against the index, so neither side trusts the other's disk or the network.
//
// # Answers
//
// 401: another token. 404: the node does not have that output (any more); the
// map must run again. 416: past the end. 503 with Retry-After: too many at once.
// 500: the output is damaged; the map must run again.
package shuffle
