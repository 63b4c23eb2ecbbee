package bench

import (
	"slices"
	"strings"
	"testing"
	"time"
)

func TestRoundsOfAFloodAreSummedUp(t *testing.T) {
	round := func(quiet, during, read float64, told int64) FloodResult {
		return FloodResult{Flood: "x", AttackCounts: AttackCounts{Attempts: 100, Told: told}, told: toldByRate, allowance: 10, seconds: 2, RSSBefore: 10, RSSPeak: uint64(read),
			Quiet: Latencies{ReadMS: 1, ConnectMS: 1, PlaceMS: 1, PlanMS: 1, PlacedPerSecond: quiet}, During: Latencies{ReadMS: read, ConnectMS: 1, PlaceMS: 1, PlanMS: 1, PlacedPerSecond: during}}
	}
	r := sumUp([]FloodResult{round(100, 50, 2, 0), round(200, 190, 8, 1), round(100, 99, 4, 0)})
	if want := []float64{0.5, 0.95, 0.99}; !slices.Equal(r.Kept, want) || r.KeptMedian() != 0.95 {
		t.Errorf("kept %v, median %v; want %v", r.Kept, r.KeptMedian(), want)
	}
	if r.Quiet.PlacedPerSecond != 100 || r.During.PlacedPerSecond != 99 || r.During.ReadMS != 4 || r.Ratio != 4 {
		t.Errorf("medians: %+v", r)
	}
	if r.Attempts != 300 || r.Told != 1 || r.RSSPeak != 8 || r.seconds != 6 || r.allowance != 30 {
		t.Errorf("sums: %+v", r)
	}
}

func TestCheckOfAFlood(t *testing.T) {
	bounds := FloodBounds{Ratio: 10, Least: 50 * time.Millisecond, Slower: 0.1, Memory: 100}
	for name, c := range map[string]struct {
		change func(*FloodResult)
		want   string // empty: within the bounds
	}{
		"nothing":                            {func(*FloodResult) {}, ""},
		"a read over the bound":              {func(r *FloodResult) { r.During.ReadMS = 501 }, "a read of another user took"},
		"a read below the least":             {func(r *FloodResult) { r.During.ReadMS = 499 }, ""},
		"placements within the bound":        {func(r *FloodResult) { r.Kept = []float64{0.5, 0.91, 1} }, ""},
		"fewer placements in most rounds":    {func(r *FloodResult) { r.Kept = []float64{0.8, 0.89, 1} }, "0.89 times as many"},
		"memory":                             {func(r *FloodResult) { r.RSSPeak = 111 }, "grew"},
		"nobody was told":                    {func(r *FloodResult) { r.Told = 0 }, "none was told"},
		"nobody was told, within the rate":   {func(r *FloodResult) { r.Told, r.allowance = 0, 100 }, ""},
		"nobody was told of what tells none": {func(r *FloodResult) { r.Told, r.told = 0, toldNothing }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			r := FloodResult{Flood: "x", AttackCounts: AttackCounts{Attempts: 100, Told: 1}, told: toldByRate, RSSBefore: 10, RSSPeak: 20,
				Quiet: Latencies{ReadMS: 1, ConnectMS: 1, PlaceMS: 1, PlanMS: 1}, During: Latencies{ReadMS: 1, ConnectMS: 1, PlaceMS: 1, PlanMS: 1}}
			c.change(&r)
			err := r.Check(bounds)
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}
