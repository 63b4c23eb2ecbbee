package main

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
)

// An event of another day has its date: without it yesterday's would look like one of today.
func TestEventTimeText(t *testing.T) {
	zone := time.FixedZone("", 2*3600)
	now := time.Date(2026, 11, 28, 0, 30, 0, 0, zone) // still the 27th in UTC
	for name, c := range map[string]struct {
		at   time.Time
		want string
	}{
		"now":                       {now, "00:30:00.000"},
		"the first of today":        {time.Date(2026, 11, 28, 0, 0, 0, 0, zone), "00:00:00.000"},
		"the last of yesterday":     {time.Date(2026, 11, 27, 23, 59, 59, 999e6, zone), "2026-11-27 23:59:59.999"},
		"a year ago":                {now.AddDate(-1, 0, 0), "2025-11-28 00:30:00.000"},
		"tomorrow, of a fast clock": {now.AddDate(0, 0, 1), "2026-11-29 00:30:00.000"},
	} {
		if got := eventTimeText(c.at, now); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
		if got := eventTimeText(c.at, now.UTC()); got != c.want {
			t.Errorf("%s, with the time now in another zone: %s, want %s", name, got, c.want)
		}
	}
}

// The table of events: of whatever an event names, on one line, whatever its text holds.
func TestEventsAreOneLineEach(t *testing.T) {
	f := &fakeCoordinator{events: []*droverv1.Event{
		{AtMs: viewMs(-3600 * 24 * 400), Actor: "local", Kind: "job.submitted", Job: "wc", Text: "by\nhand"},
		{AtMs: viewMs(-3600*24*400 + 1), Actor: "alice\x1b[2J", Kind: "task.failed", Job: "wc", Task: "map/0.1.1", Node: "n1", Text: "exit code 1"},
		{AtMs: viewMs(-3600*24*400 + 2), Actor: "ops", Kind: "node.drain", Node: "n2"},
		{AtMs: viewMs(-3600*24*400 + 3), Kind: "cluster.restored"},
	}}
	out, err := f.run(t, t.Context(), "events")
	if err != nil {
		t.Fatal(err)
	}
	wantText(t, "events", out, strings.Join([]string{
		`2025-10-24 08:00:00.000  local        job.submitted      wc  by\u000ahand`,
		`2025-10-24 08:00:01.000  alice\u001b[2J task.failed        wc map/0.1.1 @n1  exit code 1`,
		`2025-10-24 08:00:02.000  ops          node.drain          @n2  `,
		`2025-10-24 08:00:03.000               cluster.restored     `, ""}, "\n"))
	if out, err = f.run(t, t.Context(), "events", "-json"); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(out), "\n")
	for i, l := range lines {
		var e struct {
			AtMs int64  `json:"at_ms"`
			Kind string `json:"kind"`
			Text string `json:"text"`
		}
		if err := json.Unmarshal([]byte(l), &e); err != nil || e.AtMs != f.events[i].AtMs || e.Kind != f.events[i].Kind || e.Text != f.events[i].Text {
			t.Errorf("%s: %+v, %v", l, e, err)
		}
	}
	if len(lines) != len(f.events) {
		t.Errorf("%d lines:\n%s", len(lines), out)
	}
}

// TestEventsSince: all events of a time are shown, unless a limit is given.
func TestEventsSince(t *testing.T) {
	for flags, want := range map[string]int32{
		"": 200, "-limit 5": 5, "-since 24h": 0, "-since 24h -limit 5": 5, "-since 24h -limit 200": 200,
		"-follow": -1, "-follow -since 24h": 0, "-follow -limit 5": 5,
	} {
		f := &fakeCoordinator{}
		if _, err := f.run(t, t.Context(), append([]string{"events"}, strings.Fields(flags)...)...); err != nil || f.eventsAsked.GetLimit() != want {
			t.Errorf("events %s: %v, %v; want %d", flags, err, f.eventsAsked, want)
		}
	}
}

// cancelWriter cancels when something is written to it.
type cancelWriter context.CancelFunc

func (w cancelWriter) Write(b []byte) (int, error) {
	w()
	return len(b), nil
}

// TestInterruptedEvents: Ctrl-C is how -follow ends; without it the list is not whole.
func TestInterruptedEvents(t *testing.T) {
	for flags, want := range map[string]int{"": exitFailed, "-follow": exitOK} {
		ctx, cancel := context.WithCancel(t.Context())
		f := &fakeCoordinator{events: []*droverv1.Event{{Kind: "cluster.restored"}}, printed: cancelWriter(cancel), eventsHook: func(ctx context.Context) error {
			<-ctx.Done()
			return ctx.Err()
		}}
		if _, err := f.run(t, ctx, append([]string{"events"}, strings.Fields(flags)...)...); exitCode(err) != want {
			t.Errorf("events %s: exit code %d, want %d: %v", flags, exitCode(err), want, err)
		}
		cancel()
	}
}
