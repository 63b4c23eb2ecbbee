// Package pipe makes a scheduling policy of another process, in any language, that reads the state
// of the cluster from its standard input and writes placements to its standard output: one JSON
// object per line each. It is for research in the simulator; the coordinator does not use it.
//
// The process is asked whenever the scheduler decides and a task waits. It may place tasks, and say
// when it wants to be asked again. It cannot suspend, migrate, kill or reserve. A wrong answer ends
// the simulation with an error. docs/develop/own-policy.md describes the messages.
//
// The caller must Close a Policy, which ends the process and waits for it.
package pipe
