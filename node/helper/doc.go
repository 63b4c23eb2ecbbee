// Package helper moves bytes for one attempt: the split into its growing
// input, its partitions out of other nodes' map outputs, its result to the
// output path.
//
// The node daemon runs it as a process of its own in leaf x of the attempt's
// cgroup and as the tenant's uid, so that what it reads and writes is charged
// to the attempt and it may do no more than the tenant; where there are no
// cgroups (`drover dev`) the daemon calls Run in a goroutine instead.
//
// # As a process
//
// Standard input is one Request as a line of JSON, then, for a shuffle, one
// Update for each change of what is known of the map outputs. The end of
// standard input means that the daemon is gone: the helper ends, and a new
// daemon starts another one, which goes on where the files end. Standard output
// is one Event a line; the last one has Done or Error set.
//
// # Safe to repeat
//
// A fetch and a shuffle append to files and their journals and find out where
// they were. An upload writes its file again from the start: only this attempt
// and run writes below that name.
package helper
