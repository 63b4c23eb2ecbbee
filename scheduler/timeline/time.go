package timeline

import (
	"math"
	"time"
)

// Time is a time in nanoseconds since the Unix epoch, UTC, or since the start of a simulation.
// Functions take the current time as a value.
type Time int64

// Never is later than any other time.
const Never Time = math.MaxInt64

// Add returns t + d, saturated at the range of Time.
func (t Time) Add(d time.Duration) Time {
	s := t + Time(d)
	if d > 0 && s < t {
		return Never
	}
	if d < 0 && s > t {
		return math.MinInt64
	}
	return s
}

// Sub returns t - u, saturated at the range of time.Duration.
func (t Time) Sub(u Time) time.Duration {
	d := t - u
	switch {
	case u < 0 && d < t:
		return math.MaxInt64
	case u > 0 && d > t:
		return math.MinInt64
	}
	return time.Duration(d)
}
