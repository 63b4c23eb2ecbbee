package scheduler

import (
	"fmt"
	"math"

	"github.com/drover-run/drover/internal/enum"
	"github.com/drover-run/drover/scheduler/timeline"
)

// Resource is the index of a resource in a Resources vector; therefore this closed set starts at zero.
type Resource uint8

// The three resources of 3DSF, section 5: CPU in millicores, memory in bytes and disk I/O in bytes per second.
const (
	CPU Resource = iota
	Memory
	IO
	// NumResources is the length of a Resources vector.
	NumResources = 3
)

// DiskSpace stands for disk space in a Waiting or a Violation. Disk space is accounted for
// every attempt but takes no part in fairness, so it is not in Resources.
const DiskSpace Resource = NumResources

// String returns the name used in job files and JSON.
func (r Resource) String() string {
	return enum.Name("resource", r, []string{CPU: "cpu", Memory: "memory", IO: "io", DiskSpace: "disk space"})
}

// MaxAmount bounds each part of a demand or a capacity: 2^53, so that shares
// are exact in float64 and sums over 512 nodes of that size cannot overflow.
const MaxAmount = timeline.MaxAmount

// Resources is an amount of CPU (millicores), memory (bytes) and disk I/O
// (bytes per second), in that order. It is a value: methods return a new one.
type Resources [NumResources]int64

// Add returns r + o. Amounts accepted by State are at most MaxAmount, so sums over a node cannot overflow.
func (r Resources) Add(o Resources) Resources {
	return Resources{r[0] + o[0], r[1] + o[1], r[2] + o[2]}
}

// Sub returns r - o; parts may become negative.
func (r Resources) Sub(o Resources) Resources {
	return Resources{r[0] - o[0], r[1] - o[1], r[2] - o[2]}
}

// TimesChecked returns n*r. It reports false if a part overflowed.
func (r Resources) TimesChecked(n int64) (Resources, bool) {
	var out Resources
	for i, v := range r {
		if v == 0 || n == 0 {
			continue
		}
		out[i] = v * n
		if out[i]/n != v || (v == math.MinInt64 && n == -1) {
			return Resources{}, false
		}
	}
	return out, true
}

// Times returns n*r without a check for overflow.
func (r Resources) Times(n int64) Resources { return Resources{r[0] * n, r[1] * n, r[2] * n} }

// Fits reports whether every part of r is at most that of free.
func (r Resources) Fits(free Resources) bool {
	return r[0] <= free[0] && r[1] <= free[1] && r[2] <= free[2]
}

// Min returns the minimum of each part.
func (r Resources) Min(o Resources) Resources {
	return Resources{min(r[0], o[0]), min(r[1], o[1]), min(r[2], o[2])}
}

// Max returns the maximum of each part.
func (r Resources) Max(o Resources) Resources {
	return Resources{max(r[0], o[0]), max(r[1], o[1]), max(r[2], o[2])}
}

// IsZero reports whether all parts are zero.
func (r Resources) IsZero() bool { return r == Resources{} }

// Shares returns each part of r as a fraction of total: 0 if r has none of the resource, +Inf if only r has some.
func (r Resources) Shares(total Resources) [NumResources]float64 {
	var s [NumResources]float64
	for i := range r {
		switch {
		case r[i] == 0:
			s[i] = 0
		case total[i] <= 0:
			s[i] = math.Inf(1)
		default:
			s[i] = float64(r[i]) / float64(total[i])
		}
	}
	return s
}

// DominantShare returns the largest share of r in total (DRF; 3DSF section 5 with Lev 1). O(1), no allocation.
func (r Resources) DominantShare(total Resources) float64 { return r.Share(total, 1) }

// Share returns the lev-th largest share of r in total, lev in 1..3, else the nearest of them (3DSF 5.4, Alg. 1 line 5).
// Equal fractions yield equal floats: each is one correctly rounded division of exact integers.
func (r Resources) Share(total Resources, lev int) float64 {
	s := r.Shares(total)
	hi, lo := max(s[0], s[1], s[2]), min(s[0], s[1], s[2])
	switch {
	case lev <= 1:
		return hi
	case lev >= NumResources:
		return lo
	default:
		return max(min(s[0], s[1]), min(max(s[0], s[1]), s[2]))
	}
}

// Dominant returns the resource with the largest share of r in total; ties go to the first of CPU, Memory, IO.
func (r Resources) Dominant(total Resources) Resource {
	s := r.Shares(total)
	best := CPU
	for i := Memory; i <= IO; i++ {
		if s[i] > s[best] {
			best = i
		}
	}
	return best
}

// Check returns an error if r is not valid as a demand or a capacity: a part is negative or
// above MaxAmount. Zero parts are valid: they occupy nothing.
func (r Resources) Check() error {
	for i, v := range r {
		if v < 0 {
			return fmt.Errorf("%s is %d: it must not be negative", Resource(i), v)
		}
		if v > MaxAmount {
			return fmt.Errorf("%s is %d: at most %d can be counted", Resource(i), v, int64(MaxAmount))
		}
	}
	return nil
}

// String returns r in the form "cpu 500m memory 128MiB io 20MiB/s".
func (r Resources) String() string {
	return fmt.Sprintf("cpu %dm memory %s io %s/s", r[CPU], formatBytes(r[Memory]), formatBytes(r[IO]))
}

// formatBytes formats a number of bytes with the largest binary unit that divides it, so that no digit is lost.
func formatBytes(n int64) string {
	units := []string{"B", "KiB", "MiB", "GiB", "TiB"}
	u := 0
	for n != 0 && n%1024 == 0 && u < len(units)-1 {
		n /= 1024
		u++
	}
	return fmt.Sprintf("%d%s", n, units[u])
}
