// Package simcluster has a simulation of a whole cluster in one process: real
// coordinators and real node daemons in virtual time (testing/synctest), over a
// network in memory, with container engines in memory and faults drawn from a
// seed. It is test code alone; see docs/develop/simulate-a-cluster.md.
package simcluster
