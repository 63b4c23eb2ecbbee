package drf_test

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/drf"
)

// In any tree, Streak returns what charging one task at a time finds, and charges
// nothing.
func TestStreakEqualsChargingOneByOne(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		amount := rapid.Int64Range(0, 6)
		draw := func(name string) scheduler.Resources {
			return scheduler.Resources{amount.Draw(t, name), amount.Draw(t, name), amount.Draw(t, name)}
		}
		level := drf.Level(rapid.IntRange(1, 3).Draw(t, "level"))
		tree := drf.New(scheduler.Resources{100, 60, 80}, level)
		n := rapid.IntRange(1, 12).Draw(t, "tenants")
		for i := range n {
			parent := scheduler.TenantID(rapid.IntRange(-1, i-1).Draw(t, "parent"))
			if parent < 0 {
				parent = scheduler.NoTenant
			}
			tree.Add(parent, float64(rapid.IntRange(1, 4).Draw(t, "weight")))
		}
		for i := range n {
			if rapid.Bool().Draw(t, "runs") {
				tree.Charge(scheduler.TenantID(i), draw("has"))
			}
			tree.SetPast(scheduler.TenantID(i), rapid.Int64Range(0, 3).Draw(t, "past"))
			if rapid.Bool().Draw(t, "waits") {
				tree.SetNext(scheduler.TenantID(i), draw("next"))
			}
		}
		id, demand, ok := tree.Next()
		if !ok {
			return
		}
		limit := rapid.IntRange(1, 30).Draw(t, "limit")
		got := tree.Streak(id, demand, limit)
		want := 0
		for next := id; want < limit && next == id; want++ {
			tree.Charge(id, demand)
			next, _, _ = tree.Next()
		}
		if got != want {
			t.Fatalf("Streak = %d, charging one by one finds %d", got, want)
		}
	})
}
