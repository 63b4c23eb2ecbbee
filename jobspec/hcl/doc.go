// Package hcl reads job files. It turns HCL2 text into a jobspec.Job and keeps the
// source range of every value, so that each problem is shown with file, line, text
// and a hint, whether the parser, the decoder or jobspec.Validate found it.
//
// Job files are data: a file may declare variables, whose values are its own defaults or
// given with it, and there are no functions or includes. The package extends HCL's grammar
// in one point: a one-line block may hold several attributes and blocks, as in
//
//	resources { cpu = 1 memory = "256MiB" }
//
// Only the command line imports this package; the coordinator reads the canonical
// JSON.
package hcl
