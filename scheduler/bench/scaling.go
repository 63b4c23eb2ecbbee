package bench

import (
	"cmp"
	"fmt"
	"slices"
)

// ScalingCases returns the cases that show how costs grow: nodes, tenants and waiting tasks each at
// a hundredth, a tenth and all of c's value, with the other fields as in c. Zero fields of c have
// the values of Defaults, but 10,000 nodes, and with plain features 1,000 tenants and 20,000 tasks.
func ScalingCases(c Config) []Config {
	set := func(p *int, v int) {
		if *p == 0 {
			*p = v
		}
	}
	set(&c.Nodes, 10_000)
	set(&c.Tenants, 1000)
	set(&c.WaitingTasks, 20_000)
	c = c.defaults()
	var out []Config
	for _, part := range []func(*Config) *int{
		func(c *Config) *int { return &c.Nodes },
		func(c *Config) *int { return &c.Tenants },
		func(c *Config) *int { return &c.WaitingTasks },
	} {
		for _, less := range []int{100, 10, 1} {
			step := c
			*part(&step) = max(1, *part(&c)/less)
			// Projects use half a node each: at most one per node.
			step.projects = min(step.projects, step.Nodes)
			out = append(out, step)
		}
	}
	return out
}

// MeasureMedian measures a case several times from the same seed and returns the median by
// placements per second (the lower of two), with the slowest and the fastest.
func MeasureMedian(c Config, runs int, m Meter) (Result, error) {
	if runs < 1 || runs > 1000 {
		return Result{}, fmt.Errorf("%d runs: 1 to 1000", runs)
	}
	all := make([]Result, 0, runs)
	for range runs {
		r, err := measure(c, m)
		if err != nil {
			return Result{}, err
		}
		all = append(all, r)
	}
	slices.SortFunc(all, func(a, b Result) int { return cmp.Compare(a.PlacementsPerS, b.PlacementsPerS) })
	r := all[(runs-1)/2]
	r.Runs, r.SlowestPerS, r.FastestPerS = runs, all[0].PlacementsPerS, all[runs-1].PlacementsPerS
	return r, nil
}
