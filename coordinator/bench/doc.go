// Package bench is the engine of `drover bench coordinator`: it measures the whole
// live way of a job through a coordinator, from SubmitJob over log, Decide and the
// streams to the nodes, and back over reports and ends.
//
// The nodes are simulated; all else is real. Each node has a connection of its own,
// registers, watches its desired state and reports as the daemon does: a full report
// first, then changes, at most one every 5 ms, and at least one per report interval. A
// node starts nothing: it reports the success of an attempt as soon as it receives it.
//
// The coordinator runs in another process, which the caller starts and meters (Meter),
// so that its CPU time and memory are its own and not those of nodes and clients.
// Both share the processors of one machine: figures are a lower bound of what a
// coordinator with a machine of its own does.
package bench
