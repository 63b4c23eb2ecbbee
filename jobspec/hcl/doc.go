// Package hcl reads job files. It turns HCL2 text into a jobspec.Job, keeps
// the place of every value, and so shows file, line, text and a hint for each
// problem, whether the parser, the decoder or jobspec.Validate found it.
//
// Job files are data: there are no variables, functions or includes. One
// freedom is added to HCL's grammar: a block on one line may hold several
// attributes and blocks, as in
//
//	resources { cpu = 1  memory = "256MiB" }
//
// Only the command line imports this package; the coordinator reads the
// canonical JSON.
package hcl
