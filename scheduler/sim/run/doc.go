// Package run drives the simulator: it makes a cluster and a workload from
// what a user says, runs the engine for one or many seeds on the machine's
// cores, and writes what package report makes of it. It is where the pure
// parts meet files, the clock (for progress and for events per second, never
// for the simulation) and goroutines; each run itself is one goroutine and
// the outcome does not depend on how many there are.
package run
