// Package fluid is the other model of the simulator: one server of speed 1
// that jobs share by rates, without tasks, machines or places. It is what
// queueing theory speaks of and what job-level traces are usually replayed on.
//
// Each discipline is exact between events: within float64 a job ends when its
// size has been served. Pure, deterministic, one pass over the jobs.
package fluid
