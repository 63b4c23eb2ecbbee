// Package estimate predicts how long the tasks of a stage will run, from finished tasks, for the
// coordinator and the simulator: 3DSF section 6.3 as implemented by package predict, with the
// additional sources of a live cluster.
//
// An Estimator learns from each finished task. The prediction for a stage comes from the best
// source available, best first:
//
//	own tasks  the stage's own finished tasks, combined with the next source's
//	           prediction, which counts as three tasks and one for each running;
//	           a bound counts as none
//	model      the network, or the ridge regression where the network does not
//	           beat it, if it beats history and tenant on held-out tasks (package
//	           predict decides), for stages that have one of these; a map stage
//	           is predicted with the recent shares of tasks at each distance
//	           from their data, which the means of the other sources include
//	history    tasks of a stage of the same name, in a job of the same name and
//	           tenant: their mean, or their regression on input bytes
//	tenant     the mean of the tenant's tasks
//	bound      the job's runtime_bound, an upper bound on the time of one task
//	none       no estimate
//
// # Errors of predictions
//
// If the prediction for a stage is 20% too low, it is so for all its tasks, so errors are recorded in two
// parts: the log of (mean run time of a stage / its first prediction), and of (run time of a task / mean of
// its stage). A quote draws the first once for each stage and the second for each task. While too few
// errors are known both are assumed, deliberately wide. Errors are recorded only when a stage is complete:
// in a running stage the finished tasks are the shortest ones, which would bias the estimate.
//
// # Who calls it
//
// The owner of a State calls Observe as tasks finish, Predict for each new stage and for stages
// with newly finished tasks, and Train in the background. Equal calls give equal predictions. An
// Estimator is not safe for concurrent use and reads no clock.
package estimate
