// Package plan is the forward plan behind deadline quotes: when a job that is
// about to be submitted would end, given everything that runs and waits now.
//
// Run times are predicted with errors. A quote draws them: each sample
// multiplies every run time by a factor from the distribution of the predictor's
// residuals, and plays the cluster forward as the lanes would serve it: deadline
// jobs by latest start, then the suspended, then regular jobs by fair shares of
// their tenants. A quote (t, p) says that in the share p of the samples the job
// ends by t, with no node lost and nothing else submitted
// (SCHEDULING: "The composition", 10).
//
// The plan is made on a pool of nodes with room for what runs and waits in
// front of the job; it does not know of data locality and does not suspend, so
// it errs on the late side for deadline jobs and on the early side for jobs
// whose input travels. The seed is an argument: equal arguments give equal
// quotes.
package plan
