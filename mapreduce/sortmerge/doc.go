// Package sortmerge sorts records by partition and key bytes within a memory
// limit: it collects them in one arena, spills sorted runs to regular files,
// and merges runs with a bounded fan-in. It is the engine below the harness
// and knows nothing of programs, specs or pipes.
//
// Order: by partition, then key bytes as unsigned, then arrival. The last part
// makes output a function of the input alone, whatever the memory limit (a
// combiner aside).
//
// Memory: a Collector touches at most Options.Memory bytes for records and
// their index, and while merging one read buffer for each run plus two write
// buffers, together at most Options.Memory or, if that is smaller, 4 KiB each.
//
// Files are those of package mapreduce: a row of partitions, each a row of
// records, with a CRC-32C over the stored bytes that is checked when the last
// byte of a partition is read. Reading damaged bytes gives mapreduce.ErrCorrupt.
//
// The types are not for concurrent use and start no goroutines.
package sortmerge
