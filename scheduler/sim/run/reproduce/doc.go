// Package reproduce repeats the papers' evaluations and compares the results with their claims. The
// claims (claims.json), the criterion of "reproduced" and the weights were fixed before the first
// run. Parameters that a paper does not state are physical, equal for every scheduler, calibrated
// on the *baseline's* published figures alone, and frozen in calibration.json, whose hash each
// report contains.
//
// For each seed an Experiment yields one paired value per claim: a ratio or difference between two
// schedulers with the same random draws. A claim is evaluated on the mean and the 95% interval of
// these values over the seeds.
package reproduce
