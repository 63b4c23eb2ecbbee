package predict

import "math"

// The inputs of the model: indices of Features. All are known when a task is placed.
const (
	InputBytes   = iota // bytes that the task reads
	CPU                 // demand, millicores
	Memory              // demand, bytes
	DiskIO              // demand, bytes/s
	StageKind           // 0 map, 1 reduce, 2 group
	stageSeconds        // the fallback's estimate for the task, seconds: the mean of the finished tasks of its stage, if any
	Distance            // switches between node and data: 0 node, 1 rack, 3 other rack
	Slowdown            // of the node: recent run times over their estimates, 1 is average
	featureCount
)

// Features holds the values of all features in their units. None may be negative.
type Features [featureCount]float64

const maxSeconds = 3.2e9 // the largest run time: a hundred years

// logTransform maps features to the scale that the models use, before standardising:
// log(1+x) for sizes and times, unchanged for the others.
func logTransform(x *Features, out *[featureCount]float64) {
	for i, v := range x {
		switch i {
		case StageKind, Distance:
			out[i] = v
		default:
			out[i] = math.Log1p(v)
		}
	}
}

// SlowdownTracker tracks the Slowdown of one node: the mean of log(run time/estimate),
// to which each finished task contributes a tenth. The zero value is an average node.
type SlowdownTracker struct{ logMean float64 }

// Observe records one finished task of the node. Values out of range are ignored.
func (s *SlowdownTracker) Observe(seconds, estimate float64) {
	if r := math.Log(seconds / estimate); r > -20 && r < 20 {
		s.logMean += 0.1 * (r - s.logMean)
	}
}

// Value returns the feature: 1 for an average node, 2 for one that takes twice as long.
func (s *SlowdownTracker) Value() float64 { return math.Exp(s.logMean) }
