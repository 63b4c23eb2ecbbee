package predict

import (
	"fmt"
	"math"
)

// Source says where an estimate comes from, best last.
type Source int

const (
	ClassDefault    Source = iota + 1 // the configured run time of the task's class
	TenantMean                        // geometric mean of the tenant's finished tasks, fading
	StageMean                         // mean of the stage's finished tasks
	StageRegression                   // the stage's run time as a line over input size
	Ridge                             // ridge regression over all features
	MLP                               // the network
	sourceEnd
)

// String is the name of the source.
func (s Source) String() string {
	names := [...]string{"class default", "tenant mean", "stage mean", "stage regression", "ridge", "mlp"}
	if s < 1 || int(s) > len(names) {
		return fmt.Sprintf("source(%d)", int(s))
	}
	return names[s-1]
}

// assumedSpread is the standard deviation of the log error of a source of which
// fewer than errorMin errors are known. Guesses, on the wide side; every
// Distribution made of them says so.
func assumedSpread(s Source) float64 {
	switch s {
	case ClassDefault:
		return 1.5
	case TenantMean:
		return 1
	case StageMean, StageRegression, Ridge, MLP:
		return 0.5
	default:
		panic(fmt.Sprintf("predict: no spread for %v", s))
	}
}

// Least numbers of finished tasks before a source is used.
const (
	stageMin      = 3
	regressionMin = 5
	tenantMin     = 3
	tenantFade    = 1.0 / 64
)

// stageStats are running sums of one stage: Welford's, for the mean and for the
// line of seconds over input bytes, and how both would have predicted each task
// before it was added.
type stageStats struct {
	n            float64
	meanX, meanY float64
	xx, xy       float64
	low, high    float64 // run times seen
	errMean      float64 // sum of squared log errors
	errLine      float64
}

func (s *stageStats) line(x float64) float64 {
	y := s.meanY
	if s.xx > 0 {
		y += max(0, s.xy/s.xx) * (x - s.meanX)
	}
	return min(max(y, s.low/4), s.high*4) // no farther than four times what was seen
}

// estimate is the stage's better predictor; ok is false before stageMin tasks.
func (s *stageStats) estimate(x float64) (seconds float64, source Source, ok bool) {
	switch {
	case s == nil || s.n < stageMin:
		return 0, 0, false
	case s.n >= regressionMin && s.xx > 0 && s.errLine < s.errMean:
		return s.line(x), StageRegression, true
	}
	return s.meanY, StageMean, true
}

func (s *stageStats) add(x, y float64) {
	if s.n >= stageMin {
		a, b := math.Log(y/s.meanY), math.Log(y/s.line(x))
		s.errMean += a * a
		s.errLine += b * b
	}
	if s.n == 0 {
		s.low, s.high = y, y
	}
	s.low, s.high = min(s.low, y), max(s.high, y)
	s.n++
	dx := x - s.meanX
	s.meanX += dx / s.n
	s.meanY += (y - s.meanY) / s.n
	s.xx += dx * (x - s.meanX)
	s.xy += dx * (y - s.meanY)
}

// tenantStats is the fading mean of log seconds of one tenant.
type tenantStats struct {
	n       int
	logMean float64
}

func (s *tenantStats) add(seconds float64) {
	s.n++
	s.logMean += max(1/float64(s.n), tenantFade) * (math.Log(seconds) - s.logMean)
}

// table is a map of bounded size: the entry made first leaves first.
type table[V any] struct {
	of   map[string]*V
	ring []string
	next int
	max  int
}

func newTable[V any](size int) table[V] { return table[V]{of: map[string]*V{}, max: size} }

// entry finds or makes the entry of a key.
func (t *table[V]) entry(key string) *V {
	if v := t.of[key]; v != nil {
		return v
	}
	v := new(V)
	if len(t.ring) < t.max {
		t.ring = append(t.ring, key)
	} else {
		delete(t.of, t.ring[t.next])
		t.ring[t.next] = key
		t.next = (t.next + 1) % t.max
	}
	t.of[key] = v
	return v
}
