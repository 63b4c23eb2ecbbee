// Package predict estimates how long a task will run, as 3DSF section 6.3 asks:
// a multilayer perceptron with two hidden layers of 32 rectified units (eq. 4),
// trained by backpropagation on finished tasks; and an honest fallback before
// there is history.
//
// # From history to an estimate
//
// Predictor.Observe takes each finished task. Predictor.Step trains in the
// background, a bounded number of task visits per call, on a snapshot of the
// latest tasks: four fifths to fit a network and a ridge regression, one fifth
// held out. The network is used only if it beats both the ridge regression and
// the fallback on the held-out tasks, by two standard errors of the paired
// difference of squared log errors; the ridge regression only if it beats the
// fallback so. Until then, and after history that fits nothing,
// estimates come from the fallback chain: mean of the stage's finished tasks or
// their regression on input size, whichever has predicted the stage better so
// far; mean of the tenant's; default of the class.
//
// Every Estimate names its Source and carries the distribution of that source's
// errors, measured on tasks that it had not seen, as quantiles of
// log(run time/estimate). Deadline quotes draw their samples from it.
//
// # Numbers
//
// The network and the ridge regression see the eight Features standardised
// after log(1+x) for sizes and times, and predict log(seconds). Weights are
// float32 and products are rounded before they are added, so training is
// bit-identical on every run with the same seed and on every architecture up to
// its log and exp. Nothing here reads a clock or a global random source. A
// Predictor is not safe for concurrent use; a Model is immutable, and each
// user of one needs only a Workspace of their own.
package predict
