package engine_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/drover-run/drover/scheduler/schedtest"
	"github.com/drover-run/drover/scheduler/sim/engine"
)

func TestSimulationStopsOnRequest(t *testing.T) {
	c := crowdedConfig(1)
	c.Policy = policy(t, "fifo")
	whole := mustSimulate(t, c)
	enough, asked := errors.New("enough"), 0
	c.Policy = policy(t, "fifo")
	c.Stop = func() error {
		if asked++; asked > 50 {
			return enough
		}
		return nil
	}
	r, err := engine.Simulate(c)
	if !errors.Is(err, enough) || !strings.Contains(err.Error(), "of 60 jobs done") {
		t.Fatalf("error %v: want the reason and the progress", err)
	}
	if r.Events == 0 || r.Events >= whole.Events {
		t.Errorf("%d of %d events happened", r.Events, whole.Events)
	}
}

// TestSimulatedTimeEnds: ten tasks of 30 years in a row are longer than a time in nanoseconds can be.
// Each has its place in the clock; together they end with an error, and not before second 0.
func TestSimulatedTimeEnds(t *testing.T) {
	c := engine.Config{Nodes: nodes(1, 1, schedtest.R(1, 8, 100)), Policy: policy(t, "fifo"),
		Jobs: []engine.Job{singleStageJob(0, 10, schedtest.R(1, 1, 0), 1_000_000_000*sec)}}
	r, err := engine.Simulate(c)
	if err == nil || !strings.Contains(err.Error(), "the end of simulated time, and 1 of 1 jobs are left") {
		t.Fatalf("error %v", err)
	}
	if j := r.Jobs[0]; j.Work != 1e10 || j.Alone != 4_000_000_000*sec || r.Placements != 5 {
		t.Errorf("work %v, alone %v, %d placements", j.Work, j.Alone, r.Placements)
	}
}
