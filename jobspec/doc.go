// Package jobspec defines a job as a user submits it: its stages, their resource
// demands, input and output, with defaults, validation and the canonical JSON in
// which a job is sent and stored.
//
// It imports nothing of Drover and does no I/O. Package jobspec/hcl reads HCL;
// only the command line imports it. The coordinator decodes the canonical JSON
// and validates it again.
//
// Units are fixed: CPU in millicores, memory and disk space in bytes, disk I/O in
// bytes per second, times as [time.Time] in UTC, durations as Duration.
package jobspec
