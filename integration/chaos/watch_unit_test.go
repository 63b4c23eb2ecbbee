package chaos

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/drover-run/drover/integration/testbed"
)

// lookAt is a look at an attempt with all its limits but another cpu.max, between two seconds.
func lookAt(t *testing.T, machine, name, cpu string, from, to int) look {
	t.Helper()
	line := fmt.Sprintf("%d %d %s sh 0 %s 75497472 4096 8:0 rbps=%s wbps=%s riops=max wiops=max", from, to, name, cpu, ioMax, ioMax)
	l, err := parseLook(machine, line, clock{0, -10 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// TestTheWatchSeesWhatItShould has looks at attempts, each between two seconds, and what is said of them. The job 7 is exclusive,
// 8 is not, 9 is not known yet, and the second task of each was to be suspended.
func TestTheWatchSeesWhatItShould(t *testing.T) {
	at := func(machine, name, cpu string, from, to int) look { return lookAt(t, machine, name, cpu, from, to) }
	const x, lifted = exclusiveCPUMax, "100000000 100000"
	each := func(seconds int, name, cpu string, change func(*look)) (all []look) {
		for k := range seconds {
			l := at("n1", name, cpu, k, k+1)
			change(&l)
			all = append(all, l)
		}
		return all
	}
	as := func(*look) {}
	freezing := func(l look) look { l.freezing = true; return l }
	for name, tt := range map[string]struct {
		looks []look
		want  string // part of what is wrong
	}{
		"one after the other":              {[]look{at("n1", "7.0.0.0.1", x, 1, 2), at("n1", "7.0.0.0.1", x, 8, 9), at("n2", "7.0.0.1.1", x, 10, 11)}, ""},
		"the first acts again":             {[]look{at("n1", "7.0.0.0.1", x, 1, 2), at("n2", "7.0.0.1.1", x, 10, 11), at("n1", "7.0.0.0.1", x, 12, 13)}, "attempt 0.1 acted on n1 at 12s or later, after attempt 1.1 on n2 had by 11s"},
		"told out of order":                {[]look{at("n2", "7.0.0.1.1", x, 10, 11), at("n2", "7.0.0.1.1", x, 30, 31), at("n1", "7.0.0.0.1", x, 12, 13)}, "acted on n1"},
		"looks whose order is unknown":     {[]look{at("n1", "7.0.0.0.1", x, 9, 12), at("n2", "7.0.0.1.1", x, 10, 11)}, ""},
		"tasks of their own":               {[]look{at("n1", "7.0.0.0.1", x, 12, 13), at("n2", "7.0.1.1.1", x, 1, 2)}, ""},
		"a later run of one attempt":       {[]look{at("n1", "7.0.0.0.1", x, 12, 13), at("n2", "7.0.0.0.2", x, 1, 2)}, "attempt 0.1 acted on n1"},
		"the first has no limit":           {[]look{at("n1", "7.0.0.0.1", "max 100000", 12, 13), at("n2", "7.0.0.1.1", x, 1, 2)}, "attempt 0.1 acted on n1"},
		"the first is being restored":      {[]look{at("n1", "7.0.1.0.1", "max 100000", 12, 13), at("n2", "7.0.1.1.1", x, 1, 2)}, ""},
		"the engine makes the first":       {[]look{at("n1", "7.0.0.0.1", startCPUMax, 12, 13), at("n2", "7.0.0.1.1", x, 1, 2)}, ""},
		"not exclusive":                    {[]look{at("n1", "8.0.0.0.1", cpuMax, 12, 13), at("n2", "8.0.0.1.1", cpuMax, 1, 2)}, ""},
		"not known yet":                    {append(each(9, "9.0.0.0.1", cpuMax, as), each(9, "9.0.0.0.2", x, as)...), ""},
		"a checkpoint":                     {[]look{at("n1", "8.0.1.0.1", "max 100000", 12, 13), at("n1", "8.0.1.0.1", cpuMax, 62, 63), at("n1", "8.0.1.0.1", "max 100000", 140, 141)}, ""},
		"a checkpoint and a restore":       {[]look{at("n1", "8.0.1.0.1", "max 100000", 12, 13), at("n1", "8.0.1.0.1", "max 100000", 140, 141)}, ""},
		"no limit after a checkpoint":      {each(140, "8.0.1.0.1", "max 100000", as), "cpu.max max 100000"},
		"a long checkpoint":                {each(100, "8.0.1.0.1", "max 100000", as), ""},
		"no limit":                         {each(6, "8.0.0.0.1", "max 100000", as), "cpu.max max 100000"},
		"the limit of others":              {each(6, "8.0.0.0.1", x, as), "cpu.max 25000 100000"},
		"the limit of a long start":        {append(each(60, "8.0.0.0.1", startCPUMax, as), at("n1", "8.0.0.0.1", lifted, 60, 61)), ""},
		"the limit of a start for ever":    {each(140, "8.0.0.0.1", startCPUMax, as), "cpu.max 100000 100000"},
		"looks between the steps":          {each(4, "8.0.0.0.1", lifted, as), ""},
		"two looks far from each other":    {[]look{at("n1", "8.0.0.0.1", lifted, 1, 2), at("n1", "8.0.0.0.1", lifted, 6, 7)}, ""},
		"throttled before it is frozen":    {[]look{freezing(at("n1", "7.0.0.0.1", x, 12, 13)), at("n2", "7.0.0.1.1", x, 1, 2)}, ""},
		"a freeze that takes long":         {each(60, "8.0.0.0.1", lifted, func(l *look) { l.freezing = true }), ""},
		"no limit on a disk":               {each(6, "8.0.0.0.1", cpuMax, func(l *look) { l.io = nil }), "io.max []"},
		"no limit on what a disk is read":  {each(6, "8.0.0.0.1", cpuMax, func(l *look) { l.io[1] = "rbps=max" }), `"rbps=max"`},
		"a disk more without one":          {each(6, "8.0.0.0.1", cpuMax, func(l *look) { l.io = append(l.io, "9:0", "rbps=max", "wbps=1") }), `"9:0"`},
		"no limit of memory":               {each(1, "8.0.0.0.1", cpuMax, func(l *look) { l.mem = "max" }), "memory.max max"},
		"a limit of memory that is higher": {each(1, "8.0.0.0.1", cpuMax, func(l *look) { l.mem = "1073741824" }), "memory.max 1073741824"},
		"no limit of processes":            {each(1, "8.0.0.0.1", cpuMax, func(l *look) { l.pids = "max" }), "pids.max max"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWatch()
			w.accept("7", true)
			w.accept("8", false)
			w.suspend("7.0.1")
			w.suspend("8.0.1")
			err := errors.Join(w.add(tt.looks), w.actedTwice())
			if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%v, want %q", err, tt.want)
			}
		})
	}
}

// TestAMachineThatGoesOnActsForAMoment has an attempt on n1, which stands still from second 5 to 20, and one on n2 at second 15.
func TestAMachineThatGoesOnActsForAMoment(t *testing.T) {
	for name, tt := range map[string]struct {
		machine  string
		from, to int // of a look at the first attempt
		want     bool
	}{
		"as it goes on":        {"n1", 20, 21, true},
		"after the moment":     {"n1", 22, 23, false},
		"on another machine":   {"n3", 20, 21, false},
		"before it stood":      {"n1", 2, 3, true},
		"as it is being read":  {"n1", 19, 22, true},
		"before it was judged": {"n1", 4, 6, true},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWatch()
			w.accept("7", true)
			w.standsStill("n1", 5*time.Second)
			early := w.add([]look{lookAt(t, "n2", "7.0.0.1.1", exclusiveCPUMax, 14, 15), lookAt(t, tt.machine, "7.0.0.0.1", exclusiveCPUMax, tt.from, tt.to)})
			w.goesOn("n1", 20*time.Second)
			again := w.add([]look{lookAt(t, tt.machine, "7.0.0.0.1", exclusiveCPUMax, tt.from, tt.to)})
			if err := errors.Join(early, again, w.actedTwice()); (err == nil) != tt.want {
				t.Error(err)
			}
		})
	}
}

// TestAWatchThatEndsIsSeen has exclusive tasks that ended, of which one was never seen.
func TestAWatchThatEndsIsSeen(t *testing.T) {
	w := newWatch()
	if err := w.sawNothing(nil); err == nil {
		t.Error("a watch without a look saw enough")
	}
	w.accept("7", true)
	w.accept("8", true)
	if err := w.add([]look{lookAt(t, "n1", "7.0.0.0.1", exclusiveCPUMax, 1, 2), lookAt(t, "n1", "7.0.0.0.1", exclusiveCPUMax, 2, 3)}); err != nil {
		t.Fatal(err)
	}
	if err := w.sawNothing([]string{"7.0.0"}); err != nil {
		t.Error(err)
	}
	if err := w.sawNothing([]string{"7.0.0", "8.0.0"}); err == nil || !strings.Contains(err.Error(), "8.0.0") || strings.Contains(err.Error(), "7.0.0") {
		t.Errorf("%v, want that of 8.0.0 alone", err)
	}
	if attempts, looks := w.exclusiveActs(); attempts != 1 || looks != 2 {
		t.Errorf("%d attempts in %d looks, want 1 in 2", attempts, looks)
	}
}

// TestWhichTasksRun has tasks as the command prints them, and answers to a request to suspend one.
func TestWhichTasksRun(t *testing.T) {
	var list taskList
	text := `{"tasks": [
		{"stage": "map", "task": 0, "attempts": [{"seen": {"phase": "PHASE_GONE"}}, {"seen": {"phase": "PHASE_RUNNING"}}]},
		{"stage": "map", "task": 1, "attempts": [{"seen": {"phase": "PHASE_RUNNING"}}, {"seen": {"phase": "PHASE_PREPARING"}}]},
		{"stage": "map", "task": 2, "attempts": [{"seen": {"phase": "PHASE_RUNNING"}, "level": {"level": "LEVEL_FROZEN"}}]},
		{"stage": "map", "task": 3, "attempts": [{"seen": {"phase": "PHASE_RUNNING"}, "level": {"level": "LEVEL_RUNNING", "target": "LEVEL_SWAPPED"}}]},
		{"stage": "map", "task": 4, "attempts": [{"seen": {"phase": "PHASE_RUNNING"}, "level": {"level": "LEVEL_RUNNING"}}]},
		{"stage": "map", "task": 5}, {"stage": "reduce", "task": 6, "attempts": [{"seen": {"phase": "PHASE_RUNNING"}}]}]}`
	if err := json.Unmarshal([]byte(text), &list); err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(list.running("map")); got != "[0 4]" {
		t.Errorf("%s run, want [0 4]", got)
	}
	agreed := make(chan bool, 1)
	if !isUnderWay(agreed) {
		t.Error("a request without an answer counts as refused")
	}
	for _, ok := range []bool{true, false} {
		agreed <- ok
		if isUnderWay(agreed) != ok {
			t.Errorf("an answer of %v counts as the other", ok)
		}
	}
}

// TestLogsThatAPowerCutLeaves has logs as a machine may have them that was without power.
func TestLogsThatAPowerCutLeaves(t *testing.T) {
	for log, want := range map[string]bool{"": true, "1\n2\n": true, "1\n\x00\x00": true, "\x00\x00\x00\x00": true, "1\n3\n": false, "2\n": false, "1\n2\n3\n": false, "\x002\n": false} {
		if isCutOff(log, "1\n2\n") != want {
			t.Errorf("%q: want %v", log, want)
		}
	}
}

// TestListedNamesAreCompared has lists of jobs, and what is wrong with them where the newest two must be there.
func TestListedNamesAreCompared(t *testing.T) {
	accepted := []string{"a", "b", "c"}
	for list, want := range map[string]string{
		"c b a": "", "c b": "", "c a": "b, which was accepted, is not in the list", "c b b a": "b was accepted twice",
		"d c b a": "nobody accepted d", "": "c, which was accepted, is not in the list", "a c b a": "a was accepted twice",
	} {
		if err := compareNames(strings.Fields(list), accepted, 2); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", list, err, want)
		}
	}
}

// TestTheWatchReadsCgroups runs the watch's script on files as the kernel shows them.
func TestTheWatchReadsCgroups(t *testing.T) {
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("not proved here: that the watch reads what it judges; ", err)
	}
	dir := t.TempDir()
	group := func(name, events string) {
		for file, text := range map[string]string{
			"container/cgroup.events": events, "container/cgroup.procs": fmt.Sprintln(os.Getpid()), "container/cgroup.freeze": "0\n",
			"cpu.max": cpuMax + "\n", "memory.max": "75497472\n", "pids.max": "4096\n",
			"io.max": "8:0 rbps=2097152 wbps=2097152 riops=max wiops=max\n8:16 rbps=2097152 wbps=2097152 riops=max wiops=max\n",
		} {
			path := filepath.Join(dir, "tasks", name, file)
			if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(text), 0o600)); err != nil {
				t.Fatal(err)
			}
		}
	}
	group("7.0.0.0.1", "populated 1\nfrozen 1\n")
	group("8.0.0.0.1", "populated 0\nfrozen 0\n")
	group("9.1.0.0.1", "populated 1\nfrozen 0\n")
	script := strings.NewReplacer("/sys/fs/cgroup/drover", dir, "/run/", dir+"/").Replace(watchScript)
	cmd := exec.Command(bash, "-c", "mkfifo "+dir+"/chaos.never\n"+script)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Kill() // it ends with the test
		_ = cmd.Wait()
	}()
	var lines []string
	err = testbed.WaitFor(t.Context(), time.Minute, "two looks", func(context.Context) error {
		text, err := os.ReadFile(filepath.Join(dir, "chaos.looks"))
		if lines = strings.SplitAfter(string(text), "\n"); err == nil && len(lines) < 3 {
			err = errors.New(string(text))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	w := newWatch()
	for _, line := range lines[:2] {
		l, err := parseLook("n1", line, clock{})
		if err != nil {
			t.Fatal(err)
		}
		if err := w.add([]look{l}); err != nil || !w.limited(l) || l.attempt != (attempt{"9.1.0", 0, 1}) || l.pids != "4096" || len(l.io) != 10 {
			t.Errorf("%q is %+v, %v", line, l, err)
		}
	}
}
