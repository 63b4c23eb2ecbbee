// Package jobspec holds what a user asks for: a job, its stages, their
// demands and where input and output lie, together with defaults, validation
// and the canonical JSON form in which a job travels and is stored.
//
// It is a leaf: it imports nothing of Drover and does no I/O. Reading HCL is
// the work of jobspec/hcl, which only the command line imports; the
// coordinator decodes the canonical JSON and validates it again.
//
// Units are fixed: CPU in millicores, memory and disk space in bytes, disk
// I/O in bytes per second, times as [time.Time] in UTC, spans as Duration.
package jobspec
