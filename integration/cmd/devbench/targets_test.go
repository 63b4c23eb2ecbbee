package main

import (
	"bytes"
	"math"
	"strings"
	"testing"
)

// The list of targets names those of all parts but HDFS, or those of the parts that are asked for.
func TestListTargets(t *testing.T) {
	for parts, want := range map[string]int{"": 8, "hdfs": 1, "start,sort": 3, "none": 0} {
		var b bytes.Buffer
		if err := listTargets(&b, parts); err != nil {
			t.Fatal(err)
		}
		if got := strings.Count(b.String(), notMeasured); got != want {
			t.Errorf("parts %q have %d targets, want %d:\n%s", parts, got, want, &b)
		}
	}
}

// A target without a figure of its name is an error, unless its part was skipped.
func TestCheckTargets(t *testing.T) {
	all := targets(8)
	rows := []figure{{"sort of 67 MB of lines, wall over sort --parallel=2 -S 1G", math.NaN(), "times", ""}}
	for part, want := range map[string]bool{"sort": true, "words": false, "machine": true} {
		if err := checkTargets(part, rows, all); (err == nil) != want {
			t.Errorf("part %s: %v", part, err)
		}
	}
	if err := checkTargets("words", nil, all); err != nil {
		t.Errorf("a part that was skipped: %v", err)
	}
}
