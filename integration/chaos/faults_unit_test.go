package chaos

import (
	"math/rand/v2"
	"testing"
)

// TestFaultsThatMeetHaveTheirOwnPlaces draws faults of many seeds, of kinds with these places.
func TestFaultsThatMeetHaveTheirOwnPlaces(t *testing.T) {
	const rounds, machines = 1000, 3
	coordinator := func(plan) injection { return injection{places: coordinators} }
	machine := func(p plan) injection { return injection{places: placeOf(p.machine)} }
	both := func(p plan) injection { return injection{places: placeOf(p.machine) | coordinators} }
	for name, tt := range map[string]struct {
		makers      []func(plan) injection
		limit, most int // faults at once
	}{
		"of all places":                {[]func(plan) injection{coordinator, machine, both}, 9, mostAtOnce},
		"no more than are left":        {[]func(plan) injection{coordinator, machine, both}, 2, 2},
		"of coordinators alone":        {[]func(plan) injection{coordinator, coordinator}, 9, 1},
		"of machines and coordinators": {[]func(plan) injection{both}, 9, 1},
	} {
		t.Run(name, func(t *testing.T) {
			most, r := 0, rand.New(rand.NewPCG(1, 2))
			for range rounds {
				all := drawFaults(r, tt.makers, 3, machines, tt.limit)
				most = max(most, len(all))
				var taken places
				for _, f := range all {
					if f.places&taken != 0 {
						t.Fatalf("two faults of one place: %+v", all)
					}
					taken |= f.places
				}
				if len(all) == 0 {
					t.Fatal("no fault")
				}
			}
			if most != tt.most {
				t.Errorf("%d faults met at most, want %d", most, tt.most)
			}
		})
	}
}
