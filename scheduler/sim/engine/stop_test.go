package engine_test

import (
	"errors"
	"strings"
	"testing"

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
