package predict

import (
	"errors"
	"fmt"
	"math"
)

// Classes of errors of this package, asked with errors.Is.
var (
	ErrFeature = errors.New("predict: feature is not a number or out of range")
	ErrRunTime = errors.New("predict: run time is not a positive number")
	ErrConfig  = errors.New("predict: bad configuration")
	ErrModel   = errors.New("predict: not a usable model file")
)

// Feature names one of the inputs of the model.
type Feature int

// The eight features. All are known when a task is placed.
const (
	InputBytes   Feature = iota + 1 // bytes that the task reads
	CPU                             // demand, millicores
	Memory                          // demand, bytes
	DiskIO                          // demand, bytes/s
	StageKind                       // 0 map, 1 reduce, 2 group
	StageSeconds                    // the fallback's estimate for the task, seconds: the mean of finished tasks of its stage, where there are any
	Distance                        // switches between node and data: 0 node, 1 rack, 3 other rack
	Slowdown                        // of the node: recent run times over their estimates, 1 is average
)

// FeatureCount is the number of features.
const FeatureCount = 8

// limit bounds a feature: an exabyte, or a thousand kinds or switches.
func limit(f Feature) float64 {
	switch f {
	case StageKind, Distance:
		return 1000
	default:
		return 1e18
	}
}

// String is the name of the feature.
func (f Feature) String() string {
	names := [...]string{"input_bytes", "cpu", "memory", "disk_io", "stage_kind", "stage_seconds", "distance", "slowdown"}
	if f < 1 || int(f) > len(names) {
		return fmt.Sprintf("feature(%d)", int(f))
	}
	return names[f-1]
}

// Features are the values of all features in their units; feature f is at
// index f-1.
type Features [FeatureCount]float64

// Of is the value of one feature.
func (x *Features) Of(f Feature) float64 { return x[f-1] }

// Set changes the value of one feature.
func (x *Features) Set(f Feature, v float64) { x[f-1] = v }

// check refuses values that cannot be.
func (x *Features) check() error {
	for i, v := range x {
		if f := Feature(i + 1); !(v >= 0 && v <= limit(f)) {
			return fmt.Errorf("%w: %v is %g, want 0 to %g", ErrFeature, f, v, limit(f))
		}
	}
	return nil
}

// MaxSeconds bounds run times: a hundred years.
const MaxSeconds = 3.2e9

func checkSeconds(what string, s float64) error {
	if !(s > 0 && s <= MaxSeconds) {
		return fmt.Errorf("%w: %s is %g s, want over 0 up to %g", ErrRunTime, what, s, MaxSeconds)
	}
	return nil
}

// transformed puts features on the scale that the models see, before
// standardising: log(1+x) for sizes and times, as it is for the rest.
func transformed(x *Features, out *[FeatureCount]float64) {
	for i, v := range x {
		switch Feature(i + 1) {
		case StageKind, Distance:
			out[i] = v
		default:
			out[i] = math.Log1p(v)
		}
	}
}

// SlowdownTracker keeps the Slowdown of one node: the mean, fading with each
// finished task by a tenth, of log(run time/estimate). The zero value is an
// average node.
type SlowdownTracker struct{ logMean float64 }

// Observe takes one finished task of the node. Nonsense is ignored.
func (s *SlowdownTracker) Observe(seconds, estimate float64) {
	if r := math.Log(seconds / estimate); r > -20 && r < 20 {
		s.logMean += 0.1 * (r - s.logMean)
	}
}

// Value is the feature: 1 for an average node, 2 for one that takes twice as
// long.
func (s *SlowdownTracker) Value() float64 { return math.Exp(s.logMean) }
