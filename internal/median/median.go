// Package median has the one median of all benchmarks, so that figures of an even number of runs
// mean the same on every page.
package median

import "slices"

// Of returns the median of values, which are not empty: of an even number the mean of the middle
// two. It leaves values as they are.
func Of[T int64 | float64](values []T) T {
	v := slices.Sorted(slices.Values(values))
	return (v[(len(v)-1)/2] + v[len(v)/2]) / 2
}
