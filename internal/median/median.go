// Package median computes the median for all benchmarks, so that figures of an even number of runs
// mean the same on every page.
package median

import "slices"

// Of returns the median of values, which must not be empty; for an even number it is the mean of
// the middle two. It does not change values.
func Of[T int64 | float64](values []T) T {
	v := slices.Sorted(slices.Values(values))
	return (v[(len(v)-1)/2] + v[len(v)/2]) / 2
}
