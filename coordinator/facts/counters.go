package facts

import (
	"maps"
	"math"
	"slices"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/mapreduce"
)

// CountersDropped is the counter that holds how many counts a job's totals miss,
// because they had more than MaxCounters names.
const CountersDropped = "job:counters_dropped"

// addCounters adds a task's counters to the job's. A name beyond MaxCounters is left out
// altogether, so that every total is complete, and the names left out are counted.
func (j *Job) addCounters(add map[string]int64) {
	if len(add) == 0 {
		return
	}
	sum, own := make(map[string]int64, len(j.Counters)+len(add)), 0
	for k, v := range j.Counters {
		sum[k] = v
		if !isOwnCounter(k) {
			own++
		}
	}
	// Which names are dropped at the limit must not depend on map order.
	for _, k := range slices.Sorted(maps.Keys(add)) {
		_, known := sum[k]
		switch {
		case known || isOwnCounter(k):
			sum[k] += add[k]
		case own < MaxCounters:
			sum[k] = add[k]
			own++
		default:
			sum[CountersDropped]++
		}
	}
	j.Counters = sum
}

// subtractCounters subtracts from the job's counters what addCounters added for a task whose output
// is lost, because the next attempt counts it again. A name stays, even at 0: another name in its
// place would lack the counts that were left out.
func (j *Job) subtractCounters(counted map[string]int64) {
	if len(counted) == 0 {
		return
	}
	sum := maps.Clone(j.Counters)
	for k, n := range counted {
		if _, known := sum[k]; known {
			sum[k] -= n
		} else { // names that were left out once are never among the sums
			sum[CountersDropped]--
		}
	}
	j.Counters = sum
}

// isOwnCounter reports whether a counter is not the program's.
func isOwnCounter(name string) bool {
	return name == CountersDropped || mapreduce.IsHarnessCounter(name)
}

// addUsage adds the report of an attempt's end to the stage's totals.
func (s *Stage) addUsage(seen *droverv1.SeenAttempt) {
	if seen == nil {
		return
	}
	u := seen.GetUsage()
	s.PeakMemory = max(s.PeakMemory, u.GetMemoryPeak())
	s.PeakDisk = max(s.PeakDisk, seen.GetDiskOccupied())
	s.CPUMS = addClamped(s.CPUMS, u.GetCpuMs())
	s.ReadBytes = addClamped(s.ReadBytes, u.GetReadBytes())
	s.WriteBytes = addClamped(s.WriteBytes, u.GetWriteBytes())
	if l := seen.GetLimits(); l != nil {
		s.Limits = l
		s.LimitsChecked++
	}
}

func addClamped(a, b int64) int64 {
	if b < 0 || a > math.MaxInt64-b {
		return a
	}
	return a + b
}
