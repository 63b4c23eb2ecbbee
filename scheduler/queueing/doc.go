// Package queueing implements the M/M/n model of 3DSF section 7.2 (eq. 9-33) and of the
// PDSonQueue supplement (eq. 1-17), in corrected form, and the estimators of its two
// rates from history.
//
// Model: jobs arrive as a Poisson stream of rate lambda, n equal servers work at rate
// mu each, the queue is first come first served and unbounded. With rho1 = lambda/mu
// (the offered load, in servers) and rho = rho1/n the model is stable for rho < 1.
//
// It is not a model of the cluster: a job takes exactly one server. `drover sim size` begins its
// search with it (scheduler/sim/run), and tests compare simulations with it. No scheduler uses it.
// A quote for a job without history takes the model's run times, exponential with the mean of all
// ended tasks, but simulates the present jobs: TestQuoteWithoutHistory in
// scheduler/deadline/forecast measures that this is as good as the model's sojourn time at a low
// load and better at a high one.
//
// # Accuracy
//
// Every quantity is within 1e-6 relative (measured: 2e-13) of a 40-digit evaluation for
// n up to 100,000 and rho up to 1 - 1e-9, wherever the value is a normal float64; below
// that it is 0 and the Log variant has it. Three methods achieve this. Everything that
// vanishes at full load is written with the slack n - rho1, which New computes from the
// rates by one fused multiply-add and newSlack receives, so 1 - rho never suffers from
// cancellation. Poisson terms use the saddle-point form of Loader (2000), whose error
// does not grow with n. Differences of exponentials are written with expm1 of the
// difference of the two rates, so the points n - 1 = lambda/mu, where the printed eq.
// 31-33 divide by zero, are ordinary.
//
// # Misprints corrected here
//
//	3DSF eq. 27-28, supplement eq. 11-12   exponent mu(n - rho/n): is n mu - lambda
//	PDSonQueue eq. 5                       lacks the n of 3DSF eq. 18
//	3DSF eq. 21-24, supplement eq. 9       rho where rho1 is meant
//	3DSF eq. 23, prose                     1/(1-rho): is rho/(1-rho)
//	3DSF eq. 31-33                         singular at n - 1 = rho1: the limit is taken
//	supplement eq. 15                      (n - 1 - rho1): is (n - rho1)
//	supplement eq. 1, p_(n+1)              (n+1)!: is n! n
//
// Times are float64 seconds, rates are per second. The package reads no clock and draws
// no random numbers; a Queue is immutable and safe to share.
package queueing
