package forecast

import (
	"testing"
	"time"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/schedtest"
)

// Tasks that were predicted to take a minute, or of which nothing is known but a guess of a minute, fill a node of four cores.
// A job of one task waits behind them.
func TestExpectedStartBehindOverdueTasks(t *testing.T) {
	const minute, guess = time.Minute, time.Duration(0)
	for what, c := range map[string]struct {
		runTimes [4]time.Duration
		ran      time.Duration
		want     time.Duration
	}{
		"before they are overdue, as predicted": {[4]time.Duration{minute, minute, minute, minute}, 50 * time.Second, 10 * time.Second},
		"they run as long again":                {[4]time.Duration{minute, minute, minute, minute}, 10 * time.Minute, 10 * time.Minute},
		"those that were guessed too":           {[4]time.Duration{guess, guess, guess, guess}, 10 * time.Minute, 10 * time.Minute},
		"one that is not overdue ends first":    {[4]time.Duration{minute, minute, 11 * time.Minute, minute}, 10 * time.Minute, time.Minute},
	} {
		w := schedtest.New(t).AddNodes(1, schedtest.R(4, 100, 100)).AddTenants("a")
		for _, run := range c.runTimes {
			occupy(w, 0, schedtest.R(1, 1, 1), run)
		}
		w.Start().Advance(c.ran)
		waits := w.Submit("a", 1, schedtest.R(1, 1, 1))
		var p Forecaster
		got, err := p.Expect(w.State, Query{UnknownRunTime: minute}, w.Now, 0)
		if err != nil {
			t.Fatal(err)
		}
		if start := got.Starts[scheduler.StageID{Job: waits}]; start != w.Now.Add(c.want) {
			t.Errorf("%s: expected to start after %v, want %v", what, start.Sub(w.Now), c.want)
		}
	}
}
