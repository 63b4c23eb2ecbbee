package backfill

import (
	"github.com/drover-run/drover/internal/enum"
	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/timeline"
)

// The planner's terms for future free capacity.
type (
	Need    = timeline.Need
	Profile = timeline.Profile
	Spot    = timeline.Spot
)

// Variant is one of the four two-tier backfilling algorithms (Table 2).
type Variant uint8

const (
	Strict     Variant = iota + 1 // 2TSB: nothing planned is displaced (Alg. 1)
	Flexible                      // 2TFB: jobs move, departures do not (Alg. 2 with a slack factor of 0)
	FlexibleSF                    // 2TFB-SF: departures move within their slack (Alg. 2)
	Priority                      // 2TPB: high-priority projects displace low ones (Alg. 3)
)

// String returns the variant's name in the policy's parameter.
func (v Variant) String() string {
	return enum.Name("variant", v, []string{Strict: "2tsb", Flexible: "2tfb", FlexibleSF: "2tfb-sf", Priority: "2tpb"})
}

// NoLimit as Config.PreemptionLimit sets no limit.
const NoLimit = -1

// Config holds the parameters of a Planner.
type Config struct {
	Variant Variant
	// SlackFactor (the paper's SF) is at least 0: a project may depart later than first
	// planned by SlackFactor times its first turn-around time (eq. 7). Strict and
	// Flexible use 0.
	SlackFactor float64
	// PreemptionLimit (the paper's PL) is the number of projects whose departure the
	// placement of one job may delay, or NoLimit. Strict and Flexible use 0.
	PreemptionLimit int
	// MaxTries limits the backfill times tried for one job, 0 for no limit. A job that
	// exceeds it gets the earliest hole that displaces no other job.
	MaxTries int
}

// isFlexible reports whether tasks of a new project may take backfill times, which move
// reservations of others.
func (c *Config) isFlexible(pr *project) bool {
	return c.Variant == Flexible || c.Variant == FlexibleSF || (c.Variant == Priority && pr.HighPriority)
}

// computeGuarantee computes td and td + SF x tn (Alg. 2 lines 19-22, Alg. 3 lines 7-11;
// the printed td_d and tn_(u,v) are td_u and tn_u).
func (c *Config) computeGuarantee(pr *project) Guarantee {
	td := pr.departure()
	q := Guarantee{Departure: td, Latest: td}
	if pr.Deadline > 0 {
		q.Latest = max(td, pr.Deadline)
		return q
	}
	sf := c.SlackFactor
	if c.Variant == Priority && pr.HighPriority {
		sf = 0 // (1 - pi) x SF with pi = 1
	}
	q.Latest = scheduler.Never
	if slack := max(0, sf*float64(td.Sub(pr.Submitted))); slack < float64(scheduler.Never-td) {
		q.Latest = td + scheduler.Time(slack)
	}
	if pr.Limit > 0 && pr.Limit >= td {
		q.Latest = min(q.Latest, pr.Limit)
	}
	return q
}
