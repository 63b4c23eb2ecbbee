// Package harness is the program that runs one task where the task runs: in
// its container, or as a plain process under "drover dev". It reads a
// mapreduce.TaskSpec, feeds the user's program as Hadoop Streaming does,
// sorts, combines, spills, merges, and ends with a mapreduce.Result.
//
// It is called by cmd/drover ("drover harness SPEC") and by the small
// cmd/drover-harness; nobody imports it for anything else.
//
// It has no network. Besides regular files it holds its stdio and the pipes
// to its own children, so it can be checkpointed at any moment; it counts
// waiting in its own sleeps and not by a clock, so hours in which it was
// frozen are not a stall. It imports the standard library and
// klauspost/compress alone: it starts once for each task on slow machines.
//
// The program it runs is the leader of a process group that is killed when
// the program has ended, when the harness is told to stop (SIGTERM, then
// SIGKILL after grace_ms), and by the kernel when the harness dies. As process
// 1 of a container it also reaps orphans.
//
// Conventions, as in Hadoop Streaming: lines on stdin, lines on stdout with
// the key up to the first tab, names of job and task in the environment (see
// Environ), "reporter:counter:GROUP,NAME,AMOUNT" and "reporter:status:TEXT" on
// stderr, which are taken out of the log. A program that stops reading and
// ends with status 0 has succeeded.
package harness
