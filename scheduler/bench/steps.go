package bench

import (
	"cmp"
	"fmt"
	"slices"
)

// Steps gives the cases that show how costs grow: nodes, tenants and waiting
// tasks each in two steps of ten times up to what c has, with the rest as c has
// it, and c itself at the end of each. What c leaves zero is as Defaults says,
// with 10,000 nodes, and with plain features 1,000 tenants and 20,000 tasks.
func Steps(c Config) []Config {
	set := func(p *int, v int) {
		if *p == 0 {
			*p = v
		}
	}
	set(&c.Nodes, 10_000)
	set(&c.Tenants, 1000)
	set(&c.Tasks, 20_000)
	c = c.Defaults()
	var out []Config
	for _, part := range []func(*Config) *int{
		func(c *Config) *int { return &c.Nodes },
		func(c *Config) *int { return &c.Tenants },
		func(c *Config) *int { return &c.Tasks },
	} {
		for _, less := range []int{100, 10, 1} {
			step := c
			*part(&step) = max(1, *part(&c)/less)
			// Projects ask for half a node each: as many as there are nodes for.
			step.Projects = min(step.Projects, step.Nodes)
			out = append(out, step)
		}
	}
	return out
}

// Repeat runs a case so many times, from the same seed, and gives the median by
// placements per second (the lower one of two) with the slowest and the fastest.
func Repeat(c Config, runs int, m Meter) (Result, error) {
	if runs < 1 || runs > 1000 {
		return Result{}, fmt.Errorf("%d runs: 1 to 1000", runs)
	}
	all := make([]Result, 0, runs)
	for range runs {
		r, err := Run(c, m)
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
