// Package trace reads and generates workloads: SWIM's tab-separated traces with and without input
// paths, the Standard Workload Format, Drover's own JSON lines (the history that a coordinator
// writes), the output of Slurm's sacct, job traces of Hadoop's Rumen, and generators for the
// workloads of the papers. Properties that a trace lacks are derived by a rule with parameters
// (SwimRule, SWFRule, HistoryRule).
//
// Readers accept gzip. Errors name the file, the line and what was expected there; with SkipBad a
// reader counts bad lines and continues. Readers hold a whole workload in memory.
package trace
