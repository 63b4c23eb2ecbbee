package main

import (
	"testing"
	"time"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
)

func TestParseWhen(t *testing.T) {
	now := time.UnixMilli(1_000_000_000_123)
	for text, want := range map[string]int64{"": 0, "36h": now.Add(36 * time.Hour).UnixMilli(), "0s": now.UnixMilli(), "2026-11-30T02:00:00Z": 1_796_004_000_000,
		"2026-11-30T02:00:00.5+01:00": 1_796_000_400_500} {
		if got, err := parseWhen(text, now); err != nil || got != want {
			t.Errorf("%q: %d, %v; want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"-1h", "tomorrow", "0001-01-01T00:00:00Z", "1h 5m"} {
		if got, err := parseWhen(text, now); err == nil {
			t.Errorf("%q: %d", text, got)
		}
	}
	shown := maintenanceText([]*droverv1.MaintenanceWindow{{FromMs: now.UnixMilli(), ToMs: now.Add(time.Hour).UnixMilli(), Begun: true}})
	if shown != "2001-09-09T01:46:40.123Z to 2001-09-09T02:46:40.123Z (now)" {
		t.Errorf("shown as %q", shown)
	}
	if got, err := parseWhen("2001-09-09T01:46:40.123Z", time.Time{}); err != nil || got != now.UnixMilli() {
		t.Errorf("a beginning as it is shown: %d, %v", got, err)
	}
}
