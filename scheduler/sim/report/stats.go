package report

import (
	"encoding/json"
	"math"

	"gonum.org/v1/gonum/stat/distuv"
)

// Interval is a mean with the half width of its 95% confidence interval (Student's t). With fewer
// than two values the half width is +Inf.
type Interval struct {
	Mean, HalfWidth float64
	N               int
}

// MarshalJSON writes a mean or half width that is not finite as null: JSON has no such number.
func (i Interval) MarshalJSON() ([]byte, error) {
	finite := func(x float64) *float64 {
		if math.IsNaN(x) || math.IsInf(x, 0) {
			return nil
		}
		return &x
	}
	return json.Marshal(struct {
		Mean, HalfWidth *float64
		N               int
	}{finite(i.Mean), finite(i.HalfWidth), i.N})
}

// Low and High return the ends of the interval.
func (i Interval) Low() float64  { return i.Mean - i.HalfWidth }
func (i Interval) high() float64 { return i.Mean + i.HalfWidth }

// Excludes reports whether x lies outside the interval.
func (i Interval) Excludes(x float64) bool { return x < i.Low() || x > i.high() }

// Estimate returns the Interval of independent values.
func Estimate(x []float64) Interval {
	n := float64(len(x))
	if n == 0 {
		return Interval{Mean: math.NaN(), HalfWidth: math.Inf(1)}
	}
	m := sum(x) / n
	if n < 2 {
		return Interval{Mean: m, HalfWidth: math.Inf(1), N: len(x)}
	}
	s := 0.0
	for _, v := range x {
		s += (v - m) * (v - m)
	}
	t := distuv.StudentsT{Mu: 0, Sigma: 1, Nu: n - 1}.Quantile(0.975)
	return Interval{Mean: m, HalfWidth: t * math.Sqrt(s/(n-1)/n), N: len(x)}
}
