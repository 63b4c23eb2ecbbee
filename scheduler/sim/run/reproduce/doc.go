// Package reproduce runs the papers' evaluations again and holds what comes
// out against what they claim. The claims (claims.json), the test of
// "reproduced" and the weights were written down before the first run.
// Parameters that a paper does not state are physical, the same under every
// scheduler, chosen to meet the *baseline's* published figures alone and
// frozen in calibration.json, whose hash each report carries.
//
// An Experiment gives, for a seed, one paired value for each of its claims: a
// ratio or difference between two schedulers that met the same luck. A claim
// is judged on the mean and the 95% interval of these values over seeds.
package reproduce
