package engine_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/drover-run/drover/scheduler/sim/engine"
)

func TestARunStopsWhereItIsAskedTo(t *testing.T) {
	c := crowded(1)
	c.Policy = policy(t, "fifo")
	whole := run(t, c)
	enough, asked := errors.New("enough"), 0
	c.Policy = policy(t, "fifo")
	c.Stop = func() error {
		if asked++; asked > 50 {
			return enough
		}
		return nil
	}
	r, err := engine.Run(c)
	if !errors.Is(err, enough) || !strings.Contains(err.Error(), "of 60 jobs done") {
		t.Fatalf("error %v: want one that is the reason and says how far the run was", err)
	}
	if r.Events == 0 || r.Events >= whole.Events {
		t.Errorf("%d events happened of %d", r.Events, whole.Events)
	}
}
