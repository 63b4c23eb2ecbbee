// Package predict estimates how long a task will run, as in 3DSF section 6.3: with a multilayer
// perceptron with two hidden layers of 32 rectified units (eq. 4), trained by backpropagation on
// finished tasks, and a fallback while there is too little history.
//
// # From history to an estimate
//
// Predictor.Observe records each finished task. Predictor.Train trains in the background, a limited number of task visits
// per call, on a snapshot of the latest tasks: four fifths to fit a network and a ridge regression, one fifth held out. The
// network is used only if it beats both the ridge regression and the fallback on the held-out tasks by two standard errors
// of the paired difference of squared log errors; the ridge regression only if it beats the fallback by as much. Until
// then, and while the history fits neither, estimates come from the fallback chain: the mean of the stage's finished tasks
// or their regression on input size, whichever has predicted the stage better so far; the mean of the tenant's tasks; one
// minute. If only that minute is left for a task, the network is not used for it either.
//
// Every Estimate names its Source. The errors of predictions are measured in package estimate.
//
// # Numbers
//
// The network and the ridge regression use the eight Features standardised after log(1+x) for sizes
// and times, and predict log(seconds). Weights are float32 and products are rounded before they are
// added, so training is bit-identical on every run with the same seed and on every architecture
// with the same log and exp. The package reads no clock and no global random source. A Predictor is
// not safe for concurrent use; a trainedModel is immutable, and concurrent users of one need a
// workspace each.
package predict
