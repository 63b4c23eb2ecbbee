package main

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/internal/apitext"
	"github.com/drover-run/drover/internal/fault"
)

// TestNumbersForPeople: how durations, counts, times and amounts are written.
func TestNumbersForPeople(t *testing.T) {
	for _, c := range []struct{ got, want string }{
		{durationText(-1), ""},
		{durationText(0), "0s"},
		{durationText(400 * time.Microsecond), "0s"},
		{durationText(1499 * time.Microsecond), "1ms"},
		{durationText(999_600 * time.Microsecond), "1s"},
		{durationText(1234 * time.Millisecond), "1.23s"},
		{durationText(59_996 * time.Millisecond), "1m0s"},
		{durationText(61_700 * time.Millisecond), "1m2s"},
		{durationText(49*time.Hour + 90*time.Second), "49h1m30s"},
		{withThousands(0), "0"},
		{withThousands(999), "999"},
		{withThousands(1000), "1,000"},
		{withThousands(1234567), "1,234,567"},
		{withThousands(-100), "-100"},
		{withThousands(-1234), "-1,234"},
		{withThousands(math.MaxInt64), "9,223,372,036,854,775,807"},
		{countText(0, "stage"), "0 stages"},
		{countText(1, "stage"), "1 stage"},
		{countText(2, "stage"), "2 stages"},
		{unixMSText(0), ""},
		{unixMSText(-5), ""},
		{unixMSText(viewMs(1)), "2026-11-28 08:00:01"},
		{vectorText(nil), "-"},
		{vectorText(&droverv1.Resources{Cpu: 1500, Memory: 3 << 29, Io: 1 << 20}), "1500m cpu, 1.5GiB, 1MiB/s"},
		{apitext.JobState(droverv1.JobState_JOB_STATE_COMMITTING), "committing"},
		{phaseText(droverv1.Phase_PHASE_SUCCEEDED), "succeeded"},
		{causeText(droverv1.Cause_CAUSE_UNSPECIFIED), ""},
		{causeText(droverv1.Cause_CAUSE_EXIT), "exit"},
		{levelText(droverv1.Level_LEVEL_UNSPECIFIED), ""},
		{levelText(droverv1.Level_LEVEL_CHECKPOINTED), "checkpointed"},
		{unknownRunsText(0), ""},
		{unknownRunsText(3), "3 frozen since the coordinator was restored: see drover operator runs list"},
		{trimRunNumber("map/3.2.17"), "map/3.2"},
		{trimRunNumber("map.1/3.2.17"), "map.1/3.2"},
		{trimRunNumber("map/3.2"), "map/3.2"},
		{trimRunNumber("map/3"), "map/3"},
		{stageOfTask("map/3"), "map"},
		{stageOfTask("map"), "map"},
		{localityText(&droverv1.StageSummary{}), ""},
		{localityText(&droverv1.StageSummary{NodeLocal: 2, Remote: 1}), "2 node, 1 remote"},
		{expectedStartText(0), ""},
		{expectedStartText(viewMs(0)), "; expected to start at 2026-11-28 08:00:00"},
		{joinOrDefault(nil, "-"), "-"},
		{joinOrDefault([]string{"a", "b"}, "-"), "a; b"},
		{yesOrEmpty(true) + yesOrEmpty(false), "yes"},
		{oneLine(" two\n lines\t"), "two lines"},
		{fmt.Sprint(roundUp(1), roundUp(16<<20), roundUp(16<<20+1)), fmt.Sprint(16<<20, 16<<20, 32<<20)},
	} {
		if c.got != c.want {
			t.Errorf("%q, want %q", c.got, c.want)
		}
	}
}

// TestTaskArguments: STAGE/INDEX, an attempt of it, and the run number of a message that is pasted.
func TestTaskArguments(t *testing.T) {
	for text, want := range map[string]taskArg{
		"map/3":      {"map", 3, 0},
		"map/0.2":    {"map", 0, 2},
		"map/0.2.17": {"map", 0, 2},
		"a.b-c/12":   {"a.b-c", 12, 0},
	} {
		if got, err := parseTask(text); err != nil || got != want {
			t.Errorf("%q: %v, %v; want %v", text, got, err, want)
		}
	}
	for text, want := range map[string]string{
		"": "want STAGE/INDEX", "map": "want STAGE/INDEX", "/3": "want STAGE/INDEX", "map/": "want STAGE/INDEX", "map/x": "want STAGE/INDEX",
		"map/-1": "want STAGE/INDEX", "map/4294967296": "want STAGE/INDEX", "map/3/4": "want STAGE/INDEX", "map/3.": "attempts count from 1",
		"map/3.0": "attempts count from 1", "map/3.-1": "attempts count from 1", "map/3.x": "attempts count from 1",
	} {
		if got, err := parseTask(text); exitCode(err) != exitUsage || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), fmt.Sprintf("%q", text)) {
			t.Errorf("%q: %v, %v; want a usage error with %q", text, got, err, want)
		}
	}
}

// TestPastTimes: a day, a time with its zone, or how long ago.
func TestPastTimes(t *testing.T) {
	zone := time.FixedZone("there", 2*3600)
	now := time.Date(2026, 11, 28, 8, 0, 0, 0, zone)
	for text, want := range map[string]time.Time{
		"2026-11-27":                time.Date(2026, 11, 27, 0, 0, 0, 0, zone),
		"2026-11-27T10:00:00Z":      time.Date(2026, 11, 27, 10, 0, 0, 0, time.UTC),
		"2026-11-27T10:00:00+01:00": time.Date(2026, 11, 27, 9, 0, 0, 0, time.UTC),
		"36h":                       now.Add(-36 * time.Hour),
		"0s":                        now,
		"7d":                        now.AddDate(0, 0, -7),
		"0d":                        now,
	} {
		if got, err := parsePast("since", text, now); err != nil || got != want.UnixMilli() {
			t.Errorf("%q: %v, %v; want %v", text, time.UnixMilli(got), err, want)
		}
	}
	if got, err := parsePast("since", "", now); err != nil || got != 0 {
		t.Errorf("none: %d, %v", got, err)
	}
	for _, text := range []string{"yesterday", "-1h", "-3d", "1.5d", "40000d", "d", "7", "2026-11-31", "2026-11-27 10:00", "2026-11-27T10:00:00"} {
		if got, err := parsePast("until", text, now); exitCode(err) != exitUsage || !strings.Contains(err.Error(), "-until "+text) {
			t.Errorf("%q: %d, %v; want a usage error that names the flag", text, got, err)
		}
	}
}

// TestKeyValues: repeated key=value flags; a value may have an equals sign, a key stands once.
func TestKeyValues(t *testing.T) {
	got, err := parseKeyValues("rule", []string{"a=1", "b=x=y", "c="})
	if err != nil || fmt.Sprint(got) != "map[a:1 b:x=y c:]" {
		t.Errorf("%v, %v", got, err)
	}
	for text, want := range map[string]string{"a": `-rule "a": want key=value`, "=1": `-rule "=1": want key=value`, "a=1 a=2": "-rule sets a twice"} {
		if _, err := parseKeyValues("rule", strings.Fields(text)); exitCode(err) != exitUsage || err.Error() != want {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
}

// TestExitCodes: one code for each class of error, however deep it is wrapped; docs/reference has them.
func TestExitCodes(t *testing.T) {
	wrapped := func(err error) error { return fmt.Errorf("job x: %w", fmt.Errorf("read: %w", err)) }
	for _, c := range []struct {
		err  error
		want int
	}{
		{nil, exitOK},
		{errors.New("anything"), exitFailed},
		{usageErrorf("flag"), exitUsage},
		{wrapped(usageErrorf("flag")), exitUsage},
		{exitError{exitStopped, nil}, exitStopped},
		{exitError{exitDetached, errors.New("detached")}, exitDetached},
		{fault.New(fault.Unavailable, "gone"), exitUnavailable},
		{wrapped(fault.New(fault.Unavailable, "gone")), exitUnavailable},
		{fault.New(fault.Invalid, "x"), exitRefused},
		{fault.New(fault.NotFound, "x"), exitRefused},
		{fault.New(fault.Exists, "x"), exitRefused},
		{fault.New(fault.Denied, "x"), exitRefused},
		{wrapped(fault.New(fault.Conflict, "x")), exitRefused},
		{fault.New(fault.Exhausted, "x"), exitRefused},
		{exitError{exitFailed, fault.New(fault.Invalid, "x")}, exitFailed},
	} {
		if got := exitCode(c.err); got != c.want {
			t.Errorf("%v: exit code %d, want %d", c.err, got, c.want)
		}
	}
	if text := (exitError{exitStopped, nil}).Error(); text != "" {
		t.Errorf("an error without words says %q", text)
	}
}

// TestDiskSpaceVerdicts: full, nearly full, out of inodes, and enough, each with its cure.
func TestDiskSpaceVerdicts(t *testing.T) {
	for name, c := range map[string]struct {
		free         int64
		inodes, left uint64
		status, text string
	}{
		"enough":                     {goodSpace, 1000, 500, statusOK, "free"},
		"little":                     {goodSpace - 1, 1000, 500, statusDegraded, "free"},
		"the least is not full":      {leastSpace, 1000, 500, statusDegraded, "free"},
		"full":                       {leastSpace - 1, 1000, 500, statusMissing, "the disk is full"},
		"no inodes":                  {goodSpace, 1000, 9, statusMissing, "9 of 1000 inodes free"},
		"a file system without them": {goodSpace, 0, 0, statusOK, "free"},
	} {
		r := spaceResult("/data", c.free, 1<<40, c.left, c.inodes)
		if r.Status != c.status || !strings.Contains(r.Detail, c.text) || !strings.Contains(r.Detail, "/data") || (r.Fix == "") != (c.status == statusOK) {
			t.Errorf("%s: %+v, want %s with %q", name, r, c.status, c.text)
		}
	}
}
