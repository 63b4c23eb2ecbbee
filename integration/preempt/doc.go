// Package preempt plays the scene of taking back: every machine of a bed is full
// of maps of low priority, then jobs with deadlines arrive one after the other.
// It plays it under 3dsf with suspension, with kill, or with neither, and says
// what became of the deadlines, of the work of the maps, and of their output. A
// command (integration/cmd/scene -preempt) and an end-to-end test build on it.
//
// Machines of the bed are emulated: hold results of one bed against each other
// alone.
package preempt
