// Package preempt runs a preemption scenario: every machine of a test bed is full of low-priority
// maps, then jobs with deadlines arrive one after the other. It runs under 3dsf with suspension,
// with kill, or with neither, and reports the deadlines met, the work of the maps, and whether
// their output is correct. The command integration/cmd/demo (-scenario preempt) and an end-to-end
// test build on it.
//
// The machines of the test bed are emulated: compare only results of the same test bed.
package preempt
