// Package forecast simulates the future of a State for deadline quotes: when a job that is about to be
// submitted would end, given all running and waiting work, and when waiting tasks are expected to start.
//
// Run times are predicted with errors, so a quote samples them. Each sample multiplies the predictions of a stage by
// one factor and each of its run times by another, from the distributions of the predictor's errors. It then simulates
// the cluster as the lanes of 3dsf serve it: deadline jobs by latest start (EMWTF, least laxity first), which preempt
// regular tasks if they cannot wait (PDSonQueue Alg. 5), then suspended attempts, then regular jobs by fair shares of
// their tenants, within the caps of these. Tasks for which guarantees reserve capacity start in their reservations, and
// others leave them their nodes and what caps allow. A quote (t, p) says that in the share p of the samples the job
// ends by t, if no node is lost and no job is submitted later.
//
// The simulation knows nodes and their resources, but no data locality, no single disks and no order of jobs other than
// that of 3dsf: under another scheduler it is an approximation. The seed is an argument; equal arguments give equal
// quotes.
package forecast
