package mapreduce

import "slices"

// Limits on the counters that a program may report (reporter:counter:…). A task
// that reports more names fails, as in Hadoop. The harness's own counters do not
// count.
const (
	MaxCounters    = 240 // distinct names of a task; with the harness's own at most 256 for a task
	MaxCounterName = 255 // bytes of GROUP:NAME
)

// counterFlows are the flows that the harness counts, in the order of the data flow.
var counterFlows = []string{"in", "map_out", "combine_in", "combine_out", "spilled", "out"}

// Names of further counters of the harness: see Result.Stored and Result.Fetched. A coordinator
// counts them like the program's, and HarnessCounters does not name them: what the log means must
// not depend on a coordinator's version.
const (
	CounterStored  = "map:stored"     // followed by _records or _bytes
	CounterFetched = "reduce:fetched" // followed by _records or _bytes
)

var harnessCounters = func() (all []string) {
	for _, kind := range []Kind{KindMap, KindReduce} {
		for _, flow := range counterFlows {
			all = append(all, kind.String()+":"+flow+"_records", kind.String()+":"+flow+"_bytes")
		}
	}
	return all
}()

// HarnessCounters returns the names of the harness's own counters as a node
// reports them, KIND:FLOW_records and KIND:FLOW_bytes, but for CounterStored and CounterFetched.
func HarnessCounters() []string { return slices.Clone(harnessCounters) }

// IsHarnessCounter reports whether a reported counter is the harness's own.
func IsHarnessCounter(name string) bool { return slices.Contains(harnessCounters, name) }
