// Package trace reads workloads and makes them: SWIM's tab-separated traces
// with and without input paths, the Standard Workload Format, Drover's own
// JSON lines (which a coordinator writes as its history), and generators for
// the workloads of the papers. What a trace leaves out is derived by a stated
// rule with parameters (SwimRule, SWFRule, HistoryRule).
//
// Readers take gzip as it is, name file and line in each error and what was
// expected there, and with SkipBad go on and count. They hold a whole
// workload in memory; none of them runs anything.
package trace
