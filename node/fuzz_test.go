package node

import (
	"encoding/json"
	"testing"

	"github.com/drover-run/drover/internal/fuzztest"
	"github.com/drover-run/drover/mapreduce"
)

// FuzzHarnessFile reads what the tenant can write in the harness's place: counters of a
// result or of progress that reach a report are bounded.
func FuzzHarnessFile(f *testing.F) {
	for _, v := range []any{mapreduce.Result{Version: 1, Kind: mapreduce.KindMap, Class: mapreduce.ClassUserExit, Counters: mapreduce.Counters{"g": {"a\x1b": 1}}},
		mapreduce.Progress{Version: 1, Status: "s\n", Counters: mapreduce.Counters{"g": {"a": -1}}}} {
		b, err := json.Marshal(v)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	var own progress
	fuzztest.Run(f, func(t *testing.T, b []byte) {
		r, err := parseResult(b)
		if err == nil && (r.Class < mapreduce.ClassOK || r.Class > mapreduce.ClassInternal) {
			t.Errorf("class %d", r.Class)
		}
		var p mapreduce.Progress
		if json.Unmarshal(b, &p) != nil {
			return
		}
		kept := own.count(p.Counters, 0)
		if len(kept) > mapreduce.MaxCounters || len(oneLine(p.Status)) > 4<<10 {
			t.Errorf("%d counters, a status of %d bytes", len(kept), len(oneLine(p.Status)))
		}
		for name := range kept {
			if len(name) > mapreduce.MaxCounterName || oneLine(name) != name {
				t.Errorf("counter %q", name)
			}
		}
	})
}
