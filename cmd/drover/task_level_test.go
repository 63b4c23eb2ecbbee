package main

import (
	"context"
	"regexp"
	"strings"
	"testing"
	"time"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
)

// What a command that waits for a level says of each way in which its task may go on, and with which exit code it ends.
func TestWaitingForALevel(t *testing.T) {
	const (
		running = droverv1.Level_LEVEL_RUNNING
		frozen  = droverv1.Level_LEVEL_FROZEN
		swapped = droverv1.Level_LEVEL_SWAPPED
	)
	at := func(level, target droverv1.Level, node string) *droverv1.TaskAttempt {
		return &droverv1.TaskAttempt{Node: node, Level: &droverv1.LevelStatus{Level: level, Target: target}, Seen: &droverv1.SeenAttempt{Level: level, Phase: droverv1.Phase_PHASE_RUNNING}}
	}
	seen := func(a *droverv1.TaskAttempt, change func(*droverv1.SeenAttempt)) *droverv1.TaskAttempt {
		change(a.Seen)
		return a
	}
	pending := at(running, frozen, "n1")
	for name, c := range map[string]struct {
		command  string
		attempts []*droverv1.TaskAttempt
		code     int
		want     string // of the output or the error
	}{
		"it is frozen at last": {"suspend j s/0", []*droverv1.TaskAttempt{pending, pending, seen(at(frozen, 0, "n1"), func(s *droverv1.SeenAttempt) {
			s.Occupied = &droverv1.Resources{Memory: 5 << 20}
		})}, exitOK, `^s/0 is frozen on n1 after [0-9.]+[mµ]?s; it occupies memory 5MiB\n$`},
		"it is swapped": {"suspend -level swapped j s/0", []*droverv1.TaskAttempt{seen(at(swapped, 0, "n1"), func(s *droverv1.SeenAttempt) {
			s.Occupied, s.SwapOccupied, s.ImageOccupied = &droverv1.Resources{}, 1<<20, 2<<20
		})}, exitOK, `^s/0 is swapped on n1 after [0-9.]+[mµ]?s; it occupies memory 0B, swap 1MiB, image 2MiB\n$`},
		"nobody waits":                  {"suspend -no-wait j s/0", []*droverv1.TaskAttempt{pending}, exitOK, "^s/0 is to be frozen; `drover task status j s/0` shows where it is\n$"},
		"nobody waits for another node": {"migrate -no-wait -node n2 j s/0", []*droverv1.TaskAttempt{pending}, exitOK, "^s/0 is to be running on n2; "},
		"it runs again":                 {"resume j s/0", []*droverv1.TaskAttempt{at(frozen, running, "n1"), at(running, 0, "n1")}, exitOK, `^s/0 is running on n1 after `},
		"it has succeeded before it was seen to run": {"resume j s/0", []*droverv1.TaskAttempt{seen(at(frozen, 0, "n1"), func(s *droverv1.SeenAttempt) {
			s.Phase, s.EndedMs = droverv1.Phase_PHASE_SUCCEEDED, 5
		})}, exitOK, `^s/0 was resumed on n1 and has succeeded\n$`},
		"it has moved": {"migrate -node n2 j s/0", []*droverv1.TaskAttempt{at(frozen, running, "n1"), at(running, 0, "n2")}, exitOK, `^s/0 is running on n2 after `},
		"it runs where it was": {"migrate -node n2 j s/0", []*droverv1.TaskAttempt{seen(at(running, 0, "n1"), func(s *droverv1.SeenAttempt) {
			s.LevelNote = "n2 has another kernel"
		})}, exitRefused, `^s/0 stays running on n1: n2 has another kernel$`},
		"its node cannot": {"suspend -level swapped j s/0", []*droverv1.TaskAttempt{pending, seen(at(frozen, 0, "n1"), func(s *droverv1.SeenAttempt) {
			s.LevelNote = "swap is full"
		})}, exitRefused, `^s/0 stays frozen on n1: swap is full$`},
		"it ends meanwhile": {"suspend j s/0", []*droverv1.TaskAttempt{pending, seen(at(running, frozen, "n1"), func(s *droverv1.SeenAttempt) {
			s.Phase, s.EndedMs, s.Message = droverv1.Phase_PHASE_FAILED, 5, "exit code 1"
		})}, exitRefused, `^s/0 ended meanwhile: failed exit code 1$`},
		"it takes too long": {"suspend -timeout 1ms j s/0", []*droverv1.TaskAttempt{pending}, exitUnavailable, "^s/0 is not frozen after 1ms; `drover task status j s/0` shows where it is$"},
		"no time to wait":   {"suspend -timeout 0s j s/0", []*droverv1.TaskAttempt{pending}, exitUnavailable, `^s/0 is not frozen after 0s; `},
		"time backwards":    {"resume -timeout=-1s j s/0", nil, exitUsage, `^-timeout -1s: want how long to wait, such as 5m, or -no-wait$`},
		"no such level":     {"suspend -level deep j s/0", nil, exitUsage, `^-level "deep": use frozen, swapped or checkpointed$`},
		"no such form":      {"suspend j s", nil, exitUsage, `^task "s": want STAGE/INDEX such as map/3`},
		"no target":         {"migrate j s/0", nil, exitUsage, `^-node is missing`},
	} {
		t.Run(name, func(t *testing.T) {
			f := &fakeCoordinator{attempts: c.attempts}
			out, err := f.run(t, t.Context(), append([]string{"task"}, strings.Fields(c.command)...)...)
			if err != nil {
				out = err.Error()
			}
			if code := exitCode(err); code != c.code || !regexp.MustCompile(c.want).MatchString(out) {
				t.Errorf("exit code %d, %q; want %d, %s", code, out, c.code, c.want)
			}
			if asked := len(f.requests) > 0; asked != (c.code != exitUsage) {
				t.Errorf("the level was requested: %v", asked)
			}
		})
	}
}

// Ctrl-C while a command waits for a level: the request stands, which its exit code and its message tell.
func TestCtrlCLeavesTheRequestForALevel(t *testing.T) {
	for name, interruptAt := range map[string]int{"between two looks": 1, "after some": 3} {
		t.Run(name, func(t *testing.T) {
			ctx, interrupt := context.WithTimeout(t.Context(), time.Minute)
			defer interrupt()
			f := &fakeCoordinator{attempts: []*droverv1.TaskAttempt{{Node: "n1", Level: &droverv1.LevelStatus{Level: droverv1.Level_LEVEL_RUNNING, Target: droverv1.Level_LEVEL_FROZEN}}}}
			f.asked = func(n int) {
				if n == interruptAt {
					interrupt()
				}
			}
			_, err := f.run(t, ctx, "task", "suspend", "-reason", "a look", "j", "s/0")
			if exitCode(err) != exitDetached || err.Error() != "interrupted; the request stands: `drover task status j s/0` shows where it is" {
				t.Errorf("exit code %d, %v", exitCode(err), err)
			}
			if len(f.requests) != 1 || f.requests[0].Reason != "a look" || f.requests[0].Stage != "s" || f.requests[0].Level != droverv1.Level_LEVEL_FROZEN {
				t.Errorf("requests %v", f.requests)
			}
		})
	}
}

// A job may have more tasks than one response. The first alone were known: `task status` left out the others without a word,
// and of one of them it said that there is none.
func TestTasksBeyondTheFirstResponse(t *testing.T) {
	for _, c := range []struct {
		command  string
		want     string // of the output, or the error
		listings int
	}{
		{"task status j", `(?s)^TASK +STATE.*\ns/0 .*\ns/7 [^\n]*\n$`, 3},
		{"task status j s/7", `(?s)^task +s/7\n`, 1},
		{"task status j s/8", `^job j has no task s/8; `, 1},
		{"job logs j", `(?s)of task 0\n.*of task 7\n$`, 3},
		{"task logs j s/7", `^of task 7\n$`, 1},
		{"task suspend j s/7", `^s/7 is frozen on n1 after `, 1},
	} {
		f := &fakeCoordinator{tasks: 8}
		out, err := f.run(t, t.Context(), strings.Fields(c.command)...)
		if err != nil {
			out = err.Error()
		}
		if !regexp.MustCompile(c.want).MatchString(out) || len(f.listings) != c.listings {
			t.Errorf("%s: %q with %d requests, want %s with %d", c.command, out, len(f.listings), c.want, c.listings)
		}
		if len(f.requests) > 0 && f.listings[0].Job != "1" {
			t.Errorf("%s: the tasks of job %q are listed, the level was requested of job 1", c.command, f.listings[0].Job)
		}
	}
}
