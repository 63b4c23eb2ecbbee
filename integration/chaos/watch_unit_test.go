package chaos

import (
	"strings"
	"testing"
	"time"
)

// TestTheWatchSeesWhatItShould has looks at attempts, each between two seconds, and what is said of them.
func TestTheWatchSeesWhatItShould(t *testing.T) {
	at := func(machine, name, cpu string, from, to int) look {
		a, err := parseAttempt(name)
		if err != nil {
			t.Fatal(err)
		}
		return look{machine, a, cpu, "1048576", time.Duration(from) * time.Second, time.Duration(to) * time.Second}
	}
	const x = exclusiveCPUMax
	var unlimited []look
	for k := range 140 {
		unlimited = append(unlimited, at("n1", "7.0.0.0.1", "max 100000", k, k+1))
	}
	for name, tt := range map[string]struct {
		looks []look
		want  string // part of what is wrong
	}{
		"one after the other":          {[]look{at("n1", "7.0.0.0.1", x, 1, 2), at("n1", "7.0.0.0.1", x, 8, 9), at("n2", "7.0.0.1.1", x, 10, 11)}, ""},
		"the first acts again":         {[]look{at("n1", "7.0.0.0.1", x, 1, 2), at("n2", "7.0.0.1.1", x, 10, 11), at("n1", "7.0.0.0.1", x, 12, 13)}, "attempt 0.1 acted on n1 at 12s or later, after attempt 1.1 on n2 had by 11s"},
		"told out of order":            {[]look{at("n2", "7.0.0.1.1", x, 10, 11), at("n2", "7.0.0.1.1", x, 30, 31), at("n1", "7.0.0.0.1", x, 12, 13)}, "acted on n1"},
		"looks whose order is unknown": {[]look{at("n1", "7.0.0.0.1", x, 9, 12), at("n2", "7.0.0.1.1", x, 10, 11)}, ""},
		"tasks of their own":           {[]look{at("n1", "7.0.0.0.1", x, 12, 13), at("n2", "7.0.1.1.1", x, 1, 2)}, ""},
		"a later run of one attempt":   {[]look{at("n1", "7.0.0.0.1", x, 12, 13), at("n2", "7.0.0.0.2", x, 1, 2)}, "attempt 0.1 acted on n1"},
		"not exclusive":                {[]look{at("n1", "7.0.0.0.1", cpuMax, 12, 13), at("n2", "7.0.0.1.1", cpuMax, 1, 2)}, ""},
		"a checkpoint":                 {[]look{at("n1", "7.0.0.0.1", "max 100000", 12, 13), at("n1", "7.0.0.0.1", cpuMax, 62, 63), at("n1", "7.0.0.0.1", "max 100000", 140, 141)}, ""},
		"a checkpoint and a restore":   {[]look{at("n1", "7.0.0.0.1", "max 100000", 12, 13), at("n1", "7.0.0.0.1", "max 100000", 140, 141)}, ""},
		"no limit":                     {unlimited, "cpu.max max 100000"},
		"no limit of memory":           {[]look{{"n1", attempt{"7.0.0", 0, 1}, cpuMax, "max", 1, 2}}, "memory.max max"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWatch()
			err := w.add(tt.looks)
			if err == nil {
				err = w.actedTwice()
			}
			if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%v, want %q", err, tt.want)
			}
		})
	}
}
