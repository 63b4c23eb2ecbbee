package run

import (
	"encoding/json"
	"testing"
)

// TestSummaryHasEveryNumber checks the names that users and scripts rely on.
func TestSummaryHasEveryNumber(t *testing.T) {
	s := overloadedSetup(t, "fifo")
	o, err := s.Simulate(t.Context(), 1, nil)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := json.Marshal(s.Summary([]*Outcome{o}, map[string]string{"nodes": "2"}))
	if err != nil {
		t.Fatal(err)
	}
	var flat map[string]any
	if err := json.Unmarshal(raw, &flat); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"jobs", "mean_response_s", "median_response_s", "p95_response_s", "p99_response_s", "mean_wait_s", "mean_slowdown",
		"mean_bounded_slowdown", "makespan_s", "utilisation_cpu", "utilisation_memory", "utilisation_io", "locality_node", "locality_rack", "deadline_rate",
		"throughput_job_units_per_s", "work_lost_cpu_s", "suspensions", "violated_guarantees", "events", "events_per_s", "seed", "parameters"} {
		if _, ok := flat[name]; !ok {
			t.Errorf("%s is missing", name)
		}
	}
}
