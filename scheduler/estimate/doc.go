// Package estimate predicts how long the tasks of a stage will run, from tasks
// that ended, for the coordinator and the simulator alike: 3DSF section 6.3 as
// package predict has it, with what a live cluster adds.
//
// A Book learns each finished task. The prediction for a stage is, best first:
//
//	own        what finished of this very stage, beside the next line's
//	           estimate, which counts as three tasks and one for each that runs
//	history    tasks of a stage of the same name, of a job of the same name and
//	           tenant: their mean, or their line over input bytes
//	model      the network, or the ridge regression where the network does not
//	           beat it on tasks held out (package predict decides); a map stage
//	           with as many tasks at each distance from their data as lately,
//	           which the means of the other lines hold already
//	tenant     the mean of the tenant's tasks
//	bound      the job's runtime_bound, as if its longest chain took all of it
//	none       nothing is known: no estimate
//
// # How wrong it is
//
// A stage whose prediction is 20% too low is that for all its tasks, so errors
// are kept in two parts: the log of (mean run time of a stage / its first
// prediction), and of (run time of a task / mean of its stage). A quote draws
// the first once for each stage and the second for each task. Before there are
// enough errors both are assumed, on the wide side. Errors count when a stage is
// complete: of one that runs, the tasks that ended are the short ones.
//
// # Who calls it
//
// The owner of a State calls Learn or Observe as tasks finish, Stage for each
// new stage and for those of which tasks finished, and Step beside its work to
// train the model. Equal calls give equal predictions. A Book is not safe for
// concurrent use and reads no clock.
package estimate
