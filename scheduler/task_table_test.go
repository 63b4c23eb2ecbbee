package scheduler

import (
	"testing"

	"pgregory.net/rapid"
)

// The reference is a slice. A page has memory only while a task in it has a value.
func TestTaskTableAgainstSlice(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.SampledFrom([]int32{0, 1, tablePage - 1, tablePage, tablePage + 1, 3 * tablePage, 5*tablePage - 1}).Draw(t, "n")
		table, reference := newTaskTable[int32](n), make([]int32, n)
		if table.isZero() {
			t.Fatal("a made table is taken for the zero table")
		}
		if n == 0 {
			return
		}
		for range rapid.IntRange(0, 80).Draw(t, "steps") {
			i, v := rapid.Int32Range(0, n-1).Draw(t, "i"), rapid.Int32Range(0, 2).Draw(t, "v")
			table.set(i, v)
			reference[i] = v
			used := make([]int, len(table.pages))
			for k, want := range reference {
				if got := table.get(int32(k)); got != want {
					t.Fatalf("task %d has %d, want %d", k, got, want)
				}
				if want != 0 && len(used) > 0 {
					used[k/tablePage]++
				}
			}
			for k, p := range table.pages {
				if (p.values != nil) != (used[k] > 0) {
					t.Fatalf("page %d of %d values has memory: %v", k, used[k], p.values != nil)
				}
			}
		}
	})
}
