// Package engine is the simulated world around a scheduler: a queue of events
// ordered by (time, kind, sequence), machines with a speed, tasks that read,
// compute, shuffle and write, a network and disks that are shared, machines
// that fail, and the price of suspending. It drives a scheduler.State through
// its events and calls scheduler.Cycle with scheduler.Identity, the very code
// that the coordinator runs; it decides nothing itself.
//
// It is pure: one goroutine, no clock, no file, no global random source. Every
// draw is a function of the seed and of what is drawn for (job, stage, task,
// attempt, node), never of the order in which things happen, so that two
// policies meet the same luck and paired comparisons are sharp. The same
// Config gives the same Result, byte for byte.
//
// The caller makes a Config, calls Run, and reads the Result. A run goes:
//
//  1. all events of the next instant happen: submissions, then machines, then
//     what ends or arrives, each in the order in which it was planned;
//  2. if they changed anything, or the policy asked to be woken, one Cycle;
//  3. the accepted actions are carried out and plan the events they lead to;
//  4. until every job has ended, or nothing can happen any more.
//
// Within an instant this is the order submission, termination, start of the
// Parallel Workloads Archive's reference simulator.
package engine
