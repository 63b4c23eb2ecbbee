package testbed

import (
	"testing"
	"time"
)

func TestParseCPU(t *testing.T) {
	for stat, want := range map[string]time.Duration{
		"12 (a) b) S 1 2 3 4 5 6 7 8 9 10 150 25 0 0 20 0 30\n": 1750 * time.Millisecond,
		"12 (java) S 1 2 3": -1, "": -1,
		"12 (java) S 1 2 3 4 5 6 7 8 9 10 x 25 0": -1,
	} {
		if got, err := parseCPU([]byte(stat)); (err == nil) != (want >= 0) || err == nil && got != want {
			t.Errorf("%q: %v, %v", stat, got, err)
		}
	}
}
