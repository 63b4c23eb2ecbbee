package run

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/sim/engine"
	"github.com/drover-run/drover/scheduler/sim/report"
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
		"throughput_job_units_per_s", "work_lost_cpu_s", "suspensions", "violated_guarantees", "jobs_unfinished", "jobs_missed", "events", "events_per_s", "seed", "parameters"} {
		if _, ok := flat[name]; !ok {
			t.Errorf("%s is missing", name)
		}
	}
}

// TestStoppedJobsDoNotCountAsDone: stopping deadline jobs early gives a scheduler no better means,
// and no throughput of their work; their number is reported separately.
func TestStoppedJobsDoNotCountAsDone(t *testing.T) {
	c := engine.Config{Jobs: []engine.Job{{}, {Submit: 10 * time.Second, Deadline: 20 * time.Second}, {}}, Tenants: []scheduler.TenantSpec{{Name: "a", Weight: 1}}}
	r := engine.Result{Makespan: 100 * time.Second, Unfinished: 1, Jobs: []engine.JobResult{
		{Start: 20 * time.Second, Finish: 100 * time.Second, Alone: 50 * time.Second, Outcome: engine.JobSucceeded},
		{Submit: 10 * time.Second, Start: 11 * time.Second, Finish: 12 * time.Second, Alone: 50 * time.Second, Outcome: engine.JobMissed},
		{Start: -1, Finish: -1, Alone: 50 * time.Second}}}
	n := report.Summarise(&c, &r, 1)
	if n.MeanResponse != 100 || n.P99Response != 100 || n.MeanWait != 20 || n.MeanSlowdown != 2 || n.MeanBoundedSlowdown != 2 || n.Throughput != 0.5 || n.Missed != 1 || n.Unfinished != 1 || n.DeadlineRate != 0 {
		t.Errorf("%+v", n)
	}
	if x := report.SummariseTenants(&c, &r)[0]; x.MeanResponse != 100 || x.MeanWait != 20 || x.MeanSlowdown != 2 || x.Missed != 1 || x.Unfinished != 1 {
		t.Errorf("of the tenant: %+v", x)
	}
	r.Jobs[0].Outcome = engine.JobMissed
	if n := report.Summarise(&c, &r, 1); n.Known("mean_response_s", 3) || n.Missed != 2 || n.Throughput != 0 {
		t.Errorf("without a job that succeeded: %+v", n)
	}
}
