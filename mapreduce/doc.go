// Package mapreduce is the vocabulary of a MapReduce task: what the node
// daemon tells the harness (TaskSpec), what the harness tells the daemon
// (Result), and the files through which bytes pass between them.
//
// # What it is
//
//   - Splits: Plan turns the blocks of the input files into splits, Fetch cuts
//     one split at line ends and appends it to a growing file.
//   - Files: the growing input (GrowingWriter, Journal), the map output with
//     its index (Index), the result (WriteResult).
//   - Rules shared by all tasks: Hadoop's hash partitioner (Partition), the
//     names of codecs, classes of failure and exit codes.
//
// The package mapreduce/sortmerge sorts, spills and merges; mapreduce/harness
// is the program inside the container; mapreduce/reference is the slow, obvious
// judge of both.
//
// # What it is not
//
// It does not speak HDFS, start containers or schedule. It has no network: a
// helper of the node daemon moves bytes in and out, and the harness only sees
// regular files, its stdio and the pipes to the user's program, so that a task
// can be checkpointed at any moment.
//
// # Who calls it, and in which order
//
//  1. The coordinator calls Plan on the blocks that node daemons reported.
//  2. The node daemon writes the TaskSpec (WriteSpec), creates the growing
//     input (NewGrowingWriter) and starts the harness with the path of the
//     spec as its only argument.
//  3. A helper runs Fetch, which appends whole lines and ends with Done or Fail.
//  4. The harness runs the user's program and writes map output and index, or
//     the output file, and last of all the Result (temporary name, rename).
//  5. The shuffle server reads the Index and serves byte ranges of the data
//     file. The reducer's helper stores each range as a file, checks it with
//     PartRange.Verify, and announces it with SegmentWriter.Add.
//
// # Files, all versioned
//
// The journal beside a growing input or a folder of segments is a file of JSON
// lines that only grows; a line counts when its newline is there:
//
//	{"op":"journal","version":1}
//	{"op":"piece","bytes":1048576}    input: a piece of the split ends here
//	{"op":"segment","segment":{…}}    reduce: this partition file is complete
//	{"op":"alive"}                    somebody is at work: not a stall
//	{"op":"done","bytes":1048576}     input: nothing follows; total length
//	{"op":"done","segments":12}       reduce: all partition files are there
//	{"op":"fail","reason":"…"}        the helper gave up
//
// The data file of a map output is its partitions one after the other, each
// readable alone, with no header. A partition is a row of records
//
//	uvarint(len(key)) uvarint(0: no value, else len(value)+1) key value
//
// sorted by key bytes; equal keys keep the order in which the mapper wrote
// them. It may be compressed as a whole (zstd). The index file is, little
// endian:
//
//	0   8  magic "drvindex"
//	8   4  version (1)
//	12  4  codec (1 none, 4 zstd)
//	16  4  number of partitions n
//	20  4  zero
//	24  n times 40 bytes: offset u64, length u64, raw length u64, records u64,
//	    CRC-32C of the stored bytes u32, zero u32
//	…   4  CRC-32C of everything before
//
// # Where it differs from Hadoop
//
// Lines end with "\n" alone; a "\r" belongs to the line. The final output is
// what the program wrote, with a newline after its last line: no tab is added
// to a line without one. Compressed files are never cut. The input of a
// streaming reducer is "key TAB value" always, as in Hadoop, also for a line
// that had no tab.
package mapreduce
