// Package harness is the program that executes one task where the task runs: in its container, or
// as a plain process under "drover dev". It reads a mapreduce.TaskSpec, feeds the user's program as
// Hadoop Streaming does, sorts, combines, spills and merges, and ends by writing a
// mapreduce.Result.
//
// cmd/drover ("drover harness SPEC") and the small cmd/drover-harness call Main; nothing else
// imports the package.
//
// The harness uses no network. Besides regular files it holds only its stdio and the pipes to its
// own children, so it can be checkpointed at any moment. It measures waiting by its own sleeps and
// not by a clock, so that hours in which it was frozen are not a stall. It imports only the
// standard library and klauspost/compress, because it starts once for each task on slow machines.
//
// The user's program leads a process group. The group is killed when the program has ended, when
// the harness is stopped (SIGTERM, then SIGKILL after grace_ms), and by the kernel when the harness
// dies. As process 1 of a container the harness also reaps orphans.
//
// Conventions are those of Hadoop Streaming: lines on stdin; lines on stdout, whose key ends at the
// first tab, or at the tab behind the last key field (mapreduce.Keys); names of job and task in the
// environment (see environ); "reporter:counter:GROUP,NAME,AMOUNT" and "reporter:status:TEXT" on
// stderr, which are removed from the log. A program that stops reading early and ends with status 0
// has succeeded.
package harness
