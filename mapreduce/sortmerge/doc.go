// Package sortmerge sorts records by partition and key bytes within a memory
// limit: it collects them in an arena, spills sorted segments to regular files,
// and merges segments with a bounded fan-in. The harness uses it; sortmerge
// itself knows nothing of programs, specs or pipes.
//
// Order: by partition, then by key bytes as unsigned values, then by arrival.
// The last criterion makes the output independent of the memory limit (unless a
// combiner runs).
//
// Memory: a Collector touches at most Options.Memory bytes for records and
// their index. A merge uses one read buffer for each segment and two write
// buffers, together at most Options.Memory, or 4 KiB each if that is more. The
// decoders of compressed segments count in it, but two segments can always be
// merged. The encoder of a compressed output takes EncoderBytes besides.
//
// Files have the format of package mapreduce: a sequence of partitions, each a
// sequence of records, with a CRC-32C over the stored bytes that is checked when
// the last byte of a partition is read. Damaged bytes are mapreduce.ErrCorrupt.
//
// The types are not safe for concurrent use and start no goroutines.
package sortmerge
