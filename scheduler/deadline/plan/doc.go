// Package plan is the forward plan behind deadline quotes: when a job that is
// about to be submitted would end, given everything that runs and waits now,
// and when what waits is expected to start.
//
// Run times are predicted with errors. A quote draws them: each sample
// multiplies the predictions of a stage by one factor and each of its run times
// by another, from the distributions of the predictor's errors, and plays the
// cluster forward as the lanes of 3dsf would serve it: deadline jobs by latest
// start, which take room back from regular tasks where they cannot wait
// (PDSonQueue Alg. 5), then the suspended, then regular jobs by fair shares of
// their tenants. A quote (t, p) says that in the share p of the samples the job
// ends by t, with no node lost and nothing else submitted
// (SCHEDULING: "The composition", 10).
//
// The plan is made on nodes with room for what runs and waits in front of the
// job. It does not know of data locality, of disks one by one, or of orders
// other than that of 3dsf: under another scheduler it is an approximation. The
// seed is an argument: equal arguments give equal quotes.
//
// Files: plan.go question and answer; play.go one sample; preempt.go room that
// is taken back.
package plan
