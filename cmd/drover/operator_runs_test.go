package main

import (
	"fmt"
	"strings"
	"testing"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
)

// What a restored cluster does not know, as an operator sees it who has to decide.
func TestUnknownRunsAreListed(t *testing.T) {
	f := &fakeCoordinator{unknown: &droverv1.ListUnknownRunsResponse{More: 12, Runs: []*droverv1.UnknownRunInfo{
		{Node: "n1", Key: &droverv1.AttemptKey{Job: 7, Stage: 1, Task: 2, Attempt: 3, Run: 4}, JobName: "wc", StageName: "map", Tenant: "a", Level: droverv1.Level_LEVEL_FROZEN, StartedMs: viewMs(0), RunningMs: 61_400, Adoptable: true},
		{Node: "n2", Key: &droverv1.AttemptKey{Job: 8, Attempt: 1, Run: 1}, Level: droverv1.Level_LEVEL_RUNNING, WhyNot: "its job is not known"},
	}}}
	out, err := f.run(t, t.Context(), "operator", "runs", "list")
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for l := range strings.Lines(out) {
		lines = append(lines, strings.Join(strings.Fields(l), " "))
	}
	want := []string{"NODE RUN JOB STAGE TENANT LEVEL STARTED RAN ADOPT", "n1 7.1.2.3.4 wc map a frozen 2026-11-28 08:00:00 1m1s possible",
		"n2 8.0.0.1.1 - - - running - 0s no: its job is not known", "and 12 more"}
	if strings.Join(lines, "\n") != strings.Join(want, "\n") {
		t.Errorf("%s\nwant\n%s", strings.Join(lines, "\n"), strings.Join(want, "\n"))
	}
	if out, err = f.run(t, t.Context(), "operator", "runs", "list", "-json", "n1"); err != nil || strings.Count(out, `"node": `) != 2 || !strings.Contains(out, `"why_not": "its job is not known"`) {
		t.Errorf("%v\n%s", err, out)
	}
}

// Runs are decided one after another; what is no run is refused before any of them is.
func TestUnknownRunsAreDecided(t *testing.T) {
	const adopt, kill = droverv1.UnknownRunDecision_UNKNOWN_RUN_DECISION_ADOPT, droverv1.UnknownRunDecision_UNKNOWN_RUN_DECISION_KILL
	for line, want := range map[string]struct {
		decisions []droverv1.UnknownRunDecision
		code      int
		text      string
	}{
		"adopt n1 7.1.2.3.4":                {[]droverv1.UnknownRunDecision{adopt}, exitOK, "n1 7.1.2.3.4: adopted\n"},
		"kill n1 7.1.2.3.4 8.0.0.1.1":       {[]droverv1.UnknownRunDecision{kill, kill}, exitOK, "n1 7.1.2.3.4: is killed\nn1 8.0.0.1.1: is killed\n"},
		"kill n1 7.1.2.3.4 8.0.0.1":         {nil, exitRefused, "\"8.0.0.1\" is no run: `drover operator runs list` shows them, as job.stage.task.attempt.run"},
		"adopt n1 map/3":                    {nil, exitRefused, `"map/3" is no run`},
		"adopt n1 7.1.2.3.-4":               {nil, exitRefused, `"7.1.2.3.-4" is no run`},
		"adopt n1 07.1.2.3.4":               {nil, exitRefused, `"07.1.2.3.4" is no run`},
		"adopt n1 7.1.2.3.4294967296":       {nil, exitRefused, `"7.1.2.3.4294967296" is no run`},
		"adopt n1":                          {nil, exitUsage, "want `drover operator runs adopt [flags] NODE RUN...`"},
		"adop n1 7.1.2.3.4":                 {nil, exitUsage, "did you mean `drover operator runs adopt`?"},
		"kill n1 7.1.2.3.4 -json 7.1.2.3.5": {nil, exitUsage, "flag -json stands after the argument"},
	} {
		f := &fakeCoordinator{}
		out, err := f.run(t, t.Context(), append([]string{"operator", "runs"}, strings.Fields(line)...)...)
		if exitCode(err) != want.code || !strings.Contains(out+errorText(err), want.text) {
			t.Errorf("%s: exit code %d, %v, %q", line, exitCode(err), err, out)
		}
		var got []droverv1.UnknownRunDecision
		for _, d := range f.decided {
			got = append(got, d.Decision)
		}
		if fmt.Sprint(got) != fmt.Sprint(want.decisions) {
			t.Errorf("%s: %v", line, got)
		}
	}
}

// The status of a node says how many runs wait for a decision, and where to see them.
func TestStatusNamesUnknownRuns(t *testing.T) {
	for n, want := range map[int32]string{
		0:  "",
		1:  "1 frozen since the coordinator was restored: see drover operator runs list",
		40: "40 frozen since the coordinator was restored: see drover operator runs list",
	} {
		if got := unknownRunsText(n); got != want {
			t.Errorf("%d: %q, want %q", n, got, want)
		}
	}
}
