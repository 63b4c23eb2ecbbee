package trace

import (
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/drover-run/drover/scheduler"
)

// paramRange is the valid range of a generator's parameter.
type paramRange struct {
	least, most float64
	whole       bool // a count, not an amount
}

// anyAmount is the range of parameters that paramRanges does not list.
var anyAmount = paramRange{0, 1e9, false}

// paramRanges lists the ranges of parameters by name, for all generators alike.
var paramRanges = map[string]paramRange{
	"jobs": {1, 10_000_000, true}, "projects": {1, 1_000_000, true}, "tasks": {1, scheduler.MaxTasks, true}, "tenants": {1, 1_000_000, true},
	"weights": {0, 1_000_000, true}, "deadline_part": {0, 1, false}, "high_part": {0, 1, false}, "lean": {0, 3, false}, "deadline_factor": {0, 1e6, false},
}

// parseParam parses the value of a generator's parameter.
func parseParam(name, text string) (float64, error) {
	r, ok := paramRanges[name]
	if !ok {
		r = anyAmount
	}
	what := "number"
	if r.whole {
		what = "whole number"
	}
	x, err := strconv.ParseFloat(text, 64)
	if err != nil || !(x >= r.least && x <= r.most) || (r.whole && x != math.Trunc(x)) {
		return 0, fmt.Errorf("parameter %q is %q: expected a %s from %s to %s", name, truncate(text), what, formatBound(r.least), formatBound(r.most))
	}
	return x, nil
}

// formatBound formats a bound without an exponent.
func formatBound(x float64) string { return strconv.FormatFloat(x, 'f', -1, 64) }

// maxSeconds limits times and durations in workloads, in seconds: 126 years. A submission and a
// duration of that length together still fit into a time in nanoseconds.
const maxSeconds = 4e9

// secondsDuration converts seconds to a duration. Values beyond twice maxSeconds, which an integer
// of nanoseconds cannot hold, become twice maxSeconds, which checkTimes refuses.
func secondsDuration(s float64) time.Duration {
	const most = 2 * maxSeconds
	return time.Duration(min(most, max(-most, s)) * float64(time.Second))
}

// checkTimes returns an error if a time of a made workload is beyond maxSeconds.
func (w *Workload) checkTimes() error {
	const most = time.Duration(maxSeconds * float64(time.Second))
	for i := range w.Jobs {
		j := &w.Jobs[i]
		if j.Submit > most {
			return fmt.Errorf("job %d of %d would be submitted after %s s: use fewer jobs or shorter intervals", i+1, len(w.Jobs), formatBound(maxSeconds))
		}
		for k := range j.Stages {
			if d := j.Stages[k].Work; d > most {
				return fmt.Errorf("job %d: a task would run for more than %s s: use shorter tasks", i+1, formatBound(maxSeconds))
			}
		}
		if j.Deadline > 2*most {
			return fmt.Errorf("job %d: the deadline is later than %s s: use shorter tasks or deadlines", i+1, formatBound(maxSeconds))
		}
	}
	return nil
}
