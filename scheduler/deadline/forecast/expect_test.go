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

// Four tasks fill two nodes, and a job of one task waits. What is expected of it rests on run times that are known.
func TestExpectedStartsHaveABasis(t *testing.T) {
	const never = time.Duration(-1)
	type running struct {
		estimate, bound time.Duration
		guessed         bool
	}
	unknown := running{guessed: true}
	for what, c := range map[string]struct {
		running  [4]running
		ran      time.Duration
		waits    running
		guess    time.Duration
		start    time.Duration
		end      time.Duration
		guessEnd time.Duration
	}{
		"none where nothing that runs has a known end": {running: [4]running{unknown, unknown, unknown, unknown},
			ran: 5 * time.Second, waits: running{estimate: 10 * time.Second}, guess: time.Minute, start: never, end: never, guessEnd: 65 * time.Second},
		"also when they have run longer than was guessed": {running: [4]running{unknown, unknown, unknown, unknown},
			ran: 10 * time.Minute, waits: running{estimate: 10 * time.Second}, guess: time.Minute, start: never, end: never, guessEnd: 10*time.Minute + 10*time.Second},
		"by a prediction that is a guess, none": {running: [4]running{{estimate: time.Second, guessed: true}, unknown, unknown, unknown},
			ran: 5 * time.Second, waits: running{estimate: 10 * time.Second}, guess: time.Minute, start: never, end: never, guessEnd: 15 * time.Second},
		"by the known one": {running: [4]running{unknown, unknown, unknown, {estimate: time.Hour}},
			ran: 5 * time.Second, waits: running{estimate: 10 * time.Second}, guess: time.Minute, start: time.Hour - 5*time.Second, end: time.Hour + 5*time.Second, guessEnd: 65 * time.Second},
		"a start is known of a task whose own run time is not": {running: [4]running{unknown, unknown, unknown, {estimate: time.Hour}},
			ran: 5 * time.Second, waits: unknown, guess: time.Minute, start: time.Hour - 5*time.Second, end: never, guessEnd: 115 * time.Second},
		"with a bound, at the latest then": {running: [4]running{unknown, unknown, unknown, {estimate: time.Second, bound: time.Hour, guessed: true}},
			ran: 5 * time.Second, waits: running{estimate: 10 * time.Second}, guess: time.Minute, start: time.Hour - 5*time.Second, end: time.Hour + 5*time.Second, guessEnd: 15 * time.Second},
		"an overdue task runs as long again": {running: [4]running{{estimate: time.Minute}, {estimate: time.Minute}, {estimate: time.Minute}, {estimate: time.Minute}},
			ran: 10 * time.Minute, waits: running{estimate: 10 * time.Second}, start: 10 * time.Minute, end: 10*time.Minute + 10*time.Second, guessEnd: 10*time.Minute + 10*time.Second},
		"one that is not overdue ends as predicted": {running: [4]running{{estimate: time.Minute}, {estimate: time.Minute}, {estimate: 11 * time.Minute}, {estimate: time.Minute}},
			ran: 10 * time.Minute, waits: running{estimate: 10 * time.Second}, start: time.Minute, end: 70 * time.Second, guessEnd: 70 * time.Second},
	} {
		w := schedtest.New(t).AddNodes(2, schedtest.R(2, 100, 100)).AddTenants("a")
		guessed := map[scheduler.JobID]bool{}
		submit := func(r running) scheduler.JobID {
			id := w.Submit("a", 1, schedtest.R(1, 1, 1), func(j *scheduler.JobSpec, g *scheduler.StageSpec) { j.Bound, g.Estimate = r.bound, r.estimate })
			guessed[id] = r.guessed
			return id
		}
		for i, r := range c.running {
			w.Place(scheduler.TaskID{Job: submit(r)}, scheduler.NodeID(i/2))
		}
		w.Start().Advance(c.ran)
		waits := submit(c.waits)
		var p Forecaster
		q := Query{UnknownRunTime: c.guess, Guessed: func(id scheduler.StageID) bool { return guessed[id.Job] }}
		got, err := p.Expect(w.State, q, w.Now, 0)
		if err != nil {
			t.Fatal(err)
		}
		after := func(at scheduler.Time, known bool) time.Duration {
			if !known {
				return never
			}
			return at.Sub(w.Now)
		}
		start, startKnown := got.Starts[scheduler.StageID{Job: waits}]
		end, endKnown := got.Ends[waits]
		guessEnd, guessKnown := got.GuessedEnds[waits]
		if s, e, g := after(start, startKnown), after(end, endKnown), after(guessEnd, guessKnown); s != c.start || e != c.end || g != c.guessEnd {
			t.Errorf("%s: starts after %v, ends after %v, as guessed after %v; want %v, %v and %v", what, s, e, g, c.start, c.end, c.guessEnd)
		}
	}
}
