// Package helper moves data for one attempt: the split into the task's growing
// input, its partitions out of other nodes' map outputs, its result to the
// output path.
//
// The node daemon runs it as a separate process in the helpers leaf of the
// attempt's cgroup and with the tenant's uid, so that its reads and writes are
// charged to the attempt and it has no more rights than the tenant. Without
// cgroups (`drover dev`) the daemon calls Run in a goroutine instead.
//
// # As a process
//
// Standard input is one Request as a line of JSON, followed, for a shuffle, by
// one Update for each change of the known map outputs. The end of standard input
// means that the daemon is gone: the helper ends, and a new daemon starts another
// one, which resumes where the files end. Standard output is one Event a line;
// the last one has Done or Error set.
//
// # Safe to repeat
//
// A fetch and a shuffle append to files and their journals and resume from them.
// An upload writes its file again from the start: only this run of the attempt
// writes to that name.
package helper
