// Package chaos has the test of `make chaos`: three coordinators and three emulated machines
// with MapReduce, group and suspended jobs, and faults drawn from a seed. It skips outside a
// test bed.
package chaos
