// Package fluid is the second model of the simulator: jobs share one server of speed 1 by rates,
// without tasks, nodes or data locations. Queueing theory uses this model, and job-level traces are
// usually replayed on it.
//
// Each discipline is exact between events: a job ends when its size has been served, up to float64
// precision. The package is pure and deterministic and makes one pass over the jobs.
package fluid
