// Package engine simulates the cluster around a scheduler. It has a queue of events ordered by
// (time, kind, sequence number), nodes with a speed, tasks that read, compute, shuffle and write,
// shared networks and disks, node failures, and the cost of suspension. It applies its events to a
// scheduler.State and calls scheduler.Cycle with scheduler.AcceptAll, the same code that the
// coordinator runs. It makes no scheduling decision.
//
// The package is pure: one goroutine, no clock, no files, no global random source. Every random
// draw is a function of the seed and of the drawn object (job, stage, task, attempt, node), never
// of the order of events. Two policies therefore see the same draws, which keeps paired comparisons
// sharp. Equal Configs produce equal Results, byte for byte.
//
// The caller makes a Config, calls Simulate, and reads the Result. A simulation repeats four steps
// until every job has ended or no event is left:
//
//  1. Handle all events of the next time: submissions, node changes, ends and
//     arrivals, each in the order in which they were scheduled.
//  2. If an event changed the state, or the policy asked to be woken, run one
//     Cycle.
//  3. Execute the accepted actions, which schedule further events.
//  4. Advance to the next event.
//
// Within one time this is the order submission, termination, start of the reference simulator of
// the Parallel Workloads Archive.
package engine
