// Package mapreduce defines a MapReduce task for the node daemon and the
// harness: the TaskSpec that the daemon writes, the Result that the harness
// writes, and the files that carry data between them.
//
// # What it is
//
//   - Splits: PlanSplits turns the blocks of the input files into splits;
//     FetchSplit cuts one split at line ends and appends it to a growing file.
//   - Files: the growing input (GrowingWriter, Journal), the map output with
//     its index (Index), the result (WriteResult).
//   - Rules shared by all tasks: the key of a line and its reducer (Keys), Hadoop's
//     hash partitioner (Partition), codec names, exit classes and exit codes.
//
// Package mapreduce/sortmerge sorts, spills and merges; mapreduce/harness is
// the program inside the container; mapreduce/reference is the slow and obvious
// implementation that tests compare both with.
//
// # What it is not
//
// It does not speak HDFS, start containers or schedule. It uses no network: a
// helper process of the node daemon moves bytes in and out, and the harness uses
// only regular files, its stdio and the pipes to the user's program, so that a
// task can be checkpointed at any moment.
//
// # Who calls it, in order
//
//  1. The coordinator calls PlanSplits on the blocks that node daemons reported.
//  2. The node daemon writes the TaskSpec (WriteSpec), creates the growing
//     input (NewGrowingWriter) and starts the harness with the path of the
//     spec as its only argument.
//  3. A helper process runs FetchSplit, which appends whole lines and ends with
//     Done. The helper calls Fail if no other one could do better.
//  4. The harness runs the user's program and writes the map output and its
//     index, or the output file. It writes the Result last (temporary name,
//     rename).
//  5. The shuffle server reads the Index and serves byte ranges of the data
//     file. The reducer's helper stores each range as a file, checks it with
//     PartitionRange.Verify, and announces it with SegmentWriter.Add.
//
// # Files, all versioned
//
// The journal beside a growing input or a folder of segments is an append-only
// file of JSON lines. A line counts once its newline has been written:
//
//	{"op":"journal","version":1}
//	{"op":"piece","bytes":1048576}    input: a piece of the split ends here
//	{"op":"segment","segment":{…}}    reduce: this partition file is complete
//	{"op":"done","bytes":1048576}     input: nothing follows; total length
//	{"op":"done","segments":12}       reduce: all partition files are there
//	{"op":"fail","reason":"…"}        the helper gave up
//
// The data file of a map output holds its partitions one after the other. It has
// no header, and each partition can be read alone. A partition is a sequence of
// records
//
//	uvarint(len(key)) uvarint(0: no value, else len(value)+1) key value
//
// sorted by key bytes; equal keys keep the order in which the mapper wrote
// them. A partition may be compressed as a whole (zstd). The index file is, in
// little endian:
//
//	0   8  magic "drvindex"
//	8   4  version (1)
//	12  4  codec (1 none, 4 zstd)
//	16  4  number of partitions n
//	20  4  zero
//	24  n times 40 bytes: offset u64, length u64, raw length u64, records u64,
//	    CRC-32C of the stored bytes u32, bytes of the largest record u32
//	    (0: unknown, as in files of earlier versions)
//	…   4  CRC-32C of everything before
//
// # Where it differs from Hadoop
//
// Lines end with "\n" only; a "\r" belongs to the line. The final output is what the program wrote,
// with a newline added after an unfinished last line; no tab is added to a line without one. A
// partitioner over the first fields of a key hashes these fields as Hadoop hashes a whole key,
// starting with 1; KeyFieldBasedPartitioner starts with 0. Compressed files are never split. The
// input of a streaming reducer is always "key TAB value", as in Hadoop, even for a line that had no
// tab.
package mapreduce
