package predict

import (
	"container/list"
	"math"
)

// Source is the origin of an estimate, best last.
type Source int

const (
	Default         Source = iota + 1 // no history
	TenantMean                        // fading geometric mean of the tenant's finished tasks
	StageMean                         // mean of the stage's finished tasks
	StageRegression                   // linear regression of the stage's run time on input size
	Ridge                             // ridge regression over all features
	MLP                               // the network
)

// Minimum numbers of finished tasks before a source is used.
const (
	stageMin      = 3
	regressionMin = 5
	tenantMin     = 3
	tenantFade    = 1.0 / 64
)

// stageHistory is the number of tasks of a stage beyond which earlier ones fade, so that estimates follow its run times.
const stageHistory = 1024

// stageStats holds sums of one stage (Welford's algorithm) for the mean and the regression of
// seconds on input bytes, and the errors of both for each task before it was added. Beyond
// stageHistory tasks the sums fade.
type stageStats struct {
	n             float64 // at most stageHistory
	meanX, meanY  float64
	sumXX, sumXY  float64
	low, high     float64 // smallest and largest run time
	errMean       float64 // sum of squared log errors
	errRegression float64
}

func (s *stageStats) regression(x float64) float64 {
	y := s.meanY
	if s.sumXX > 0 {
		y += max(0, s.sumXY/s.sumXX) * (x - s.meanX)
	}
	return min(max(y, s.low/4), s.high*4) // at most a factor of four beyond the observed run times
}

// estimate returns the prediction of the stage's better predictor; ok is false before stageMin tasks.
func (s *stageStats) estimate(x float64) (seconds float64, source Source, ok bool) {
	switch {
	case s == nil || s.n < stageMin:
		return 0, 0, false
	case s.n >= regressionMin && s.sumXX > 0 && s.errRegression < s.errMean:
		return s.regression(x), StageRegression, true
	}
	return s.meanY, StageMean, true
}

func (s *stageStats) add(x, y float64) {
	if s.n >= stageMin {
		a, b := math.Log(y/s.meanY), math.Log(y/s.regression(x))
		s.errMean += a * a
		s.errRegression += b * b
	}
	if s.n == 0 {
		s.low, s.high = y, y
	}
	s.low, s.high = min(s.low, y), max(s.high, y)
	if s.n++; s.n > stageHistory {
		s.n = stageHistory
		for _, sum := range []*float64{&s.sumXX, &s.sumXY, &s.errMean, &s.errRegression} {
			*sum *= float64(stageHistory) / (stageHistory + 1)
		}
	}
	dx := x - s.meanX
	s.meanX += dx / s.n
	s.meanY += (y - s.meanY) / s.n
	s.sumXX += dx * (x - s.meanX)
	s.sumXY += dx * (y - s.meanY)
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

// BoundedMap is a map of bounded size that evicts the entry least recently used by GetOrAdd.
type BoundedMap[K comparable, V any] struct {
	entries  map[K]*list.Element // of boundedEntry
	used     *list.List          // latest first
	capacity int
}

type boundedEntry[K comparable, V any] struct {
	key   K
	value V
}

// NewBoundedMap returns an empty map of at most size entries.
func NewBoundedMap[K comparable, V any](size int) BoundedMap[K, V] {
	return BoundedMap[K, V]{entries: map[K]*list.Element{}, used: list.New(), capacity: size}
}

// Get returns the entry of a key, or nil. It does not count as use, so that predictions do not
// change what is learnt.
func (t *BoundedMap[K, V]) Get(key K) *V {
	if e := t.entries[key]; e != nil {
		return &e.Value.(*boundedEntry[K, V]).value
	}
	return nil
}

// GetOrAdd returns the entry of a key and counts as its use; it adds a zero entry for a new key. O(1).
func (t *BoundedMap[K, V]) GetOrAdd(key K) *V {
	if e := t.entries[key]; e != nil {
		t.used.MoveToFront(e)
		return &e.Value.(*boundedEntry[K, V]).value
	}
	if last := t.used.Back(); last != nil && t.used.Len() == t.capacity {
		delete(t.entries, t.used.Remove(last).(*boundedEntry[K, V]).key)
	}
	x := &boundedEntry[K, V]{key: key}
	t.entries[key] = t.used.PushFront(x)
	return &x.value
}

// Ring holds the last values that were added to it.
type Ring[T any] struct {
	Values []T // in no order once it is full
	oldest int
}

// Add adds a value; if there are size values, it replaces the oldest.
func (r *Ring[T]) Add(v T, size int) {
	if len(r.Values) < size {
		r.Values = append(r.Values, v)
		return
	}
	r.Values[r.oldest] = v
	r.oldest = (r.oldest + 1) % size
}
