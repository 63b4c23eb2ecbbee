// Package run drives the simulator: it makes a cluster and a workload from user input, simulates
// one or many seeds on the machine's cores, and writes the output of package report. It connects
// the pure packages with files, the clock (for progress and events per second, never for the
// simulation) and goroutines. Each simulation is one goroutine, so the outcome does not depend on
// parallelism.
package run
