package scheduler

import (
	"testing"

	"pgregory.net/rapid"
)

// The reference is a map. Small and large sets follow each other in the memory of one idSet.
func TestIDSetAgainstMap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var set idSet
		for range rapid.IntRange(1, 5).Draw(t, "resets") {
			set.reset()
			want := map[AttemptID]bool{}
			few := rapid.Int32Range(1, 12).Draw(t, "few")
			for range rapid.SampledFrom([]int{0, 3, 40, 300}).Draw(t, "adds") {
				id := AttemptID{TaskID{JobID(rapid.Int32Range(0, few).Draw(t, "job")), rapid.Int32Range(0, 2).Draw(t, "stage"),
					rapid.Int32Range(0, few).Draw(t, "index")}, rapid.Int32Range(0, 2).Draw(t, "attempt")}
				if got := set.has(id); got != want[id] {
					t.Fatalf("has %v: %v, want %v", id, got, want[id])
				}
				if got := set.add(id); got == want[id] {
					t.Fatalf("add %v: %v, it was there: %v", id, got, want[id])
				}
				want[id] = true
			}
		}
	})
}
